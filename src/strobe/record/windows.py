# SPDX-License-Identifier: Apache-2.0
"""Windows on the process's recorder: recording is on while at least one is open.

The log lies in the directory of the recording whose window opened first. Windows that open while it
is on share that log; `refs` in it names those that still need it, `links` names logs of child
processes that opened windows of their own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path

from strobe.record import recorder
from strobe.record.clocks import Clock
from strobe.record.messages import show
from strobe.store import manifest, places, references


@dataclass
class _Process:
    """The process's one control page and the windows that are open on it."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    control: str | None = None
    inherited: str | None = os.environ.get(recorder.CONTROL_VARIABLE)
    variable_before: str | None = None
    open: dict[str, Path] = field(default_factory=dict)
    log: Path | None = None
    clock: Clock = "monotonic"
    max_log_bytes: int = 0


_process = _Process()


def _start_as_child() -> None:
    """After a fork: the windows are the parent's; its control page is to be followed."""
    global _process
    _process = _Process(inherited=_process.control or _process.inherited)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_as_child, after_in_parent=recorder.core.go_on)


def open_window(
    recording: Path,
    recording_id: str,
    *,
    counter: bool,
    max_log_bytes: int,
    max_ring_bytes: int,
) -> Path:
    """Switch recording on for this window and return its log; raises OSError when it cannot be.

    `counter`: times come from the processor's counter. It and the bounds are of the window that
    opens the log; those that share it take them as they are.
    """
    with _process.lock:
        if _process.log is None:
            log = references.make_log(recording, recorder.core)
            _switch_on(log)
            recorder.watch_usage()
            bounds = (max_log_bytes, max_ring_bytes)
            recorder.core.start(str(log), counter, *bounds, int(recording_id, 16))
            _process.clock = "tsc" if counter else "monotonic"
            _set_variable()
            _process.log = log
            _process.max_log_bytes = max_log_bytes
        else:
            references.share_log(_process.log, recording, recording_id)
        _process.open[recording_id] = recording
        return _process.log


def close_window(recording_id: str) -> dict[str, int]:
    """Close the window, with the last one switch recording off.

    Returns the recorder's figures, and the bound of its log in bytes as `max_bytes`.
    """
    with _process.lock:
        stats: dict[str, int] = recorder.core.stats() | {"max_bytes": _process.max_log_bytes}
        del _process.open[recording_id]
        if not _process.open:
            recorder.core.stop()
            _process.log = None
            _switch_back()
        return stats


def share_control() -> None:
    """Make the control page before the first window, and tell all children that will be started.

    Those started while nothing is recorded then follow into the windows to come.
    """
    with _process.lock:
        if _process.control is None:
            _process.control = _make_control()
        _set_variable()


def current_clock() -> Clock:
    """Return the clock of the log that is being written, or was last."""
    return _process.clock


def _switch_on(log: Path) -> None:
    """Make our own control page the one that counts here."""
    parents_log = recorder.core.directory()
    if _process.control is None:
        _process.control = _make_control()
    elif _process.inherited:
        recorder.core.use_control(_process.control, False)
    if parents_log is not None:
        _link(log, into=Path(parents_log))


def _set_variable() -> None:
    """Tell the children that will be started."""
    _process.variable_before = os.environ.get(recorder.CONTROL_VARIABLE)
    if _process.control:
        os.environ[recorder.CONTROL_VARIABLE] = _process.control


def _switch_back() -> None:
    if _process.variable_before is None:
        os.environ.pop(recorder.CONTROL_VARIABLE, None)
    else:
        os.environ[recorder.CONTROL_VARIABLE] = _process.variable_before
    if _process.inherited:
        with contextlib.suppress(OSError):  # the parent has ended
            recorder.core.use_control(_process.inherited, False)


def _link(log: Path, *, into: Path) -> None:
    """Let the parent's finalizer find what we record meanwhile, and keep it until it has."""
    with contextlib.suppress(OSError):  # the parent's log has just gone
        references.link_log(log, into=into, number=manifest.new_id())


def _make_control() -> str:
    """Make the control page and return its path, "" where only forked children can share it."""
    name = f"control-{socket.gethostname()}-{os.getpid()}-{manifest.new_id()}"
    try:
        directory = places.runtime_directory()
        _remove_stale_controls(directory)
        path = str(directory / name)
        recorder.core.use_control(path, True)
    except OSError as error:
        if isinstance(error, places.NotPrivateError):
            show(f"{error}; without it, processes that are spawned are not recorded")
        recorder.core.use_control(None, True)
        return ""
    return path


def _remove_stale_controls(directory: Path) -> None:
    """Remove the pages of processes of this host that have ended."""
    if manifest.process_start(os.getpid()) is None:
        return  # this system does not say who runs
    prefix = f"control-{socket.gethostname()}-"
    for page in directory.glob(f"{prefix}*"):
        pid = page.name.removeprefix(prefix).partition("-")[0]
        if pid.isdigit() and int(pid) != os.getpid() and manifest.process_start(int(pid)) is None:
            page.unlink(missing_ok=True)


def remove_control() -> None:
    """At the end of the process: remove its control page, which nobody can follow any more."""
    if _process.control:
        Path(_process.control).unlink(missing_ok=True)
