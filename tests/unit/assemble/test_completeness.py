# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of completeness, and the sentence on what a producer left out."""

from __future__ import annotations

from typing import Any

import polars as pl

from strobe.assemble.completeness import Counts, completeness_table
from strobe.model.trace import Source, Trace
from strobe.store.frames import empty

COUNTS = Counts(every=100, framework=60, calls=1000, unfinished=3, unfinished_calls=2)


def row(**facts: Any) -> dict[str, Any]:
    """The row of one source; what is null is left out."""
    trace = Trace(sources=[Source(name="torch", **facts)])
    table = pl.DataFrame(completeness_table(trace, COUNTS))
    assert table.schema == empty("completeness").schema
    (found,) = table.rows(named=True)
    return {name: value for name, value in found.items() if value is not None}


def test_a_source_of_all_rows_has_all_of_them() -> None:
    assert row(rows="all", source_class="A", dropped=5, drain_ns=7, clock_residual_ns=9) == {
        "source": "torch",
        "source_class": "A",
        "asked": 105,
        "collected": 100,
        "dropped": 5,
        "unfinished": 3,
        "drain_ns": 7,
        "clock_residual_ns": 9,
    }


def test_a_framework_has_the_rows_of_frameworks() -> None:
    assert row(rows="framework") == {"source": "torch", "collected": 60}


def test_calls_are_counted_by_themselves() -> None:
    assert row(rows="calls") == {"source": "torch", "collected": 1000, "unfinished": 2}


def test_a_source_that_counted_itself_is_believed() -> None:
    assert row(rows="framework", collected=41, dropped=1) == {
        "source": "torch",
        "asked": 42,
        "collected": 41,
        "dropped": 1,
    }


def test_nothing_is_counted_where_nobody_can_tell() -> None:
    assert row(dropped=5, own_ns=8, own_ns_per_row=2.0) == {
        "source": "torch",
        "dropped": 5,
        "own_ns": 8,
    }


def test_own_time_grows_with_the_rows() -> None:
    # 100 rows at 12.345 ns
    assert row(rows="all", own_ns=1000, own_ns_per_row=12.345)["own_ns"] == 1000 + 1234
    assert "own_ns" not in row(rows="all", own_ns_per_row=12.345)


def test_notes_are_one_text() -> None:
    assert row(notes=["one", "two"])["note"] == "one; two"
    assert "note" not in row()


def test_every_source_has_a_row() -> None:
    sources = [Source(name="spans", rows="all"), Source(name="memory", notes=["not asked for"])]

    table = pl.DataFrame(completeness_table(Trace(sources=sources), COUNTS))

    assert table["source"].to_list() == ["spans", "memory"]


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
