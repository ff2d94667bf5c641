# SPDX-License-Identifier: Apache-2.0
"""Python's allocations by line, by tracemalloc: at the start, the peak, the end, and between.

The program stands still while tracemalloc lists its blocks, for as long as there are many. So that
takes at most a share of the program's time, whatever it allocates: moments that would take more are
left out, and the recording says so.
"""

from __future__ import annotations

import _tracemalloc
import json
import os
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strobe.record import recorder
from strobe.sources.host.rates import Counters
from strobe.sources.host.sampler import Group

# Lines of one moment that are kept, and of a look in between; the others are kept as a sum.
_MOST_LINES, _MOST_OF_A_LOOK = 1000, 100
# Looks that are kept: when there are more, every second one goes, and they are as much rarer.
_MOST_LOOKS = 64
# Regular looks, of which each is followed by twenty times as long without one.
_LOOK_EVERY_NS, _REGULAR_SHARE = 1_000_000_000, 0.05
# How often the peak is looked for. At first more often: while there are few blocks, it is cheap.
_FIRST_S, _EVERY_S = 0.02, 0.1
# The peak is taken anew when it has grown by this much.
_GROWTH, _GROWTH_BYTES = 1.1, 1 << 20
# What tracemalloc itself needs where a moment can be taken down at next to no cost.
_FRUGAL_BYTES = 1 << 20


@dataclass
class Budget:
    """How long the program may stand still for all moments together, the end included.

    What a moment takes is foretold by the memory that tracemalloc needs for its traces: it grows
    with the number of blocks.
    """

    began_ns: int
    spent_ns: int = 0
    ns_per_byte: float = 12.0
    """Before anything is measured: what the first moment of a process may take."""

    MOST_SHARE = 0.4
    """Of the program's own time. Users are promised 0.5, and a forecast may be wrong."""
    LOOKS_SHARE = 0.2
    """For the peak and the looks in between: the rest is kept for the end."""
    GRACE_NS = 40_000_000
    """For the first moments of a program that does nothing but allocate."""

    def foretell_ns(self) -> int:
        """Return what it would take to read all lines now."""
        return round(tracemalloc.get_tracemalloc_memory() * self.ns_per_byte)

    def program_ns(self, now_ns: int) -> int:
        """Return how long the program has run and not stood still."""
        return now_ns - self.began_ns - self.spent_ns

    def allows_now(self, share: float) -> bool:
        """Say whether to read all lines now is within this share."""
        most_ns = self.GRACE_NS + share * self.program_ns(time.monotonic_ns())
        return self.spent_ns + self.foretell_ns() <= most_ns

    def account(self, spent_ns: int, traces_bytes: int) -> None:
        """Add what a moment has taken."""
        self.spent_ns += spent_ns
        if traces_bytes >= _FRUGAL_BYTES:  # of fewer, most of the time is for other things
            # A machine that was idle just then may be busy the next time.
            self.ns_per_byte = max(spent_ns / traces_bytes, self.ns_per_byte / 2)


class Lines:
    """What lines of Python hold. A tracemalloc that the program has started goes on after us."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._is_ours = not tracemalloc.is_tracing()
        if self._is_ours:
            tracemalloc.start()
        tracemalloc.reset_peak()
        self._budget = Budget(time.monotonic_ns())
        self._start = self._take("start")
        self._peak = self._start
        self._stood_out: dict[str, Any] | None = None
        self._looks: list[dict[str, Any]] = []
        self._pause_ns = _LOOK_EVERY_NS
        self._next_ns = time.monotonic_ns() + self._pause_ns
        self._is_closed = False
        self._group = Group("Python's allocations", _FIRST_S, self._look, frugal=False)
        self._notes: list[str] = []

    def group(self) -> Group:
        """Return what is to be looked at."""
        return self._group

    def keep(self, moment: str, *, frugally: bool) -> dict[str, Any]:
        """Return what is held at a moment that stands out, to be written too.

        Frugally: there is no memory to take much down. Then it is what was seen at the last peak,
        and nothing is looked at from now on. It is that, too, where the budget is used up.
        """
        self._is_closed = frugally and tracemalloc.get_tracemalloc_memory() > _FRUGAL_BYTES
        can_look = tracemalloc.is_tracing() and not self._is_closed
        if can_look and self._budget.allows_now(Budget.MOST_SHARE):
            self._stood_out = self._take(moment)
        else:
            self._stood_out = {**self._peak, "moment": moment}
        return self._stood_out

    def write(self, path: Path) -> None:
        """Write what was held at each moment, the end included."""
        peak, end = self._peak, None
        if tracemalloc.is_tracing() and not self._is_closed:  # unless the program has stopped it
            end = self._take_end()
            if end["is_by_line"] and end["bytes"] > peak["bytes"]:
                peak = end
        self._notes = [*_explain_end(end, self._budget), *_explain_peak(peak, end, self._start)]
        moments = [self._start, peak | {"moment": "peak"}, *self._looks]
        moments += [moment for moment in (end, self._stood_out) if moment is not None]
        path.write_text(json.dumps({"pid": os.getpid(), "moments": moments}))

    def notes(self) -> list[str]:
        """Return what the lines that were written do not show, and why."""
        return self._notes

    def close(self) -> None:
        """Trace no more, if nobody else does."""
        if self._is_ours:
            tracemalloc.stop()

    def _look(self, _now_ns: int) -> None:
        if not tracemalloc.is_tracing() or self._is_closed:
            return
        self._group.interval_s = min(_EVERY_S, self._group.interval_s * 1.2)
        now, _ = tracemalloc.get_traced_memory()
        self._counters.value("python traced bytes", now)
        began_ns = time.monotonic_ns()
        is_peak = now > self._peak["bytes"] * _GROWTH + _GROWTH_BYTES
        if (is_peak or began_ns >= self._next_ns) and self._budget.allows_now(Budget.LOOKS_SHARE):
            taken = self._take("look")
            if is_peak:
                self._peak = taken
            self._looks.append(_shortened(taken))
            self._thin_out()
            now_ns = time.monotonic_ns()
            self._next_ns = now_ns + max(
                self._pause_ns, round((now_ns - began_ns) / _REGULAR_SHARE)
            )

    def _take_end(self) -> dict[str, Any]:
        """Return what is held at the end: by line, or where that takes too long as a sum."""
        if self._budget.allows_now(Budget.MOST_SHARE):
            return self._take("stop")
        held, peak = tracemalloc.get_traced_memory()
        return _moment("stop", held, peak, [(None, None, held, None)]) | {"is_by_line": False}

    def _take(self, moment: str) -> dict[str, Any]:
        """Return what lines hold now; count how long the program stood still."""
        traces_bytes = tracemalloc.get_tracemalloc_memory()
        began_ns = time.monotonic_ns()
        lines = _read_lines()
        self._budget.account(time.monotonic_ns() - began_ns, traces_bytes)
        held, (_, peak) = sum(line[2] for line in lines), tracemalloc.get_traced_memory()
        return _moment(moment, held, max(held, peak), lines)

    def _thin_out(self) -> None:
        if len(self._looks) > _MOST_LOOKS:
            self._looks = self._looks[::2]
            self._pause_ns *= 2


_Line = tuple[str | None, int | None, int, int | None]


def _moment(name: str, held: int, peak: int, lines: list[_Line]) -> dict[str, Any]:
    facts = {"moment": name, "start_ns": time.monotonic_ns(), "bytes": held, "peak_bytes": peak}
    return {**facts, "lines": lines, "is_by_line": True}


def _read_lines() -> list[_Line]:
    """Return what lines hold now, the largest first; one without a file is the sum of the rest."""
    # A traceback has its innermost frame first.
    sums: dict[tuple[str, int], tuple[int, int]] = {}
    for traceback, size, blocks in recorder.core.traced_sums(_tracemalloc._get_traces):
        size_before, blocks_before = sums.get(traceback[0], (0, 0))
        sums[traceback[0]] = size_before + size, blocks_before + blocks
    found = sorted(sums.items(), key=lambda item: item[1], reverse=True)
    lines: list[_Line] = [(*place, *held) for place, held in found[:_MOST_LINES]]
    rest = [held for _, held in found[_MOST_LINES:]]
    if rest:
        lines.append((None, None, sum(size for size, _ in rest), sum(count for _, count in rest)))
    return lines


def _shortened(moment: dict[str, Any]) -> dict[str, Any]:
    lines, rest = moment["lines"][:_MOST_OF_A_LOOK], moment["lines"][_MOST_OF_A_LOOK:]
    if rest:
        size, blocks = (sum(line[place] for line in rest) for place in (2, 3))
        lines = [*lines, (None, None, size, blocks)]
    return {**moment, "lines": lines}


def _explain_end(end: dict[str, Any] | None, budget: Budget) -> Iterator[str]:
    if end is None or end["is_by_line"]:
        return
    needed_s, program_s = budget.foretell_ns() / 1e9, budget.program_ns(end["start_ns"]) / 1e9
    yield (
        f"memory_lines: the lines at stop were not read, only their sum: it would have taken about "
        f"{needed_s:.1f} s, and all moments together may take {budget.MOST_SHARE:.0%} of the "
        f"program's {program_s:.1f} s"
    )


def _explain_peak(
    peak: dict[str, Any], end: dict[str, Any] | None, start: dict[str, Any]
) -> Iterator[str]:
    most = max(peak["peak_bytes"], end["peak_bytes"] if end else 0)
    if most > peak["bytes"] * _GROWTH + _GROWTH_BYTES:
        since_s = (peak["start_ns"] - start["start_ns"]) / 1e9
        yield (
            f"memory_lines: the lines of the peak are those of {since_s:.1f} s after the start, "
            f"when Python held {peak['bytes'] / 1e6:,.1f} MB; it held {most / 1e6:,.1f} MB at most"
        )
