# SPDX-License-Identifier: Apache-2.0
"""What a step's time is made of: computing, communication and neither; forward and backward."""

from __future__ import annotations

import numpy as np
import polars as pl

from strobe.analysis.steps import number_steps
from strobe.model import nesting
from strobe.model.intervals import Union

_POINT_TO_POINT = "(?i)send|recv|receive"


def computing(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans that compute: kernels of devices or, where there are none, operators."""
    category = pl.col("category").cast(pl.String)
    kernels = spans.filter(category == "kernel")
    return spans.filter(category == "operator") if kernels.is_empty() else kernels


def communicating(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans that exchange data with other processes."""
    return spans.filter(pl.col("category").cast(pl.String) == "communication")


def union_of(spans: pl.DataFrame) -> Union:
    """Return the time in which at least one of the spans was open."""
    start_ns = spans["start_ns"].to_numpy()
    return Union.of(start_ns, start_ns + spans["dur_ns"].to_numpy())


def step_times(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """One row per step: how its time, clipped at its bounds, is shared out.

    computing_ns + communication_ns - overlapped_ns + free_ns is the step's duration.

    Columns:
        step, start_ns, dur_ns: as in `steps`.
        computing_ns, communication_ns: time in which at least one such span was open.
        overlapped_ns: time in which both were.
        free_ns: time in which neither was.
        bubble_ns: time of sending to and receiving from single processes.
        span_ns: from the first communication in the step to the end of the last, 0 without any.
        preparing_ns: from the step's begin to the first computing in it, null without any.
    """
    start_ns = steps["start_ns"].to_numpy()
    end_ns = start_ns + steps["dur_ns"].to_numpy()
    work, exchange = computing(spans), communicating(spans)
    names = exchange["name"].cast(pl.String)
    pairs = exchange.filter(names.str.contains(_POINT_TO_POINT))
    computed, exchanged = union_of(work), union_of(exchange)
    computing_ns = computed.covers(start_ns, end_ns)
    communication_ns = exchanged.covers(start_ns, end_ns)
    either_ns = (computed | exchanged).covers(start_ns, end_ns)
    first = np.searchsorted(computed.end_ns, start_ns, side="right")
    begins = np.maximum(np.append(computed.start_ns, 2**62)[first], start_ns)
    return steps.select("step", "start_ns", "dur_ns").with_columns(
        computing_ns=pl.Series(computing_ns),
        communication_ns=pl.Series(communication_ns),
        overlapped_ns=pl.Series(computing_ns + communication_ns - either_ns),
        free_ns=pl.Series(end_ns - start_ns - either_ns),
        bubble_ns=pl.Series(union_of(pairs).covers(start_ns, end_ns)),
        span_ns=pl.Series(_span_ns(exchanged, start_ns, end_ns)),
        preparing_ns=pl.Series(begins - start_ns).set(pl.Series(begins >= end_ns), None),
    )


def _span_ns(
    union: Union, start_ns: np.ndarray[tuple[int], np.dtype[np.int64]], end_ns: np.ndarray
) -> np.ndarray:
    first = np.searchsorted(union.end_ns, start_ns, side="right")
    last = np.searchsorted(union.start_ns, end_ns, side="left") - 1
    begin = np.maximum(
        np.append(union.start_ns, 0)[np.minimum(first, len(union.start_ns))], start_ns
    )
    end = np.minimum(np.append(union.end_ns, 0)[last], end_ns)
    return np.where(first <= last, end - begin, 0)


def step_points(
    spans: pl.DataFrame,
    steps: pl.DataFrame,
    *,
    begins: str | None = None,
    ends: str | None = None,
) -> pl.DataFrame:
    """One row per step in which an operator of the forward began: where its parts meet.

    Reads the columns name, phase, start_ns and dur_ns of operators. `begins` and `ends` are the
    names of those that begin the forward and end the backward, if it is not their phases that tell.

    Columns:
        step, start_ns, end_ns: of the step.
        forward_ns: when the first operator of the forward began; forward_name: which it was.
        backward_ns: when the last operator of the backward that began in the step ended, at the
            latest with the step; null if there was none; backward_name: which it was.
    """
    phase = pl.col("phase").cast(pl.String)
    placed = number_steps(spans, steps).filter(pl.col("step").is_not_null())
    first = (
        placed.filter(phase == "forward" if begins is None else pl.col("name") == begins)
        .sort("start_ns")
        .group_by("step")
        .agg(forward_ns=pl.first("start_ns"), forward_name=pl.first("name"))
    )
    last = (
        placed.filter(phase == "backward" if ends is None else pl.col("name") == ends)
        .with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        .sort("end_ns")
        .group_by("step")
        .agg(backward_ns=pl.last("end_ns"), backward_name=pl.last("name"))
    )
    bounds = steps.select("step", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    return (
        bounds.join(first, on="step", how="inner")
        .join(last, on="step", how="left")
        .with_columns(backward_ns=pl.min_horizontal("backward_ns", "end_ns"))
        .with_columns(
            backward_ns=pl.when(pl.col("backward_name").is_not_null()).then("backward_ns")
        )
        .sort("start_ns")
    )


def choose_steps(steps: pl.DataFrame, numbers: list[int] | None) -> pl.DataFrame:
    """Return the steps that have ended, or of these those with the places `numbers`, from 1 on.

    Raises IndexError for a place that there is none of.
    """
    ended = steps.filter(~pl.col("unfinished")).sort("start_ns")
    if numbers is None:
        return ended
    if numbers[-1] > ended.height:
        message = f"step {numbers[-1]} of {ended.height}"
        raise IndexError(message)
    return ended[numbers[0] - 1 : numbers[-1]]


def clip_spans(spans: pl.DataFrame, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the parts of spans that lie between two times, nested anew: parent and self_ns.

    How many operations a part made is not known.
    """
    begin, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns")
    kept = spans.filter((begin < end_ns) & ((end > start_ns) | (begin >= start_ns)))
    kept = kept.with_columns(
        start_ns=begin.clip(start_ns, end_ns),
        dur_ns=end.clip(start_ns, end_ns) - begin.clip(start_ns, end_ns),
        unfinished=pl.col("unfinished") & (end <= end_ns),
        flops=pl.when((begin >= start_ns) & (end <= end_ns)).then("flops"),
    ).sort("start_ns", "dur_ns", descending=[False, True], maintain_order=True)
    starts = kept["start_ns"].to_numpy()
    parent, self_ns = nesting.nest(
        kept["lane"].cast(pl.Int32).to_numpy(), starts, starts + kept["dur_ns"].to_numpy()
    )
    outer = pl.Series(parent).set(pl.Series(parent < 0), None)
    return kept.with_columns(parent=outer, self_ns=pl.Series(self_ns))


def clip_points(points: pl.DataFrame, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the rows of a table whose start_ns lies between two times."""
    return points.filter(pl.col("start_ns").is_between(start_ns, end_ns, closed="left"))
