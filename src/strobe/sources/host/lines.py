# SPDX-License-Identifier: Apache-2.0
"""Python's allocations by line, by tracemalloc: at the start, at the peak and at the end."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

from strobe.sources.host.rates import Counters
from strobe.sources.host.sampler import Group

# Lines of one moment that are kept; what the others hold is kept as a sum.
_MOST_LINES = 1000
# The peak is taken anew when it has grown by this much.
_GROWTH, _GROWTH_BYTES = 1.1, 1 << 20
# What tracemalloc itself needs where a moment can be taken down at next to no cost.
_FRUGAL_BYTES = 1 << 20


class Lines:
    """What lines of Python hold. A tracemalloc that the program has started goes on after us."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._is_ours = not tracemalloc.is_tracing()
        if self._is_ours:
            tracemalloc.start()
        tracemalloc.reset_peak()
        self._start = _take("start")
        self._peak = self._start
        self._stood_out: dict[str, Any] | None = None
        self._is_closed = False

    def group(self) -> Group:
        """Return what is to be looked at."""
        return Group("Python's allocations", 0.1, self._look, frugal=False)

    def keep(self, moment: str, *, frugally: bool) -> dict[str, Any]:
        """Return what is held at a moment that stands out, to be written too.

        Frugally: there is no memory to take much down. Then it is what was seen at the last peak,
        and nothing is looked at from now on.
        """
        self._is_closed = frugally and tracemalloc.get_tracemalloc_memory() > _FRUGAL_BYTES
        if tracemalloc.is_tracing() and not self._is_closed:
            self._stood_out = _take(moment)
        else:
            self._stood_out = {**self._peak, "moment": moment}
        return self._stood_out

    def write(self, path: Path) -> None:
        """Write what was held at each moment, the end included."""
        moments = [self._start, self._peak | {"moment": "peak"}]
        if tracemalloc.is_tracing() and not self._is_closed:  # unless the program has stopped it
            end = _take("stop")
            moments.append(end)
            if end["bytes"] > self._peak["bytes"]:
                moments[1] = end | {"moment": "peak"}
        if self._stood_out is not None:
            moments.append(self._stood_out)
        path.write_text(json.dumps({"pid": os.getpid(), "moments": moments}))

    def close(self) -> None:
        """Trace no more, if nobody else does."""
        if self._is_ours:
            tracemalloc.stop()

    def _look(self, _now_ns: int) -> None:
        if not tracemalloc.is_tracing() or self._is_closed:
            return
        now, _ = tracemalloc.get_traced_memory()
        self._counters.value("python traced bytes", now)
        if now > self._peak["bytes"] * _GROWTH + _GROWTH_BYTES:
            self._peak = _take("peak")


def _take(moment: str) -> dict[str, Any]:
    """Return what lines hold now, the largest first; one without a file is the sum of the rest."""
    held, peak = tracemalloc.get_traced_memory()
    ours = tracemalloc.Filter(False, tracemalloc.__file__)
    found = tracemalloc.take_snapshot().filter_traces((ours,)).statistics("lineno")
    lines: list[tuple[str | None, int | None, int, int]] = [
        (each.traceback[0].filename, each.traceback[0].lineno, each.size, each.count)
        for each in found[:_MOST_LINES]
    ]
    rest = found[_MOST_LINES:]
    if rest:
        size, count = sum(each.size for each in rest), sum(each.count for each in rest)
        lines.append((None, None, size, count))
    return {
        "moment": moment,
        "start_ns": time.monotonic_ns(),
        "bytes": held,
        "peak_bytes": peak,
        "lines": lines,
    }
