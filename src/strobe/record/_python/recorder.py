# SPDX-License-Identifier: Apache-2.0
"""The process's recorder: the control page, the current log, a ring for each thread, forks."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
from pathlib import Path
from time import monotonic_ns
from typing import Final

from strobe.record._python.files import forget_error, forgotten_errors
from strobe.record._python.log import Log
from strobe.record._python.ring import DRAIN_NS, DROPPED, HEAD, ONCE_NS, OWN_NS, Ring
from strobe.store import layout

GENERATION: Final = layout.GENERATION_OFFSET // 4  # as a word of the control page

no_ring: Ring = Ring.__new__(Ring)
no_ring.generation = -1


class Thread(threading.local):
    """What each thread has of its own."""

    ring: Ring = no_ring
    # The page and generation for which no ring was to be had: asked once, not at each span.
    refused: tuple[mmap.mmap | None, int] = (None, 0)
    tenancy: Tenancy | None = None


class Tenancy:
    """Dies with its thread. The ring keeps its records and open spans, and serves the next one."""

    __slots__ = ("ring",)

    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    def __del__(self) -> None:
        self.ring.orphan = True


def _error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), *([path] if path else []))


def _map_control(path: str | None, create: bool) -> mmap.mmap:
    if path is None:
        return mmap.mmap(-1, layout.PAGE_BYTES)
    flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    fd = os.open(path, flags | (os.O_CREAT | os.O_EXCL if create else 0), 0o600)
    with contextlib.ExitStack() as undo:
        if create:
            undo.callback(Path(path).unlink)
        with contextlib.closing(os.fdopen(fd, "r+b", buffering=0)) as file:
            if create:
                file.write(bytes(layout.PAGE_BYTES))
            elif os.fstat(fd).st_size < layout.PAGE_BYTES:
                raise _error(errno.EINVAL, path)
            page = mmap.mmap(fd, layout.PAGE_BYTES)
        undo.pop_all()
    return page


class Recorder:
    """The one piece of global state: rings belong to the process, whatever sessions come and go."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.log: Log | None = None
        self.serial = 0
        self.page: mmap.mmap | None = None
        # "Off" until a page is mapped.
        self.control = memoryview(bytearray(layout.PAGE_BYTES)).cast("I")

    def attach(self, generation: int) -> Ring | None:
        """Return the calling thread's ring; None while recording is impossible."""
        page, refused = thread.refused
        if refused == generation and page is self.page:
            return None
        try:
            ring = self._attach(generation)
        except Exception as error:
            forget_error(error)
            ring = None
        if ring is None:
            thread.refused = (self.page, generation)
        return ring

    def _attach(self, generation: int) -> Ring | None:
        began_ns = monotonic_ns()
        with self.lock:
            log = self.log
            if log is None or log.generation != generation:
                directory = self._read_directory()
                # Switched off, or on again elsewhere, while the name was being read.
                if self.control[GENERATION] != generation:
                    return None
                self._close_log()
                self.serial += 1
                log = self.log = Log(directory, self.serial, generation, self.lock)
                if self.page is not None:
                    bounds = layout.BOUNDS.unpack_from(self.page, layout.BOUNDS_OFFSET)
                    log.max_log_bytes, log.max_ring_bytes, log.recording = bounds
            ring = log.new_ring()
            if ring is None:
                return None
            ring.generation = generation
            thread.tenancy = Tenancy(ring)
            thread.ring = ring
            ring.words[ONCE_NS] += monotonic_ns() - began_ns
            return ring

    def _read_directory(self) -> str:
        first = layout.DIRECTORY_OFFSET
        encoded = self.page[first : first + layout.PATH_BYTES] if self.page is not None else b""
        return os.fsdecode(encoded.partition(b"\0")[0])

    def _close_log(self) -> None:
        with self.lock:
            log, self.log = self.log, None
            if log is not None:
                log.close()

    def use_control(self, path: str | None, create: bool, /) -> None:
        """Map a control page; None: one for forked children only. Raises OSError."""
        page = _map_control(path, create)
        control = memoryview(page).cast("I")
        if create:
            control[0] = layout.CONTROL_MAGIC
            control[1] = layout.FORMAT_VERSION
        elif control[0] != layout.CONTROL_MAGIC or control[1] != layout.FORMAT_VERSION:
            raise _error(errno.EPROTO, path or "shared memory")
        with self.lock:
            # Rings of this process's log do not know the new page's generations.
            self._close_log()
            self.page = page
            self.control = control

    def start(
        self,
        directory: str | bytes | os.PathLike[str],
        counter: bool = False,
        max_log_bytes: int = 0,
        max_ring_bytes: int = 0,
        recording: int = 0,
        /,
    ) -> None:
        """Record into the directory, here and in the children that share the control page.

        `recording` is its id: it names ring files that lie elsewhere. There is no `counter` here
        (HAS_COUNTER): times are always of the monotonic clock.
        """
        del counter
        encoded = os.fsencode(directory)
        if b"\0" in encoded:
            message = "embedded null byte"
            raise ValueError(message)
        if len(encoded) >= layout.PATH_BYTES:
            raise _error(errno.ENAMETOOLONG, os.fsdecode(encoded))
        page, control = self.page, self.control
        generation = control[GENERATION]
        if page is None or generation & 1:
            raise _error(errno.EBUSY, os.fsdecode(encoded))
        end = layout.DIRECTORY_OFFSET + len(encoded) + 1
        page[layout.DIRECTORY_OFFSET : end] = encoded + b"\0"
        bounds = (max_log_bytes, max_ring_bytes, recording)
        layout.BOUNDS.pack_into(page, layout.BOUNDS_OFFSET, *bounds)
        control[GENERATION] = generation + 1
        try:
            # The caller gets the error, if there is one, not the first span.
            ring = self._attach(generation + 1)
            if ring is None:
                raise _error(errno.EIO)
            ring.words[ONCE_NS] = 0  # whoever starts counts how long that took
        except BaseException as error:
            control[GENERATION] = generation + 2
            if not isinstance(error, OSError):
                raise
            raise _error(error.errno or errno.EIO, os.fsdecode(encoded)) from None

    def stop(self) -> None:
        """Stop recording, here and in the children."""
        generation = self.control[GENERATION]
        if not generation & 1:
            raise _error(errno.EINVAL)
        self.control[GENERATION] = generation + 1
        self._close_log()

    def directory(self) -> str | None:
        """Where recording goes now; None while it is off."""
        with self.lock:
            generation = self.control[GENERATION]
            directory = self._read_directory()
            on = generation & 1 and self.control[GENERATION] == generation
            return directory if on else None

    def stats(self) -> dict[str, int]:
        """Figures of this process's current log; zeros while off."""
        with self.lock:
            log = self.log
            rings = log.rings if log is not None else []
            return {
                "records": sum(ring.words[HEAD] for ring in rings),
                "dropped": sum(ring.words[DROPPED] for ring in rings),
                "own_ns": sum(ring.words[OWN_NS] for ring in rings),
                "drain_ns": sum(ring.words[DRAIN_NS] for ring in rings),
                "lost_definitions": log.lost_definitions if log is not None else 0,
                "anonymous_rings": sum(ring.anonymous for ring in rings),
                "failed_errno": log.failed_errno if log is not None else 0,
                "forgotten_errors": forgotten_errors(),
            }

    def after_fork_in_child(self) -> None:
        """The rings are the parent's. The child follows the control page into the same directory
        with files of its own; a span it inherited open is the parent's to end (its serial is
        another).
        """
        log, self.log = self.log, None
        self.lock = threading.RLock()
        self.serial += 1
        thread.ring = no_ring
        thread.tenancy = None
        thread.refused = (None, 0)
        if log is not None:
            log.leave_to_parent()


thread = Thread()
recorder = Recorder()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=recorder.after_fork_in_child)
