# SPDX-License-Identifier: Apache-2.0
"""The operator table: which span names the time went to."""

from __future__ import annotations

from typing import Literal

import polars as pl

from strobe.analysis.functions import read_other_spans
from strobe.analysis.steps import number_steps
from strobe.errors import UsageError
from strobe.model.operators import SCHEMA, in_order, summarise_coded
from strobe.store.tables import Tables


def operators(tables: Tables) -> pl.DataFrame:
    """One row per span name, the largest self time first.

    Columns: name, calls, total_ns, self_ns, mean_ns, p50_ns, p95_ns, p99_ns, max_ns, min_ns,
    share (of the self time of all spans).
    """
    return tables.scan("operators").collect()


def operators_by(tables: Tables, column: Literal["thread", "step", "module"]) -> pl.DataFrame:
    """One row per thread, step or module, and span name: as operators(), that column first.

    A span belongs to the step in which it began. A module is the path of a layer. Raises UsageError
    for another column.
    """
    if column not in ("thread", "step", "module"):
        message = f"operators_by({column!r}): must be 'thread', 'step' or 'module'"
        raise UsageError(message)
    spans = read_other_spans(tables, "name", "module", "lane", "start_ns", "dur_ns", "self_ns")
    if column == "step":
        spans = number_steps(spans, tables.steps().collect())
    elif column == "thread":
        threads = tables.threads().select("lane", "thread").collect()
        spans = spans.join(threads, on="lane", how="left")
    return operator_summary_by(spans.lazy(), column).collect()


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
