# SPDX-License-Identifier: Apache-2.0
"""Steps: how long they took, and what their time went to."""

from __future__ import annotations

import polars as pl

from strobe.analysis import nesting
from strobe.analysis.breakdown import phase_breakdown

SPAN_NAME = "step"
"""A program that marks no steps has those of its spans with this name."""

_MARK = "\x00strobe step"


def step_statistics(steps: pl.DataFrame) -> pl.DataFrame:
    """One row per kind of step, the unfinished ones left out.

    Columns:
        kind: as in the table `steps`.
        steps: how many have ended.
        mean_ns, p50_ns, p95_ns, min_ns, max_ns: of their durations; percentiles by nearest rank.
        slowest: the number of the longest one.
        samples_per_s: samples / time from the first begin to the last end, null where nobody said
            how many there were.
    """
    ended = steps.filter(~pl.col("unfinished"))
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


def step_breakdown(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Split the time of the steps among the outermost spans in them: as phase_breakdown.

    A step is laid over the lane that ended it; only steps that have ended, and whose lane is known,
    take part. Steps that are spans are broken down as those spans.
    """
    if steps["kind"].eq("span").any():
        return phase_breakdown(spans.lazy(), SPAN_NAME).collect()
    ended = steps.filter(~pl.col("unfinished") & pl.col("lane").is_not_null())
    columns = ("name", "lane", "start_ns", "dur_ns")
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


def number_steps(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the spans with a column `step`: that of the step in which they began, null for none.

    Where steps overlap, as requests do, it is the latest begun of the span's own lane.
    """
    found = spans.sort("start_ns").join_asof(
        steps.select(
            "step",
            pl.col("lane").cast(pl.Int32) if steps["kind"].eq("request").any() else "start_ns",
            pl.col("start_ns").alias("step_start_ns"),
            (pl.col("start_ns") + pl.col("dur_ns")).alias("step_end_ns"),
        ).sort("step_start_ns"),
        left_on="start_ns",
        right_on="step_start_ns",
        by="lane" if steps["kind"].eq("request").any() else None,
    )
    inside = pl.col("start_ns") < pl.col("step_end_ns")
    return found.with_columns(step=pl.when(inside).then("step")).drop(
        "step_start_ns", "step_end_ns"
    )
