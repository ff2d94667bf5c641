# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of completeness, and the sentence on what a producer left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from strobe.assemble.completeness import Tally, completeness_table
from strobe.model.tables import CATEGORIES, SOURCES
from strobe.model.trace import Counters, Instants, Source, Spans, Trace
from strobe.store.frames import empty


def spans(*rows: tuple[str, str], described: int = 0) -> Spans:
    """Spans of these sources and categories, of which the first few have attributes."""
    count = len(rows)
    return Spans(
        start_ns=np.arange(count),
        dur_ns=np.ones(count, np.int64),
        name=np.zeros(count, np.int32),
        category=np.array([CATEGORIES.index(category) for _, category in rows], np.uint8),
        lane=np.zeros(count, np.int32),
        attributes=np.array([0] * described + [-1] * (count - described), np.int32),
        source=np.array([SOURCES.index(source) for source, _ in rows], np.uint8),
    )


def counters(*sources: str) -> Counters:
    return Counters(
        start_ns=np.arange(len(sources)),
        value=np.zeros(len(sources)),
        name=np.zeros(len(sources), np.int32),
        lane=np.zeros(len(sources), np.int32),
        source=np.array([SOURCES.index(source) for source in sources], np.uint8),
    )


def tally() -> Tally:
    """Two batches of a program that uses two frameworks at once."""
    found = Tally()
    first = spans(("spans", "user"), ("torch", "operator"), ("jax", "operator"), described=1)
    found.add_spans(first, np.array([True, False, False]))
    found.add_spans(
        spans(("torch", "operator"), ("torch", "module"), ("python_calls", "python")),
        np.array([True, True, False]),
    )
    found.add("counters", counters("spans", "torch", "host"))
    found.add_number("samples", [0] * SOURCES.index("python_calls") + [5])
    return found


def row(name: str = "torch", **facts: Any) -> dict[str, Any]:
    """The row of one source; what is null is left out."""
    trace = Trace(sources=[Source(name=name, **facts)])
    table = pl.DataFrame(completeness_table(trace, tally()))
    assert table.schema == empty("completeness").schema
    found = table.rows(named=True)[0]
    return {name: value for name, value in found.items() if value is not None}


def test_each_source_has_its_own_rows() -> None:
    found = {name: row(name, rows="own") for name in SOURCES}

    assert {name: (each["collected"], each["unfinished"]) for name, each in found.items()} == {
        "spans": (2, 1),
        "torch": (4, 2),
        "jax": (1, 0),
        "paddle": (0, 0),
        "mindspore": (0, 0),
        "host": (1, 0),
        "python_calls": (6, 0),
    }


def test_a_file_of_another_tool_has_all_rows() -> None:
    facts: dict[str, Any] = {"source_class": "B", "dropped": 5, "clock_residual_ns": 9}

    assert row("kineto", rows="all", **facts) == {
        "source": "kineto",
        "source_class": "B",
        "asked": 19,
        "collected": 14,
        "dropped": 5,
        "unfinished": 3,
        "clock_residual_ns": 9,
    }


def test_rows_without_a_source_are_the_programs_own() -> None:
    points = Instants(
        start_ns=np.arange(3),
        name=np.zeros(3, np.int32),
        lane=np.zeros(3, np.int32),
        attributes=np.full(3, -1, np.int32),
    )
    counted = Tally()
    counted.add("instants", points)

    assert counted.of(Source(name="spans", rows="own")).collected == 3
    assert counted.of(Source(name="torch", rows="own")).collected == 0


def test_nothing_is_counted_where_nobody_can_tell() -> None:
    assert row(dropped=5, own_ns=8, costs_ns={"operator": 2.0}) == {
        "source": "torch",
        "dropped": 5,
        "own_ns": 8,
    }


def test_nobody_knows_what_was_asked_if_a_loss_is_shared() -> None:
    assert row(rows="own", dropped=0, loss_is_shared=True)["asked"] == 4
    found = row(rows="own", dropped=3, loss_is_shared=True)

    assert found["dropped"] == 3
    assert "asked" not in found


def test_own_time_is_that_of_each_kind_of_row() -> None:
    costs = {"operator": 300.0, "module": 1000.5, "counters": 50.0, "python": 9.0}

    # two operators, a module and a counter, besides what was measured
    found = row(rows="own", own_ns=10_000, costs_ns=costs, once_ns=7, drain_ns=8)

    assert found["own_ns"] == 10_000 + 600 + 1000 + 50
    assert (found["once_ns"], found["drain_ns"]) == (7, 8)


def test_attributes_cost_besides_their_rows() -> None:
    found = row("spans", rows="own", own_ns=0, costs_ns={"user": 100.0, "attributes": 150.0})

    assert found["own_ns"] == 250


def test_own_time_that_is_unknown_is_not_a_part_of_it() -> None:
    assert "own_ns" not in row(rows="own", costs_ns={"operator": 300.0})


def test_notes_are_one_text() -> None:
    assert row(notes=["one", "two"])["note"] == "one; two"
    assert "note" not in row()


def test_every_source_has_a_row() -> None:
    sources = [Source(name="spans", rows="own"), Source(name="memory", notes=["not asked for"])]

    table = pl.DataFrame(completeness_table(Trace(sources=sources), tally()))

    assert table["source"].to_list()[:2] == ["spans", "memory"]


def test_what_was_skipped_is_said_in_a_sentence() -> None:
    sentence = row(skipped={"ac2g": 1, "": 2, "python_function": 40})["note"]

    assert sentence == (
        "43 events have no place here and are left out: "
        "40 python_function, 2 without a kind, 1 ac2g"
    )


def test_only_the_most_frequent_kinds_are_named() -> None:
    skipped = {"g": 1, "f": 2, "e": 3, "d": 4, "c": 5, "b": 6, "a": 6}

    sentence = row(skipped=skipped)["note"]

    assert sentence.startswith("27 events")
    assert sentence.endswith("left out: 6 a, 6 b, 5 c, 4 d, 3 e, 3 of other kinds")


def test_what_was_skipped_comes_after_the_notes() -> None:
    told = row(notes=["read from a file"], skipped={"ac2g": 2})["note"]

    assert told == "read from a file; 2 events have no place here and are left out: 2 ac2g"


def test_a_source_that_nobody_asked_for_is_counted_too() -> None:
    """The tally has rows of five sources, of which two reported."""
    sources = [Source(name="torch", rows="own"), Source(name="spans", rows="own")]

    table = pl.DataFrame(completeness_table(Trace(sources=sources), tally()))

    assert dict(table.select("source", "collected").rows()) == {
        **{"torch": 4, "spans": 2},
        **{"jax": 1, "host": 1, "python_calls": 6},
    }
    assert table["own_ns"].to_list()[2:] == [None, 0, None]  # of those the host's is known


def test_what_is_counted_as_a_whole_is_counted_once() -> None:
    sources = [Source(name="kineto", rows="all")]

    table = pl.DataFrame(completeness_table(Trace(sources=sources), tally()))

    assert table.select("source", "collected").rows() == [("kineto", 14)]
