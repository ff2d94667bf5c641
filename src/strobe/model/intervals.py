# SPDX-License-Identifier: Apache-2.0
"""Sets of instants: unions of intervals, and how much of a stretch of time they cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strobe.model.arrays import Int64


@dataclass(frozen=True)
class Union:
    """Intervals that neither overlap nor touch, in order."""

    start_ns: Int64
    end_ns: Int64

    @staticmethod
    def of(start_ns: Int64, end_ns: Int64) -> Union:
        """Return the union of intervals in any order; those without length count for nothing."""
        kept = end_ns > start_ns
        start_ns, end_ns = start_ns[kept], end_ns[kept]
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
        first = np.append(True, start_ns[1:] > end_ns[:-1])[: len(start_ns)]
        last = np.append(first[1:], True)[: len(start_ns)]
        return Union(start_ns[first], end_ns[last])

    def __or__(self, other: Union) -> Union:
        """Return what either covers."""
        return Union.of(
            np.concatenate([self.start_ns, other.start_ns]),
            np.concatenate([self.end_ns, other.end_ns]),
        )

    @property
    def length_ns(self) -> int:
        """How long it lasts in all."""
        return int((self.end_ns - self.start_ns).sum())

    def covers(self, start_ns: Int64, end_ns: Int64) -> Int64:
        """Return how much of each stretch it covers."""
        return self._before(end_ns) - self._before(start_ns)

    def gaps(self, start_ns: int, end_ns: int) -> Union:
        """Return what it leaves free of one stretch."""
        starts = np.append(start_ns, np.clip(self.end_ns, start_ns, end_ns))
        ends = np.append(np.clip(self.start_ns, start_ns, end_ns), end_ns)
        return Union.of(starts.astype(np.int64), ends.astype(np.int64))

    def minus(self, other: Union) -> Union:
        """Return what it covers and the other does not."""
        if not len(self.start_ns):
            return self
        free = other.gaps(int(self.start_ns[0]), int(self.end_ns[-1]))
        return free.both(self)

    def both(self, other: Union) -> Union:
        """Return what both cover."""
        edges = np.unique(
            np.concatenate([self.start_ns, self.end_ns, other.start_ns, other.end_ns])
        )
        start_ns, end_ns = edges[:-1], edges[1:]
        lasting = end_ns - start_ns
        inside = (self.covers(start_ns, end_ns) == lasting) & (
            other.covers(start_ns, end_ns) == lasting
        )
        return Union.of(start_ns[inside], end_ns[inside])

    def _before(self, time_ns: Int64) -> Int64:
        """Return how much of it lies before each time."""
        lengths = np.append(0, np.cumsum(self.end_ns - self.start_ns))
        place = np.searchsorted(self.start_ns, time_ns, side="right")
        whole = lengths[place]
        ends = np.append(0, self.end_ns)[place]
        beyond: Int64 = whole - np.maximum(ends - time_ns, 0) * (place > 0)
        return beyond.astype(np.int64)
