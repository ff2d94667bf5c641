# SPDX-License-Identifier: Apache-2.0
"""strobe.watch: it yields what the loader yields, and every wait is a row of `batches`."""

from __future__ import annotations

import json

import polars as pl
import pytest

import strobe
from programs import Program, finished

WAITS = """
import json

inside = []
def load():
    for number in range(4):
        begun = time.monotonic_ns()
        time.sleep(0.002)
        inside.append((begun, time.monotonic_ns()))
        yield list(range(number))

with strobe.Profiler(output=OUT):
    got = []
    for batch in strobe.watch(load(), name="train", samples=len):
        got.append(batch)
        with strobe.span("work"):
            time.sleep(0.001)
    for batch in strobe.watch([7, 8], samples=16): got.append(batch)
print(json.dumps([inside, got]))
"""


def test_each_wait_is_a_batch_and_a_span(program: Program) -> None:
    inside, got = json.loads(program.run(WAITS))
    recording = program.open()
    batches = recording.batches().collect()
    train = batches.filter(pl.col("loader") == "train")

    assert got == [[], [0], [0, 1], [0, 1, 2], 7, 8]
    assert train["number"].to_list() == [0, 1, 2, 3]
    assert train["samples"].to_list() == [0, 1, 2, 3]
    assert batches.filter(pl.col("loader") == "list")["samples"].to_list() == [16, 16]
    counters = recording.counters().filter(~pl.col("name").str.starts_with("process ")).collect()
    assert counters.is_empty()  # what marks the batches is not the user's
    for row, (begun, ended) in zip(train.iter_rows(named=True), inside, strict=True):
        assert row["start_ns"] <= begun < ended <= row["start_ns"] + row["wait_ns"]
    spans = recording.spans().collect()
    waits = spans[batches["span"].to_list()]
    assert waits["name"].to_list() == ["enumerate(train)"] * 4 + ["enumerate(list)"] * 2
    assert set(waits["category"]) == {"data_loading"}
    assert waits.select("start_ns", "dur_ns").rows() == batches.select("start_ns", "wait_ns").rows()


def test_the_wait_is_part_of_the_step_and_work_is_not(program: Program) -> None:
    program.run(WAITS)
    recording = program.open()
    phases = dict(recording.phases().select("phase", "total_ns").iter_rows())
    steps = recording.steps().collect()
    work = finished(recording.spans().collect(), "work")
    loader = recording.loaders().row(0, named=True)

    assert set(steps["kind"]) == {"batch"}
    assert phases["other"] >= work["dur_ns"].sum()
    assert loader["loader"] == "train"
    assert loader["step_ns"] == steps["dur_ns"].sum() == sum(phases.values())
    assert 0 < loader["starved_ns"] <= loader["wait_ns"]
    assert loader["samples_per_s"] == pytest.approx(loader["batches_per_s"] * 6 / 4)
    text = recording.summary(by="loader", width=120)
    assert "train" in text
    assert "in steps" in text


def test_errors_break_and_close_are_the_loaders(program: Program) -> None:
    program.run("""
        closed = []
        def load():
            try:
                yield 1
                yield 2
                raise KeyError("no third")
            finally:
                closed.append(True)

        with strobe.Profiler(output=OUT):
            error = None
            try:
                for number in strobe.watch(load(), name="fails"): pass
            except KeyError as caught:
                error = caught
            assert error.args == ("no third",) and number == 2 and closed == [True]

            for number in strobe.watch(load(), name="broken off"): break
            assert closed == [True, True]  # as without us: the generator is collected

            generator = strobe.watch(load(), name="closed")
            assert next(generator) == 1
            generator.close()
            assert closed == [True, True, True]
            assert list(generator) == []

            def halve(batch): return 1 / 0
            assert list(strobe.watch([1, 2], name="wrong samples", samples=halve)) == [1, 2]
    """)
    batches = program.open().batches().collect()

    counts = dict(batches.group_by("loader", maintain_order=True).len().iter_rows())
    assert counts == {"fails": 2, "broken off": 1, "closed": 1, "wrong samples": 2}
    assert batches["samples"].null_count() == 6
    assert program.said.count("samples() failed (ZeroDivisionError: division by zero)") == 1


def test_passes_are_numbered_anew_and_one_watch_in_another_is_a_part_of_it(
    program: Program,
) -> None:
    program.run("""
        loader = strobe.watch([1, 2], name="list")
        with strobe.Profiler(output=OUT):
            assert list(loader) == list(loader) == [1, 2]
            both = strobe.watch(map(str, strobe.watch(range(2), name="inner")), name="outer")
            assert list(both) == ["0", "1"]
    """)
    batches = program.open().batches().collect()

    assert batches.filter(pl.col("loader") == "list")["number"].to_list() == [0, 1, 0, 1]
    nested = batches.select("loader", "number", "outer").rows()[4:]
    assert nested == [("outer", 0, None), ("inner", 0, 4), ("outer", 1, None), ("inner", 1, 6)]


def test_what_is_not_recorded_still_counts(program: Program) -> None:
    program.run("""
        profiler = strobe.Profiler(output=OUT)
        for number in strobe.watch(range(6), name="six"):
            if number == 1: profiler.start()
            if number == 4: profiler.stop()
    """)

    assert program.open().batches().collect()["number"].to_list() == [2, 3, 4]


class Loader:
    batch_size = 32

    def __len__(self) -> int:
        return 2

    def __iter__(self):
        return iter("ab")


def test_a_watched_loader_is_the_loader() -> None:
    watched = strobe.watch(Loader(), name="train")

    assert len(watched) == 2
    assert watched.batch_size == 32
    assert list(watched) == list(watched) == ["a", "b"]
    assert not strobe.watch([])
    assert strobe.watch(iter(()))  # an iterator is true, whatever it holds
    assert next(strobe.watch(iter("xy"))) == "x"
    with pytest.raises(TypeError, match="has no len"):
        len(strobe.watch(iter("xy")))
    with pytest.raises(AttributeError, match="no attribute 'sampler'"):
        _ = watched.sampler


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"iterable": 3}, "int object.*must be an iterable"),
        ({"iterable": [], "name": ""}, "name=''.*must be a str"),
        ({"iterable": [], "samples": -1}, "samples=-1.*must be an int"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict, problem: str) -> None:
    with pytest.raises(strobe.UsageError, match=problem):
        strobe.watch(**arguments)
