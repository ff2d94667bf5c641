# SPDX-License-Identifier: Apache-2.0
"""When a profiler with steps records: four states, a schedule of them, and what a change means."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from strobe.errors import UsageError


class State(Enum):
    """What a profiler does during one step."""

    CLOSED = 0
    """Nothing."""
    READY = 1
    """Warms up: as CLOSED, but the next step may record."""
    RECORD = 2
    """Records."""
    RECORD_AND_RETURN = 3
    """Records; the round ends with this step."""


Schedule = Callable[[int], State]


def as_int(value: object) -> int | None:
    """Return a whole number, NumPy's and a tensor's too, as an int; None for what is none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0
) -> Schedule:
    """Return a schedule: skip_first steps closed, then rounds of wait, warmup and active steps.

    `repeat` is the number of rounds, 0 for no end. Raises UsageError for a number that is no int or
    negative, and for active=0.
    """
    given = {
        "wait": wait,
        "warmup": warmup,
        "active": active,
        "repeat": repeat,
        "skip_first": skip_first,
    }
    counts = {}
    for name, value in given.items():
        least = 1 if name == "active" else 0
        count = as_int(value)
        if count is None or count < least:
            message = f"schedule({name}={value!r}): {name} must be an int of {least} or more"
            raise UsageError(message)
        counts[name] = count
    return _Rounds(**counts)


@dataclass(frozen=True, kw_only=True)
class _Rounds:
    """A class and no closure, so that it can be sent to processes that a launcher spawns."""

    wait: int
    warmup: int
    active: int
    repeat: int
    skip_first: int

    def __call__(self, step: int) -> State:
        if step < self.skip_first:
            return State.CLOSED
        period = self.wait + self.warmup + self.active
        done, place = divmod(step - self.skip_first, period)
        if place < self.wait or (self.repeat and done >= self.repeat):
            return State.CLOSED
        if place < self.wait + self.warmup:
            return State.READY
        return State.RECORD if place < period - 1 else State.RECORD_AND_RETURN


def always(_step: int) -> State:
    """Record each step."""
    return State.RECORD


def as_schedule(value: object) -> Schedule:
    """Return what a user may give as a schedule: None, (start, end), or a callable.

    (start, end) records the steps from start up to but not including end, once. Raises UsageError.
    """
    if value is None:
        return always
    if isinstance(value, (tuple, list)):
        return _as_window(value)
    if callable(value):
        return value
    message = (
        f"Profiler(schedule={value!r}): schedule must be strobe.schedule(...), a pair (start, end)"
        ", or a callable that turns a step number into a strobe.State"
    )
    raise UsageError(message)


def _as_window(value: tuple[object, ...] | list[object]) -> Schedule:
    if len(value) == 2:
        start, end = as_int(value[0]), as_int(value[1])
        if start is not None and end is not None and 0 <= start < end:
            warmup = 1 if start else 0
            return schedule(wait=start - warmup, warmup=warmup, active=end - start, repeat=1)
    message = (
        f"Profiler(schedule={value!r}): a pair must be (start, end), two ints with 0 <= start < end"
    )
    raise UsageError(message)


@dataclass(frozen=True)
class Change:
    """What to do between two steps: `save` what was recorded, `open` a round, and a warning."""

    save: bool = False
    open: bool = False
    warning: str | None = None


_NOTHING = Change()
_OPEN = Change(open=True)
_SAVE = Change(save=True)
_NEXT_ROUND = Change(save=True, open=True)
_IN_VAIN = Change(warning="the schedule goes from READY to CLOSED: it warmed up for nothing")
_CUT_SHORT = Change(
    save=True,
    warning="the schedule leaves RECORD without RECORD_AND_RETURN: the round ends here, its data "
    "are kept",
)

CHANGES: Mapping[tuple[State, State], Change] = {
    (State.CLOSED, State.CLOSED): _NOTHING,
    (State.CLOSED, State.READY): _NOTHING,
    (State.CLOSED, State.RECORD): _OPEN,
    (State.CLOSED, State.RECORD_AND_RETURN): _OPEN,
    (State.READY, State.CLOSED): _IN_VAIN,
    (State.READY, State.READY): _NOTHING,
    (State.READY, State.RECORD): _OPEN,
    (State.READY, State.RECORD_AND_RETURN): _OPEN,
    (State.RECORD, State.CLOSED): _CUT_SHORT,
    (State.RECORD, State.READY): _CUT_SHORT,
    (State.RECORD, State.RECORD): _NOTHING,
    (State.RECORD, State.RECORD_AND_RETURN): _NOTHING,
    (State.RECORD_AND_RETURN, State.CLOSED): _SAVE,
    (State.RECORD_AND_RETURN, State.READY): _SAVE,
    (State.RECORD_AND_RETURN, State.RECORD): _NEXT_ROUND,
    (State.RECORD_AND_RETURN, State.RECORD_AND_RETURN): _NEXT_ROUND,
}
