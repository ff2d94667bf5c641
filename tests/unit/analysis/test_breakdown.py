# SPDX-License-Identifier: Apache-2.0
"""Breakdowns of drawn steps."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import spans, table
from strobe.analysis.breakdown import REST, SCHEMA, phase_breakdown


def parts(trace: pl.DataFrame, of: str = "step", *columns: str) -> list[tuple]:
    chosen = columns or ("name", "calls", "total_ns")
    return phase_breakdown(trace.lazy(), of).collect().select(chosen).rows()


def test_children_and_the_rest_make_up_the_steps():
    # steps: 16 + 10 columns; forward 7 + 7, load 4, rest 5 + 3
    trace = spans("""
        main | step------------  step------
        main |  load forward       forward
        main |       mm--
    """)

    assert parts(trace) == [("forward", 2, 14_000), ("load", 1, 4_000), (REST, 0, 8_000)]


def test_shares_are_of_the_steps_and_means_are_per_step():
    trace = spans("""
        main | step----  step----  other----
        main |   mm--      mm       mm
    """)

    assert parts(trace, "step", "name", "per_parent_ns", "share") == [
        ("mm", 3_000.0, 6 / 16),
        (REST, 5_000.0, 10 / 16),
    ]


def test_grandchildren_belong_to_the_child():
    trace = spans("""
        main | step------
        main |  forward-
        main |    mm---
    """)

    assert parts(trace) == [("forward", 1, 8_000), (REST, 0, 2_000)]


def test_where_children_overlap_the_latest_started_has_the_time():
    # load 2..8, of which copy takes 5..8, and goes on to 11
    trace = spans("""
        main | step----------
        main |   load--
        main |      copy--
    """)

    assert parts(trace) == [("copy", 1, 6_000), ("load", 1, 3_000), (REST, 0, 5_000)]


def test_a_step_in_a_step_is_more_of_the_same():
    trace = spans("""
        main | step----------
        main |   step-----
        main |     mm--
        main |            mm
    """)

    assert parts(trace) == [("mm", 2, 6_000), (REST, 0, 8_000)]


def test_a_span_that_outlives_the_step_is_no_child():
    trace = spans("""
        main | step----
        main |      save------
    """)

    assert parts(trace) == [(REST, 0, 8_000)]


def test_steps_of_several_lanes_add_up():
    trace = spans("""
        main   | step----
        main   |  mm
        worker |   step----
        worker |      mm--
    """)

    assert parts(trace) == [("mm", 2, 6_000), (REST, 0, 10_000)]


def test_a_child_beyond_its_parents_bounds_is_clipped():
    # An importer may bring parents of its own.
    trace = spans("""
        main | step----
        main |      save------
    """).with_columns(parent=pl.Series([None, 0], dtype=pl.Int64))

    assert parts(trace) == [("save", 1, 3_000), (REST, 0, 5_000)]


def test_shares_are_missing_if_the_steps_took_no_time():
    trace = table([("step", 3, 3, 0)])

    assert parts(trace, "step", "name", "total_ns", "share") == [(REST, 0, None)]


@pytest.mark.parametrize("trace", [table([]), spans("main | other--")])
def test_without_such_a_span_there_are_no_rows(trace):
    result = phase_breakdown(trace.lazy(), "step")

    assert result.collect().is_empty()
    assert result.collect().schema == result.collect_schema() == SCHEMA


@pytest.mark.parametrize("dtype", [pl.Categorical, pl.Enum(["step", "mm"])])
def test_interned_names_give_the_same_table_as_text(dtype):
    trace = spans("""
        main | step----
        main |   mm
    """)
    interned = trace.with_columns(pl.col("name").cast(dtype))

    assert parts(interned) == parts(trace)
    assert parts(interned, "absent") == []


@given(
    boxes=st.lists(
        st.tuples(
            st.sampled_from(["step", "a", "b"]),
            st.integers(0, 12),
            st.integers(0, 8),
            st.integers(0, 1),
        ).map(lambda box: (box[0], box[1], box[1] + box[2], box[3])),
        max_size=14,
    )
)
def test_the_parts_sum_to_the_whole_and_each_instant_has_one_owner(boxes):
    trace = table(boxes)
    rows = trace.rows(named=True)
    expected: dict[str, int] = {}
    for lane, instant in [(lane, t * 1000) for lane in (0, 1) for t in range(24)]:
        lane_open = [
            row
            for row in rows
            if row["lane"] == lane and row["start_ns"] <= instant < row["start_ns"] + row["dur_ns"]
        ]
        if any(row["name"] == "step" for row in lane_open):
            children = [
                row["name"]
                for row in lane_open
                if row["name"] != "step"
                and row["parent"] is not None
                and rows[row["parent"]]["name"] == "step"
            ]
            owner = children[-1] if children else REST
            expected[owner] = expected.get(owner, 0) + 1000

    result = phase_breakdown(trace.lazy(), "step").collect()

    found = {name: ns for name, ns in result.select("name", "total_ns").rows() if ns}
    assert found == expected
    assert (result["total_ns"] >= 0).all()
