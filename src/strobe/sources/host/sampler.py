# SPDX-License-Identifier: Apache-2.0
"""A thread that looks at the host now and then, and takes care to cost next to nothing."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from strobe.model.threads import SAMPLER
from strobe.record.messages import show

# Of one processor, for each group: what takes longer is looked at less often.
_MOST_OF_A_CPU = 0.001
# Of the program's processor time, for all of them; beyond it, looks are ever further apart.
_MOST_OF_THE_PROGRAM = 0.003
_GRACE_NS = 5_000_000
# Yet what takes less than 10 ms is looked at once a second, whatever the program does.
_LEAST_OFTEN_S, _CHEAP_S = 0.6, 0.01
# To wake up costs more than most looks do: what is due soon is looked at now.
_SOON_S = 0.02


@dataclass
class Group:
    """What is looked at together, every `interval_s`, or less often if that is to be frugal."""

    name: str
    interval_s: float
    look: Callable[[int], None]
    frugal: bool = True
    at_ends: bool = False
    """Whether it is looked at once more at the start and the stop, in the program's thread."""
    due_s: float = 0.0


class Sampler:
    """The thread. It is stopped around a fork, so that the child has no lock of its."""

    def __init__(self, groups: list[Group]) -> None:
        self.problems: dict[str, str] = {}
        self.own_cpu_ns = 0
        self.looks = 0
        self._groups = groups
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._program_ns = time.process_time_ns()
        self._busy = threading.Lock()

    @property
    def program_cpu_ns(self) -> int:
        """The processor time of the program since the sampler was made, without its own."""
        return time.process_time_ns() - self._program_ns - self.own_cpu_ns

    def look_at_ends(self) -> None:
        """Look now: at the start and the stop, so that the shortest recording has both."""
        for group in [group for group in self._groups if group.at_ends]:
            self._look(group)

    def start(self) -> None:
        """Begin to look."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=SAMPLER, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join()

    @property
    def is_running(self) -> bool:
        """Say whether it looks."""
        return self._thread is not None

    def _run(self) -> None:
        before_ns = self.own_cpu_ns
        pause_s = 0.0
        while not self._stop.wait(pause_s):
            for group in list(self._groups):
                if group.due_s <= time.monotonic() + _SOON_S:
                    self._look(group)
                if self._stop.is_set():
                    break  # while others keep the GIL, each look takes its time
            self.own_cpu_ns = before_ns + time.thread_time_ns()
            pause_s = self._pause_s()

    def _look(self, group: Group) -> None:
        with self._busy:
            self._look_alone(group)

    def _look_alone(self, group: Group) -> None:
        began_ns = time.thread_time_ns()
        try:
            group.look(time.monotonic_ns())
            self.looks += 1
        except Exception as error:  # what it looked at is not ours: the rest goes on
            self.problems[group.name] = f"{type(error).__name__}: {error}"
            self._groups.remove(group)
            show(f"{group.name} is not looked at any more ({self.problems[group.name]})")
        cost_s = (time.thread_time_ns() - began_ns) / 1e9
        # The first look costs more than those that follow.
        pause_s = cost_s / _MOST_OF_A_CPU if group.frugal and group.due_s else 0.0
        if cost_s < _CHEAP_S:
            pause_s = min(pause_s, _LEAST_OFTEN_S)
        group.due_s = time.monotonic() + max(group.interval_s, pause_s)

    def _pause_s(self) -> float:
        if not self._groups:
            return _LEAST_OFTEN_S
        too_much = self.own_cpu_ns > _GRACE_NS + _MOST_OF_THE_PROGRAM * self.program_cpu_ns
        if too_much and all(group.frugal for group in self._groups):
            return _LEAST_OFTEN_S
        return max(0.001, min(group.due_s for group in self._groups) - time.monotonic())


_running: list[Sampler] = []
"""Those to stop around a fork."""


def run(sampler: Sampler) -> None:
    """Start it, and stop it around forks."""
    _running.append(sampler)
    sampler.start()


def end(sampler: Sampler) -> None:
    """Stop it for good."""
    if sampler in _running:
        _running.remove(sampler)
    sampler.stop()


def _before_fork() -> None:
    for sampler in _running:
        sampler.stop()


def _after_in_parent() -> None:
    for sampler in _running:
        sampler.start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_running.clear
    )
