# SPDX-License-Identifier: Apache-2.0
"""Memory and threads of this process as the system counts them, as usage.c records them.

The C recorder looks without the GIL. This one is a thread of Python's: while the program keeps the
GIL, it cannot look. Nor does it look in forked children.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from strobe.model.tables import record_code
from strobe.model.threads import SAMPLER
from strobe.record._python.files import forget_error
from strobe.record._python.recorder import recorder
from strobe.record._python.span import source_counter

_CODE = record_code("user", "host")
_INTERVAL_S = 0.5
# Fields of /proc/self/status: the counter, and what one of it is.
_COUNTERS = {
    "VmHWM": ("process peak resident bytes", 1024),
    "VmRSS": ("process resident bytes", 1024),
    "Threads": ("process threads", 1),
}


def watch_usage() -> None:
    """From the next start on, record the process's memory and threads twice a second."""
    _thread.is_wanted = True


def put_usage() -> None:
    """Record them now, if they are watched."""
    if not _thread.is_wanted:
        return
    try:
        status = Path("/proc/self/status").read_text("ascii", "replace")
    except OSError:
        return  # only Linux has it
    for line in status.splitlines():
        field, _, rest = line.partition(":")
        if field in _COUNTERS:
            name, unit = _COUNTERS[field]
            source_counter(name, float(rest.split()[0]) * unit, _CODE)


class _Thread:
    """Looks twice a second while recording is on."""

    def __init__(self) -> None:
        self.is_wanted = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._stop.clear()
        thread = threading.Thread(target=self._run, name=SAMPLER, daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError as error:  # no more threads, or the interpreter ends
            forget_error(error)

    def stop(self) -> bool:
        """Look no more; say whether it did."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        self._stop.set()
        thread.join()
        return True

    def _run(self) -> None:
        while not self._stop.wait(_INTERVAL_S):
            put_usage()


_thread = _Thread()
_is_forking = False


def start(
    directory: str | bytes | os.PathLike[str],
    counter: bool = False,
    max_log_bytes: int = 0,
    max_ring_bytes: int = 0,
    recording: int = 0,
    /,
) -> None:
    """Record into the directory: see Recorder.start."""
    recorder.start(directory, counter, max_log_bytes, max_ring_bytes, recording)
    if _thread.is_wanted:
        _thread.start()


def stop() -> None:
    """Stop recording, here and in the children."""
    _thread.stop()
    recorder.stop()


def go_on() -> None:
    """After a fork, in the parent: look again."""
    if _is_forking:
        _thread.start()


def _before_fork() -> None:
    global _is_forking
    _is_forking = _thread.stop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
