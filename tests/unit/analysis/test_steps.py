# SPDX-License-Identifier: Apache-2.0
"""What the time of drawn steps went to."""

from __future__ import annotations

import polars as pl

from drawing import COLUMN_NS, spans
from strobe.analysis.steps import break_down_steps


def test_an_annotated_step_is_broken_down_into_what_is_in_it() -> None:
    trace = spans("""
        main | a--------- a---------
        main |  load run-  load run-
    """)
    steps = pl.DataFrame(
        {
            "step": [0, 1],
            "kind": ["annotation", "annotation"],
            "start_ns": [0, 11 * COLUMN_NS],
            "dur_ns": [10 * COLUMN_NS, 10 * COLUMN_NS],
            "samples": pl.Series([None, None], dtype=pl.Int64),
            "lane": pl.Series([0, 0], dtype=pl.Int32),
            "unfinished": [False, False],
        }
    )

    parts = break_down_steps(trace, steps)

    assert set(parts["name"]) == {"load", "run", "(rest)"}


def test_a_step_lies_inside_longer_spans_and_around_shorter_ones_that_begin_with_it() -> None:
    # Two steps of 10 columns. `epoch` and `first` begin with the first one. `over` goes on from the
    # first into the second and `last` from the second on, so they are no part of either.
    trace = spans("""
        main   | epoch------------------------
        main   | first-- over------ last----
        main   |  in         child
        worker | other-----------------
    """)

    parts = break_down_steps(trace, steps_of((0, 10), (10, 20)))

    assert parts.select("name", "calls", "total_ns").rows() == [
        ("first", 1, 7 * COLUMN_NS),
        ("child", 1, 5 * COLUMN_NS),
        ("(rest)", 0, 8 * COLUMN_NS),
    ]


def test_rows_that_are_not_sorted_are_sorted_first() -> None:
    trace = spans("""
        main | a-- b------
        main |      c--
    """)

    parts = break_down_steps(trace.reverse(), steps_of((0, 11)))

    assert parts.select("name", "calls", "total_ns").rows() == [
        ("b", 1, 7 * COLUMN_NS),
        ("a", 1, 3 * COLUMN_NS),
        ("(rest)", 0, 1 * COLUMN_NS),
    ]


def steps_of(*bounds: tuple[int, int]) -> pl.DataFrame:
    """Steps of the first lane, by their first column and the one after the last."""
    return pl.DataFrame(
        {
            "step": range(len(bounds)),
            "kind": ["step"] * len(bounds),
            "start_ns": [low * COLUMN_NS for low, _ in bounds],
            "dur_ns": [(high - low) * COLUMN_NS for low, high in bounds],
            "samples": pl.Series([None] * len(bounds), dtype=pl.Int64),
            "lane": pl.Series([0] * len(bounds), dtype=pl.Int32),
            "unfinished": [False] * len(bounds),
        }
    )
