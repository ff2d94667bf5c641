# SPDX-License-Identifier: Apache-2.0
"""The Python recorder's log: rings in shared memory, the chunk file, the definitions file.

What native/core/ring.c, log.c and strings.c do, without a drain thread. Knows no spans.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
import struct
import sys
import zlib
from pathlib import Path
from threading import RLock, get_native_id
from time import monotonic_ns
from typing import Any

from strobe.record._support import describe_lane
from strobe.store import layout

# Past these the table of strings is emptied and strings get new numbers.
MOST_STRINGS = 131072
MOST_BYTES = 16 << 20
MOST_LANES = 65536

# Records that a signal handler or a finalizer may add while its thread writes a chunk.
SPARE = 256

# Fields of a ring as 64-bit words: a memoryview stores one with a single instruction, so whoever
# looks at the file after a kill -9 sees the old value or the new one.
HEAD = layout.HEAD_OFFSET // 8
TAIL = layout.TAIL_OFFSET // 8
DROPPED = layout.DROPPED_OFFSET // 8
OWN_NS = layout.OWN_NS_OFFSET // 8
DRAIN_NS = layout.DRAIN_NS_OFFSET // 8
FAILED_ERRNO = layout.FAILED_ERRNO_OFFSET // 8
OPEN = layout.OPEN_OFFSET // 8

_NETWORK_FILE_SYSTEMS = frozenset(
    "9p afs beegfs ceph cifs coda gpfs lustre nfs nfs4 smb3 smbfs".split()
)
_FLAGS = os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_RING_HEADER = struct.Struct("<5I")  # layout.RING_HEAD after the magic


def give_back(error: BaseException) -> None:
    """Raise the error again if one of the program's signal handlers raised it while we worked."""
    handlers = [getattr(signal.getsignal(n), "__code__", None) for n in signal.valid_signals()]
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            raise error
        trace = trace.tb_next


def _refuse_past_limit(end: int) -> None:
    """Raise EFBIG instead of writing past RLIMIT_FSIZE, which may be SIGXFSZ and death."""
    try:
        import resource
    except ImportError:
        return
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and end > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def _write_at(fd: int, data: memoryview, offset: int) -> None:
    while data:
        if hasattr(os, "pwrite"):
            written = os.pwrite(fd, data, offset)
        else:
            os.lseek(fd, offset, os.SEEK_SET)
            written = os.write(fd, data)
        if written == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data = data[written:]
        offset += written


class AppendFile:
    """A file that only grows. A failed write leaves the offset where it was, so the next one
    overwrites the torn bytes and the file stays readable. Needs the log's lock.
    """

    __slots__ = ("fd", "offset")

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_WRONLY | _FLAGS, 0o600)
        self.offset = 0

    def append(self, *parts: bytes | memoryview) -> None:
        """Write the parts, or raise OSError."""
        began = offset = self.offset
        # Taken before it is filled: a signal handler that appends in between goes behind it.
        self.offset += sum(map(len, parts))
        try:
            _refuse_past_limit(self.offset)
            for part in parts:
                _write_at(self.fd, memoryview(part), offset)
                offset += len(part)
        except BaseException:
            self.offset = began
            raise

    def close(self) -> None:
        """Close the file; later writes fail."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    # Rings hold their log and threads hold their rings, so the last thread to leave closes it.
    __del__ = close


def _is_network(directory: str) -> bool:
    """A shared mapping on such a file system is slow, incoherent or lost with the network."""
    try:
        device = os.stat(directory).st_dev
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    for fields in map(str.split, mounts):
        if fields[2] == number:
            kind = fields[fields.index("-") + 1]
            return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse")
    return False


def _map_file(path: str) -> mmap.mmap | None:
    """Map a new file whose blocks exist: touching a hole on a full disk is SIGBUS."""
    try:
        fd = os.open(path, os.O_RDWR | _FLAGS, 0o600)
    except OSError as error:
        give_back(error)
        return None
    try:
        _refuse_past_limit(layout.RING_BYTES)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, layout.RING_BYTES)
        else:
            _write_at(fd, memoryview(bytes(layout.RING_BYTES)), 0)
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


def _map_elsewhere(directory: str, link: str) -> mmap.mmap | None:
    """Elsewhere on this host, with a link in the log's directory that leads the reader there."""
    path = Path(directory).absolute() / f"strobe-{Path(link).name}"
    memory = _map_file(str(path))
    if memory is None:
        return None
    try:
        Path(link).symlink_to(path)
    except OSError as error:
        path.unlink()
        give_back(error)
        return None
    return memory


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

    generation: int  # 0: stale, whatever the control page says
    limit: int  # the head at which there is something to do besides writing
    lane: int  # -1: not asked for yet
    orphan: bool  # its thread has ended: the next new thread takes it

    def __init__(self, log: Log, number: int, memory: mmap.mmap, anonymous: bool) -> None:
        self.generation = 0
        self.serial = log.serial
        self.head = 0
        self.limit = layout.RING_RECORDS - SPARE
        self.memory = memory
        self.words = memoryview(memory).cast("Q")
        # Open slots as the number of their first word.
        self.free = [OPEN + 4 * slot for slot in reversed(range(layout.OPEN_SLOTS))]
        self.log = log
        self.strings = log.strings
        self.number = number
        self.anonymous = anonymous
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
        _RING_HEADER.pack_into(
            self.memory, 4, layout.FORMAT_VERSION, self.number, capacity, slots, os.getpid()
        )
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

    def make_room(self) -> bool:
        """Called when head reaches limit; False when there is no room afterwards."""
        if self.writing:
            # We are in a signal handler or finalizer, above the frame that writes the chunk, and
            # the spare records are used up.
            self.words[DROPPED] += 1
            return False
        began_ns = monotonic_ns()
        try:
            self.writing = True
            self.limit = self.words[TAIL] + layout.RING_RECORDS
            # An exception may have kept a written record from being published.
            self.words[HEAD] = self.head
            self.log.write_chunk(self)
        finally:
            self.limit = self.words[TAIL] + layout.RING_RECORDS - SPARE
            self.writing = False
        self.words[OWN_NS] += monotonic_ns() - began_ns
        return True

    def leave_to_parent(self, memory: mmap.mmap) -> None:
        """In a forked child: whatever a frame that was interrupted still writes goes nowhere."""
        self.generation = 0
        self.memory = memory
        self.words = memoryview(memory).cast("Q")


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
        self.keep_rings = not _is_network(directory)
        self.rings: list[Ring] = []
        self.next_ring = 0
        self.strings: dict[str, int] = {}
        self.string_bytes = 0
        self.next_string = 1
        self.next_lane = 0
        self.lost_definitions = 0
        self.forgotten_errors = 0
        self.failed_errno = 0  # the first write that failed
        self.chunks = AppendFile(f"{self.prefix}.chunks")
        self.definitions = AppendFile(f"{self.prefix}.definitions")
        process = (
            f'{{"pid": {pid}, "parent": {os.getppid()}, "host": "{host}", "start": {start}, '
            f'"recorder": "Python", "version": {layout.FORMAT_VERSION}}}'
        )
        self.define(layout.DEFINE_PROCESS, 0, process.encode())

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
            give_back(error)
            self.forgotten_errors += 1
            return lane
        self.define(layout.DEFINE_LANE, lane, text.encode())
        return lane

    def new_ring(self) -> Ring:
        """Return a ring for the calling thread: an ended thread's, else a new one."""
        with self.lock:
            for ring in self.rings:
                if ring.orphan:
                    ring.orphan = False
                    ring.forget_lanes()
                    return ring
            number = self.next_ring
            self.next_ring = number + 1
            path = f"{self.prefix}.{number}.ring"
            memory = (
                (_map_file(path) if self.keep_rings else None)
                or _map_elsewhere(os.environ.get("TMPDIR") or "/tmp", path)
                or _map_elsewhere("/dev/shm", path)
            )
            ring = Ring(self, number, memory or map_private(), memory is None)
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
                    ring.words[DROPPED] += count // 2
                    ring.words[TAIL] = tail + count // 2
            else:
                ring.words[TAIL] = head

    def close(self) -> None:
        """The log gets no more rings; threads that have one notice at their next record. Their
        records are in the ring files, or else go to the chunk file now.
        """
        with self.lock:
            rings, self.rings = self.rings, []
            for ring in rings:
                ring.generation = 0
                if ring.anonymous:
                    self.write_chunk(ring)

    def leave_to_parent(self) -> None:
        """In a forked child: let go of everything without writing."""
        memory = map_private()
        for ring in self.rings:
            ring.leave_to_parent(memory)
        self.chunks.close()
        self.definitions.close()
