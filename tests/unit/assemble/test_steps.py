# SPDX-License-Identifier: Apache-2.0
"""Rows of the table of steps: of marks, of spans with that name, or of what is derived."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from drawing import COLUMN_NS, SPILLS, in_window, trace
from strobe.assemble.steps import step_parts
from strobe.model.coded import Coded
from strobe.model.trace import Steps
from strobe.store.frames import empty

DERIVED = pl.DataFrame(
    [(0, "optimizer", 0, 5_000, None, 0, False)], schema=empty("steps").schema, orient="row"
)


def rows(
    drawing: str,
    marked: Steps | None = None,
    derived: pl.DataFrame | None = None,
    names: list[str] | None = None,
) -> list[tuple[Any, ...]]:
    """Rows of the table, in the order of its columns, however short its parts are."""
    drawn = trace(drawing)
    spans, names = in_window(drawn), names or list(drawn.names)
    found = [
        [
            row
            for part in step_parts(marked, spans, names, derived, spill)
            for row in pl.DataFrame({name: plain(column) for name, column in part.items()})
            .select(empty("steps").columns)
            .rows()
        ]
        for spill in SPILLS
    ]
    assert found[0] == found[1]
    return found[0]


def plain(column: Any) -> Any:
    if isinstance(column, Coded):
        return [column.texts[code] for code in column.codes]
    return column


def marks(*rows: tuple[int, int, int, int, int, bool, bool]) -> Steps:
    """Marked steps: number, first column, last column, samples, lane, request, unfinished."""
    number, first, last, samples, lane, is_request, unfinished = zip(*rows, strict=True)
    start_ns = np.array(first, np.int64) * COLUMN_NS
    return Steps(
        start_ns=start_ns,
        dur_ns=np.array(last, np.int64) * COLUMN_NS - start_ns,
        number=np.array(number, np.int64),
        samples=np.array(samples, np.int64),
        lane=np.array(lane, np.int32),
        is_request=np.array(is_request),
        unfinished=np.array(unfinished),
    )


def test_marked_steps_are_the_steps() -> None:
    marked = marks((3, 0, 4, 16, 0, False, False), (4, 4, 9, -1, -1, False, True))

    assert rows("main | step-- step--", marked, DERIVED) == [
        (3, "step", 0, 4_000, 16, 0, False),
        (4, "step", 4_000, 5_000, None, None, True),
    ]


def test_requests_are_among_the_steps() -> None:
    marked = marks(
        (0, 0, 6, -1, 0, False, False), (0, 5, 7, 1, 1, True, False), (1, 6, 9, -1, 0, False, False)
    )

    assert [row[:3] for row in rows("main | a", marked)] == [
        (0, "step", 0),
        (0, "request", 5_000),
        (1, "step", 6_000),
    ]


def test_without_marks_the_spans_named_step_are_counted() -> None:
    drawing = """
        main   | step---  step--~
        worker |     step--
        main   |  steps
    """

    # the last one had not ended when the trace did, with its last column
    assert rows(drawing, derived=DERIVED) == [
        (0, "span", 0, 7_000, None, 0, False),
        (1, "span", 4_000, 6_000, None, 1, False),
        (2, "span", 9_000, 7_000, None, 0, True),
    ]


def test_no_marks_are_as_good_as_none() -> None:
    nothing = marks((0, 0, 1, -1, 0, False, False)).take(slice(0, 0))

    assert [row[1] for row in rows("main | step", nothing)] == ["span"]


def test_without_spans_named_step_they_are_derived() -> None:
    assert rows("main | other", derived=DERIVED) == DERIVED.rows()


def test_a_name_that_only_calls_of_python_have_is_no_step() -> None:
    assert rows("main | other", derived=DERIVED, names=["other", "step"]) == DERIVED.rows()


def test_with_nothing_there_are_no_steps() -> None:
    assert rows("main | other") == []
    assert rows("main | other", derived=DERIVED.clear()) == []
