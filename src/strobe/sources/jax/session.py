# SPDX-License-Identifier: Apache-2.0
"""XLA's profiler as JAX has it, driven below jax.profiler: its raw bytes, nothing else.

Its events stay in XLA's memory until stop(). A process has one session at a time, and a second one
fails where it is stopped. So ours ends when the program wants one.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.errors import CaptureError, StateError
from strobe.record import recorder
from strobe.sources.bounds import start_timer

ANCHOR = "strobe anchor"
_ANCHORS = 8  # at each end; the first ones are slow, so that they say less
_ALL_BITS = (1 << 64) - 1


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What has to be known to read the file."""

    anchors: list[tuple[int, int]]
    """For each mark, in order, a time of our clock before and after it began."""
    threads: dict[int, int]
    """XLA's number of a thread to the system's, for those of Python."""


class XlaSession:
    """One recording of XLA's profiler, from start() to stop()."""

    def __init__(self, path: Path) -> None:
        """Prepare to write to `path`."""
        self.path = path
        self._lock = threading.Lock()
        self._anchors: list[tuple[int, int]] = []
        self._threads: dict[int, int] = {}
        self._session: Any = None
        self._plain: Any = None
        self._timer: threading.Timer | None = None
        self._failure: Exception | None = None
        self.ended_by: str | None = None
        """Why it ended before stop(), if it did."""

    def start(self, seconds: float) -> None:
        """Start XLA's profiler for at most that long; it adds compiled programs, as JAX's does.

        Raises StateError while one of the program is active, CaptureError where there is none.
        """
        if _another_is_active():
            message = "jax.profiler is already active in this process; stop it first"
            raise StateError(message)
        try:
            profiler = _profiler()
            options = profiler.ProfileOptions()
            options.python_tracer_level = 0
            options.enable_hlo_proto = True
            self._session = profiler.ProfilerSession(options)
        except (ImportError, AttributeError, TypeError, RuntimeError) as error:
            message = f"XLA's profiler cannot be started: {error}"
            raise CaptureError(message) from error
        self._plain = profiler.ProfilerSession
        profiler.ProfilerSession = _make_room(self._plain, self._give_way)
        self._note_threads()
        self._anchors = _mark()
        self._timer = start_timer(seconds, self._end, [f"it records {seconds:g} s at most"])
        _open.add(self)

    def stop(self) -> Facts:
        """Stop, and return what is needed to read the file, which has been written.

        Raises CaptureError where there is nothing to write.
        """
        self._end(None)
        if self._failure is not None:
            message = f"XLA's profiler could not be stopped: {self._failure}"
            raise CaptureError(message) from self._failure
        return Facts(anchors=self._anchors, threads=self._threads)

    def _give_way(self) -> None:
        self._end("the program started jax.profiler, which can only be alone")

    def _end(self, reason: str | None) -> None:
        with self._lock:
            session, self._session = self._session, None
            if session is None:
                return
            self.ended_by = reason
            _profiler().ProfilerSession = self._plain
            _open.discard(self)
            if self._timer is not None:
                self._timer.cancel()
            try:
                self._note_threads()
                self._anchors += _mark()
                self.path.write_bytes(session.stop())
            except Exception as error:  # also in the program's thread, or in the timer's
                self._failure = error

    def _note_threads(self) -> None:
        for thread in threading.enumerate():
            if thread.ident is not None and thread.native_id is not None:
                self._threads[line_number(thread.ident)] = thread.native_id

    def abandon(self) -> None:
        """After a fork: the session is the parent's; not even its end may be called here."""
        self._lock = threading.Lock()
        session, self._session = self._session, None
        if session is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(session))
            _profiler().ProfilerSession = self._plain


_open: set[XlaSession] = set()


def _start_as_child() -> None:
    while _open:
        _open.pop().abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_as_child)


def _profiler() -> Any:
    return import_module("jaxlib._profiler")


def _another_is_active() -> bool:
    state = getattr(import_module("jax._src.profiler"), "_profile_state", None)
    return getattr(state, "profile_session", None) is not None


def _make_room(plain: Any, give_way: Callable[[], None]) -> Any:
    """Return what a program makes a session of while ours is active: before its own, ours ends."""

    class ProfilerSession(plain):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            give_way()
            super().__init__(*arguments, **options)

    return ProfilerSession


def _mark() -> list[tuple[int, int]]:
    """Put marks into the trace and return between which times of our clock each began."""
    mark = _profiler().TraceMe
    clock_ns = recorder.core.clock_ns
    times = []
    for _ in range(_ANCHORS):
        before_ns = clock_ns()
        one = mark(ANCHOR)  # it begins when it is made
        times.append((before_ns, clock_ns()))
        one.__exit__(None, None, None)
    return times


def line_number(ident: int) -> int:
    """Return XLA's number of a thread: of std::hash<std::thread::id>, 30 bits.

    That is MurmurHash64A over the 8 bytes of what Python calls the thread's ident. The bits are
    those that strobe.importers.xspace takes.
    """
    multiplier = 0xC6A4A7935BD1E995
    block = ident * multiplier & _ALL_BITS
    block = (block ^ block >> 47) * multiplier & _ALL_BITS
    total = (0xC70F6907 ^ 8 * multiplier) & _ALL_BITS
    total = (total ^ block) * multiplier & _ALL_BITS
    total = (total ^ total >> 47) * multiplier & _ALL_BITS
    total ^= total >> 47
    return 1 << 30 | total & (1 << 30) - 1
