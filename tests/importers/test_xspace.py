# SPDX-License-Identifier: Apache-2.0
"""XSpaces written by hand: what JAX writes on this machine is in tests/frameworks/test_jax.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from strobe.errors import FormatError
from strobe.importers import xspace
from strobe.importers.events import Events
from strobe.model.tables import CATEGORIES


def varint(number: int) -> bytes:
    number %= 1 << 64
    low, high = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(high) if high else bytes([low])


def field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def stat(name: int, value: int | str) -> bytes:
    return field(1, name) + field(4 if isinstance(value, int) else 5, value)


def event(name: int, start_ps: int, dur_ps: int, *stats: bytes) -> bytes:
    own = b"".join(field(4, each) for each in stats)
    return field(1, name) + field(2, start_ps) + field(3, dur_ps) + own


def line(number: int, name: str, begin_ns: int, *events: bytes) -> bytes:
    head = field(1, number) + field(2, name) + field(3, begin_ns)
    return head + b"".join(field(4, each) for each in events)


def plane(name: str, lines: list[bytes], names: list[str], stats: list[str]) -> bytes:
    """A plane whose names and statistics are numbered from 1."""
    parts = [field(2, name), *(field(3, each) for each in lines)]
    for place, texts in ((4, names), (5, stats)):
        for number, text in enumerate(texts, 1):
            metadata = field(1, number) + field(2, text)
            parts.append(field(place, field(1, number) + field(2, metadata)))
    return b"".join(parts)


def read(path: Path, *planes: bytes) -> Events:
    path.write_bytes(b"".join(field(1, each) for each in planes))
    return xspace.read(path)


def rows(events: Events) -> list[dict[str, Any]]:
    return [
        {
            "name": events.names[events.name[row]],
            "category": CATEGORIES[events.category[row]],
            "start_ns": int(events.start_ns[row]),
            "dur_ns": int(events.dur_ns[row]),
            "device": int(events.device[row]),
            "stream": int(events.stream[row]),
            "correlation": int(events.correlation[row]),
            "attributes": json.loads(events.texts[events.attributes[row]])
            if events.attributes[row] >= 0
            else {},
        }
        for row in range(len(events.name))
    ]


GPU = plane(
    "/device:GPU:1",
    [
        line(
            7,
            "Stream #13(Compute)",
            1000,
            event(1, 2_500, 1_499, stat(1, "dot.3"), stat(2, 77)),
            event(2, 9_000, 2_000, stat(2, 78)),
        ),
        line(8, "XLA Modules", 1000, event(3, 0, 9_000)),
    ],
    ["gemm_kernel", "MemcpyD2H", "jit_step"],
    ["hlo_op", "correlation_id"],
)


def test_kernels_and_copies_of_a_device(tmp_path: Path) -> None:
    events = read(tmp_path / "trace", GPU)

    # 1000 + 2.5 = 1002.5 ns to 1003.999: whole nanoseconds, as are begun.
    common = {"device": 1, "stream": 13}
    assert rows(events) == [
        {
            **common,
            "name": "gemm_kernel",
            "category": "kernel",
            "start_ns": 1002,
            "dur_ns": 1,
            "correlation": 77,
            "attributes": {"hlo_op": "dot.3"},
        },
        {
            **common,
            "name": "MemcpyD2H",
            "category": "copy",
            "start_ns": 1009,
            "dur_ns": 2,
            "correlation": 78,
            "attributes": {},
        },
    ]
    assert events.skipped == {"XLA Modules": 1}


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_what_the_runtime_does_is_told_from_what_the_user_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    #  train ------------------------------------
    #    load ----   PjitFunction(f) ---------
    #                   something ---   dot --
    host = plane(
        "/host:CPU",
        [
            line(
                1 << 40 | 5,
                "python",
                0,
                event(1, 0, 100_000, stat(1, 1), stat(2, 3)),
                event(2, 5_000, 20_000),
                event(3, 40_000, 50_000),
                event(4, 45_000, 10_000),
                event(5, 70_000, 9_000, stat(3, "dot"), stat(4, -3)),
                event(6, 79_000, 1_000),
            ),
            line(9, "tf_xla-cpu-codegen/9", 0, event(4, 0, 1_000)),
            line(10, "tf_XLAPjRtCpuClient/10", 0, event(4, 0, 1_000)),
        ],
        ["train", "load", "PjitFunction(f)", "something", "dot", "end: dot"],
        ["_r", "step_num", "hlo_op", "run_id"],
    )

    monkeypatch.setattr(xspace, "_EVENTS_AT_ONCE", at_once)
    events = read(tmp_path / "trace", host)

    assert [(row["name"], row["category"]) for row in rows(events)] == [
        ("train", "annotation"),
        ("load", "annotation"),
        ("PjitFunction(f)", "runtime"),
        ("something", "runtime"),
        ("dot", "operator"),
        ("something", "compile"),
        ("something", "runtime"),
    ]
    assert rows(events)[0]["attributes"] == {"step_num": 3}
    # The operator's statistic says it by a text here, not by a reference: it is kept.
    assert rows(events)[4]["attributes"] == {"hlo_op": "dot", "run_id": -3}
    assert events.threads == {
        (-1, 1 << 30 | 5): "python",
        (-1, 1 << 30 | 9): "tf_xla-cpu-codegen",
        (-1, 1 << 30 | 10): "tf_XLAPjRtCpuClient",
    }
    assert events.skipped == {"end:": 1}


def test_numbers_texts_and_references_are_values(tmp_path: Path) -> None:
    values = [
        field(1, 1) + b"\x11" + bytes.fromhex("000000000000e03f"),  # double 0.5
        field(1, 2) + field(3, (1 << 64) - 1),
        field(1, 3) + field(7, 1),
        field(1, 4) + field(6, b"\x00\xff"),
        field(1, 5) + b"\x11" + bytes.fromhex("000000000000f07f"),  # double infinity
    ]
    host = plane(
        "/host:CPU",
        [line(1, "python", 0, event(1, 0, 1_000, *values))],
        ["mine"],
        ["half", "big", "same", "blob", "most"],
    )

    (row,) = rows(read(tmp_path / "trace", host))

    told = {"half": 0.5, "big": (1 << 64) - 1, "same": "half", "most": "inf"}
    assert row["attributes"] == told


def test_operators_are_given_what_their_program_says(tmp_path: Path) -> None:
    def shape(kind: int, *sizes: int) -> bytes:
        return field(2, kind) + b"".join(field(3, size) for size in sizes)

    def instruction(number: int, name: str, shape: bytes, *operands: int) -> bytes:
        own = b"".join(field(36, each) for each in operands)
        traced = field(7, field(2, f"jit(f)/{name}"))
        return field(1, name) + field(3, shape) + traced + field(35, number) + own

    computation = b"".join(
        field(2, each)
        for each in (
            instruction(1 << 32, "x", shape(11, 2, 3)),
            instruction(2, "y", shape(16, 3, 4)),
            instruction(3, "dot", shape(11, 2, 4), 1 << 32, 2),
        )
    )
    module = field(1, field(1, "jit_f") + field(3, computation))
    program = field(2, "jit_f(9)") + b"".join(
        field(5, each) for each in (field(1, 1) + field(6, module), field(1, 2) + field(3, 9))
    )
    programs = field(2, "/host:metadata") + b"".join(
        [
            field(4, field(1, 1) + field(2, program)),
            *(
                field(5, field(1, number) + field(2, field(1, number) + field(2, name)))
                for number, name in ((1, "Hlo Proto"), (2, "program_id"))
            ),
        ]
    )
    host = plane(
        "/host:CPU",
        [line(1, "tf_XLA", 0, event(1, 0, 9, stat(1, "dot"), stat(2, 9)), event(1, 9, 9))],
        ["dot"],
        ["hlo_op", "program_id"],
    )

    first, second = rows(read(tmp_path / "trace", host, programs))

    assert first["attributes"] == {
        "hlo_op": "dot",
        "program_id": 9,
        "shapes": [[2, 3], [3, 4]],
        "dtypes": ["float32", "bfloat16"],
        "op_name": "jit(f)/dot",
    }
    assert second["attributes"] == {}


def test_an_empty_trace_has_no_events(tmp_path: Path) -> None:
    assert rows(read(tmp_path / "trace", plane("/host:CPU", [], [], []))) == []


def test_every_cut_and_every_changed_byte_is_read_or_told(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    whole = field(1, GPU)
    cuts = [whole[:length] for length in range(len(whole))]  # of the one plane: all are damaged
    changes = [whole[:at] + b"\xff" + whole[at + 1 :] for at in range(len(whole))]

    told = 0
    for data in cuts + changes:
        path.write_bytes(data)
        try:
            xspace.read(path)
        except FormatError:
            told += 1

    assert told >= len(cuts)


def test_an_event_without_a_name_is_told(tmp_path: Path) -> None:
    host = plane("/host:CPU", [line(1, "python", 0, event(2, 0, 1))], ["mine"], [])

    with pytest.raises(FormatError, match="an event without a name"):
        read(tmp_path / "trace", host)
