# SPDX-License-Identifier: Apache-2.0
"""Converts the times of a trace to our clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from strobe.model.arrays import Int64


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """A line through two marks that converts a trace's times to our clock."""

    mark_ns: int
    offset_ns: int
    """Added at `mark_ns`."""
    drift: float
    """Added on top for each nanosecond after it."""
    residual_ns: int
    """Upper bound of the error."""

    def apply(self, times_ns: Int64) -> Int64:
        """Convert times to our clock."""
        more = np.rint((times_ns - self.mark_ns) * self.drift).astype(np.int64)
        ours_ns: Int64 = times_ns + self.offset_ns + more
        return ours_ns


def align(marks_ns: Int64, between_ns: list[tuple[int, int]]) -> Alignment:
    """Fit a trace's clock to ours, using marks bracketed by our timestamps.

    Half of the marks lie at the start of the trace and half at its end. Of each half the mark with
    the narrowest bracket counts.
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
