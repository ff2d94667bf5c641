# SPDX-License-Identifier: Apache-2.0
"""Schedules: steps to MindSpore's actions, and these to strobe's states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strobe.errors import UsageError
from strobe.mindspore._names import ProfilerAction
from strobe.record.schedule import State
from strobe.record.schedule import schedule as strobe_schedule

_ACTIONS = {
    State.CLOSED: ProfilerAction.NONE,
    State.READY: ProfilerAction.WARM_UP,
    State.RECORD: ProfilerAction.RECORD,
    State.RECORD_AND_RETURN: ProfilerAction.RECORD_AND_SAVE,
}
_STATES = {action.name: state for state, action in _ACTIONS.items()}


class Schedule:
    """Rounds of wait, warmup and active steps after skip_first; without repeat they do not end.

    Its numbers can be read by their names. Raises ValueError for one that is no int, negative, or 0
    for active.
    """

    def __init__(
        self, *, wait: int, active: int, warmup: int = 0, repeat: int = 0, skip_first: int = 0
    ) -> None:
        self._states = strobe_schedule(
            wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first
        )
        # NumPy's integers are not JSON.
        self.wait, self.active, self.warmup = int(wait), int(active), int(warmup)
        self.repeat, self.skip_first = int(repeat), int(skip_first)

    def __call__(self, step: int) -> ProfilerAction:
        """Return what is done in a step; raises ValueError for a negative one."""
        if step < 0:
            message = f"schedule({step!r}): a step is counted from 0"
            raise UsageError(message)
        return _ACTIONS[self._states(step)]

    def to_dict(self) -> dict[str, int]:
        """Return the five numbers."""
        return {
            "wait": self.wait,
            "active": self.active,
            "warmup": self.warmup,
            "repeat": self.repeat,
            "skip_first": self.skip_first,
        }

    def __repr__(self) -> str:
        """Show the numbers as they are given."""
        return f"schedule({', '.join(f'{name}={value}' for name, value in self.to_dict().items())})"


def as_states(schedule: Callable[[int], Any]) -> Callable[[int], State]:
    """Return strobe's form of a callable that turns a step into an action of either MindSpore."""

    def states(step: int) -> State:
        action = schedule(step)
        state = _STATES.get(getattr(action, "name", ""))
        if state is None:
            message = f"schedule({step}) returned {action!r}; it must return a ProfilerAction"
            raise UsageError(message)
        return state

    return states
