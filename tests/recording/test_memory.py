# SPDX-License-Identifier: Apache-2.0
"""Memory of a program without a framework: over time, by line, and when there is no more."""

from __future__ import annotations

import json
import sys

import polars as pl
import pytest

from programs import Program

MEGABYTE = 1_000_000

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells of its processes in /proc"
)


@linux
def test_memory_over_time_and_by_line(program: Program) -> None:
    printed = program.run("""
        import inspect, json, tracemalloc
        from strobe.sources.host import sampler
        from strobe.sources.host.source import source as host

        sampler._GRACE_NS = sampler._MOST_OF_A_CPU = 1 << 60  # the test is in a hurry

        def line():
            return inspect.currentframe().f_back.f_lineno

        def until(condition):
            while not condition(): time.sleep(0.01)

        with strobe.Profiler(output=OUT, profile_memory=True, memory_lines=True):
            kept = bytes(10_000_000); kept_at = line()
            large = bytearray(80_000_000); large_at = line()
            until(lambda: host._lines._peak["bytes"] > 80_000_000)
            for group in host._sampler._groups * 2:  # the first look may have begun before
                due = group.due_s
                until(lambda: group.due_s > due)
            del large
            until(lambda: tracemalloc.get_traced_memory()[0] < 80_000_000)
        assert not tracemalloc.is_tracing()
        print(json.dumps([__file__, kept_at, large_at]))
    """)
    file, kept_at, large_at = json.loads(printed)
    recording = program.open()
    lines = recording.memory_lines().collect()

    def held(moment: str, line: int) -> int:
        mine = (pl.col("moment") == moment) & (pl.col("file") == file) & (pl.col("line") == line)
        return lines.filter(mine)["bytes"].sum()

    moments = lines.sort("start_ns")["moment"].unique(maintain_order=True).to_list()
    assert [moment for moment in moments if moment != "look"] == ["start", "peak", "stop"]
    looks = lines.filter(pl.col("moment") == "look", pl.col("line") == large_at)
    assert looks["bytes"].max() // MEGABYTE == 80
    assert [held(moment, kept_at) // MEGABYTE for moment in ("start", "peak", "stop")] == [
        0,
        10,
        10,
    ]
    assert [held(moment, large_at) // MEGABYTE for moment in ("start", "peak", "stop")] == [
        0,
        80,
        0,
    ]
    stop = lines.filter(pl.col("moment") == "stop")
    assert stop["peak_bytes"][0] >= 90 * MEGABYTE  # as Python has counted it
    assert stop["bytes"].sum() <= stop["held_bytes"][0] < 80 * MEGABYTE
    values = recording.counters().collect()
    for name in ("process resident bytes", "process unique bytes", "python traced bytes"):
        assert values.filter(pl.col("name") == name)["value"].max() > 80 * MEGABYTE
    assert recording.completeness()["source"].to_list() == ["spans", "host"]
    text = recording.memory_text(width=250)
    assert "process resident bytes" in text
    assert f"{file}:{large_at}" in text.replace("\n", "").replace(" ", "")


def test_ever_new_peaks_stay_within_the_budget(program: Program) -> None:
    printed = program.run("""
        import json
        from strobe.sources.host.source import source as host

        with strobe.Profiler(output=OUT, memory_lines=True):
            kept = [[number] for number in range(1_000_000)]
            budget = host._lines._budget
        begun = budget.began_ns
        print(json.dumps([budget.spent_ns, budget.GRACE_NS, time.monotonic_ns() - begun]))
    """)
    spent_ns, grace_ns, whole_ns = json.loads(printed)
    lines = program.open().memory_lines().collect()
    note = program.open().completeness().filter(pl.col("source") == "host")["note"][0]

    # Half of the program's own time, and what is free at the start.
    assert spent_ns <= 0.5 * (whole_ns - spent_ns) + 2 * grace_ns
    stop, peak = (lines.filter(pl.col("moment") == moment) for moment in ("stop", "peak"))
    # A list of one pointer each, 56 bytes with Python's header, and the list of them all.
    assert stop["peak_bytes"][0] >= 1_000_000 * 56
    assert stop["bytes"].sum() >= 0.99 * stop["held_bytes"][0]
    was_read = stop.height > 1
    assert ("the lines at stop were not read" in note) != was_read
    assert (stop["file"].null_count() == stop.height) != was_read
    is_true = peak["held_bytes"][0] * 1.1 + (1 << 20) >= stop["peak_bytes"][0]
    assert ("the lines of the peak are those of" in note) != is_true


@pytest.mark.again
def test_a_tracemalloc_of_the_programs_own_goes_on(program: Program) -> None:
    program.run("""
        import tracemalloc
        tracemalloc.start()
        before = bytes(5_000_000)
        with strobe.Profiler(output=OUT, memory_lines=True): pass
        assert tracemalloc.is_tracing()
    """)
    lines = program.open().memory_lines().collect()

    assert lines.filter(pl.col("moment") == "start")["bytes"].max() >= 5 * MEGABYTE


def test_running_out_of_memory_is_noted_on_its_way(program: Program) -> None:
    source = """
        import threading
        class OutOfMemoryError(RuntimeError): pass

        def fail():
            raise OutOfMemoryError("device 0")

        hooks = sys.excepthook, threading.excepthook
        error = None
        with strobe.Profiler(output=OUT, profile_memory=True) as profiler:
            thread = threading.Thread(target=fail)
            thread.start()
            thread.join()
        assert (sys.excepthook, threading.excepthook) == hooks
        try:
            with strobe.Profiler(output=OUT, profile_memory=True):
                error = MemoryError("no more")
                raise error
        except MemoryError as caught:
            assert caught is error
        strobe.Profiler(output=OUT, profile_memory=True).start()
        fail()
    """
    program.run(source, exits=1)

    assert program.said.count("strobe: out of memory (") == 3
    assert program.said.count(" MB resident") == (3 if sys.platform.startswith("linux") else 0)
    assert program.said.count("OutOfMemoryError: device 0\n") == 2  # the thread's, the program's
    found = [
        json.loads(text)
        for path in program.recordings()
        for text in program.open(path).instants().collect()["attributes"]
    ]
    assert sorted(fact["error"] for fact in found) == [
        "MemoryError",
        "OutOfMemoryError",
        "OutOfMemoryError",
    ]
    assert {fact["message"] for fact in found} == {"device 0", "no more"}


@linux
def test_a_program_without_any_memory_left_gets_its_error_and_the_table(program: Program) -> None:
    program.run(
        """
        import resource
        resident = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        with strobe.Profiler(output=OUT, profile_memory=True, memory_lines=True):
            resource.setrlimit(resource.RLIMIT_AS, (resident + 300_000_000, -1))
            kept = [bytes(20_000_000)]
            while True: kept.append([0] * 10_000)
        """,
        exits=1,
    )

    assert "strobe: out of memory (MemoryError)" in program.said
    assert program.said.endswith("MemoryError\n")
    instants = program.open().instants().collect()
    assert instants["name"].to_list() == ["out of memory"]
    assert json.loads(instants["attributes"][0])["held"] == []
