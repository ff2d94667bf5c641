# SPDX-License-Identifier: Apache-2.0
"""The laws hold for what we compute, and say so when a table breaks one."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import spans, table
from strobe.model.laws import check


@pytest.fixture
def trace() -> pl.DataFrame:
    # row 0: forward, self 7; 1: mm in forward; 2: load in another lane
    return spans("""
        main   | forward---
        main   |   mm-
        worker |      load--
    """)


def with_values(trace: pl.DataFrame, column: str, values: list[object]) -> pl.DataFrame:
    return trace.with_columns(pl.Series(column, values, dtype=trace.schema[column]))


def test_a_drawn_table_breaks_no_law(trace):
    assert check(trace) == []


def test_an_empty_table_breaks_no_law():
    assert check(table([])) == []


@pytest.mark.parametrize(
    ("column", "values", "sentences"),
    [
        (
            "dur_ns",
            [10_000, -1, 6_000],
            [
                "1 row: dur_ns is negative (first: row 1)",
                "1 row: self_ns is not within 0 and dur_ns (first: row 1)",
            ],
        ),
        ("parent", [None, 2, None], ["1 row: parent is not a row above it (first: row 1)"]),
        (
            "parent",
            [0, 1, -1],
            ["3 rows: parent is not a row above it (first: row 0)"],
        ),
        (
            "parent",
            [None, 0, 0],
            [
                "1 row: parent is in another lane (first: row 2)",
                "1 row: parent does not contain it (first: row 2)",
            ],
        ),
        (
            "self_ns",
            [7_000, 3_000, 5_999],
            ["1 lane: self times do not sum to the busy time (first: lane 1, 5999 ns of 6000 ns)"],
        ),
        (
            "self_ns",
            [11_000, -1_000, 6_000],
            ["2 rows: self_ns is not within 0 and dur_ns (first: row 0)"],
        ),
        (
            "start_ns",
            [5_000, 2_000, 5_000],
            [
                "1 row: starts before the row above it (first: row 1)",
                "1 row: parent does not contain it (first: row 1)",
                "1 lane: self times do not sum to the busy time "
                "(first: lane 0, 10000 ns of 13000 ns)",
            ],
        ),
        ("unfinished", [False, None, None], ["2 rows: unfinished is missing (first: row 1)"]),
        ("name", ["forward", "mm", None], ["1 row: name is missing (first: row 2)"]),
    ],
)
def test_a_broken_law_is_named_with_its_first_row(trace, column, values, sentences):
    assert check(with_values(trace, column, values)) == sentences


def test_a_table_without_a_column_is_refused(trace):
    with pytest.raises(pl.exceptions.ColumnNotFoundError, match="self_ns"):
        check(trace.drop("self_ns"))


@given(
    boxes=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 8), st.integers(0, 2)).map(
            lambda box: ("f", box[0], box[0] + box[1], box[2])
        ),
        max_size=12,
    )
)
def test_any_nesting_and_overlap_keeps_the_laws(boxes):
    assert check(table(boxes)) == []
