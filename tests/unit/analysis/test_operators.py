# SPDX-License-Identifier: Apache-2.0
"""The operator table on drawn spans."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import spans, table
from strobe.analysis.operators import operator_summary
from strobe.model.operators import SCHEMA


def summary(trace: pl.DataFrame, *columns: str) -> list[tuple]:
    return operator_summary(trace.lazy()).collect().select(columns).rows()


BOXES = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 12), st.integers(0, 8), st.integers(0, 2)).map(
        lambda box: (box[0], box[1], box[1] + box[2], box[3])
    ),
    max_size=12,
)


def test_self_time_is_the_time_no_child_has():
    trace = spans("""
        main | forward--------  backward----
        main |   mm---  mm--      mm------
    """)

    assert summary(trace, "name", "calls", "total_ns", "self_ns") == [
        ("mm", 3, 17_000, 17_000),
        ("forward", 1, 15_000, 6_000),
        ("backward", 1, 12_000, 4_000),
    ]


def test_total_counts_recursive_and_overlapping_calls_once():
    # f is open from 0 to 8 and from 11 to 18
    trace = spans("""
        main | f-------   f---
        main |   f---        f---
        main |    g
    """)

    assert summary(trace, "name", "calls", "total_ns", "self_ns") == [
        ("f", 4, 15_000, 14_000),
        ("g", 1, 1_000, 1_000),
    ]


def test_total_counts_lanes_side_by_side():
    trace = spans("""
        main   | f----
        worker |  f----
    """)

    assert summary(trace, "name", "calls", "total_ns", "share") == [("f", 2, 10_000, 1.0)]


def test_share_is_of_the_busy_time_of_all_lanes():
    # busy: main 6, worker 2, together 8
    trace = spans("""
        main   | a-----
        main   |   b-
        worker |     c-
    """)

    assert summary(trace, "name", "share") == [("a", 0.5), ("b", 0.25), ("c", 0.25)]


def test_share_is_missing_if_nothing_took_time():
    assert summary(table([("a", 3, 3, 0)]), "name", "self_ns", "share") == [("a", 0, None)]


def test_percentiles_are_durations_that_occurred():
    # durations 1..20: ranks 10, 19 and 20
    trace = table([("f", 100 * i, 100 * i + i, 0) for i in range(1, 21)])

    assert summary(trace, "p50_ns", "p95_ns", "p99_ns", "min_ns", "max_ns", "mean_ns") == [
        (10_000, 19_000, 20_000, 1_000, 20_000, 10_500.0)
    ]


def test_durations_beyond_float_precision_stay_exact():
    long_ns = 2**60 + 1
    trace = pl.DataFrame(
        {"name": ["f"], "lane": [0], "start_ns": [0], "dur_ns": [long_ns], "self_ns": [long_ns]}
    )

    assert summary(trace, "total_ns", "self_ns", "p50_ns", "p99_ns", "max_ns", "min_ns") == [
        (long_ns,) * 6
    ]


def test_names_with_the_same_self_time_come_in_alphabetical_order():
    trace = spans("""
        main | c--  a--  b---  d--
    """)

    assert summary(trace, "name") == [("b",), ("a",), ("c",), ("d",)]


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["zoo", "b", "a"])])
def test_interned_names_give_the_same_table_as_text(dtype):
    trace = spans("""
        main | a------  b--
        main |  a--     a--
    """)

    interned = operator_summary(trace.lazy().with_columns(pl.col("name").cast(dtype)))

    assert interned.collect().equals(operator_summary(trace.lazy()).collect())


def test_a_missing_name_is_a_name():
    trace = spans("""
        main | a--  b-----
    """).with_columns(pl.col("name").replace("b", None))

    assert summary(trace, "name", "total_ns") == [(None, 6_000), ("a", 3_000)]


def test_rows_in_another_order_give_the_same_table():
    trace = spans("""
        main | f-------   f---
        main |   f---        f---
    """)

    assert summary(trace.reverse(), *SCHEMA) == summary(trace, *SCHEMA)


def test_no_spans_give_an_empty_table_with_all_columns():
    empty = operator_summary(table([]).lazy()).collect()

    assert empty.is_empty()
    assert empty.schema == SCHEMA


def test_filters_slices_and_projections_apply_to_the_summary_not_to_the_spans():
    trace = spans("""
        main | a-----  b--  b--
    """)
    lazy = operator_summary(trace.lazy())

    assert lazy.filter(pl.col("name") == "a").select("share").collect().item() == 0.5
    assert lazy.head(1).select("name", "calls").collect().rows() == [("a", 1)]
    assert lazy.collect_schema() == lazy.collect().schema == SCHEMA


@given(boxes=BOXES)
def test_each_name_is_summed_as_defined(boxes):
    trace = table(boxes)

    for row in operator_summary(trace.lazy()).collect().rows(named=True):
        mine = [box for box in boxes if box[0] == row["name"]]
        durations = sorted((end - start) * 1000 for _, start, end, _ in mine)
        instants = {(lane, t) for _, start, end, lane in mine for t in range(start, end)}
        assert row["calls"] == len(mine)
        assert row["total_ns"] == len(instants) * 1000
        assert row["mean_ns"] == pytest.approx(sum(durations) / len(mine))
        assert (row["min_ns"], row["max_ns"]) == (durations[0], durations[-1])
        for percent in (50, 95, 99):
            rank = math.ceil(len(mine) * percent / 100)
            assert row[f"p{percent}_ns"] == durations[rank - 1]


@given(boxes=BOXES)
def test_self_times_sum_to_the_busy_time_and_shares_to_one(boxes):
    result = operator_summary(table(boxes).lazy()).collect()
    busy = {(lane, t) for _, start, end, lane in boxes for t in range(start, end)}

    assert result["self_ns"].sum() == len(busy) * 1000
    assert (result["self_ns"] <= result["total_ns"]).all()
    assert result["total_ns"].max() is None or result["total_ns"].max() <= len(busy) * 1000
    if busy:
        assert result["share"].sum() == pytest.approx(1)
