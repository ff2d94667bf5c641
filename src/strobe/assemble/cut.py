# SPDX-License-Identifier: Apache-2.0
"""What of a trace lies in its window."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from strobe.model.arrays import Bool
from strobe.model.trace import UNFINISHED, Allocations, Counters, Instants, Loads, Spans

_Points = TypeVar("_Points", Spans, Instants, Counters, Allocations, Loads)


def within(points: _Points, start_ns: int, end_ns: int) -> _Points:
    """Return what began in the window, its end included."""
    inside = (points.start_ns >= start_ns) & (points.start_ns <= end_ns)
    return points if inside.all() else points.take(inside)


def cut(spans: Spans, start_ns: int, end_ns: int) -> tuple[Spans, Bool]:
    """Return the spans that began in the window, by start, and which had not ended by its end."""
    spans = within(spans, start_ns, end_ns)
    left_ns = end_ns - spans.start_ns
    unfinished = (spans.dur_ns == UNFINISHED) | (spans.dur_ns > left_ns)
    if unfinished.any():
        spans = replace(spans, dur_ns=np.where(unfinished, left_ns, spans.dur_ns))
    order = np.argsort(spans.start_ns, kind="stable")
    if (np.diff(spans.start_ns[order]) == 0).any():
        order = np.lexsort((-spans.dur_ns, spans.start_ns))
    return spans.take(order), unfinished[order]
