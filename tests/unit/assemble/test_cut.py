# SPDX-License-Identifier: Apache-2.0
"""What of drawn spans lies in a window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drawing import COLUMN_NS, in_window, trace
from strobe.assemble.cut import cut, within
from strobe.model.trace import Counters


def shown(drawing: str, first: int, last: int) -> list[tuple[str, int, int, bool]]:
    """Name, first column, column after the last and whether it had not ended, of all in the cut."""
    drawn = trace(drawing)
    spans = in_window(replace(drawn, start_ns=first * COLUMN_NS, end_ns=last * COLUMN_NS))
    ends = spans.start_ns + spans.dur_ns
    return [
        (drawn.names[name], start // COLUMN_NS, end // COLUMN_NS, is_open)
        for name, start, end, is_open in zip(
            *(spans.name.tolist(), spans.start_ns.tolist()),
            *(ends.tolist(), spans.unfinished.tolist()),
            strict=True,
        )
    ]


def test_spans_that_began_in_the_window_are_in_it() -> None:
    drawing = """
        main | before--- in--  after
        main |    early----
    """

    assert shown(drawing, 9, 15) == [("in", 10, 14, False)]


def test_a_window_has_both_its_bounds() -> None:
    assert shown("main |  a--  b-- c", 1, 6) == [("a", 1, 4, False), ("b", 6, 6, True)]


def test_a_span_that_ends_after_the_window_is_cut_and_unfinished() -> None:
    assert shown("main | a-------- b", 0, 5) == [("a", 0, 5, True)]


def test_a_span_that_ends_with_the_window_is_finished() -> None:
    assert shown("main | a----", 0, 5) == [("a", 0, 5, False)]


def test_a_span_that_never_ended_lasts_until_the_window_does() -> None:
    assert shown("main | a-~  b", 0, 9) == [("a", 0, 9, True), ("b", 5, 6, False)]


def test_spans_come_by_start_the_longer_ones_first() -> None:
    drawing = """
        main  | c d---
        main  | b---
        other |   e----
        main  | a-~
    """

    names = [row[0] for row in shown(drawing, 0, 9)]

    # a lasts longest because it never ended; b and c begin with it, e and d together
    assert names == ["a", "b", "c", "e", "d"]


def test_columns_stay_with_their_spans() -> None:
    drawn = trace("main |   b\nmain | a", sequence={"a": 1, "b": 2}, category={"b": "operator"})
    (spans,) = drawn.spans

    spans = cut(spans, 0, 9_000)

    assert spans.sequence is not None
    assert spans.sequence.tolist() == [2, 1]
    assert spans.category.tolist() == [1, 0]


def test_points_are_cut_as_spans_are() -> None:
    zeros = np.zeros(4, np.int32)
    values = np.array([0.0, 1.0, 2.0, 3.0])
    counters = Counters(start_ns=np.array([9, 10, 20, 21]), value=values, name=zeros, lane=zeros)

    assert within(counters, 10, 20).value.tolist() == [1.0, 2.0]
    assert within(counters, 0, 100) is counters
