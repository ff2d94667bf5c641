# SPDX-License-Identifier: Apache-2.0
"""The operator table: which span names the time went to."""

from __future__ import annotations

import polars as pl

from strobe.model import nesting

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


def operator_summary(spans: pl.LazyFrame) -> pl.LazyFrame:
    """One row per span name, sorted by self_ns descending, then by name.

    Reads the columns name, lane, start_ns, dur_ns and self_ns. Rows sorted by start_ns, as a
    recording has them, are taken as they are; others are sorted first.

    Columns:
        name: the span's name (String, whatever the input's dtype).
        calls: how many spans have it, nested ones included.
        total_ns: time in which at least one of them was open, lane by lane: the union, not the sum,
            so recursive and overlapping calls count once and no name exceeds the busy time.
        self_ns: time in which one of them was the latest-started open span of its lane.
        mean_ns: sum of the durations / calls. With recursion mean_ns * calls exceeds total_ns.
        p50_ns, p95_ns, p99_ns: percentiles of the durations by nearest rank, so each is a duration
            that occurred.
        max_ns, min_ns: the longest and the shortest duration.
        share: self_ns / the self_ns of all spans given, 0 to 1. As a lane's self times sum to its
            busy time, the denominator is the busy time of all lanes together; null if it is 0.
    """
    needed = spans.select("name", "lane", "start_ns", "dur_ns", "self_ns")
    # The rows below are a function of all rows and columns above: nothing may be pushed past it.
    return needed.map_batches(
        _summarise,
        schema=SCHEMA,
        predicate_pushdown=False,
        projection_pushdown=False,
        slice_pushdown=False,
    )


_APART = "\x1f"


def operator_summary_by(spans: pl.LazyFrame, column: str) -> pl.LazyFrame:
    """One row per value of a column and span name: as operator_summary, with that column first."""
    key = pl.concat_str(
        pl.col(column).cast(pl.String).fill_null("-"),
        pl.lit(_APART),
        pl.col("name").cast(pl.String),
    )
    parts = pl.col("name").str.splitn(_APART, 2)
    return operator_summary(spans.with_columns(name=key)).select(
        parts.struct.field("field_0").alias(column),
        parts.struct.field("field_1").alias("name"),
        pl.exclude("name", column),
    )


def _summarise(spans: pl.DataFrame) -> pl.DataFrame:
    if not spans["start_ns"].is_sorted():
        spans = spans.sort("start_ns")
    names = spans["name"]
    if names.dtype == pl.String:
        names = names.cast(pl.Categorical)
    # The categories' integers, moved up so that 0 can stand for a missing name.
    code = (names.to_physical().cast(pl.Int32).fill_null(-1) + 1).alias("name")
    texts = pl.DataFrame({"code": code, "text": names}).unique("code")
    rows = summarise_coded(spans.with_columns(code), names=int(code.max() or 0) + 1)
    named = rows.join(texts, left_on="name", right_on="code", how="left")
    return in_order(named.with_columns(pl.col("text").cast(pl.String).alias("name")))


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
    rank = (pl.col("calls") * percent + 99) // 100
    return pl.col("durations").list.get(rank - 1)
