# SPDX-License-Identifier: Apache-2.0
"""Paddle's JSON as Paddle writes it, by hand and by the real thing; and damaged ones."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strobe.paddle as profiler
from strobe.errors import FormatError
from strobe.importers import paddle_json
from strobe.importers.paddle_trace import PaddleTrace

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "paddle"
REAL = sorted([*DATA.glob("*.json"), *DATA.glob("*.pb")])


def event(name: str, kind: str, start: float, end: float, tid: Any, **more: Any) -> dict[str, Any]:
    """An event as Paddle writes it: `ts` cut to microseconds of the wall clock."""
    return {
        "name": f"{name}[{end - start:.3f} us]",
        "pid": 5,
        "tid": tid,
        "ts": 1_700_000_000_000_000 + int(start),
        "dur": end - start,
        "ph": "X",
        "cat": kind,
        "args": {"start_time": f"{start:.3f} us", "end_time": f"{end:.3f} us", **more},
    }


def trace(*events: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"schemaVersion": "1.0.2", "span_indx": "2", "traceEvents": [*events, {}], **more}


def read(path: Path, content: Any) -> PaddleTrace:
    path.write_text(json.dumps(content))
    return paddle_json.read_trace(path)


BASE_NS = 1_700_000_000_000_000_000
STEP = event("ProfileStep#3", "ProfileStep", 0, 50.5, "7(Python)")


def test_what_a_trace_holds(tmp_path: Path) -> None:
    found = read(
        tmp_path / "t.json",
        trace(
            STEP,
            event("a [b] c", "Operator", 10.25, 40.75, "7(C++)", input_shapes={"X": [[2, 3]]}),
            event("cudaLaunch", "CudaRuntime", 12, 13, "7(C++)", **{"correlation id": 9}),
            event("gemm", "Kernel", 20, 30, 2, **{"correlation id": 9, "grid": [4, 5, 6]}),
            {
                **{"name": "[memory]", "pid": 5, "tid": "7(C++)", "ph": "i", "cat": "Allocate"},
                "ts": 1_700_000_000_000_011,
                "args": {"place": "Place(cpu)", "addr": "255", "increase_bytes": 64},
            },
            {"name": "process_name", "ph": "M", "pid": 5, "tid": 7, "args": {"name": "x"}},
            ExtraInfo={"7": "MainThread"},
        ),
    )

    host, names = found.host, found.names
    assert [names[code] for code in host.name] == ["ProfileStep#3", "a [b] c", "cudaLaunch"]
    assert (host.start_ns - BASE_NS).tolist() == [0, 10_250, 12_000]
    assert (host.end_ns - BASE_NS).tolist() == [50_500, 40_750, 13_000]
    assert host.parent.tolist() == [-1, 0, 1]
    assert found.inputs == [{"shapes": {"X": [[2, 3]]}, "dtypes": {}}]
    assert found.device.host.tolist() == [2]
    assert [found.device.details[f"grid_{axis}"][0] for axis in "xyz"] == [4, 5, 6]
    assert (found.memory.address[0], found.memory.bytes[0]) == (255, 64)
    assert found.memory.host.tolist() == [1]
    assert (found.span_index, found.extra_info) == (2, {"7": "MainThread"})


def test_long_traces_have_times_and_nesting_of_different_fields(tmp_path: Path) -> None:
    # 20 s after the first event, where a float of 32 bits has steps of 2 us
    late = 20_000_000.0
    outer = event("outer", "Operator", late + 0.9, late + 3.0, "7(C++)")
    inner = event("inner", "OperatorInner", late + 1.9, late + 3.0, "7(C++)")
    for each in (outer, inner):
        each["args"] = {"start_time": f"{late:.3f} us", "end_time": f"{late + 4:.3f} us"}

    found = read(tmp_path / "t.json", trace(STEP, outer, inner))

    host = found.host
    assert (host.end_ns - host.start_ns).tolist() == [50_500, 2_100, 1_100]
    assert host.parent.tolist() == [-1, -1, 1]


@pytest.mark.parametrize(
    "content",
    [
        [],
        {"traceEvents": []},
        {"schemaVersion": "1.0.2"},
        trace({**STEP, "cat": "Nonsense"}),
        trace({**STEP, "dur": -1}),
        trace({**STEP, "ts": -1e300}),
        trace({**STEP, "ts": 1e300}),
        trace({**STEP, "tid": "main"}),
        trace({**STEP, "tid": 10**40}),
        trace({**STEP, "args": {"start_time": "soon", "end_time": "later"}}),
        trace({**STEP, "args": {"start_time": 3}}),
        trace({**STEP, "cat": "CudaRuntime", "args": {"correlation id": 10**40}}),
        trace(STEP, span_indx="many"),
    ],
)
def test_traces_that_cannot_be(content: Any, tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        read(tmp_path / "t.json", content)


def test_a_hostile_file_is_refused_at_once(tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_bytes(b'{"schemaVersion":"1","traceEvents":[{"args":' + b'{"a":' * 1_000_000)
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps(trace(*[STEP] * 1000))[:-20])

    for path in (deep, cut):
        with pytest.raises(FormatError):
            profiler.load_profiler_result(path)


def test_overlapping_events_are_nobodys_parents(tmp_path: Path) -> None:
    rows = [("a", 0, 10), ("b", 5, 15), ("c", 6, 9), ("d", 6, 9)]
    events = [event(name, "Operator", low, high, "1(C++)") for name, low, high in rows]

    host = read(tmp_path / "t.json", trace(*events)).host

    assert host.parent.tolist() == [-1, -1, 1, 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(seed=st.integers(0, 2**32), damage=st.integers(1, 12))
@pytest.mark.again
def test_a_damaged_file_is_read_or_refused(seed: int, damage: int, tmp_path: Path) -> None:
    source = random.Random(seed)
    content = bytearray(json.dumps(trace(STEP, STEP, STEP)).encode())
    for _ in range(damage):
        content[source.randrange(len(content))] = source.randrange(256)
    path = tmp_path / "t.json"
    path.write_bytes(content)

    try:
        found = paddle_json.read_trace(path)
    except FormatError:
        return
    assert len(found.host.name) <= 3


@pytest.mark.skipif(not REAL, reason=f"there are no files of Paddle in {DATA}")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_files_have_trees(path: Path) -> None:
    result = profiler.load_profiler_result(path)

    waiting = list(result.get_data().values())
    kinds: Counter[str] = Counter()
    blocks = 0
    while waiting:
        node = waiting.pop()
        blocks += len(node.mem_node)
        for child in node.children_node:
            assert node.start_ns <= child.start_ns <= child.end_ns <= node.end_ns
            kinds[child.type.name] += 1
            waiting.append(child)
    assert result.get_version() == "1.0.2"
    assert kinds["ProfileStep"] >= 2
    assert kinds["ProfileStep"] == result.recording.steps().collect().height
    # What was in use before is a row of its own, of no thread.
    assert blocks == result.recording.allocations().collect()["lane"].count()


@pytest.mark.skipif(not REAL, reason=f"there are no files of Paddle in {DATA}")
def test_known_figures_of_real_files() -> None:
    (path,) = DATA.glob("memory.paddle_trace.json")
    told = json.loads(path.read_text())["traceEvents"]

    result = profiler.load_profiler_result(path)

    expected = Counter(each["cat"] for each in told if each.get("ph") == "X")
    tables = result.summary()
    found = {row["type"]: row["calls"] for row in tables.overview.to_dicts()}
    assert found == expected
    grown = sum(
        each["args"]["increase_bytes"] for each in told if each.get("cat") in ("Allocate", "Free")
    )
    allocated = tables.memory.filter(type="Allocated")
    assert allocated["increased_bytes"].sum() == grown
