# SPDX-License-Identifier: Apache-2.0
"""Files of Paddle's profiler: real ones, drawn ones with a device, and damaged ones."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flat_trace import Flat, read_flat
from strobe.errors import FormatError
from strobe.importers import paddle, paddle_events
from strobe.importers.paddle_trace import EVENT_TYPES
from strobe.model.tables import CATEGORIES
from strobe.model.trace import Held

ROOT = Path(__file__).resolve().parent.parent.parent
DATA = Path(os.environ.get("STROBE_TEST_DATA", ROOT.parent / "shared" / "data")) / "paddle"
OPERATOR, KERNEL, USER, INNER, LAUNCH = 0, 4, 7, 8, 15

Value = int | str | bytes | list["Field"]
Field = tuple[int, Value]


def encode(fields: list[Field]) -> bytes:
    """Protobuf: numbers are varints, texts and lists of fields have a length."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value % (1 << 64))
        else:
            inner = encode(value) if isinstance(value, list) else value
            inner = inner.encode() if isinstance(inner, str) else inner
            out += varint(number << 3 | 2) + varint(len(inner)) + inner
    return out


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def node(
    number: int, parent: int, name: str, kind: int, start: int, end: int, *more: Field
) -> Field:
    event: list[Field] = [(1, name), (2, kind), (3, start), (4, end), (5, 70), (6, 71)]
    return (2, [(1, number), (2, parent), (3, event), *more])


def profile(*nodes: Field) -> list[Field]:
    root = node(0, -1, "root node", USER, 0, -1)
    return [(1, "1.0.2"), (2, 3), (3, [(1, 71), root, *nodes]), (4, [(1, "71"), (2, "main")])]


SHAPES: Field = (
    6,
    [
        (
            1,
            [
                (1, 5),
                (2, "matmul"),
                (5, [(1, "X"), (1, "Y"), (2, [(1, [(1, 2), (1, 3)])]), (2, [(1, [(1, b"\x03")])])]),
                (6, [(1, "X"), (2, [(1, "float32")])]),
                (7, "train.py:1"),
                (8, 9),
            ],
        )
    ],
)
MEMORY: Field = (
    5,
    [
        (
            1,
            [
                *((1, 12), (2, 1), (3, 4096), (4, 70), (5, 71), (6, -512), (7, "Place(gpu:1)")),
                *((8, 100), (9, 2048), (10, 700), (11, 2048)),
            ],
        )
    ],
)
KERNEL_INFO: Field = (9, [(1, 32), (4, 8), (9, 40)])
RUNTIME: Field = (
    4,
    [
        (1, [(1, "cudaLaunchKernel"), (2, 12), (3, 14), (4, 70), (5, 71), (6, 44), (7, 1)]),
        (
            2,
            [
                (
                    1,
                    [
                        *((1, "gemm"), (2, KERNEL), (3, 20), (4, 50), (5, 1), (6, 0), (7, 16)),
                        *((8, 44), KERNEL_INFO),
                    ],
                )
            ],
        ),
    ],
)
DRAWN = profile(
    node(1, 0, "matmul dygraph", OPERATOR, 10, 30, SHAPES, MEMORY),
    node(2, 1, "matmul kernel launch", LAUNCH, 11, 15, RUNTIME, SHAPES),
    node(3, 0, "from the future", 99, 40, 41),
)


def written(folder: Path, fields: list[Field]) -> Path:
    path = folder / "trace.pb"
    path.write_bytes(encode(fields))
    return path


def rows(events: Flat) -> list[tuple[str, str, int, int]]:
    return [
        (events.names[name], CATEGORIES[kind], start, dur)
        for name, kind, start, dur in zip(
            events.name, events.category, events.start_ns, events.dur_ns, strict=True
        )
    ]


def test_a_drawn_file(tmp_path: Path) -> None:
    trace = paddle.read_trace(written(tmp_path, DRAWN))
    events = Flat(paddle_events.to_trace(trace))

    assert rows(events) == [
        ("matmul dygraph", "operator", 10, 20),
        ("matmul kernel launch", "operator", 11, 4),
        ("from the future", "annotation", 40, 1),
        ("cudaLaunchKernel", "runtime", 12, 2),
        ("gemm", "kernel", 20, 30),
    ]
    assert events.correlation.tolist() == [-1, -1, -1, 44, 44]
    assert events.device.tolist() == [-1, -1, -1, -1, 1]
    assert events.stream.tolist() == [-1, -1, -1, -1, 16]
    told = events.told()
    assert told[0] == {
        "type": "Operator",
        "shapes": [[2, 3], [3]],
        "dtypes": ["float32"],
        "inputs": ["X", "Y"],
    }
    assert told[1]["type"] == "DygraphKernelLaunch"
    assert told[2] == {"type": "99"}
    assert events.allocations.bytes.tolist() == [-512]
    assert events.allocations.device.tolist() == [1]
    assert events.allocations.reserved_bytes.tolist() == [2048]
    assert events.thread_names == {(70, 71): "main"}
    assert trace.host.parent.tolist() == [-1, 0, -1, 1]
    assert trace.device.host.tolist() == [3]
    assert trace.device.details["block_x"].tolist() == [32]
    assert trace.device.details["grid_x"].tolist() == [8]
    assert trace.span_index == 3
    assert trace.names[trace.host.callstack[0]] == "train.py:1"
    assert trace.host.op_id.tolist() == [9, 9, 0, 0]
    assert events.held == [Held(pid=70, bytes=612, device=1)]


def test_a_program_on_other_threads_has_phases(tmp_path: Path) -> None:
    # Of the run 10-40, what begins before the first gradient is forward; 60-70 is inside a backward
    path = written(
        tmp_path,
        profile(
            node(1, 0, "StandaloneExecutor::run", USER, 10, 40),
            node(2, 0, "pd_op.matmul", OPERATOR, 11, 12),
            node(3, 0, "pd_op.matmul_grad", OPERATOR, 20, 22),
            node(4, 0, "pd_op.full", OPERATOR, 25, 26),
            node(5, 0, "pd_op.adam_", OPERATOR, 30, 33),
            node(6, 0, "Global_Dy2StGradNode", OPERATOR, 50, 80),
            node(7, 6, "interpreter_core_run", USER, 60, 70),
            node(8, 0, "pd_op.full", OPERATOR, 61, 62),
        ),
    )

    events = read_flat(paddle, path)

    told = events.told()
    assert [each.get("phase") for each in told] == [
        *(None, "forward", None, None, "optimizer", None, None, "backward"),
    ]
    assert [each.get("ends") for each in told] == ["step", *[None] * 7]
    backward = events.category == CATEGORIES.index("backward")
    assert np.flatnonzero(backward).tolist() == [2, 5]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param([], id="empty"),
        pytest.param([(1, "1.0.2")], id="no threads"),
        pytest.param([(1, "x" * 99), (3, [])], id="no version"),
        pytest.param(profile(node(1, 0, "back in time", USER, 20, 10)), id="ends before"),
        pytest.param(profile((2, b"\x0a\xff\xff\xff\xff\x7f")), id="a length of gigabytes"),
    ],
)
def test_what_is_none_is_refused(fields: list[Field], tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        read_flat(paddle, written(tmp_path, fields))


def test_a_json_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.pb"
    path.write_text('{"traceEvents": []}')

    with pytest.raises(FormatError):
        read_flat(paddle, path)


@given(
    changes=st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 99),
)
def test_damage_is_told_or_survived(
    changes: list[tuple[int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(encode(DRAWN))
    for place, byte in changes:
        content[place % len(content)] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.pb"
    path.write_bytes(content[: len(content) - (cut if cut < 20 else 0)])

    try:
        events = read_flat(paddle, path)
    except FormatError:
        return
    assert len(events.start_ns) == len(events.name) <= 20


def calls(*told: tuple[int, str, dict[str, list[list[int]]]]) -> bytes:
    """The file beside a trace: operators and inputs at their times in the thread 71."""
    objects = [{"op": op, "inputs": inputs, "attributes": {}} for _, op, inputs in told]
    lines = b"".join(json.dumps(each).encode() + b"\n" for each in objects)
    rows = b"".join(
        struct.pack("=QQQ", 71, time_ns, place) for place, (time_ns, _, _) in enumerate(told)
    )
    return lines + b"\n" + rows


# Times: a matmul in an operator, a gradient of two calls, and one that stands in none.
CALLED = profile(
    node(1, 0, "matmul dygraph", OPERATOR, 100, 200),
    node(2, 0, "Local_GradNode", INNER, 300, 500),
    node(3, 0, "backward", USER, 600, 700),
    node(4, 1, "matmul infer_meta", INNER, 120, 130),
    node(5, 1, "matmul kernel launch", LAUNCH, 140, 190),
    node(6, 2, "full kernel launch", LAUNCH, 320, 350),
    node(7, 2, "scale kernel launch", LAUNCH, 420, 450),
)
CALLS = calls(
    (110, "matmul", {"y": [[3, 4]], "x": [[2, 3]]}),
    (310, "full", {}),
    (410, "scale", {"x": [[5]]}),
    (650, "full", {}),
    (999, "add", {"x": [[1]]}),
)


def test_shapes_beside_a_trace_are_of_the_operator_around_and_its_launch(tmp_path: Path) -> None:
    path = written(tmp_path, CALLED)
    path.with_name(path.name + ".shapes").write_bytes(CALLS)

    events = read_flat(paddle, path)

    told = {
        events.names[name]: each.get("shapes")
        for name, each in zip(events.name, events.told(), strict=True)
    }
    assert told == {
        "matmul dygraph": [[2, 3], [3, 4]],
        "matmul infer_meta": None,
        "matmul kernel launch": [[2, 3], [3, 4]],
        "Local_GradNode": None,  # two were called
        "full kernel launch": [],
        "scale kernel launch": [[5]],
        "backward": None,  # no operator
    }


@given(
    changes=st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 99),
)
def test_damaged_shapes_are_told_or_survived(
    changes: list[tuple[int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(CALLS)
    for place, byte in changes:
        content[place % len(content)] = byte
    path = written(tmp_path_factory.getbasetemp(), CALLED)
    beside = path.with_name(path.name + ".shapes")
    beside.write_bytes(content[: len(content) - (cut if cut < 60 else 0)])

    with contextlib.suppress(FormatError):
        assert len(read_flat(paddle, path).name) == 7
    beside.unlink()


REAL = sorted(DATA.glob("*.pb"))


@pytest.mark.skipif(not REAL, reason=f"there are no files of Paddle in {DATA}")
def test_real_files_of_which_paddle_reads_one() -> None:
    for path in REAL:
        trace = paddle.read_trace(path)

        host = trace.host
        assert trace.version == "1.0.2"
        assert (host.end_ns >= host.start_ns).all()
        inner = host.parent >= 0
        above = host.parent[inner]
        assert (host.start_ns[above] <= host.start_ns[inner]).all()
        assert (host.end_ns[above] >= host.end_ns[inner]).all()


@pytest.mark.skipif(not REAL, reason=f"there are no files of Paddle in {DATA}")
def test_figures_known_of_real_files() -> None:
    (training,) = DATA.glob("host_app*.pb")
    (events_only,) = DATA.glob("record_events_only*.pb")

    kinds = Counter(paddle.read_trace(training).host.type.tolist())
    events = read_flat(paddle, events_only)

    # 4 steps, each with one layer, one backward and one step of the optimizer
    by_name = {EVENT_TYPES[kind]: n for kind, n in kinds.items()}
    assert by_name["ProfileStep"] == by_name["Forward"] == by_name["Backward"] == 4
    assert by_name["Optimization"] == 4
    assert by_name["DygraphKernelLaunch"] > 0
    assert Counter(events.names[code] for code in events.name) == {
        **{f"ProfileStep#{step}": 1 for step in range(4)},
        **{"outer": 3, "inner": 3},
    }
