# SPDX-License-Identifier: Apache-2.0
"""What every importer returns: a trace as columns, in the file's own order and clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from strobe.model.arrays import Float64, Int8, Int32, Int64


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """How to turn the times of a trace into those of our clock: a line through two marks."""

    mark_ns: int
    offset_ns: int
    """What to add at `mark_ns`."""
    drift: float
    """What to add more for each nanosecond after it."""
    residual_ns: int
    """How wrong it may be."""

    def apply(self, times_ns: Int64) -> Int64:
        """Times of our clock."""
        more = np.rint((times_ns - self.mark_ns) * self.drift).astype(np.int64)
        ours_ns: Int64 = times_ns + self.offset_ns + more
        return ours_ns


def align(marks_ns: Int64, between_ns: list[tuple[int, int]]) -> Alignment:
    """Lay a trace's clock beside ours by marks of which we know between which times they were made.

    Half of them are of the start and half of the end of the trace; of each half the one that is
    known best is taken. There is one pair of times for each mark.
    """
    before_ns, after_ns = np.array(between_ns, np.int64).reshape(-1, 2).T
    middle = len(marks_ns) // 2
    width = after_ns - before_ns
    first = int(np.argmin(width[:middle]))
    last = middle + int(np.argmin(width[middle:]))
    offset_ns = (before_ns + after_ns) // 2 - marks_ns
    apart = int(marks_ns[last] - marks_ns[first])
    drift = int(offset_ns[last] - offset_ns[first]) / apart if apart > 0 else 0.0
    line = Alignment(
        mark_ns=int(marks_ns[first]), offset_ns=int(offset_ns[first]), drift=drift, residual_ns=0
    )
    ours_ns = line.apply(marks_ns)
    outside = max(0, int(np.max(before_ns - ours_ns)), int(np.max(ours_ns - after_ns)))
    uncertain = int(max(width[first], width[last]) + 1) // 2
    return replace(line, residual_ns=outside + uncertain)


@dataclass(frozen=True, kw_only=True)
class Allocations:
    """Blocks of memory that were allocated or freed; one row each."""

    start_ns: Int64
    bytes: Int64
    """Size; negative where it was freed."""
    address: Int64
    device: Int32
    """Accelerator, -1 for the host."""
    pid: Int64
    tid: Int64
    allocated_bytes: Int64
    """In use on the device from then on; -1 where the file does not say, as the next."""
    reserved_bytes: Int64
    owner_ns: Int64 | None = None
    """When what it is for was at work, where that is later than the allocation."""


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Values over time; one row each."""

    names: list[str]
    name: Int32
    """Place in `names`."""
    start_ns: Int64
    value: Float64


@dataclass(frozen=True, kw_only=True)
class Events:
    """The spans of a trace; one row each. Where a number is unknown it is -1."""

    base_ns: int
    """Add it to a time to have the trace's own clock."""
    names: list[str]
    texts: list[str]
    """Attributes: JSON objects."""

    name: Int32
    """Place in `names`."""
    category: Int8
    """Place in model.tables.CATEGORIES."""
    start_ns: Int64
    dur_ns: Int64
    pid: Int64
    """Process; for what ran on a device the number that the file gives instead."""
    tid: Int64
    """Thread; for what ran on a device its stream."""
    sequence: Int64
    """The framework's number for a differentiable operator and its backward."""
    forward_thread: Int64
    """The framework's number for the thread that ran the forward of a backward."""
    correlation: Int64
    """Joins a launch with what it launched."""
    device: Int32
    stream: Int64
    attributes: Int32
    """Place in `texts`."""

    allocations: Allocations
    threads: Mapping[tuple[int, int], str]
    """Process and thread to the thread's name."""
    skipped: Mapping[str, int]
    """How many events of other kinds there were."""

    module: Int32 | None = None
    """Place in `names` of the layer that it was called in, -1 for none; None where all have none.
    """
    counters: Counters | None = None
    notes: tuple[str, ...] = ()
    """What is wrong with the trace, for people."""
