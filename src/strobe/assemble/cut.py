# SPDX-License-Identifier: Apache-2.0
"""What of a trace lies in its window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from strobe.model.arrays import Bool, Int64
from strobe.model.trace import UNFINISHED, Allocations, Counters, Instants, Loads, Spans
from strobe.store.spill import Spill


@dataclass(frozen=True, kw_only=True)
class Rows(Spans):
    """Spans in a window, which end with it at the latest."""

    unfinished: Bool
    """Whether it had not ended when the window did."""


_Points = TypeVar("_Points", Spans, Instants, Counters, Allocations, Loads)


def within(points: _Points, start_ns: int, end_ns: int) -> _Points:
    """Return what began in the window, its end included."""
    inside = (points.start_ns >= start_ns) & (points.start_ns <= end_ns)
    return points if inside.all() else points.take(inside)


def cut(spans: Spans, start_ns: int, end_ns: int) -> Rows:
    """Return the spans that began in the window, as they come."""
    spans = within(spans, start_ns, end_ns)
    left_ns = end_ns - spans.start_ns
    unfinished = (spans.dur_ns == UNFINISHED) | (spans.dur_ns > left_ns)
    dur_ns = np.where(unfinished, left_ns, spans.dur_ns) if unfinished.any() else spans.dur_ns
    return Rows(**{**vars(spans), "dur_ns": dur_ns, "unfinished": unfinished})


def ends(spans: Spans, spill: Spill) -> Int64:
    """Return when each span ends."""
    end_ns: Int64 = spill.empty(len(spans), np.int64)
    np.add(spans.start_ns, spans.dur_ns, out=end_ns)
    return end_ns
