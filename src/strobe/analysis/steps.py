# SPDX-License-Identifier: Apache-2.0
"""Steps: how long they took, and what their time went to."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import polars as pl

from strobe.analysis.breakdown import SCHEMA, Nested, phase_breakdown, split_parents
from strobe.analysis.functions import is_known, read_other_spans
from strobe.model import nesting
from strobe.model.arrays import Int32, Int64
from strobe.model.marks import STEP
from strobe.store.tables import Tables

_START, _END = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns")
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
    columns = ("name", "lane", "start_ns", "dur_ns")
    steps = tables.steps().collect()
    if steps.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    laid = steps.filter(~pl.col("unfinished"), pl.col("lane").is_not_null())
    if laid.is_empty() or not is_known(tables, "phase"):
        return break_down_steps(read_other_spans(tables, *columns, "parent"), steps)
    is_users = pl.col("category").cast(pl.String) == "user"
    spans = tables.spans().filter(is_users).select(columns).collect()
    parts = break_down_steps(nest_again(spans), steps)
    return parts if parts.height > 1 else parts.clear()


def break_down_steps(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Split the time of the steps among the outermost spans in them: as phase_breakdown.

    A step is laid over the lane that ended it; only steps that have ended, and whose lane is known,
    take part. Steps that are spans are broken down as those spans, and so are annotations.
    """
    if steps["kind"].eq("span").any():
        return phase_breakdown(spans.lazy(), STEP).collect()
    ended = steps.filter(~pl.col("unfinished") & pl.col("lane").is_not_null())
    if steps["kind"].eq("annotation").any():
        columns = ("lane", "start_ns", "dur_ns")
        places = ended.select(pl.col("lane").cast(spans.schema["lane"]), *columns[1:])
        others = spans.with_row_index("row").join(places, on=columns, how="anti")
        spans = spans[others["row"].sort()]
    return _lay_over(ended, spans)


def _lay_over(steps: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Nest the steps among the spans as if they were spans too, and split their time."""
    lane, start_ns, end_ns = _columns(spans)
    row = np.arange(len(lane))
    if not nesting.is_sorted(start_ns, end_ns):
        row = np.lexsort((-end_ns, start_ns))
        lane, start_ns, end_ns = lane[row], start_ns[row], end_ns[row]
    mark_lane, mark_ns, mark_end_ns = _columns(steps.sort(_START, _END, descending=[False, True]))
    place = _places(start_ns, end_ns, mark_ns, mark_end_ns)
    lane = np.insert(lane, place, mark_lane)
    start_ns, end_ns = np.insert(start_ns, place, mark_ns), np.insert(end_ns, place, mark_end_ns)
    row = np.insert(row, place, -1)
    parent, _ = nesting.nest(lane, start_ns, end_ns)
    nested = Nested(lane, start_ns, end_ns, parent, is_parent=row < 0)
    return split_parents(nested, lambda rows: spans["name"].gather(row[rows]))


def _columns(rows: pl.DataFrame) -> tuple[Int32, Int64, Int64]:
    start_ns = rows["start_ns"].to_numpy()
    return rows["lane"].cast(pl.Int32).to_numpy(), start_ns, start_ns + rows["dur_ns"].to_numpy()


def _places(start_ns: Int64, end_ns: Int64, mark_ns: Int64, mark_end_ns: Int64) -> Int64:
    """Return where marks go among sorted spans: behind those that begin with them and end later."""
    place: Int64 = np.searchsorted(start_ns, mark_ns)
    last = np.searchsorted(start_ns, mark_ns, side="right")
    for number in np.flatnonzero(last > place):
        same = slice(place[number], last[number])
        place[number] += int((end_ns[same] > mark_end_ns[number]).sum())
    return place


def nest_again(spans: pl.DataFrame) -> pl.DataFrame:
    """Return some spans of a table, in its order, with the parents they have among themselves."""
    parent, _ = nesting.nest(*_columns(spans))
    return spans.with_columns(parent=pl.Series(parent).set(pl.Series(parent < 0), None))


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
