# SPDX-License-Identifier: Apache-2.0
"""The span that was open when something happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from strobe.model.arrays import Int32, Int64
from strobe.model.nesting import nest
from strobe.model.trace import Spans
from strobe.store.spill import Spill

LaneOf = Callable[[Int64], Int32]


def innermost_open(
    time_ns: Int64, lanes: Int32, spans: Spans, spill: Spill, lane_of: LaneOf | None = None
) -> Int64:
    """Return the row of the innermost span open at each of these times in a lane, -1 for none.

    The spans come by start. A lane of -1 is none. `lane_of` gives the lanes of some spans, if these
    are not their own.
    """
    if not _is_rising(time_ns, spill):
        order = np.argsort(time_ns, kind="stable")
        found = spill.empty(len(time_ns), np.int64)
        found[order] = innermost_open(time_ns[order], lanes[order], spans, spill, lane_of)
        return found
    if len(time_ns) == 0:
        return np.zeros(0, np.int64)
    lane_of = lane_of or (lambda rows: spans.lane[rows])
    found = spill.full(len(time_ns), -1, np.int64)
    going_on = np.zeros(0, np.int64)
    for events, begun, next_ns in _windows(time_ns, spans.start_ns, spill):
        rows = np.concatenate([going_on, np.arange(begun.start, begun.stop)])
        start_ns = spans.start_ns[rows]
        end_ns = start_ns + spans.dur_ns[rows]
        going_on = rows[end_ns >= next_ns]
        chosen = np.flatnonzero(lanes[events] >= 0)
        if not len(chosen):
            continue
        lane = lane_of(rows)
        some = lane >= 0
        inside = _innermost(
            time_ns[events][chosen], lanes[events][chosen], start_ns[some], end_ns[some], lane[some]
        )
        found[events.start + chosen] = np.append(rows[some], -1)[inside]
    return found


def _is_rising(time_ns: Int64, spill: Spill) -> bool:
    parts = (time_ns[part.start : part.stop + 1] for part in spill.parts(len(time_ns)))
    return all(bool((each[1:] >= each[:-1]).all()) for each in parts)


def _windows(time_ns: Int64, start_ns: Int64, spill: Spill) -> Iterator[tuple[slice, slice, int]]:
    """Yield events and spans of windows that fit into memory, and when the next window begins."""
    never = np.iinfo(np.int64).max
    if len(time_ns) + len(start_ns) <= spill.in_memory_rows:
        yield slice(0, len(time_ns)), slice(0, len(start_ns)), never
        return
    parts = [each[part.start] for each in (time_ns, start_ns) for part in spill.parts(len(each))]
    first = event = 0
    for next_ns in [*np.unique(np.array(parts, np.int64)).tolist(), never]:
        # The last window has all that is left, even if it is at the end of time.
        is_last = next_ns == never
        event_stop = len(time_ns) if is_last else int(np.searchsorted(time_ns, next_ns))
        stop = len(start_ns) if is_last else int(np.searchsorted(start_ns, next_ns))
        yield slice(event, event_stop), slice(first, stop), next_ns
        event, first = event_stop, stop


def _innermost(time_ns: Int64, lanes: Int32, start_ns: Int64, end_ns: Int64, lane: Int32) -> Int64:
    # An event is a span without length; one that begins with a span is inside it.
    starts = np.concatenate([start_ns, time_ns])
    ends = np.concatenate([end_ns, time_ns])
    order = np.lexsort((-ends, starts))
    parent, _ = nest(np.concatenate([lane, lanes])[order], starts[order], ends[order])
    is_event = np.append(order >= len(start_ns), True)
    # The nearest span above: an event may lie in another of the same instant.
    parent = np.append(parent, -1)
    while (lost := (parent >= 0) & is_event[parent]).any():
        parent[lost] = parent[parent[lost]]
    found = np.full(len(order), -1, np.int64)
    above = parent[:-1]
    found[order[above >= 0]] = order[above[above >= 0]]
    return found[len(start_ns) :]
