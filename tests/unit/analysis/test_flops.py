# SPDX-License-Identifier: Apache-2.0
"""Rates of operations over drawn spans and steps."""

from __future__ import annotations

import polars as pl

from drawing import spans, table
from strobe.analysis.flops import FlopsRate, count_flops


def steps(*bounds: tuple[int, int, bool]) -> pl.DataFrame:
    return pl.DataFrame(
        bounds, schema={"start_ns": int, "dur_ns": int, "unfinished": bool}, orient="row"
    )


def test_an_operator_inside_one_that_is_counted_is_not_added():
    # the layer's add is part of the layer; another lies deeper in an operator without a figure
    trace = spans("""
        main | layer------  sum--
        main |   call---
        main |     add
    """).with_columns(flops=pl.Series([100, None, 28, 7]))

    rate = count_flops(trace, steps())

    assert rate == FlopsRate(total=107, over_ns=18_000, over="spans")


def test_with_steps_the_rate_is_that_of_the_ended_ones():
    trace = table([("mm", t, t + 1, 0) for t in (0, 10, 20, 25, 45)]).with_columns(
        flops=pl.Series([1, 10, 100, 1000, 10_000])
    )

    rate = count_flops(
        trace, steps((5_000, 12_000, False), (15_000, 10_000, False), (40_000, 9_000, True))
    )

    # two that overlap, 5 to 25; what begins at 25 is beyond
    assert rate == FlopsRate(total=110, over_ns=20_000, over="steps")


def test_without_a_figure_there_is_no_rate():
    trace = spans("main | a--").with_columns(flops=pl.lit(None, dtype=pl.Int64))

    assert count_flops(trace, steps()) is None
