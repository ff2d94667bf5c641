# SPDX-License-Identifier: Apache-2.0
"""Each source counts its own rows, and says what they cost apart from its start and stop."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pytest

from programs import Program


def rows(program: Program) -> dict[str, dict[str, Any]]:
    """The rows of completeness by their sources."""
    return {row["source"]: row for row in program.open().completeness().to_dicts()}


def costs_ns(program: Program) -> dict[str, float]:
    (recording,) = program.recordings()
    measured: dict[str, float] = json.loads((recording / "strobe.json").read_text())["costs_ns"]
    return measured


def test_the_programs_own_records_are_those_of_spans(program: Program) -> None:
    program.run(
        """
        with strobe.Profiler(output=OUT, hardware=True) as profiler:
            for number in range(3):
                with strobe.span("work", number=number):
                    strobe.instant("here")
                strobe.counter("process cpu %", 1.0)  # as one of the host's is called
                profiler.step()
            for _ in strobe.watch([1, 2]):
                pass
        """
    )

    found = rows(program)
    recording = program.open()
    counters = recording.counters().collect()
    collections = recording.spans().filter(pl.col("category") == "gc").collect()
    # 3 spans, instants, counters and steps; of the watch 2 waits with their batches, and one more
    # wait for the end
    assert found["spans"]["collected"] == 4 * 3 + 2 * 2 + 1
    assert found["host"]["collected"] == counters.height - 3 + collections.height
    assert {name: row["dropped"] for name, row in found.items()} == {"spans": 0, "host": 0}


def test_own_time_is_what_each_record_costs(program: Program) -> None:
    program.run(
        """
        with strobe.Profiler(output=OUT):
            for number in range(1000):
                with strobe.span("plain"):
                    pass
            for number in range(100):
                with strobe.span("described", number=number):
                    pass
        """
    )

    measured, found = costs_ns(program), rows(program)["spans"]
    # No ring was full, so nothing else was counted.
    assert found["own_ns"] == round(1100 * measured["user"] + 100 * measured["attributes"])
    assert min(measured.values()) > 0
    assert found["once_ns"] > 0


def test_attributes_as_json_are_timed_where_they_are_made(program: Program) -> None:
    program.run(
        """
        with strobe.Profiler(output=OUT):
            with strobe.span("described", values=list(range(1000))):
                pass
        """
    )

    measured, found = costs_ns(program), rows(program)["spans"]
    assert found["own_ns"] > measured["user"] + measured["attributes"]


def test_what_starting_takes_is_no_own_time(program: Program) -> None:
    program.run(
        """
        import time
        from strobe.sources.host.source import source

        opened = source.open

        def open_slowly(*arguments):
            time.sleep(0.3)
            opened(*arguments)

        source.open = open_slowly
        with strobe.Profiler(output=OUT, hardware=True):
            pass
        """
    )

    host = rows(program)["host"]
    assert host["once_ns"] >= 300_000_000
    assert host["own_ns"] < 300_000_000


def test_what_a_killed_program_spent_on_its_start_is_unknown(program: Program) -> None:
    program.run(
        """
        import os, signal
        strobe.Profiler(output=OUT).start()
        with strobe.span("one"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        exits=-9,
    )

    found = rows(program)["spans"]
    assert found["collected"] == 1
    assert found["once_ns"] is None
    assert found["own_ns"] == round(costs_ns(program)["user"])


def test_calls_and_spans_are_counted_apart(program: Program) -> None:
    if program.recorder != "c":
        pytest.skip("the Python recorder does not trace calls")
    program.run(
        """
        def work():
            with strobe.span("work"):
                len("")

        with strobe.Profiler(output=OUT, with_stack=True):
            for _ in range(5):
                work()
        """
    )

    found = rows(program)
    calls = program.open().spans().filter(pl.col("category") == "python").collect()
    assert found["spans"]["collected"] == 5
    assert found["python_calls"]["collected"] == calls.height >= 10
    assert found["python_calls"]["own_ns"] > 0
