# SPDX-License-Identifier: Apache-2.0
"""How drawn steps divide among phases.

d: data loading, f: forward, b: backward, s: an optimizer's step, z: zero_grad, o: other, u: none.
"""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import COLUMN_NS, spans, table
from strobe.analysis.phase_times import SUMMARY, TIMES, phase_summary, phase_times
from strobe.model.tables import PHASES
from strobe.store.frames import empty

LETTERS = dict(zip("dfbszo", PHASES, strict=True))


def phased(trace: pl.DataFrame, unplaced: tuple[int, ...] = ()) -> pl.DataFrame:
    """Spans with phases; the threads of some lanes are unknown."""
    letters = trace["name"].to_list()
    return trace.with_columns(
        phase=pl.Series([LETTERS.get(letter) for letter in letters], dtype=pl.String),
        category=pl.Series(["backward" if letter == "b" else "operator" for letter in letters]),
        pid=pl.lit(7, dtype=pl.Int64),
        tid=pl.Series([0 if lane in unplaced else 7 + lane for lane in trace["lane"]]),
    )


def steps(*bounds: tuple[int, int], lane: int | None = 0) -> pl.DataFrame:
    rows = [
        (number, "step", start * COLUMN_NS, (end - start) * COLUMN_NS, None, lane, False)
        for number, (start, end) in enumerate(bounds)
    ]
    return pl.DataFrame(rows, schema=empty("steps").schema, orient="row")


def divided(drawing: str, *bounds: tuple[int, int], unplaced: tuple[int, ...] = ()) -> list[str]:
    """Each step as its phases' letters and columns, those without time left out."""
    times = phase_times(phased(spans(drawing), unplaced), steps(*bounds))
    return [
        " ".join(
            f"{letter}{ns // COLUMN_NS}" for letter, ns in zip(LETTERS, rows, strict=True) if ns
        )
        for rows in (
            part["total_ns"].to_list() for part in times.partition_by("step", maintain_order=True)
        )
    ]


def test_gaps_inside_a_phase_are_its_own_and_others_are_other():
    # gaps: 2..4 before the forward, 5..7 inside it, one column on each side of the backward
    drawing = """
        main | d-  f  f- b-- s---
    """

    assert divided(drawing, (0, 18)) == ["d2 f5 b3 s4 o4"]


def test_a_phase_inside_another_takes_its_time_from_it():
    drawing = """
        main | s--------------
        main |   f  f--- b-
    """

    # the optimizer has 0..2, 3..5, 9..10 and 12..15
    assert divided(drawing, (0, 15)) == ["f5 b2 s8"]


def test_operators_of_an_unknown_thread_fill_what_is_unknown_of_the_lane():
    drawing = """
        main | d-  u----------
        main |           s--
        ops  |  f-  f  f b-- s
        more |        b-
    """

    # Loading keeps 0..2 and the optimizer's step 10..13; the forward has 2..6 and 8..9, `more` only
    # 7..8, the optimizer also 13..15, between and in its own; 6..7 and 9..10 are nobody's.
    assert divided(drawing, (0, 15), unplaced=(1, 2)) == ["d2 f5 b1 s5 o2"]


def test_steps_cut_what_lies_across_their_bounds():
    # the bounds lie in the loading, in the gap after it, in a forward and in the gap between two
    drawing = """
        main | d-----  f----   f---- s---
    """

    assert divided(drawing, (3, 7), (7, 14), (14, 21)) == ["d3 o1", "f6 o1", "f7"]


def test_containers_without_a_phase_do_not_count():
    drawing = """
        main | u--------------
        main |  d-- u-- b-
    """

    assert divided(drawing, (0, 15)) == ["d3 b2 o10"]


def test_what_lies_between_two_waits_for_data_is_not_data_loading():
    assert divided("main | d--   d--   f--   f--", (0, 21)) == ["d6 f9 o6"]


def test_other_lanes_do_not_count():
    drawing = """
        main   | d---    b--
        worker | d-- d--------
    """

    assert divided(drawing, (0, 11)) == ["d4 b3 o4"]


def test_waiting_for_a_backward_on_a_thread_of_its_own_is_backward():
    # between the two backwards nobody works, and both are backward
    drawing = """
        main     | f---           s---
        autograd |     b--- b---
        serving  |     f--- b--
    """

    assert divided(drawing, (0, 19)) == ["f4 b9 s4 o2"]


def test_a_step_without_spans_is_other():
    assert divided("main | f--", (5, 9)) == ["o4"]


def test_without_phases_or_steps_there_are_no_rows():
    known, unknown = phased(spans("main | f--")), phased(spans("main | u--"))
    unfinished = steps((0, 3)).with_columns(unfinished=True)

    for trace, table_of_steps in (
        (unknown, steps((0, 3))),
        (known, steps()),
        (known, unfinished),
        (known, steps((0, 3), lane=None)),
    ):
        times = phase_times(trace, table_of_steps)
        assert times.is_empty()
        assert times.schema == TIMES
        assert phase_summary(times).schema == SUMMARY


def test_the_summary_is_per_step_and_of_the_time_of_the_steps():
    trace = phased(spans("main | f--- b---- f- b-"))

    summary = phase_summary(phase_times(trace, steps((0, 10), (10, 15))))

    assert summary.schema == SUMMARY
    assert summary["phase"].to_list() == list(PHASES)
    rows = {row["phase"]: row for row in summary.rows(named=True)}
    assert rows["forward"]["total_ns"] == 6_000
    assert rows["forward"]["per_step_ns"] == 3_000
    assert rows["forward"]["share"] == pytest.approx(6 / 15)
    assert rows["other"]["total_ns"] == 3_000
    assert summary["total_ns"].sum() == 15_000


def test_steps_without_time_have_no_shares():
    trace = phased(spans("main | f---"))

    summary = phase_summary(phase_times(trace, steps((1, 1))))

    assert summary["total_ns"].sum() == 0
    assert summary["share"].null_count() == len(PHASES)


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    """Boxes that nest as the calls of a thread do, on two lanes."""
    boxes: list[tuple[str, int, int, int]] = []

    def fill(low: int, high: int, lane: int, depth: int) -> None:
        while low < high and depth < 4 and draw(st.booleans()):
            start = draw(st.integers(low, high))
            end = draw(st.integers(start, high))
            boxes.append((draw(st.sampled_from("dfbszou")), start, end, lane))
            fill(start, end, lane, depth + 1)
            low = end + 1

    for lane in (0, 1):
        fill(0, 20, lane, 0)
    return boxes


BOUNDS = st.lists(
    st.tuples(st.integers(-3, 23), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))),
    max_size=4,
)


def owner(rows: list[dict], instant: int) -> str | None:
    """The phase of the innermost span of a lane that has one at an instant."""
    opened = [
        row["phase"]
        for row in rows
        if row["phase"] and row["start_ns"] <= instant < row["start_ns"] + row["dur_ns"]
    ]
    return opened[-1] if opened else None


@given(boxes=nested(), bounds=BOUNDS)
def test_each_instant_has_one_phase(boxes, bounds):
    trace = phased(table(boxes)).with_columns(pid=pl.col("lane").cast(pl.Int64))
    rows = [row for row in trace.rows(named=True) if row["lane"] == 0]
    instants = [t * COLUMN_NS for t in range(-3, 36)]
    owners = [owner(rows, instant) for instant in instants]
    known = [i for i, phase in enumerate(owners) if phase]
    for i, phase in enumerate(owners):
        if phase is None:
            before = [owners[k] for k in known if k < i][-1:]
            after = [owners[k] for k in known if k > i][:1]
            same = before and before == after and before != ["data_loading"]
            owners[i] = before[0] if same else "other"
    by_instant = dict(zip(instants, owners, strict=True))

    times = phase_times(trace, steps(*bounds))

    if trace["phase"].null_count() == trace.height:
        assert times.is_empty()
        return
    assert times.height == len(bounds) * len(PHASES)
    for number, (start, end) in enumerate(bounds):
        inside = [by_instant[t * COLUMN_NS] for t in range(start, end)]
        mine = times.filter(pl.col("step") == number)
        assert dict(mine.select("phase", "total_ns").rows()) == {
            phase: inside.count(phase) * COLUMN_NS for phase in PHASES
        }


@given(
    boxes=st.lists(
        st.tuples(
            st.sampled_from("dfbszou"), st.integers(0, 12), st.integers(0, 8), st.integers(0, 2)
        ).map(lambda box: (box[0], box[1], box[1] + box[2], box[3])),
        min_size=1,
        max_size=14,
    ),
    bounds=BOUNDS,
)
def test_the_phases_of_a_step_sum_to_the_step(boxes, bounds):
    trace = phased(table([*boxes, ("f", 3, 4, 0)]))

    times = phase_times(trace, steps(*bounds))

    assert (times["total_ns"] >= 0).all()
    sums = [int(part["total_ns"].sum()) for part in times.partition_by("step", maintain_order=True)]
    assert sums == [(end - start) * COLUMN_NS for start, end in bounds]
