# SPDX-License-Identifier: Apache-2.0
"""How busy the processors were between two moments: this process, and the whole machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = slice(3, 5)  # idle and iowait
_TICKS = slice(0, 8)  # what comes after is counted in these already


@dataclass(frozen=True)
class Moment:
    """What had been used at one moment."""

    wall_ns: int
    process_ns: int
    ticks: tuple[int, int] | None
    """Of the machine: busy and all; None where the system does not say."""

    @classmethod
    def now(cls) -> Moment:
        """Return that of now."""
        return cls(time.monotonic_ns(), time.process_time_ns(), _ticks())


def utilization(first: Moment, last: Moment) -> tuple[float | None, float | None]:
    """Return the use in between: of this process, in processors, and of the machine, 0 to 1.

    None where it is not known, or nothing has been counted yet.
    """
    elapsed_ns = last.wall_ns - first.wall_ns
    process = (last.process_ns - first.process_ns) / elapsed_ns if elapsed_ns > 0 else None
    if first.ticks is None or last.ticks is None or last.ticks[1] <= first.ticks[1]:
        return process, None
    return process, (last.ticks[0] - first.ticks[0]) / (last.ticks[1] - first.ticks[1])


def _ticks() -> tuple[int, int] | None:
    try:
        with _STAT.open() as file:
            numbers = [int(word) for word in file.readline().split()[1:]][_TICKS]
    except (OSError, ValueError):
        return None
    return sum(numbers) - sum(numbers[_IDLE]), sum(numbers)
