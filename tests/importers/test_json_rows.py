# SPDX-License-Identifier: Apache-2.0
"""JSON read into columns, by the extension and by its twin; whole, cut and damaged."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.errors import FormatError
from strobe.importers import _json_python, json_rows
from strobe.importers.json_rows import JsonFile

TEXT = """ {"a": [1, {"b": []}], "v": "1.0", "rows": [
    {"name": "x [1] y[2.5 us]", "t": -1.25, "args": {"n": 7, "t": 3}},
    {},
    {"t": 1.5e3, "args": "none", "name": "\\u00e9\\"[", "more": [null, true, 1e-5]}
], "w": {"k": "v"} } """


@pytest.fixture(params=["_json", "_json_python"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    name = f"strobe.importers.{request.param}"
    module: ModuleType = pytest.importorskip(name, reason="it was not built")
    monkeypatch.setattr(json_rows, "native", module)
    return module


def read(text: bytes) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Return for each row what it has, and the file's own members."""
    file = JsonFile(Path("t.json"), io.BytesIO(text))
    keys = {"head": ("v", "w"), "outer": ("name", "t", "args"), "inner": ("n",)}
    rows: list[dict[str, Any]] = []
    for batch in file.batches("rows", **keys):
        code, texts = file.distinct(file.shorten(batch["name"]))
        numbers = file.numbers(batch["args.n"], absent=-1)
        times = file.numbers(batch["t"], 3, odd=lambda text: round(json.loads(text)))
        columns = {"name": [texts[each] for each in code], "n": numbers, "t": times}
        rows += [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
    return rows, file.head


def test_what_the_rows_have(reader: ModuleType) -> None:
    rows, head = read(TEXT.encode())

    assert rows == [
        {"name": b"x [1] y", "n": 7, "t": -1250},
        {"name": b"", "n": -1, "t": 0},
        {"name": b'\\u00e9\\"[', "n": -1, "t": 1500},
    ]
    assert head == {"v": b'"1.0"', "w": b'{"k": "v"}'}


def test_windows_may_end_anywhere(reader: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read(TEXT.encode())

    for size in (1, 2, 3, 7, 50):
        monkeypatch.setattr(json_rows, "_WINDOW_BYTES", size)
        monkeypatch.setattr(json_rows, "_ROWS_AT_ONCE", 1 + size % 3)
        assert read(TEXT.encode()) == expected


def test_a_file_that_is_cut_or_goes_on_is_refused(reader: ModuleType) -> None:
    text = TEXT.strip().encode()

    for length in range(len(text)):
        with pytest.raises(FormatError):
            read(text[:length])
    with pytest.raises(FormatError):
        read(text + b" 1")


@pytest.mark.parametrize(
    "row",
    [
        *("1", "[]", "{1: 2}", '{"a" 1}', '{"a": 1,}', '{"a": 01}', '{"a": +1}', '{"a": 1.}'),
        *('{"a": .5}', '{"a": NaN}', '{"a": "\\x"}', '{"a": "\\u12"}', '{"a": "\n"}', "{}{}"),
        *('{"name": 5}', '{"a": nul}', '{"a": [}', '{"a": ' + "[" * 200_000 + "}"),
    ],
)
def test_what_is_no_json_is_refused(reader: ModuleType, row: str) -> None:
    with pytest.raises(FormatError):
        read(b'{"rows": [%b]}' % row.encode())


def test_what_never_ends_is_refused_in_bounded_memory(
    reader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rows, "_MOST_BYTES", 1 << 12)
    endless = io.BytesIO(b'{"rows": [{"name": "' + b"x" * (1 << 22))
    monkeypatch.setattr(json_rows, "_WINDOW_BYTES", 1 << 8)

    with pytest.raises(FormatError):
        list(JsonFile(Path("t"), endless).batches("rows", head=(), outer=("name",), inner=()))

    assert endless.tell() < 1 << 16


json_texts = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner)
    ),
    max_leaves=12,
).map(lambda value: json.dumps(value, ensure_ascii=False).encode(errors="replace"))


@given(
    rows=st.lists(json_texts, max_size=4),
    damage=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2),
    places=st.integers(0, 3),
)
def test_the_extension_and_its_twin_agree(
    rows: list[bytes], damage: list[tuple[int, int]], places: int
) -> None:
    native = pytest.importorskip("strobe.importers._json", reason="it was not built")
    text = bytearray(b'{"a": 1, "r": [%b], "b": "x us"}' % b",".join(rows))
    for at, byte in damage:
        text[at % len(text)] = byte

    def answers(module: Any) -> list[Any]:
        begin, end = np.full((2, 3), -1)
        keys = b"abr", np.array([0, 1, 2, 3])
        found = [module.members(bytes(text), 0, *keys, begin, end)]
        cells = np.full((2, 3 * 5), -7)
        whole = 0
        if found[0][0] == 0 and found[0][2]:
            found.append(module.rows(bytes(text), found[0][1], *keys, 2, *cells))
            whole = found[1][3]
        starts = np.arange(len(text), dtype=np.int64)
        numbers, shown = np.empty((2, len(text)), np.int64)
        faults = [
            module.decimals(
                bytes(text), starts, np.minimum(starts + 3, len(text)), places, b"", numbers
            ),
            module.decimals(
                bytes(text), starts, np.minimum(starts + 6, len(text)), 0, b" us", shown
            ),
        ]
        # Where a fault is they need not agree, nor what they found of that object before it.
        cells = cells.reshape(2, 3, 5)[:, :, :whole]
        if found[0][0]:
            begin = end = np.zeros(0)
        found = [(fault, 0 if fault else at, *others) for fault, at, *others in found]
        return [found, faults, *(each.tolist() for each in (begin, end, cells, numbers, shown))]

    assert answers(native) == answers(_json_python)
