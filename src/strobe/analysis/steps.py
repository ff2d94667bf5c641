# SPDX-License-Identifier: Apache-2.0
"""Steps: how long they took, and what their time went to."""

from __future__ import annotations

import inspect
from typing import Any

import polars as pl

from strobe.analysis.breakdown import phase_breakdown
from strobe.analysis.functions import read_other_spans
from strobe.model import nesting
from strobe.model.marks import STEP
from strobe.store.tables import Tables

_MARK = "\x00strobe step"
# Newer Polars warns that it cannot check the order within lanes, which is that of the whole.
_CAN_TRUST = "check_sortedness" in inspect.signature(pl.DataFrame.join_asof).parameters
_SORTED: dict[str, Any] = {"check_sortedness": False} if _CAN_TRUST else {}


def step_statistics(tables: Tables) -> pl.DataFrame:
    """How long the steps took: one row per kind of step, the unfinished ones left out.

    Columns:
        kind: as in the table `steps`.
        steps: how many have ended.
        mean_ns, p50_ns, p95_ns, min_ns, max_ns: of their durations; percentiles by nearest rank.
        slowest: the number of the longest one.
        samples_per_s: samples / time from the first begin to the last end, null where nobody said
            how many there were.
    """
    ended = tables.steps().filter(~pl.col("unfinished")).collect()
    span_ns = (pl.col("start_ns") + pl.col("dur_ns")).max() - pl.col("start_ns").min()
    return (
        ended.group_by("kind", maintain_order=True)
        .agg(
            steps=pl.len().cast(pl.Int64),
            mean_ns=pl.mean("dur_ns"),
            p50_ns=_nearest_rank(50),
            p95_ns=_nearest_rank(95),
            min_ns=pl.min("dur_ns"),
            max_ns=pl.max("dur_ns"),
            slowest=pl.col("step").get(pl.col("dur_ns").arg_max()),
            samples_per_s=pl.when(pl.col("samples").is_not_null().all() & (span_ns > 0)).then(
                pl.sum("samples") * 1e9 / span_ns
            ),
        )
        .sort("kind")
    )


def _nearest_rank(percent: int) -> pl.Expr:
    rank = (pl.len() * percent + 99) // 100
    return pl.col("dur_ns").sort().get(rank - 1)


def step_breakdown(tables: Tables) -> pl.DataFrame:
    """Where the time of the steps goes: the outermost spans in them and the rest.

    If phases are known, only spans that the user named take part: operators say nothing that the
    phases do not. Then there are no rows if the user named none.
    Columns: name, calls, total_ns, per_parent_ns, share (of the time of the steps).
    """
    columns = ("name", "phase", "lane", "start_ns", "dur_ns", "parent")
    spans, steps = read_other_spans(tables, *columns), tables.steps().collect()
    laid = steps.filter(~pl.col("unfinished"), pl.col("lane").is_not_null())
    if laid.is_empty() or spans["phase"].null_count() == spans.height:
        return break_down_steps(spans, steps)
    parts = break_down_steps(user_spans(spans), steps)
    return parts if parts.height > 1 else parts.clear()


def break_down_steps(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Split the time of the steps among the outermost spans in them: as phase_breakdown.

    A step is laid over the lane that ended it; only steps that have ended, and whose lane is known,
    take part. Steps that are spans are broken down as those spans, and so are annotations.
    """
    if steps["kind"].eq("span").any():
        return phase_breakdown(spans.lazy(), STEP).collect()
    ended = steps.filter(~pl.col("unfinished") & pl.col("lane").is_not_null())
    columns = ("name", "lane", "start_ns", "dur_ns")
    if steps["kind"].eq("annotation").any():
        places = ended.select(pl.col("lane").cast(spans.schema["lane"]), *columns[2:])
        spans = spans.join(places, on=columns[1:], how="anti")
    marks = ended.select(pl.lit(_MARK).alias("name"), *columns[1:])
    both = pl.concat([marks, spans.select(*columns)], how="vertical_relaxed").sort(
        "start_ns", pl.col("start_ns") + pl.col("dur_ns"), descending=[False, True]
    )
    start_ns = both["start_ns"].to_numpy()
    parent, _ = nesting.nest(
        both["lane"].cast(pl.Int32).to_numpy(), start_ns, start_ns + both["dur_ns"].to_numpy()
    )
    nested = both.with_columns(parent=pl.Series(parent).set(pl.Series(parent < 0), None))
    return phase_breakdown(nested.lazy(), _MARK).collect()


def user_spans(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of the user alone, with the parents that they have among themselves."""
    mine = spans.filter(pl.col("category").cast(pl.String) == "user")
    start_ns = mine["start_ns"].to_numpy()
    parent, _ = nesting.nest(
        mine["lane"].cast(pl.Int32).to_numpy(), start_ns, start_ns + mine["dur_ns"].to_numpy()
    )
    return mine.with_columns(parent=pl.Series(parent).set(pl.Series(parent < 0), None))


def number_steps(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with a column `step`: that of the step in which they began, null for none.

    Where steps overlap, as requests do, it is the latest begun of the span's own lane.
    """
    overlap = steps["kind"].eq("request").any()
    bounds = steps.select(
        "step",
        pl.col("lane").cast(pl.Int32) if overlap else "start_ns",
        pl.col("start_ns").alias("step_start_ns"),
        (pl.col("start_ns") + pl.col("dur_ns")).alias("step_end_ns"),
    ).sort("step_start_ns")
    found = spans.sort("start_ns").join_asof(
        bounds,
        left_on="start_ns",
        right_on="step_start_ns",
        by="lane" if overlap else None,
        **_SORTED,
    )
    inside = pl.col("start_ns") < pl.col("step_end_ns")
    return found.with_columns(step=pl.when(inside).then("step")).drop(
        "step_start_ns", "step_end_ns"
    )
