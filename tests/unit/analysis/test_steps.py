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
