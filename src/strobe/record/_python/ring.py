# SPDX-License-Identifier: Apache-2.0
"""A ring per thread, in shared memory, so that what is in it outlives the process; as ring.c."""

from __future__ import annotations

import mmap
import os
import struct
import sys
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Final

from strobe.record._python.files import (
    NEW_FILE,
    forget_error,
    give_back,
    refuse_past_limit,
    write_at,
)
from strobe.store import layout

if TYPE_CHECKING:
    from strobe.record._python.log import Log

MOST_LANES = 65536

# Records that a signal handler or a finalizer may add while its thread writes a chunk.
SPARE = 256

# A ring that dies with the process holds no more records than this.
UNSAFE = 256

# Fields of a ring as 64-bit words: a memoryview stores one with a single instruction, so whoever
# looks at the file after a kill -9 sees the old value or the new one.
HEAD = layout.HEAD_OFFSET // 8
TAIL = layout.TAIL_OFFSET // 8
DROPPED = layout.DROPPED_OFFSET // 8
OWN_NS = layout.OWN_NS_OFFSET // 8
DRAIN_NS = layout.DRAIN_NS_OFFSET // 8
FAILED_ERRNO = layout.FAILED_ERRNO_OFFSET // 8
ONCE_NS = layout.ONCE_NS_OFFSET // 8
OPEN = layout.OPEN_OFFSET // 8

# start_ns, dur_ns, name | attributes << 32, lane | kind << 32
RECORD = struct.Struct("<4Q")
_OPEN: Final = layout.KIND_OPEN << 32
_HEADER = struct.Struct("<5I")  # layout.RING_HEAD after the magic


def _map_file(path: str) -> mmap.mmap | None:
    """Map a new file whose blocks exist: touching a hole on a full disk is SIGBUS."""
    try:
        fd = os.open(path, os.O_RDWR | NEW_FILE, 0o600)
    except OSError as error:
        give_back(error)
        return None
    try:
        refuse_past_limit(layout.RING_BYTES)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, layout.RING_BYTES)
        else:
            write_at(fd, memoryview(bytes(layout.RING_BYTES)), 0)
        if sys.version_info >= (3, 13):
            return mmap.mmap(fd, layout.RING_BYTES, trackfd=False)
        return mmap.mmap(fd, layout.RING_BYTES)
    except BaseException as error:
        Path(path).unlink()
        give_back(error)
        if not isinstance(error, (OSError, ValueError)):
            raise
        return None
    finally:
        os.close(fd)


def _map_elsewhere(log: Log, directory: str, number: int) -> mmap.mmap | None:
    """Elsewhere on this host, under a name that follows from the recording's id."""
    name = f"strobe-{log.recording:016x}-{Path(log.prefix).name}.{number}.ring"
    memory = _map_file(str(Path(directory) / name))
    if memory is not None:
        log.define(layout.DEFINE_RING, number, os.fsencode(directory))
    return memory


def map_ring(log: Log, number: int) -> tuple[mmap.mmap | None, bool]:
    """Return the mapped file of a ring, None where none can be made, and if it lies elsewhere."""
    memory = _map_file(f"{log.prefix}.{number}.ring") if log.keep_rings else None
    if memory is not None:
        log.define(layout.DEFINE_RING, number, b"")
    if memory is not None or not log.has_directory():
        return memory, False
    temporary = os.environ.get("TMPDIR", "")
    first = temporary if temporary.startswith("/") else "/tmp"
    memory = _map_elsewhere(log, first, number) or _map_elsewhere(log, "/dev/shm", number)
    return memory, memory is not None


def map_private() -> mmap.mmap:
    """Return the memory of a ring that is in no file."""
    if hasattr(mmap, "MAP_PRIVATE"):
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        return mmap.mmap(-1, layout.RING_BYTES, flags=flags)
    return mmap.mmap(-1, layout.RING_BYTES)


class Ring:
    """A ring as its thread sees it. Only `orphan`, `generation`, `free` and the words of the
    memory are touched by others, each by operations that are atomic with and without a GIL.
    """

    __slots__ = (
        "anonymous",
        "contexts",
        "elsewhere",
        "free",
        "generation",
        "head",
        "lane",
        "lane_key",
        "lanes",
        "limit",
        "log",
        "memory",
        "number",
        "orphan",
        "serial",
        "strings",
        "words",
        "writing",
    )

    generation: int  # -1: stale, whatever the control page says
    limit: int  # the head at which there is something to do besides writing
    lane: int  # -1: not asked for yet
    orphan: bool  # its thread has ended: the next new thread takes it

    def __init__(self, log: Log, number: int, memory: mmap.mmap, anonymous: bool) -> None:
        self.generation = -1
        self.serial = log.serial
        self.head = 0
        self.memory = memory
        self.words = memoryview(memory).cast("Q")
        # Open slots as the number of their first word.
        self.free = [OPEN + 4 * slot for slot in reversed(range(layout.OPEN_SLOTS))]
        self.log = log
        self.strings = log.strings
        self.number = number
        self.anonymous = anonymous
        self.elsewhere = False  # in a file outside of the log's directory: lost if that is moved
        self.limit = UNSAFE if anonymous else layout.RING_RECORDS - SPARE
        self.orphan = False
        self.writing = False
        self.forget_lanes()

    def forget_lanes(self) -> None:
        """Prepare for another thread."""
        self.lanes: dict[int, int] = {}
        self.lane_key = self.lane = -1
        self.contexts = 0

    def write_header(self) -> None:
        """Make it a ring for those who look at the file."""
        capacity, slots = layout.RING_RECORDS, layout.OPEN_SLOTS
        _HEADER.pack_into(
            self.memory, 4, layout.FORMAT_VERSION, self.number, capacity, slots, os.getpid()
        )
        layout.RING_LOG.pack_into(self.memory, layout.LOG_OFFSET, *self.log.place)
        # Last: a reader passes over a ring whose maker was killed before this line.
        self.memory[0:4] = layout.RING_MAGIC.to_bytes(4, "little")

    def find_lane(self, key: int) -> int:
        """Return the lane of a key (0: the thread, else a task), from now on the current one."""
        lane = self.lanes.get(key)
        if lane is None:
            if len(self.lanes) >= MOST_LANES:
                self.lanes.clear()
            self.contexts += key != 0
            lane = self.log.define_lane(self.contexts if key else 0)
            self.lanes[key] = lane
        self.lane = lane
        self.lane_key = key
        return lane

    def put(self, start_ns: int, value: int, names: int, lane_and_kind: int) -> None:
        """Add a record."""
        while self.head >= self.limit:
            if not self.make_room():
                return
        # No call between these two, so that nobody else gets the same place. Whoever interrupts
        # the call after them finds a whole record; if this frame is left without publishing it,
        # the next record does.
        place = self.head
        self.head = place + 1
        offset = layout.RECORDS_OFFSET + place % layout.RING_RECORDS * layout.RECORD_BYTES
        RECORD.pack_into(self.memory, offset, start_ns, value, names, lane_and_kind)
        self.words[HEAD] = self.head

    def empty_table(self) -> None:
        """Move the older half of the open spans, many of them forgotten, from the table, which is
        small, to the log. They may still end.
        """
        with self.log.lock:
            table = range(OPEN, OPEN + 4 * layout.OPEN_SLOTS, 4)
            oldest = sorted((self.words[slot], slot) for slot in table)
            for start_ns, slot in oldest[: layout.OPEN_SLOTS // 2]:
                if start_ns:
                    names, lane = self.words[slot + 1], self.words[slot + 2]
                    lane_and_kind = (lane & 0xFFFFFFFF) | _OPEN | lane >> 32 << 40
                    self.put(start_ns, 0, names, lane_and_kind)
                    self._close(slot, start_ns)
            # A slot that an exception kept from use.
            if not self.free:
                self.free += (slot for slot in table if not self.words[slot])

    def _close(self, slot: int, start_ns: int) -> None:
        if self.words[slot] == start_ns:
            self.words[slot] = 0
            self.free.append(slot)

    def close_for_another(self, slot: int, start_ns: int) -> None:
        """Close a span of this ring that another thread has ended."""
        with self.log.lock:
            self._close(slot, start_ns)

    def make_room(self) -> bool:
        """Called when head reaches limit; False when there is no room afterwards."""
        if self.writing:
            # We are in a signal handler or finalizer, above the frame that writes the chunk, and
            # the spare records are used up. A span of the handler's then shows as unfinished.
            forget_error(BufferError())
            return False
        began_ns = monotonic_ns()
        try:
            self.writing = True
            self.limit = self.words[TAIL] + layout.RING_RECORDS
            # An exception may have kept a written record from being published.
            self.words[HEAD] = self.head
            self.log.write_chunk(self)
        except Exception as error:  # no memory, no stack
            forget_error(error)
            self.drop_half()
        finally:
            self.limit = self.words[TAIL] + layout.RING_RECORDS - SPARE
            if self.anonymous:
                self.limit = min(self.limit, self.head + UNSAFE)
            self.writing = False
        spent_ns = monotonic_ns() - began_ns
        self.words[OWN_NS] += spent_ns
        return True

    def drop_half(self) -> None:
        """Give up the older half of the records, and say so."""
        tail = self.words[TAIL]
        half = (self.words[HEAD] - tail) // 2
        self.words[DROPPED] += half
        self.words[TAIL] = tail + half

    def leave_to_parent(self, memory: mmap.mmap) -> None:
        """In a forked child: whatever a frame that was interrupted still writes goes nowhere."""
        self.generation = -1
        self.memory = memory
        self.words = memoryview(memory).cast("Q")
