# SPDX-License-Identifier: Apache-2.0
"""Spans summed up by name: rows of the table `operators`."""

from __future__ import annotations

from typing import TypeVar

import polars as pl

from strobe.model import nesting
from strobe.model.arrays import Int64

_Number = TypeVar("_Number", pl.Expr, Int64)

SCHEMA = pl.Schema(
    {
        "name": pl.String,
        "calls": pl.Int64,
        "total_ns": pl.Int64,
        "self_ns": pl.Int64,
        "mean_ns": pl.Float64,
        "p50_ns": pl.Int64,
        "p95_ns": pl.Int64,
        "p99_ns": pl.Int64,
        "max_ns": pl.Int64,
        "min_ns": pl.Int64,
        "share": pl.Float64,
    }
)


def summarise_coded(spans: pl.DataFrame, names: int) -> pl.DataFrame:
    """Return operator_summary's rows, in no order, for spans whose names are ints below `names`.

    Rows come sorted by start_ns.
    """
    by_name = spans.group_by("name").agg(
        calls=pl.len().cast(pl.Int64),
        self_ns=pl.sum("self_ns"),
        mean_ns=pl.mean("dur_ns"),
        durations=pl.col("dur_ns").sort(),
    )
    start_ns = spans["start_ns"].to_numpy()
    total_ns = nesting.cover(
        lane=spans["lane"].cast(pl.Int32).to_numpy(),
        start_ns=start_ns,
        end_ns=start_ns + spans["dur_ns"].to_numpy(),
        name=spans["name"].to_numpy(),
        names=names,
    )
    busy_ns = pl.sum("self_ns")
    return by_name.select(
        "name",
        "calls",
        pl.Series("total_ns", total_ns).gather(by_name["name"]),
        "self_ns",
        "mean_ns",
        p50_ns=_percentile(50),
        p95_ns=_percentile(95),
        p99_ns=_percentile(99),
        max_ns=pl.col("durations").list.last(),
        min_ns=pl.col("durations").list.first(),
        share=pl.when(busy_ns > 0).then(pl.col("self_ns") / busy_ns),
    )


def in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows as operator_summary has them: the largest self time first, then by name."""
    return rows.select(SCHEMA.names()).sort("self_ns", "name", descending=[True, False])


def _percentile(percent: int) -> pl.Expr:
    # By integers on the sorted durations, since Expr.quantile answers in floats.
    return pl.col("durations").list.get(nearest_rank(pl.col("calls"), percent) - 1)


def nearest_rank(count: _Number, percent: int) -> _Number:
    """Return which of so many values in rising order, from 1 on, is a percentile."""
    return (count * percent + 99) // 100
