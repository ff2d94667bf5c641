# SPDX-License-Identifier: Apache-2.0
"""Traces of frameworks that lie in a log, laid on the clock of the records."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strobe.finalize.foreign import Foreign, read_foreign
from strobe.model.trace import Allocations, Spans, Thread, Trace, concatenate
from strobe.record.source import announce_held, announce_trace
from strobe.store.manifest import Anchor, Manifest

START_NS, STOP_NS = 5_000_000, 6_000_000
MANIFEST = Manifest(
    id="0123456789abcdef",
    name="run",
    strobe="0",
    recorder="C",
    host="host",
    boot="",
    pid=7,
    process_start=2,
    log="log",
    start=Anchor(clock_ns=50, monotonic_ns=START_NS, wall_ns=0),
    stop=Anchor(clock_ns=60, monotonic_ns=STOP_NS, wall_ns=0),
)
PROCESS = "host-7-2-3"
MARK = "strobe anchor"
MARKS_US = (1, 2, 901, 902)


def event(name: str, ts: float, dur: float = 1, tid: int = 71, **more: Any) -> dict[str, Any]:
    """A span as Kineto writes it, in microseconds."""
    row = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 70, "tid": tid, "ts": ts, "dur": dur}
    return {**row, **more}


MARKS = [event(MARK, ts, cat="user_annotation") for ts in MARKS_US]


def anchored(ahead_ns: int, width_ns: int = 0) -> list[tuple[int, int]]:
    """Times before and after each mark by a clock that is so far ahead of the trace's."""
    times = [round(ts * 1000) + ahead_ns for ts in MARKS_US]
    return [(time - width_ns // 2, time + width_ns // 2) for time in times]


def leave(folder: Path, name: str, *events: dict[str, Any], **told: Any) -> Path:
    """Leave a trace of Kineto in a log, and what is to be known of it."""
    path = folder / name
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    facts = {"source": "torch", "reader": "kineto", "anchor_name": MARK, "notes": []}
    announce_trace(path, **{**facts, "anchors": anchored(START_NS), **told})
    return path


def read(folder: Path, manifest: Manifest = MANIFEST) -> Foreign:
    return read_foreign([folder], manifest, PROCESS)


def shown(trace: Trace) -> list[tuple[str, int, int]]:
    """Name, start after that of the recording, and duration of each span."""
    spans = concatenate(trace.spans, Spans)
    starts = spans.start_ns - START_NS
    names = [trace.names[code] for code in spans.name]
    return list(zip(names, starts.tolist(), spans.dur_ns.tolist(), strict=True))


def test_a_trace_is_laid_on_our_clock_by_its_marks(tmp_path: Path) -> None:
    leave(tmp_path, "torch.json", event("mm", 10, 5.5), *MARKS, event("add", 500))

    (trace,) = read(tmp_path).traces

    assert shown(trace) == [("mm", 10_000, 5_500), ("add", 500_000, 1_000)]


def test_a_clock_that_runs_faster_is_slowed_down(tmp_path: Path) -> None:
    # at the last marks theirs has gained as much as it shows since the first: double speed
    anchors = [(START_NS + round(ts * 500),) * 2 for ts in MARKS_US]
    leave(tmp_path, "torch.json", *MARKS, event("mm", 100, 50), anchors=anchors)

    (trace,) = read(tmp_path).traces

    assert shown(trace) == [("mm", 50_000, 25_000)]


def test_the_clock_error_is_reported(tmp_path: Path) -> None:
    leave(tmp_path, "one.json", *MARKS, anchors=anchored(START_NS, width_ns=200))
    leave(tmp_path, "two.json", *MARKS, anchors=anchored(START_NS, width_ns=600))
    leave(tmp_path, "zero.json", *MARKS, source="other")

    reports = read(tmp_path).reports

    assert {source: each.residual_ns for source, each in reports.items()} == {
        "torch": 300,
        "other": 0,
    }


def test_marks_that_cannot_be_put_into_a_trace_are_given_beside_it(tmp_path: Path) -> None:
    marks_ns = [round(ts * 1000) for ts in MARKS_US]
    leave(tmp_path, "torch.json", event("mm", 10), marks_ns=marks_ns)

    (trace,) = read(tmp_path).traces

    assert shown(trace) == [("mm", 10_000, 1_000)]


def test_a_trace_that_lacks_marks_is_reported(tmp_path: Path) -> None:
    leave(tmp_path, "torch.json", event("mm", 10), *MARKS[:3])

    found = read(tmp_path)

    assert found.traces == []
    assert found.reports["torch"].notes == [
        "torch.json could not be read (3 of 4 marks are in it)",
    ]


@pytest.mark.parametrize("content", [b"", b'{"traceEvents": [', None])
def test_a_trace_that_cannot_be_read_does_not_cost_the_others(
    tmp_path: Path, content: bytes | None
) -> None:
    damaged = leave(tmp_path, "a.json", *MARKS)
    leave(tmp_path, "b.json", event("mm", 10), *MARKS)
    damaged.unlink() if content is None else damaged.write_bytes(content)

    found = read(tmp_path)

    (trace,) = found.traces
    assert shown(trace) == [("mm", 10_000, 1_000)]
    (note,) = found.reports["torch"].notes
    assert note.startswith("a.json could not be read")


def test_an_unknown_reader_is_reported(tmp_path: Path) -> None:
    leave(tmp_path, "torch.json", *MARKS, reader="nobody")

    assert len(read(tmp_path).reports["torch"].notes) == 1


def test_notes_of_the_source_and_of_the_reader_are_reported(tmp_path: Path) -> None:
    unknown = event("f", 3, cat="python_function")
    leave(tmp_path, "torch.json", *MARKS, unknown, notes=["no shapes"])

    report = read(tmp_path).reports["torch"]

    assert report.notes == ["no shapes"]
    assert report.skipped == {"python_function": 1}


def test_what_a_killed_program_held_is_reported_as_lost(tmp_path: Path) -> None:
    announce_held(tmp_path, "jax")

    killed = read(tmp_path, replace(MANIFEST, stop=None))

    (note,) = killed.reports["jax"].notes
    assert note.endswith("is lost")
    assert read(tmp_path).reports == {}


def test_threads_are_those_of_the_process_that_recorded(tmp_path: Path) -> None:
    leave(
        tmp_path,
        "torch.json",
        *MARKS,
        event("a", 10, tid=71),
        event("b", 20, tid=3),
        event("c", 30, tid=99),
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 70,
            "tid": 99,
            "ts": 0,
            "args": {"name": "theirs"},
        },
        threads={3: 73},  # what the trace calls 3
    )

    (trace,) = read(
        tmp_path, replace(MANIFEST, threads={"71": "MainThread", "73": "Loader"})
    ).traces

    assert sorted(trace.threads, key=lambda thread: thread.tid or 0) == [
        Thread(7, 71, "MainThread", process=PROCESS),
        Thread(7, 73, "Loader", process=PROCESS),
        Thread(7, 99, "theirs", process=PROCESS),
    ]


def test_streams_keep_their_names_and_numbers(tmp_path: Path) -> None:
    where = {"device": 1, "stream": 71, "correlation": 5}
    kernel = event("gemm", 40, cat="kernel", args=where)
    leave(tmp_path, "torch.json", *MARKS, event("a", 10), kernel, threads={71: 99})

    (trace,) = read(tmp_path, replace(MANIFEST, threads={"71": "MainThread"})).traces

    streams = [thread for thread in trace.threads if thread.device is not None]
    assert streams == [Thread(7, 71, "device 1 stream 71", process=PROCESS, device=1)]


# MindSpore does not tell the addresses of its blocks, only how much is in use.
TIMES = "Default/MatMul-op0;HostCpuOps;400000,0.1,0\n"
MEMORY = """\
Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),Total Active(Byte)
100000,100,1024,0
200000,260,1024,0
300000,200,1024,0
400000,230,1024,0
500000,30,1024,0
"""


def leave_memory(folder: Path, name: str, ahead_ns: int) -> None:
    """Leave a trace of MindSpore whose clock is so far behind ours."""
    path = folder / name
    path.mkdir()
    (path / "cpu_op_execute_timestamp_0.txt").write_text(TIMES)
    (path / "cpu_ms_memory_record_0.txt").write_text(MEMORY)
    announce_trace(
        path,
        source="mindspore",
        reader="mindspore",
        anchor_name="",
        anchors=[(250_000 + ahead_ns,) * 2, (600_000 + ahead_ns,) * 2],
        notes=[],
        marks_ns=[250_000, 600_000],
    )


def blocks(trace: Trace) -> list[tuple[int, int]]:
    """Time after the start of the recording, and bytes, of each block."""
    found = concatenate(trace.allocations, Allocations)
    times = (found.start_ns - START_NS).tolist()
    return list(zip(times, found.bytes.tolist(), strict=True))


def test_blocks_without_addresses_from_before_the_start_are_one(tmp_path: Path) -> None:
    leave_memory(tmp_path, "mindspore", START_NS - 350_000)

    (trace,) = read(tmp_path).traces

    # 200 were in use when the recording began, then 30 more, then 200 less
    assert blocks(trace) == [(0, 200), (50_000, 30), (150_000, -200)]
    (memory,) = trace.allocations
    assert memory.owner_ns[0] == START_NS


def test_of_the_next_trace_of_a_source_the_level_is_known(tmp_path: Path) -> None:
    leave_memory(tmp_path, "1", START_NS - 350_000)
    leave_memory(tmp_path, "2", START_NS)

    _, later = read(tmp_path).traces

    # it began with its first mark, at 250 us
    assert blocks(later) == [(300_000, -60), (400_000, 30), (500_000, -200)]


def test_blocks_after_the_start_stay_as_they_are(tmp_path: Path) -> None:
    leave_memory(tmp_path, "mindspore", START_NS)

    (trace,) = read(tmp_path).traces

    assert [size for _, size in blocks(trace)] == [100, 160, -60, 30, -200]


def test_blocks_with_addresses_stay_as_they_are(tmp_path: Path) -> None:
    given = {"Bytes": 64, "Addr": 4096, "Device Type": 0, "Device Id": -1, "Total Allocated": 900}
    memory = {**event("[memory]", 5), "ph": "i", "cat": "cpu_instant_event", "args": given}
    leave(tmp_path, "torch.json", *MARKS, memory, anchors=anchored(START_NS - 100_000))

    (trace,) = read(tmp_path).traces

    assert blocks(trace) == [(5_000 - 100_000, 64)]
