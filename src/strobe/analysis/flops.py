# SPDX-License-Identifier: Apache-2.0
"""How many floating-point operations a program has done, and in which time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from strobe.analysis.functions import is_known, read_other_spans
from strobe.model.ancestors import is_inside
from strobe.store.tables import Tables


@dataclass(frozen=True, kw_only=True)
class FlopsRate:
    """How many operations there were in some time: total / over_ns is the rate."""

    total: int
    over_ns: int
    over: str
    """Which time it is: `steps` or `spans`."""


def flops_rate(tables: Tables) -> FlopsRate | None:
    """Floating-point operations in the steps and the time of these; without steps, in all.

    None where no span has a figure (with_flops of the profiler).
    """
    if not is_known(tables, "flops"):
        return None
    spans = read_other_spans(tables, "start_ns", "dur_ns", "parent", "flops")
    return count_flops(spans, tables.steps().collect())


def count_flops(spans: pl.DataFrame, steps: pl.DataFrame) -> FlopsRate | None:
    """Return the operations in the steps that have ended and the time from begin to end of these.

    A span counts in the step in which it began, wherever it ran; one inside another that has a
    figure is part of that and not added. Without steps it is all spans, from the first begin to
    the last end. None where no span has a figure.

    Reads start_ns, dur_ns, parent and flops of a whole table of spans.
    """
    if spans["flops"].null_count() == spans.height:
        return None
    known = spans["flops"].is_not_null().to_numpy()
    parent = spans["parent"].fill_null(-1).to_numpy()
    counted = spans.filter(known & ~is_inside(known, parent))
    figures = counted["flops"].to_numpy()
    ended = steps.filter(~pl.col("unfinished")).sort("start_ns")
    if ended.is_empty():
        end_ns = int((spans["start_ns"] + spans["dur_ns"]).max() or 0)
        over_ns = end_ns - int(spans["start_ns"].to_numpy().min())
        return FlopsRate(total=int(figures.sum()), over_ns=over_ns, over="spans")
    low, high = _union(ended)
    start_ns = counted["start_ns"].to_numpy()
    position = np.searchsorted(low, start_ns, side="right") - 1
    inside = (position >= 0) & (start_ns < high[position])
    return FlopsRate(
        total=int(figures[inside].sum()), over_ns=int((high - low).sum()), over="steps"
    )


def _union(steps: pl.DataFrame) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return begins and ends of the time that steps, sorted by start, take: requests overlap."""
    start_ns = steps["start_ns"].to_numpy()
    end_ns = np.maximum.accumulate(start_ns + steps["dur_ns"].to_numpy())
    apart = np.append(True, start_ns[1:] > end_ns[:-1])
    return start_ns[apart], end_ns[np.append(np.flatnonzero(apart)[1:] - 1, len(end_ns) - 1)]
