# SPDX-License-Identifier: Apache-2.0
"""The span that was open when something happened."""

from __future__ import annotations

import numpy as np

from strobe.model.arrays import Int32, Int64
from strobe.model.nesting import nest
from strobe.model.trace import Spans


def innermost_open(time_ns: Int64, lanes: Int32, spans: Spans) -> Int64:
    """Return the row of the innermost span open at each of these times in a lane, -1 for none."""
    if len(time_ns) == 0:
        return np.zeros(0, np.int64)
    # An event is a span without length; one that begins with a span is inside it.
    start_ns = np.concatenate([spans.start_ns, time_ns])
    end_ns = np.concatenate([spans.start_ns + spans.dur_ns, time_ns])
    lane = np.concatenate([spans.lane, lanes])
    order = np.lexsort((-end_ns, start_ns))
    parent, _ = nest(lane[order], start_ns[order], end_ns[order])
    is_event = np.append(order >= len(spans), True)
    # The nearest span above: an event may lie in another of the same instant.
    parent = np.append(parent, -1)
    while (lost := (parent >= 0) & is_event[parent]).any():
        parent[lost] = parent[parent[lost]]
    found = np.full(len(order), -1, np.int64)
    above = parent[:-1]
    found[order[above >= 0]] = order[above[above >= 0]]
    return found[len(spans) :]
