# SPDX-License-Identifier: Apache-2.0
"""When to record, as Paddle says it, and on which devices."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from strobe.errors import UsageError
from strobe.session.devices import has_device
from strobe.session.paddle import as_int, rounds, show

_STACKLEVEL = 3


class ProfilerTarget(Enum):
    """A kind of device to profile."""

    CPU = 0
    GPU = 1
    XPU = 2
    CUSTOM_DEVICE = 3


class ProfilerState(Enum):
    """What a profiler does during one step."""

    CLOSED = 0
    """Nothing."""
    READY = 1
    """As CLOSED, but the next step may record."""
    RECORD = 2
    """Records."""
    RECORD_AND_RETURN = 3
    """Records; the round ends with this step."""


Scheduler = Callable[[int], Any]


def make_scheduler(
    *, closed: int, ready: int, record: int, repeat: int = 0, skip_first: int = 0
) -> Callable[[int], ProfilerState]:
    """Return a scheduler: skip_first steps closed, then rounds of closed, ready and record steps.

    The last step of a round is RECORD_AND_RETURN. `repeat` is the number of rounds, 0 for no end.
    Warns when ready=0: the first recorded step then has the cost of starting in it. Raises
    UsageError for a number that is no int or negative, and for record=0.
    """
    given = {
        "closed": closed,
        "ready": ready,
        "record": record,
        "repeat": repeat,
        "skip_first": skip_first,
    }
    for name, value in given.items():
        least = 1 if name == "record" else 0
        count = as_int(value)
        if count is None or count < least:
            message = f"make_scheduler({name}={value!r}): {name} must be an int of {least} or more"
            raise UsageError(message)
    if ready == 0:
        warnings.warn(
            "make_scheduler(ready=0): the first recorded step holds the cost of starting; "
            "ready=1 keeps it out",
            stacklevel=_STACKLEVEL if closed or skip_first else 2,
        )
    return _Rounds(
        rounds(wait=closed, warmup=ready, active=record, repeat=repeat, skip_first=skip_first)
    )


class _Rounds:
    """A class and no closure, so that it can be sent to processes that a launcher spawns."""

    def __init__(self, states: Scheduler) -> None:
        self._states = states

    def __call__(self, step: int) -> ProfilerState:
        """Return the state of a step; raises UsageError for one below 0."""
        if step < 0:
            message = f"scheduler({step!r}): steps begin with 0"
            raise UsageError(message)
        return ProfilerState[self._states(step).name]


def always(_step: int) -> ProfilerState:
    """Record each step."""
    return ProfilerState.RECORD


def as_scheduler(value: object) -> Scheduler:
    """Return what may be given as a scheduler: None, (start, end), or a callable.

    (start, end) records the steps from start up to but not including end, once; a start below 0 is
    0. Raises UsageError.
    """
    if value is None:
        return always
    if isinstance(value, (tuple, list)):
        return _as_window(value)
    if callable(value):
        return value
    message = (
        f"Profiler(scheduler={value!r}): scheduler must be make_scheduler(...), a pair (start, end)"
        ", a callable that turns a step into a ProfilerState, or None"
    )
    raise UsageError(message)


def _as_window(value: tuple[Any, ...] | list[Any]) -> Scheduler:
    start, end = map(as_int, value) if len(value) == 2 else (None, None)
    if start is not None and end is not None and end > max(start, 0):
        start = max(start, 0)
        ready = 1 if start else 0
        return _Rounds(rounds(wait=start - ready, warmup=ready, active=end - start, repeat=1))
    message = (
        f"Profiler(scheduler={value!r}): a pair must be (start, end), two ints with start < end "
        "and end > 0"
    )
    raise UsageError(message)


def as_state(value: object) -> ProfilerState | None:
    """Return the member of our enum that has this one's name, None where there is none."""
    return ProfilerState.__members__.get(getattr(value, "name", ""))


class States:
    """A user's scheduler, asked once for each step; one where it fails is CLOSED, and said once."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._step = -1
        self._state = ProfilerState.CLOSED
        self._is_told = False

    def __call__(self, step: int) -> ProfilerState:
        """Return the state of a step."""
        if step != self._step:
            self._step, self._state = step, self._ask(step)
        return self._state

    def forget(self) -> None:
        """The steps begin anew."""
        self._step, self._is_told = -1, False

    def _ask(self, step: int) -> ProfilerState:
        try:
            answer = self._scheduler(step)
        except Exception:  # the user's, and the program must go on
            self._tell(f"the scheduler failed, so step {step} is CLOSED:\n{traceback.format_exc()}")
            return ProfilerState.CLOSED
        state = as_state(answer)
        if state is None:
            message = f"scheduler({step}) returned {answer!r}; it must return a ProfilerState"
            if step == 0:
                message = f"Profiler(scheduler=...): {message}"
                raise UsageError(message)
            self._tell(f"{message}: the step is CLOSED")
            return ProfilerState.CLOSED
        return state

    def _tell(self, text: str) -> None:
        """Show the first failure: one at each step would be all that there is to see."""
        if not self._is_told:
            show(text)
        self._is_told = True


def as_targets(targets: object) -> set[ProfilerTarget]:
    """Return the targets that this machine has: of all if None, else of those given.

    Warns once of those it lacks. Raises UsageError for what is no target.
    """
    if targets is None:
        return {target for target in ProfilerTarget if _is_here(target)}
    if isinstance(targets, (str, bytes)) or not isinstance(targets, Iterable):
        raise _not_targets(targets)
    wanted = set()
    for target in targets:
        known = ProfilerTarget.__members__.get(getattr(target, "name", ""))
        if known is None:
            raise _not_targets([target])
        wanted.add(known)
    absent = sorted(target.name for target in wanted if not _is_here(target))
    if absent:
        names = " and ".join(absent)
        verb = "are" if len(absent) > 1 else "is"
        warnings.warn(f"{names} {verb} not profiled: this machine has none", stacklevel=_STACKLEVEL)
    return {target for target in wanted if _is_here(target)} or {ProfilerTarget.CPU}


def _not_targets(given: object) -> UsageError:
    names = ", ".join(f"ProfilerTarget.{name}" for name in ProfilerTarget.__members__)
    message = f"Profiler(targets={given!r}): targets must be a list of {names}, or None"
    return UsageError(message)


def _is_here(target: ProfilerTarget) -> bool:
    return target is ProfilerTarget.CPU or has_device(target.name)
