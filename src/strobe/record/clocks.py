# SPDX-License-Identifier: Apache-2.0
"""Which clocks a recording can have: the system's monotonic one, or the processor's counter.

The counter is read in half the time. It may be used where it is proven to tick at one rate on all
cores, whatever the processor does: where the system itself keeps time by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from strobe.record import recorder

Clock = Literal["monotonic", "tsc"]
CLOCKS: tuple[Clock, ...] = ("monotonic", "tsc")

_NEEDED_FLAGS = {"constant_tsc", "nonstop_tsc"}
_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")


def counter_problem(cpuinfo: Path = Path("/proc/cpuinfo"), source: Path = _SOURCE) -> str | None:
    """Return why the processor's counter cannot be used here, None where it can."""
    if not recorder.core.HAS_COUNTER:
        return f"the {recorder.KIND} recorder on this machine does not read the processor's counter"
    try:
        flags = next(
            set(line.partition(":")[2].split())
            for line in cpuinfo.read_text().splitlines()
            if line.startswith("flags")
        )
        current = source.read_text().strip()
    except (OSError, StopIteration):
        return "the system does not say whether the processor's counter is constant"
    missing = sorted(_NEEDED_FLAGS - flags)
    if missing:
        return f"the processor's counter is not constant (no {', '.join(missing)})"
    if current != "tsc":
        return f"the system does not trust the processor's counter (its clock is {current})"
    return None
