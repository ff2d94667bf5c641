# SPDX-License-Identifier: Apache-2.0
"""XSpaces written by hand: what JAX writes on this machine is in tests/frameworks/test_jax.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flat_trace import Flat, read_flat
from strobe.errors import FormatError
from strobe.importers import xspace
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


def read(path: Path, *planes: bytes) -> Flat:
    path.write_bytes(b"".join(field(1, each) for each in planes))
    return read_flat(xspace, path)


def rows(events: Flat) -> list[dict[str, Any]]:
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


def test_programs_that_a_cpu_had_not_ended_are_told(tmp_path: Path) -> None:
    asked = "CommonPjRtLoadedExecutable::ExecutePrepare"
    ended = "ThunkExecutor::Execute (wait for completion)"
    events = [event(1, 0, 10), event(1, 20, 10), event(2, 30, 10)]
    host = plane("/host:CPU", [line(7, "python", 1000, *events)], [asked, ended], [])

    told = (
        "XLA tells the end of 1 of 2 programs that it was given: of the others operators may be "
        "missing",
    )
    assert read(tmp_path / "host alone", host).notes == told
    # A device's programs have no such mark.
    assert read(tmp_path / "with a device", host, GPU).notes == ()


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
    assert events.thread_names == {
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


def shape(kind: int, *sizes: int) -> bytes:
    return field(2, kind) + b"".join(field(3, size) for size in sizes)


def instruction(
    number: int, name: str, shape: bytes, *operands: int, origin: str = "", more: bytes = b""
) -> bytes:
    """An instruction whose opcode is its name."""
    own = b"".join(field(36, each) for each in operands)
    traced = field(7, field(2, origin)) if origin else b""
    return (
        field(1, name) + field(2, name) + field(3, shape) + traced + field(35, number) + own + more
    )


def programs(*computations: list[bytes]) -> bytes:
    """The plane with the program 9, whose computations are numbered from 1."""
    whole = b"".join(
        field(3, field(5, number) + b"".join(field(2, each) for each in instructions))
        for number, instructions in enumerate(computations, 1)
    )
    module = field(1, field(1, "jit_f") + whole)
    program = field(2, "jit_f(9)") + b"".join(
        field(5, each) for each in (field(1, 1) + field(6, module), field(1, 2) + field(3, 9))
    )
    return field(2, "/host:metadata") + b"".join(
        [
            field(4, field(1, 1) + field(2, program)),
            *(
                field(5, field(1, number) + field(2, field(1, number) + field(2, name)))
                for number, name in ((1, "Hlo Proto"), (2, "program_id"))
            ),
        ]
    )


def run_of(*names: str) -> bytes:
    """The plane with one run of these operators of program 9."""
    events = [
        event(row, row * 9, 9, stat(1, name), stat(2, 9)) for row, name in enumerate(names, 1)
    ]
    return plane("/host:CPU", [line(1, "tf_XLA", 0, *events)], [*names], ["hlo_op", "program_id"])


def test_operators_are_given_what_their_program_says(tmp_path: Path) -> None:
    program = programs(
        [
            instruction(1 << 32, "x", shape(11, 2, 3)),
            instruction(2, "y", shape(16, 3, 4)),
            instruction(3, "dot", shape(11, 2, 4), 1 << 32, 2, origin="jit(f)/dot"),
        ]
    )

    first, second = rows(read(tmp_path / "trace", run_of("dot", "other"), program))

    assert first["attributes"] == {
        "hlo_op": "dot",
        "program_id": 9,
        "shapes": [[2, 3], [3, 4]],
        "dtypes": ["float32", "bfloat16"],
        "op_name": "jit(f)/dot",
    }
    assert second["attributes"] == {"hlo_op": "other", "program_id": 9}
    without = read_flat(xspace, tmp_path / "trace", shapes=False)
    assert rows(without)[0]["attributes"] == {"hlo_op": "dot", "program_id": 9}


def test_phases_are_those_that_gradients_were_traced_for(tmp_path: Path) -> None:
    """An operator with all that it calls: computed again in the backward is backward."""
    origins = {
        "sine": ["jit(f)/jvp()/sin"],
        "cosine": ["jit(f)/transpose(jvp())/mul", "jit(f)/jvp()/cos"],
        "update": ["jit(f)/sub"],
        "mixed": ["jit(f)/transpose(jvp())/mul", "jit(f)/sub"],
        "plain": [""],
        "moved": ["jit(f)/jvp()/sin"],
    }
    inner = [
        [
            instruction(row * 10 + at, "mul", shape(11), origin=each)
            for at, each in enumerate(traced)
        ]
        for row, traced in enumerate(origins.values())
    ]
    inner[-1].append(instruction(99, "broadcast", shape(11), origin="jit(f)"))
    calling = [
        instruction(100 + row, name, shape(11), more=field(38, row))
        for row, name in enumerate(origins, 1)
    ]
    program = programs(*inner, calling)

    found = read(tmp_path / "trace", run_of(*origins), program).told()

    phases = {told["hlo_op"]: told.get("phase") for told in found}
    told = {"sine": "forward", "cosine": "backward", "moved": "forward"}
    assert phases == {**dict.fromkeys(origins), **told}


LIST = b"".join(field(1, field(1, a) + field(1, b)) for a, b in ((0, 1), (2, 3)))
IOTA = field(1, 2) + field(2, 2) + field(3, 2) + field(3, 2)
AXES = b"".join(field(1, field(1, name) + field(2, 2)) for name in "dm")
TURNED = b"".join([field(1, 2), field(1, 2), field(2, 1), field(2, 0)])  # devices 0, 2, 1, 3
MESH, MOVED = field(1, AXES), field(1, AXES + field(3, TURNED))
LARGE = field(1, 1 << 40) + field(2, 2) + field(3, 1 << 41)


@pytest.mark.parametrize(
    ("more", "groups"),
    [
        pytest.param(field(49, field(1, 2) + field(1, 0)), [[2, 0]], id="one group"),
        pytest.param(field(87, LIST), [[0, 1], [2, 3]], id="a list"),
        pytest.param(field(92, IOTA), [[0, 1], [2, 3]], id="in order"),
        pytest.param(
            field(87, field(2, IOTA + field(4, 1) + field(4, 0))), [[0, 2], [1, 3]], id="transposed"
        ),
        pytest.param(field(93, MESH + field(2, field(1, 1))), [[0, 1], [2, 3]], id="the last axis"),
        pytest.param(field(93, MESH + field(2, b"")), [[0, 2], [1, 3]], id="the first axis"),
        pytest.param(field(93, MOVED + field(2, b"")), [[0, 1], [2, 3]], id="moved devices"),
        pytest.param(field(93, MESH + field(2, field(2, b""))), None, id="a part of an axis"),
        pytest.param(field(93, MESH + field(2, field(1, 7))), None, id="no such axis"),
        pytest.param(field(92, LARGE), None, id="too many"),
        pytest.param(field(92, field(1, 1) + field(2, 1)), None, id="no dimensions"),
        pytest.param(b"", None, id="not told"),
    ],
)
def test_which_devices_exchange_with_which(
    tmp_path: Path, more: bytes, groups: list[list[int]] | None
) -> None:
    given = instruction(1, "x", shape(11, 4))
    program = programs([given, instruction(2, "all-reduce", shape(11, 4), 1, more=more)])

    read(tmp_path / "trace", run_of("all-reduce"), program)
    (row,) = rows(read_flat(xspace, tmp_path / "trace", shapes=False))

    told = row["attributes"]
    assert told.get("replica_groups") == groups
    assert told.get("group_size") == (len(groups[0]) if groups else None)
    assert (told["shapes"], told["dtypes"], told["rendezvous_wait_ns"]) == ([[4]], ["float32"], 0)


def test_an_empty_trace_has_no_events(tmp_path: Path) -> None:
    assert rows(read(tmp_path / "trace", plane("/host:CPU", [], [], []))) == []


def test_every_cut_and_every_changed_byte_is_read_or_told(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    reduction = instruction(2, "all-reduce", shape(11, 4), 1, more=field(92, IOTA))
    program = programs([instruction(1, "x", shape(11, 4)), reduction])
    whole = field(1, GPU) + field(1, run_of("all-reduce")) + field(1, program)
    cuts = [whole[:length] for length in range(len(field(1, GPU)))]  # of the one plane: all damaged
    changes = [whole[:at] + b"\xff" + whole[at + 1 :] for at in range(len(whole))]

    told = 0
    for data in cuts + changes:
        path.write_bytes(data)
        try:
            read_flat(xspace, path)
        except FormatError:
            told += 1

    assert told >= len(cuts)


def test_an_event_without_a_name_is_told(tmp_path: Path) -> None:
    host = plane("/host:CPU", [line(1, "python", 0, event(2, 0, 1))], ["mine"], [])

    with pytest.raises(FormatError, match="an event without a name"):
        read(tmp_path / "trace", host)
