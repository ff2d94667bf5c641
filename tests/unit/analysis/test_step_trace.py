# SPDX-License-Identifier: Apache-2.0
"""Drawn steps: what was computed, exchanged, neither; where forward and backward meet."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import COLUMN_NS, spans
from strobe.analysis.step_trace import choose_steps, clip_spans, step_points, step_times
from strobe.model.intervals import Union
from strobe.store.frames import empty

INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=8)


def union(boxes: list[tuple[int, int]]) -> Union:
    start = np.array([box[0] for box in boxes], np.int64)
    return Union.of(start, start + np.array([box[1] for box in boxes], np.int64))


def instants(boxes: list[tuple[int, int]]) -> set[int]:
    return {time for start, length in boxes for time in range(start, start + length)}


def points_of(found: Union) -> set[int]:
    pairs = zip(found.start_ns.tolist(), found.end_ns.tolist(), strict=True)
    return {time for start, end in pairs for time in range(start, end)}


@given(INTERVALS, INTERVALS, st.integers(0, 50), st.integers(0, 20))
def test_unions_are_sets_of_instants(
    one: list[tuple[int, int]], two: list[tuple[int, int]], start: int, length: int
) -> None:
    mine, other = instants(one), instants(two)
    stretch = set(range(start, start + length))

    assert points_of(union(one)) == mine
    assert points_of(union(one) | union(two)) == mine | other
    assert points_of(union(one).both(union(two))) == mine & other
    assert points_of(union(one).minus(union(two))) == mine - other
    assert points_of(union(one).gaps(start, start + length)) == stretch - mine
    covered = union(one).covers(np.array([start]), np.array([start + length]))
    assert covered.tolist() == [len(stretch & mine)]


def traced(drawing: str) -> pl.DataFrame:
    """Operators by their first letter: c communicates, s sends, the others compute; F, B phases."""
    trace = spans(drawing)
    kinds = {"c": "communication", "s": "communication"}
    phases = {"F": "forward", "B": "backward"}
    return trace.with_columns(
        name=pl.col("name").replace("s", "send"),
        category=pl.Series([kinds.get(name[0], "operator") for name in trace["name"]]),
        phase=pl.Series([phases.get(name[0]) for name in trace["name"]], dtype=pl.String),
    )


def steps(*bounds: tuple[int, int], unfinished: int = 0) -> pl.DataFrame:
    rows = [
        (
            *(number, "step", start * COLUMN_NS, (end - start) * COLUMN_NS, None, 0),
            number >= len(bounds) - unfinished,
        )
        for number, (start, end) in enumerate(bounds)
    ]
    return pl.DataFrame(rows, schema=empty("steps").schema, orient="row")


def test_a_step_is_shared_out_and_clipped_at_its_bounds() -> None:
    #      0         10        20        30
    trace = traced(
        """
        a | m---    m-------------  m---
        b |    c-----   s--
        """
    )
    found = step_times(trace, steps((0, 10), (10, 20), (20, 30), (40, 50)))

    assert found.select(pl.exclude("start_ns", "dur_ns") // COLUMN_NS).rows() == [
        # step computing communication overlapped free bubble span preparing
        (0, 6, 6, 2, 0, 0, 6, 0),
        (0, 10, 3, 3, 0, 3, 3, 0),
        (0, 6, 0, 0, 4, 0, 0, 0),
        (0, 0, 0, 0, 10, 0, 0, None),
    ]


def test_kernels_of_devices_compute_where_there_are_any() -> None:
    trace = traced("a | m-------- k--\n").with_columns(
        category=pl.Series(["operator", "kernel"]), device=pl.Series([None, 0])
    )

    assert step_times(trace, steps((0, 20)))["computing_ns"].to_list() == [3 * COLUMN_NS]


def test_points_are_the_first_forward_and_the_last_backward() -> None:
    trace = traced("a | m- F1-- F2-   B1--- B2-   F1-  B9----\n")
    found = step_points(trace, steps((0, 25), (25, 32), (40, 50)))

    assert found.select(
        *("step", "forward_name", "backward_name"), pl.col("forward_ns", "backward_ns") // COLUMN_NS
    ).rows() == [(0, "F1", "B2", 3, 23), (1, "F1", "B9", 26, 32)]


def test_steps_are_chosen_by_their_places_among_those_that_ended() -> None:
    collected = steps((0, 5), (5, 9), (9, 14), unfinished=1)

    assert choose_steps(collected, None)["step"].to_list() == [0, 1]
    assert choose_steps(collected, [2])["step"].to_list() == [1]
    with pytest.raises(IndexError, match="step 3 of 2"):
        choose_steps(collected, [2, 3])


def test_spans_are_cut_and_nested_anew() -> None:
    trace = spans(
        """
        a | out------------- later-
        a |   in---   in--
        """
    ).with_columns(flops=pl.lit(7))
    cut = clip_spans(trace, 5 * COLUMN_NS, 13 * COLUMN_NS)

    assert [
        (name, start // 1000, length // 1000, own // 1000, parent)
        for name, start, length, own, parent in cut.select(
            "name", "start_ns", "dur_ns", "self_ns", "parent"
        ).iter_rows()
    ] == [("out", 5, 8, 3, None), ("in", 5, 2, 2, 0), ("in", 10, 3, 3, 0)]
    counted = clip_spans(trace, 5 * COLUMN_NS, 15 * COLUMN_NS)
    assert counted["flops"].to_list() == [None, None, 7]  # the last alone is whole
