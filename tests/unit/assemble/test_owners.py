# SPDX-License-Identifier: Apache-2.0
"""The drawn span that was open when something happened."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from drawing import COLUMN_NS, SPILLS, nested, trace
from strobe.assemble.owners import innermost_open

DRAWING = """
    main  | outer-----------  last
    main  |   mm-----   add
    main  |     copy
    other |  x----
"""


def owners(*points: tuple[float, int]) -> list[str | None]:
    """Names of the spans that were open at these columns in these lanes."""
    drawn = trace(DRAWING)
    spans, _ = nested(drawn)
    times = np.array([round(column * COLUMN_NS) for column, _ in points], np.int64)
    lanes = np.array([lane for _, lane in points], np.int32)
    names = [*(drawn.names[code] for code in spans.name), None]
    found, spilled = (innermost_open(times, lanes, spans, spill).tolist() for spill in SPILLS)
    assert spilled == found
    return [names[row] for row in found]


def test_the_innermost_open_span_owns_what_happens() -> None:
    points = [(1, 0), (3, 0), (4.5, 0), (8.5, 0), (10, 0), (12, 0), (15.5, 0)]

    assert owners(*points) == ["outer", "mm", "copy", "mm", "outer", "add", "outer"]


def test_what_begins_with_a_span_is_in_it() -> None:
    assert owners((0, 0), (2, 0), (4, 0)) == ["outer", "mm", "copy"]


def test_between_spans_nobody_owns_anything() -> None:
    assert owners((16.5, 0), (18, 0), (30, 0), (0.5, 1)) == [None, "last", None, None]


def test_a_lane_has_its_own_spans() -> None:
    assert owners((3, 1), (3, 0), (3, 2)) == ["x", "mm", None]


def test_what_happens_in_one_instant_has_one_owner() -> None:
    assert owners((3, 0), (3, 0), (3, 0), (2, 0), (2, 0)) == ["mm"] * 5


def test_owners_are_in_the_order_of_what_they_own() -> None:
    assert owners((15.5, 0), (3, 1), (4.5, 0), (1, 0)) == ["outer", "x", "copy", "outer"]


def test_nothing_has_no_owners() -> None:
    assert owners() == []


def test_without_spans_there_are_no_owners() -> None:
    nothing, _ = nested(trace(""))

    found = innermost_open(np.array([5]), np.array([0], np.int32), nothing, SPILLS[0])

    assert found.tolist() == [-1]


def test_a_lane_of_minus_one_is_nobodys() -> None:
    assert owners((3, -1), (3, 0)) == [None, "mm"]


def test_spans_can_be_meant_in_other_lanes() -> None:
    drawn = trace(DRAWING)
    spans, _ = nested(drawn)
    times, lanes = np.array([3 * COLUMN_NS] * 2), np.array([5, 6], np.int32)

    def only_the_other(rows: NDArray[np.int64]) -> NDArray[np.int32]:
        return np.where(spans.lane[rows] == 1, 5, -1).astype(np.int32)

    for spill in SPILLS:
        found = innermost_open(times, lanes, spans, spill, only_the_other).tolist()
        assert [drawn.names[spans.name[found[0]]], found[1]] == ["x", -1]
