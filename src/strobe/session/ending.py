# SPDX-License-Identifier: Apache-2.0
"""What still runs when the program ends, and what is said about recordings."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from strobe.finalize.process import find_bound
from strobe.model.threads import FILES
from strobe.record import recorder, windows
from strobe.record.messages import show
from strobe.store import places, rounds

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
    losses: set[str] = field(default_factory=set)
    """The causes of loss that were shown."""
    deletions_announced: bool = False
    deleting: threading.Lock = field(default_factory=threading.Lock)


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


def announce_loss(records: int, cause: str) -> None:
    """Say that records are lost: once per cause; completeness counts those of each round."""
    if cause not in _endings.losses:
        _endings.losses.add(cause)
        show(f"{records} records could not be written and are lost ({cause})")


def announce_deletions(max_total_bytes: int) -> None:
    """Say once per process that its oldest rounds are deleted, as soon as one was."""
    if _endings.deletions_announced:
        return
    with contextlib.suppress(OSError):
        bound = find_bound(places.runtime_directory(recorder.core), max_total_bytes)
        if bound.mark.exists():
            _endings.deletions_announced = True
            show(
                f"the oldest rounds of this program are deleted (max_total_bytes={max_total_bytes}"
                " is reached); the completeness of later rounds counts them"
            )


def delete_beside(recording: Path, max_total_bytes: int) -> None:
    """Keep the rounds below their bound where there is no finalizer: in a thread."""

    def delete() -> None:
        with contextlib.suppress(OSError), _endings.deleting:
            bound = find_bound(places.runtime_directory(), max_total_bytes)
            rounds.make_room(bound, recording)
            rounds.add(bound, recording)

    with contextlib.suppress(RuntimeError):  # no thread can be started
        threading.Thread(target=delete, name=FILES, daemon=True).start()


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
    from strobe.reports.waiting import Bar

    bar = Bar("writing the tables", sys.stderr)  # drawn here: no thread can be started any more
    try:
        while not places.is_finalized(recording) and time.monotonic() < deadline:
            bar.draw()
            time.sleep(0.05)
    except KeyboardInterrupt:
        return
    finally:
        bar.erase()


def _start_as_child() -> None:
    """After a fork: what runs is the parent's to stop and to wait for."""
    global _endings
    _endings = _Endings()


atexit.register(_finish)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_as_child)
