# SPDX-License-Identifier: Apache-2.0
"""Python's allocations by line, by tracemalloc: at the start, the peak, the end, and between."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

from strobe.sources.host.rates import Counters
from strobe.sources.host.sampler import Group

# Lines of one moment that are kept, and of a look in between; the others are kept as a sum.
_MOST_LINES, _MOST_OF_A_LOOK = 1000, 100
# Looks that are kept: when there are more, every second one goes, and they are as much rarer.
_MOST_LOOKS = 64
# The program stands still while a moment is taken down: a twentieth of the time at most.
_LOOK_EVERY_NS, _MOST_SHARE = 1_000_000_000, 0.05
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
        self._looks: list[dict[str, Any]] = []
        self._pause_ns = _LOOK_EVERY_NS
        self._next_ns = time.monotonic_ns() + self._pause_ns
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
        moments = [self._start, self._peak | {"moment": "peak"}, *self._looks]
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
        began_ns = time.monotonic_ns()
        is_peak = now > self._peak["bytes"] * _GROWTH + _GROWTH_BYTES
        if is_peak or began_ns >= self._next_ns:
            taken = _take("look")
            if is_peak:
                self._peak = taken
            self._looks.append(_shortened(taken))
            self._thin_out()
            now_ns = time.monotonic_ns()
            self._next_ns = now_ns + max(self._pause_ns, round((now_ns - began_ns) / _MOST_SHARE))

    def _thin_out(self) -> None:
        if len(self._looks) > _MOST_LOOKS:
            self._looks = self._looks[::2]
            self._pause_ns *= 2


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
        lines.append(
            (None, None, sum(each.size for each in rest), sum(each.count for each in rest))
        )
    return {
        "moment": moment,
        "start_ns": time.monotonic_ns(),
        "bytes": held,
        "peak_bytes": peak,
        "lines": lines,
    }


def _shortened(moment: dict[str, Any]) -> dict[str, Any]:
    lines, rest = moment["lines"][:_MOST_OF_A_LOOK], moment["lines"][_MOST_OF_A_LOOK:]
    if rest:
        size, blocks = (sum(line[place] for line in rest) for place in (2, 3))
        lines = [*lines, (None, None, size, blocks)]
    return {**moment, "lines": lines}
