# SPDX-License-Identifier: Apache-2.0
"""One process's part of a chunk log, as log.c and strings.c, without a drain thread."""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path
from threading import get_native_id
from typing import Any

from strobe.record._python.files import AppendFile, forget_error, give_back, is_network
from strobe.record._python.ring import (
    DROPPED,
    FAILED_ERRNO,
    HEAD,
    SPARE,
    TAIL,
    UNSAFE,
    Ring,
    map_private,
    map_ring,
)
from strobe.record._support import describe_lane
from strobe.store import layout
from strobe.store.files import identify

# Past these the table of strings is emptied and strings get new numbers: a program that makes up
# names without end must not grow without end.
MOST_STRINGS = 131072
MOST_BYTES = 16 << 20


def _process_start() -> int:
    """Clock ticks between boot and this process's start: a pid that is used again differs here."""
    try:
        text = Path("/proc/self/stat").read_bytes()
        # The second field is the program's name in parentheses and may contain anything.
        return int(text.rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def _host() -> str:
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    plain = (c if c.isascii() and (c.isalnum() or c == "-") else "_" for c in name[:64])
    return "".join(plain)


class Log:
    """One process's part of a chunk log. Raises OSError when its files cannot be made.

    `lock` is the recorder's: with one lock for all, a signal handler that records cannot take two
    of them in the wrong order.
    """

    def __init__(self, directory: str, serial: int, generation: int, lock: Any) -> None:
        host, pid, start = _host(), os.getpid(), _process_start()
        self.prefix = f"{directory}/{host}-{pid}-{start}-{os.urandom(4).hex()}"
        self.serial = serial
        self.generation = generation
        self.lock = lock
        self.keep_rings = not is_network(directory)
        self.max_log_bytes = self.max_ring_bytes = 0  # no limit
        self.recording = 0  # the id of the recording whose log this is
        self.place = identify(Path(directory))
        self.rings: list[Ring] = []
        self.next_ring = 0
        self.strings: dict[str, int] = {}
        self.string_bytes = 0
        self.next_string = 1
        self.next_values = 0
        self.next_lane = 0
        self.lost_definitions = 0
        self.failed_errno = 0  # the first write that failed
        self.chunks = AppendFile(f"{self.prefix}.chunks")
        self.definitions = AppendFile(f"{self.prefix}.definitions")
        process = (
            f'{{"pid": {pid}, "parent": {os.getppid()}, "host": "{host}", "start": {start}, '
            f'"recorder": "Python", "version": {layout.FORMAT_VERSION}}}'
        )
        self.define(layout.DEFINE_PROCESS, 0, process.encode())

    def has_directory(self) -> bool:
        """Say whether the directory is where it was: nobody looks for the rings of a lost one."""
        try:
            return identify(Path(self.prefix).parent) == self.place
        except OSError:
            return False

    def define(self, kind: int, number: int, data: bytes) -> bool:
        """Return False when it could not be written; the loss is counted."""
        fields = (layout.DEFINITION_MAGIC, kind, number, len(data))
        crc = zlib.crc32(data, zlib.crc32(layout.DEFINITION.pack(*fields, 0)))
        with self.lock:
            try:
                self.definitions.append(layout.DEFINITION.pack(*fields, crc) + data)
            except OSError as error:
                give_back(error)
                self.failed_errno = self.failed_errno or error.errno or errno.EIO
                self.lost_definitions += 1
                return False
        return True

    def string_id(self, text: str) -> int:
        """Return the number of a string, defined before it is returned.

        One that could not be written is not remembered, so its next use tries again.
        """
        with self.lock:
            if len(self.strings) >= MOST_STRINGS or self.string_bytes >= MOST_BYTES:
                self.strings.clear()
                self.string_bytes = 0
            known = self.strings.get(text)
            if known is not None:
                return known
            number = self.next_string
            self.next_string = number + 1
            data = text.encode("utf-8", "surrogatepass")
            self.string_bytes += len(data)
            if self.define(layout.DEFINE_STRING, number, data):
                self.strings[text] = number
            return number

    def define_lane(self, context: int) -> int:
        """Return the number of a new lane of the calling thread."""
        with self.lock:
            lane = self.next_lane
            self.next_lane = lane + 1
        try:
            text = describe_lane(get_native_id(), context)
        except Exception as error:  # a Thread's name may be anything
            forget_error(error)
            return lane
        self.define(layout.DEFINE_LANE, lane, text.encode())
        return lane

    def new_ring(self) -> Ring | None:
        """Return a ring for the calling thread: an ended thread's, else a new one.

        None when the bound is reached.
        """
        with self.lock:
            for ring in self.rings:
                if ring.orphan:
                    ring.orphan = False
                    ring.forget_lanes()
                    return ring
            number = self.next_ring
            if self.max_ring_bytes and (number + 1) * layout.RING_BYTES > self.max_ring_bytes:
                note = (
                    f"thread {get_native_id()} was not recorded: max_memory_bytes allows {number} "
                    "rings"
                )
                self.define(layout.DEFINE_NOTE, 0, note.encode())
                return None
            self.next_ring = number + 1
            memory, elsewhere = map_ring(self, number)
            ring = Ring(self, number, memory or map_private(), memory is None)
            ring.elsewhere = elsewhere
            if memory is None:
                note = (
                    f"ring {number} is in private memory: if the process ends without stop(), "
                    f"up to {UNSAFE} of its last records are lost"
                )
                self.define(layout.DEFINE_NOTE, number, note.encode())
            ring.write_header()
            self.rings.append(ring)
            return ring

    def write_chunk(self, ring: Ring) -> None:
        """Move the ring's records into the chunk file; where that fails and the ring is full, drop
        the older half.
        """
        with self.lock:
            tail, head = ring.words[TAIL], ring.words[HEAD]
            if head == tail:
                return
            count = head - tail
            size = count * layout.RECORD_BYTES
            if self.max_log_bytes and self.chunks.offset + size > self.max_log_bytes:
                # The user's bound: what came first stays, and what is given up is counted.
                ring.words[FAILED_ERRNO] = errno.EDQUOT
                ring.words[DROPPED] += count
                ring.words[TAIL] = head
                return
            fields = (layout.CHUNK_MAGIC, ring.number, tail, count)
            records = memoryview(ring.memory)[layout.RECORDS_OFFSET :]
            first = tail % layout.RING_RECORDS * layout.RECORD_BYTES
            parts = (
                records[first : first + count * layout.RECORD_BYTES],
                records[: max(0, first + count * layout.RECORD_BYTES - len(records))],
            )
            crc = zlib.crc32(layout.CHUNK.pack(*fields, 0, 0))
            for part in parts:
                crc = zlib.crc32(part, crc)
            try:
                self.chunks.append(layout.CHUNK.pack(*fields, crc, 0), *parts)
            except OSError as error:
                give_back(error)
                self.failed_errno = self.failed_errno or error.errno or errno.EIO
                ring.words[FAILED_ERRNO] = self.failed_errno
                if count >= layout.RING_RECORDS - SPARE:
                    ring.drop_half()
            else:
                ring.words[TAIL] = head

    def close(self) -> None:
        """The log gets no more rings; threads that have one notice at their next record. Their
        records are in the ring files, or else go to the chunk file now.
        """
        with self.lock:
            rings, self.rings = self.rings, []
            for ring in rings:
                ring.generation = -1
                if ring.anonymous or ring.elsewhere:
                    self.write_chunk(ring)

    def leave_to_parent(self) -> None:
        """In a forked child: let go of everything without writing."""
        memory = map_private()
        for ring in self.rings:
            ring.leave_to_parent(memory)
        self.chunks.close()
        self.definitions.close()
