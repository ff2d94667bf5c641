# SPDX-License-Identifier: Apache-2.0
"""What recording costs the program, measured on this machine when a recording starts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from strobe.model.tables import CATEGORIES
from strobe.record import recorder, windows

HOOK = "hook"
_BATCHES, _CALLS = 8, 64
_VALID_SECONDS = 10.0
_POINTS = ("instants", "counters", "loads", "steps")


@dataclass(frozen=True)
class _Measured:
    clock: str
    until: float
    costs: dict[str, float]


_measured: _Measured | None = None


def measure() -> dict[str, float]:
    """Return what one record of the program's own costs, by kind: see strobe.model.trace.Source.

    Besides `hook`: what a function in Python costs that stands before a framework's and records.
    Empty if it cannot be measured now. Figures of the last seconds, of the same clock, are used
    again: measuring takes a fifth of the time in which a round ends and the next one begins.
    """
    global _measured
    clock = windows.current_clock()
    if _measured and _measured.clock == clock and time.monotonic() < _measured.until:
        return dict(_measured.costs)
    costs = _measure()
    if costs:
        _measured = _Measured(clock, time.monotonic() + _VALID_SECONDS, costs)
    return dict(costs)


def _measure() -> dict[str, float]:
    plain_ns, with_value_ns = recorder.core.calibrate()
    if plain_ns < 0 or with_value_ns < 0:
        return {}
    costs = dict.fromkeys([*CATEGORIES, *_POINTS], plain_ns)
    costs["attributes"] = max(0.0, with_value_ns - plain_ns)
    return {**costs, HOOK: least_ns(_call_hook)}


def in_spans(event: float, **kinds: float) -> dict[str, float]:
    """Return what rows of a framework's own profiler cost, in spans: see Report.costs_in_spans.

    `event` is for spans of any category. What runs on a device takes nobody's time: its launch has
    a row of its own.
    """
    return {**dict.fromkeys(CATEGORIES, event), "kernel": 0.0, "copy": 0.0, **kinds}


def least_ns(call: Callable[[], object]) -> float:
    """Return the nanoseconds that a call takes: the least mean of some batches."""
    spent_ns = []
    for _ in range(_BATCHES):
        began_ns = time.perf_counter_ns()
        for _ in range(_CALLS):
            call()
        spent_ns.append((time.perf_counter_ns() - began_ns) / _CALLS)
    return min(spent_ns)


def _call_hook() -> Any:
    """Call as a typical hook does: a wrapper with any arguments, functions before and after."""
    return _wrapper(_nothing, 1, key=2)


def _wrapper(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    _nothing()
    try:
        return function(*arguments, **keywords)
    finally:
        _nothing()


def _nothing(*_arguments: Any, **_keywords: Any) -> None:
    pass
