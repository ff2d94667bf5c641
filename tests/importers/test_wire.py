# SPDX-License-Identifier: Apache-2.0
"""Protobuf messages as columns: documented encodings, damage, and the C beside the Python."""

import importlib
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.errors import FormatError
from strobe.importers import _wire_python, wire
from strobe.importers.wire import Kind, Ranges, WireFile

Make = Callable[[str], WireFile]
ALL: list[tuple[int, Kind]] = [
    *((1, "varint"), (1, "zigzag"), (1, "fixed32"), (1, "fixed64"), (1, "double")),
    *((1, "bytes"), (1, "count"), (2, "varint"), (2, "bytes")),
]


@pytest.fixture(params=["_wire", "_wire_python"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """What makes a file of hexadecimal text, to be read by the C or by the Python."""
    module = f"strobe.importers.{request.param}"
    try:
        monkeypatch.setattr(wire, "native", importlib.import_module(module))
    except ImportError:
        pytest.skip(f"{module} was not built")

    def write(text: str) -> WireFile:
        path = tmp_path / "messages"
        path.write_bytes(bytes.fromhex(text))
        return WireFile(path)

    return write


def test_the_examples_of_the_specification(make: Make) -> None:
    # protobuf.dev/programming-guides/encoding: `a: 150`, `b: "testing"`, and `c { a: 150 }`
    file = make("089601 120774657374696e67 1a03089601")

    a, b = file.columns(file.whole, [(1, "varint"), (2, "bytes")])
    inner = file.find(file.whole, 3)
    (inner_a,) = file.columns(inner.ranges, [(1, "varint")])

    assert (a.tolist(), file.texts(b)) == ([150], ["testing"])
    assert (inner.parent.tolist(), inner_a.tolist()) == ([0], [150])


def test_each_kind_of_number(make: Make) -> None:
    half, third = struct.pack("<f", 0.5).hex(), struct.pack("<d", 1 / 3).hex()
    file = make(f"08ffffffffffffffffff01 1003 1d{half} 21{third} 2dffffffff 31feffffffffffffff")

    found = file.columns(
        file.whole,
        [(1, "varint"), (2, "zigzag"), (3, "float"), (4, "double"), (5, "fixed32"), (6, "fixed64")],
    )

    assert [column.item() for column in found] == [-1, -2, 0.5, 1 / 3, (1 << 32) - 1, -2]


def test_absent_is_zero_or_no_range_and_count_tells_them_apart(make: Make) -> None:
    file = make("0a00 0a020800 0a0408010802")  # {}, {1: 0}, {1: 1, 1: 2}

    rows = file.find(file.whole, 1).ranges
    value, count, text = file.columns(rows, [(1, "varint"), (1, "count"), (2, "bytes")])

    assert (value.tolist(), count.tolist()) == ([0, 0, 2], [0, 1, 2])
    assert (text.begin.tolist(), file.texts(text)) == ([-1, -1, -1], ["", "", ""])


def test_a_field_of_another_type_is_another_field(make: Make) -> None:
    file = make("0801 0a0141")

    value, text = file.columns(file.whole, [(1, "varint"), (1, "bytes")])

    assert (value.tolist(), file.texts(text)) == ([1], ["A"])


def test_repeated_numbers_are_read_packed_or_not(make: Make) -> None:
    file = make("0a0408010803 0a050a03018e02 0a00")  # [1, 3], [1, 270], []

    rows = file.find(file.whole, 1).ranges
    parent, value = file.numbers(rows, 1)

    assert (parent.tolist(), value.tolist()) == ([0, 0, 1, 1], [1, 3, 1, 270])


def test_texts_that_are_not_utf8_are_read_nevertheless(make: Make) -> None:
    file = make("0a02c341")

    assert file.texts(file.find(file.whole, 1).ranges) == ["�A"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("08", "byte 0: cut off"),
        ("0801 0880", "byte 2: cut off"),
        ("09000000", "byte 0: cut off"),
        ("0d0000", "byte 0: cut off"),
        ("08ffffffffffffffffffff01", "byte 0: a number of more than 10 bytes"),
        ("0001", "byte 0: a field with number 0"),
        ("0b0c", "byte 0: a field of a type that is not known"),
        ("0801 0f", "byte 2: a field of a type that is not known"),
        ("0a0541", "byte 0: a length that leads beyond the end of its message"),
        ("0affffffffffffffffff01", "byte 0: a length that leads beyond the end of its message"),
    ],
)
def test_damage_is_told(make: Make, text: str, message: str) -> None:
    file = make(text)

    for read in (
        lambda: file.find(file.whole, 1),
        lambda: file.numbers(file.whole, 1),
        lambda: file.columns(file.whole, ALL),
    ):
        with pytest.raises(FormatError, match=message):
            read()


def test_a_range_outside_of_the_file_is_told(make: Make) -> None:
    file = make("0801")

    for begin, end in ((-1, 1), (0, 3), (2, 1)):
        with pytest.raises(FormatError, match="message 0: a range outside of the file"):
            file.find(Ranges(np.array([begin]), np.array([end])), 1)


def test_the_extension_refuses_arrays_that_do_not_fit() -> None:
    native = pytest.importorskip("strobe.importers._wire", reason="it was not built")
    one, two, small = np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1, np.int32)

    for call in (
        lambda: native.find(b"", one, two, 1, one.copy(), one.copy(), one.copy()),
        lambda: native.find(b"", one, one, 1, one.copy(), two, one.copy()),
        lambda: native.numbers(b"", one, one, 1, one.copy(), small),
        lambda: native.columns(b"", one, one, two, two, one.copy()),
        lambda: native.number(b"", one, one, one.copy(), one.copy(), one.copy()),
        lambda: native.number(b"", one, one, np.zeros(3, np.int64), one.copy(), one.copy()),
    ):
        with pytest.raises(ValueError, match=r"arrays|must have"):
            call()


@st.composite
def messages(draw: st.DrawFn, depth: int = 2) -> bytes:
    """Messages as they are written, most of them whole."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        number, kind = draw(st.integers(1, 3)), draw(st.sampled_from([0, 1, 2, 2, 5]))
        parts.append(bytes([number << 3 | kind]))
        if kind == 0:
            parts.append(draw(st.sampled_from([b"\0", b"\x96\x01", b"\xff" * 9 + b"\1"])))
        elif kind == 2:
            inner = draw(messages(depth - 1)) if depth else draw(st.binary(max_size=5))
            parts.append(bytes([min(len(inner), 127)]) + inner[:127])
        else:
            parts.append(draw(st.binary(min_size=8, max_size=8))[: 8 if kind == 1 else 4])
    whole = b"".join(parts)
    return whole[: draw(st.integers(0, len(whole)))] if draw(st.integers(0, 4)) == 0 else whole


@given(data=st.one_of(messages(), st.binary(max_size=40)), number=st.integers(1, 3))
def test_the_extension_and_its_twin_agree(data: bytes, number: int) -> None:
    native = pytest.importorskip("strobe.importers._wire", reason="it was not built")
    # Also of pieces that overlap or are none.
    begin = np.array([0, 0, 1, 3], np.int64)
    end = np.array([len(data), 0, len(data), min(len(data), 9)], np.int64)
    numbers = np.array([number] * 9, np.int64)

    def answers(module: object) -> list[object]:
        three = [np.full(9, 7, np.int64) for _ in range(3)]
        two = [np.full(9, 7, np.int64) for _ in range(2)]
        cells = np.full(9 * 4, 7, np.int64)
        table, first, code = np.empty(8, np.int64), *np.full((2, 4), 7, np.int64)
        outcomes = [
            module.find(data, begin, end, number, *three),  # type: ignore[attr-defined]
            module.numbers(data, begin, end, number, *two),  # type: ignore[attr-defined]
            module.columns(data, begin, end, numbers, np.arange(9), cells),  # type: ignore[attr-defined]
            module.number(data, begin, end, table, first, code),  # type: ignore[attr-defined]
        ]
        arrays = [array.tolist() for array in (*three, *two, cells, first, code)]
        return [outcomes, arrays]

    assert answers(native) == answers(_wire_python)
