# SPDX-License-Identifier: Apache-2.0
"""Steps: how long they took, and what their time went to."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import polars as pl

from strobe.analysis.breakdown import phase_breakdown
from strobe.analysis.phases import (
    LOADER_PREFIX,
    LOADING,
    OPTIMIZER,
    OPTIMIZER_PREFIX,
    told_codes,
)
from strobe.analysis.words import Words
from strobe.model import nesting
from strobe.model.ancestors import is_inside
from strobe.model.arrays import Bool, Int64

SPAN_NAME = "step"
"""A program that marks no steps has those of its spans with this name."""

_MARK = "\x00strobe step"
# Newer Polars warns that it cannot check the order within lanes, which is that of the whole.
_CAN_TRUST = "check_sortedness" in inspect.signature(pl.DataFrame.join_asof).parameters
_SORTED: dict[str, Any] = {"check_sortedness": False} if _CAN_TRUST else {}


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
    take part. Steps that are spans are broken down as those spans, and so are annotations.
    """
    if steps["kind"].eq("span").any():
        return phase_breakdown(spans.lazy(), SPAN_NAME).collect()
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


def derived_steps(spans: pl.DataFrame, number: Int64 | None = None) -> pl.DataFrame:
    """Return the steps of a program that marks none, by its annotations, optimizers and loaders.

    A step of kind `annotation` is a span of that category with a `number`, which is -1 for all
    others. The steps have these numbers if they rise, else they are counted.
    Without such, a step of kind `optimizer` ends with an Optimizer.step#..., an annotation that
    tells that it is of that phase, or what tells that it ends one; it begins with the end of the
    last one, the first with the first wait for a loader, or else the first span of the lane.
    Several optimizers are one step if no data is loaded between them, or, in a program whose loop
    loads none, if no forward is.
    Without an optimizer, a step of kind `batch` begins with a wait for the loader, unless nothing
    follows before the next wait, and ends with the next one, the last with the lane's last span. A
    wait is none in which something tells that the data ended.
    With neither, operators that are known to be an optimizer's end a step of kind `optimizer`;
    without these there are none.

    The lane is that with the most such spans. Reads name, phase, lane, start_ns, dur_ns, parent,
    unfinished and, if they are there, category, told and ends of a whole table of spans, sorted.
    Columns: those of the table `steps`.
    """
    if number is not None and (number >= 0).any():
        annotated = Words.of(spans["category"]).is_one_of("annotation") & (number >= 0)
        if annotated.any():
            return _by_annotation(spans, annotated, number)
    name, phase = Words.of(spans["name"]), Words.of(spans["phase"])
    parent = spans["parent"].fill_null(-1).to_numpy()
    optimizer = name.begins(OPTIMIZER_PREFIX) & phase.is_one_of("optimizer")
    loader = name.begins(LOADER_PREFIX) & phase.is_one_of("data_loading")
    told = told_codes(spans)
    if (told >= 0).any():
        category = Words.of(spans["category"])
        annotation = category.is_one_of("annotation")
        optimizer = optimizer | (annotation & (told == OPTIMIZER))
        waits = annotation | category.is_one_of("data_loading")
        loader = loader | (waits & (told == LOADING))
    if "ends" in spans.columns:
        optimizer = optimizer | (spans["ends"] == "step").fill_null(False).to_numpy()
    optimizer &= ~is_inside(optimizer, parent)
    loader &= ~is_inside(loader, parent)
    idle = np.zeros(spans.height, bool)  # waits for nothing
    if "ends" in spans.columns:
        idle = (spans["ends"] == "data").fill_null(False).to_numpy().copy()
        idle[parent[idle & (parent >= 0)]] = True
    loader &= ~idle
    if not optimizer.any() and not loader.any():
        optimizer = phase.is_one_of("optimizer")
    lanes = spans["lane"].to_numpy()
    marked = lanes[optimizer if optimizer.any() else loader]
    lane = int(np.bincount(marked).argmax()) if len(marked) else -1
    rows = np.flatnonzero(lanes == lane)
    mine = spans[rows]
    if optimizer.any():
        forward = phase.is_one_of("forward")
        return _by_optimizer(mine, lane, optimizer[rows], loader[rows], forward[rows])
    if loader.any():
        return _by_loader(mine, lane, loader[rows], idle[rows])
    nothing = np.empty(0, np.int64)
    return _steps("batch", lane, nothing, nothing, nothing.astype(bool))


def _by_annotation(spans: pl.DataFrame, annotated: Bool, number: Int64) -> pl.DataFrame:
    outermost = annotated & ~is_inside(annotated, spans["parent"].fill_null(-1).to_numpy())
    lanes = spans["lane"].to_numpy()
    lane = int(np.bincount(lanes[outermost]).argmax())
    rows = np.flatnonzero(outermost & (lanes == lane))
    mine = spans[rows]
    start_ns, dur_ns = mine["start_ns"].to_numpy(), mine["dur_ns"].to_numpy()
    steps = _steps("annotation", lane, start_ns, start_ns + dur_ns, mine["unfinished"].to_numpy())
    rises = bool((np.diff(number[rows]) > 0).all())
    return steps.with_columns(step=pl.Series(number[rows])) if rises else steps


def _by_optimizer(
    spans: pl.DataFrame,
    lane: int,
    optimizer: Bool,
    loader: Bool,
    forward: Bool,
) -> pl.DataFrame:
    chosen = np.flatnonzero(optimizer)
    between = slice(chosen[0], chosen[-1])
    for apart in (loader, forward, optimizer):
        if apart[between].any():
            break
    before = np.searchsorted(np.flatnonzero(apart), chosen)
    last = chosen[np.append(before[1:] > before[:-1], True)]
    end_ns = (spans["start_ns"] + spans["dur_ns"]).to_numpy()[last]
    first = np.argmax(loader[: chosen[0] + 1])  # 0 where there is none
    start_ns = np.append(spans["start_ns"][int(first)], end_ns[:-1])
    return _steps("optimizer", lane, start_ns, end_ns, spans["unfinished"].to_numpy()[last])


def _by_loader(spans: pl.DataFrame, lane: int, loader: Bool, idle: Bool) -> pl.DataFrame:
    """Return the steps by a loader; what begins before a wait ends is the loader's own."""
    chosen = np.flatnonzero(loader)
    start_ns = spans["start_ns"].to_numpy()
    end_ns = (spans["start_ns"] + spans["dur_ns"]).to_numpy()
    after = np.searchsorted(start_ns, end_ns[chosen])
    busy = np.append(0, np.cumsum(~idle))
    used = busy[after] < busy[np.append(chosen[1:], len(start_ns))]
    first = chosen[used] if used.any() else chosen
    unfinished = np.zeros(len(first), bool)
    unfinished[-1] = spans["unfinished"].to_numpy()[first[-1] :].any()
    stop_ns = np.append(start_ns[first[1:]], end_ns.max())
    return _steps("batch", lane, start_ns[first], stop_ns, unfinished)


def _steps(
    kind: str,
    lane: int,
    start_ns: Int64,
    end_ns: Int64,
    unfinished: Bool,
) -> pl.DataFrame:
    rows = len(start_ns)
    return pl.DataFrame(
        {
            "step": np.arange(rows, dtype=np.int64),
            "kind": pl.repeat(kind, rows, dtype=pl.String, eager=True),
            "start_ns": start_ns,
            "dur_ns": end_ns - start_ns,
            "samples": pl.repeat(None, rows, dtype=pl.Int64, eager=True),
            "lane": pl.repeat(lane, rows, dtype=pl.Int32, eager=True),
            "unfinished": unfinished,
        }
    )
