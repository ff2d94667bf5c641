# SPDX-License-Identifier: Apache-2.0
"""What still runs when the program ends, and what is said about recordings."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from strobe.record import recorder, windows
from strobe.record.messages import show
from strobe.store import places

_WAIT_SECONDS = 10.0


class Stoppable(Protocol):
    """A profiler, as far as the end of the program is concerned."""

    def stop(self) -> None:
        """Stop recording."""


@dataclass
class _Endings:
    running: list[Stoppable] = field(default_factory=list)
    expected: list[Path] = field(default_factory=list)
    last: list[Callable[[], object]] = field(default_factory=list)
    announced: bool = False


_endings = _Endings()


def add(profiler: Stoppable) -> None:
    """Stop this profiler when the program ends."""
    _endings.running.append(profiler)


def remove(profiler: Stoppable) -> None:
    """The profiler has stopped."""
    _endings.running.remove(profiler)


def is_running(profiler: Stoppable) -> bool:
    """Say whether the profiler was started by this process and not stopped."""
    return profiler in _endings.running


def expect_tables(recording: Path) -> None:
    """The finalizer is at work on this recording."""
    _endings.expected.append(recording)


def finish_with(action: Callable[[], object]) -> None:
    """Do this when the program ends and everything has stopped; what it raises is shown."""
    if action not in _endings.last:
        _endings.last.append(action)


def announce_nothing() -> None:
    """For a program that is not the user's: its recordings are nobody's news."""
    _endings.announced = True


def announce(recording: Path) -> None:
    """Say once per process where it records and with which recorder."""
    if _endings.announced:
        return
    _endings.announced = True
    why = "" if recorder.KIND == "C" else f" ({recorder.REASON}: slower)"
    show(f"recording into {str(recording)!r} with the {recorder.KIND} recorder{why}")


def _finish() -> None:
    """Stop what still records; at a terminal, wait for the tables, but not for long."""
    for profiler in list(_endings.running):
        try:
            profiler.stop()
        except Exception as error:  # it may be the program's own, told late
            show(f"stop() at the end of the program failed ({error})")
    windows.remove_control()
    for action in _endings.last:
        try:
            action()
        except Exception as error:  # the program has ended well, whatever becomes of its profile
            show(f"at the end of the program: {error}")
    try:
        at_terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):
        return
    deadline = time.monotonic() + _WAIT_SECONDS
    for recording in _endings.expected if at_terminal else ():
        _wait_for_tables(recording, deadline)


def _wait_for_tables(recording: Path, deadline: float) -> None:
    if places.is_finalized(recording):
        return
    show(f"writing the tables of {str(recording)!r} (goes on without this program; ^C to leave)")
    try:
        while not places.is_finalized(recording) and time.monotonic() < deadline:
            time.sleep(0.05)
    except KeyboardInterrupt:
        return


def _start_as_child() -> None:
    """After a fork: what runs is the parent's to stop and to wait for."""
    global _endings
    _endings = _Endings()


atexit.register(_finish)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_as_child)
