# SPDX-License-Identifier: Apache-2.0
"""Reads a chunk log: what a killed, a stopped or a still running program has recorded.

Every record has a sequence number in its ring; each number is taken once, whether it is in a chunk,
still in the ring, or in both. Numbers that are nowhere are counted as dropped.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strobe.store import files, layout, rings
from strobe.store.spill import Spill
from strobe.store.strings import Strings

RECORD = np.dtype(
    [
        ("start_ns", "<u8"),
        ("dur_ns", "<u8"),
        ("name", "<u4"),
        ("attributes", "<u4"),
        ("lane", "<u4"),
        ("kind", "u1"),
        ("category", "u1"),
        ("window", "<u2"),
    ]
)
Records = NDArray[np.void]
_FOR_EVER = 1 << 62


@dataclass(frozen=True)
class Gap:
    """Records that are nowhere: how many, and between which times they were made."""

    count: int
    after_ns: int
    before_ns: int


@dataclass
class ProcessLog:
    """What one process left in a log."""

    prefix: str
    process: dict[str, Any] = field(default_factory=dict)
    strings: Strings = field(default_factory=Strings)
    lanes: dict[int, dict[str, Any]] = field(default_factory=dict)
    records: list[Records] = field(default_factory=list)
    open: list[Records] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    own_ns: int = 0
    once_ns: int = 0
    drain_ns: int = 0
    failed_errno: int = 0
    faults: list[str] = field(default_factory=list)
    rings: dict[int, str] = field(default_factory=dict)
    """The rings that have files, and the folder of each: "" for the log's own."""
    missing: list[str] = field(default_factory=list)
    """What this process has written and cannot be read: a sentence for each file."""
    uncounted: bool = False
    """Whether nobody knows how many records are in what is missing."""

    @property
    def dropped(self) -> int:
        """How many records are missing."""
        return sum(gap.count for gap in self.gaps)


@dataclass(frozen=True)
class _Ring:
    number: int
    head: int
    tail: int
    records: Records
    open: Records
    dropped: int
    own_ns: int
    once_ns: int
    drain_ns: int
    failed_errno: int


def read(directory: Path, spill: Spill | None = None) -> list[ProcessLog]:
    """Return the logs of all processes that recorded into `directory`, by file name.

    `spill` takes what would need much memory; without it, temporary files do.
    """
    elsewhere = rings.find_elsewhere(directory)
    prefixes = {
        path.stem
        for path in files.list_folder(directory)
        if path.suffix in (".definitions", ".chunks") and files.is_regular(path)
    }
    return [_read_process(directory, prefix, elsewhere, spill) for prefix in sorted(prefixes)]


def processes(directory: Path) -> list[dict[str, Any]]:
    """Return what the processes that recorded into `directory` say of themselves."""
    found = []
    for path in files.list_folder(directory, "*.definitions"):
        log = ProcessLog(path.name)
        _read_definitions(path, log)
        found.append(log.process)
    return found


def _read_process(
    directory: Path,
    prefix: str,
    elsewhere: Mapping[tuple[str, int], Path],
    spill: Spill | None,
) -> ProcessLog:
    log = ProcessLog(prefix)
    # Rings before chunks: a record that leaves its ring while we read is then found in a chunk.
    paths = _ring_files(directory, prefix)
    paths += [path for (owner, _), path in elsewhere.items() if owner == prefix]
    found = [ring for path in paths if (ring := _read_ring(path, log))]
    faults: list[str] = []
    chunks = list(_read_chunks(directory / f"{prefix}.chunks", faults, log))
    # Definitions last: each is written before its first use.
    definitions = directory / f"{prefix}.definitions"
    _read_definitions(definitions, log, spill)
    for ring in found:
        parts = [(first, records) for number, first, records in chunks if number == ring.number]
        _take_once([*parts, (ring.tail, ring.records)], ring.head, log)
        log.open.append(ring.open)
        log.own_ns += ring.own_ns
        log.once_ns += ring.once_ns
        log.drain_ns += ring.drain_ns
        log.failed_errno = log.failed_errno or ring.failed_errno
    known = {ring.number for ring in found}
    for number in {number for number, _, _ in chunks} - known:
        # A ring that was never in a file: its chunks are all there is of it.
        parts = [(first, records) for ring, first, records in chunks if ring == number]
        _take_once(parts, max(first + len(records) for first, records in parts), log)
    if log.dropped:
        # With nothing missing, half a chunk is a write that goes on or that a kill has ended.
        log.faults += faults or [f"{prefix}: {log.dropped} records are missing"]
    lost = _missing_rings(directory, log, {_number_of(path) for path in paths})
    log.uncounted = log.uncounted or bool(lost)
    log.missing += lost
    log.missing += _missing_files(directory, log, found, chunks)
    return log


def _missing_files(
    directory: Path, log: ProcessLog, found: list[_Ring], chunks: list[tuple[int, int, Records]]
) -> list[str]:
    """Return a sentence for each file of a process that is not there, or not whole."""
    definitions, in_chunks = (f"{log.prefix}.{ending}" for ending in ("definitions", "chunks"))
    if not files.is_regular(directory / definitions):
        # Else it was killed before it made them.
        return [f"{definitions}: not there"] if found or chunks else []
    if not files.is_regular(directory / in_chunks):
        return [f"{in_chunks}: not there"]
    known = {ring.number for ring in found}
    there = sum(len(records) for number, _, records in chunks if number in known)
    lost = sum(ring.tail - ring.dropped for ring in found) - there
    if lost <= 0 or log.missing:
        return []
    return [f"{in_chunks}: cut off or damaged, {lost} records are missing"]


def _missing_rings(directory: Path, log: ProcessLog, present: set[int]) -> list[str]:
    """Return a sentence for each ring that had a file and has none."""
    lost = {number: folder for number, folder in log.rings.items() if number not in present}
    if lost:  # some may have been made since, by a program that still runs
        elsewhere = rings.find_elsewhere(directory)
        present |= {number for prefix, number in elsewhere if prefix == log.prefix}
        present |= {_number_of(path) for path in _ring_files(directory, log.prefix)}
    return [
        f"ring {number} of {log.prefix} is missing: the recorder put it into {folder!r}, and it is "
        "not among this user's files in the temporary folders"
        if folder
        else f"{log.prefix}.{number}.ring: not there"
        for number, folder in lost.items()
        if number not in present
    ]


def _number_of(ring: Path) -> int:
    return int(ring.name.split(".")[-2])


def _ring_files(directory: Path, prefix: str) -> list[Path]:
    """Return the ring files of a process; the prefix stands for itself, whatever is in it."""
    name = re.compile(re.escape(prefix) + r"\.[0-9]+\.ring")
    found = (path for path in files.list_folder(directory) if name.fullmatch(path.name))
    return [path for path in found if files.is_regular(path) and path.stat().st_size]


def _take_once(parts: list[tuple[int, Records]], head: int, log: ProcessLog) -> None:
    """Add each sequence number below `head` once; note those in no part as a gap."""
    next_seq = last_ns = 0
    for first, records in sorted(parts, key=lambda part: part[0]):
        end = first + len(records)
        if end <= next_seq or len(records) == 0:
            continue
        times = _times(records)
        if first > next_seq:
            log.gaps.append(Gap(first - next_seq, last_ns, times[0] if times else _FOR_EVER))
        log.records.append(records[max(0, next_seq - first) :])
        next_seq, last_ns = end, times[1] if times else last_ns
    if head > next_seq:
        log.gaps.append(Gap(head - next_seq, last_ns, _FOR_EVER))


def _times(records: Records) -> tuple[int, int] | None:
    """Return when the first and the last record were written; values alone do not say it."""
    timed = np.flatnonzero(records["kind"] != layout.KIND_VALUE)
    return (_written_ns(records[timed[0]]), _written_ns(records[timed[-1]])) if len(timed) else None


def _written_ns(record: np.void) -> int:
    """Return when a record was written: at the end of what lasts, else at once."""
    lasts = record["kind"] in (layout.KIND_SPAN, layout.KIND_STEP)
    return int(record["start_ns"]) + (int(record["dur_ns"]) if lasts else 0)


def _read_ring(path: Path, log: ProcessLog) -> _Ring | None:
    """Return a copy of a ring, taken so that it is whole even while its thread writes.

    None for one whose maker was killed before it was done. Of one that was cut off only the head is
    taken: it tells how many records are lost.
    """
    try:
        with files.open_regular(path) as file:
            size = file.seek(0, 2)
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        log.missing.append(f"{path.name}: cannot be read ({error.strerror})")
        log.uncounted = True
        return None
    with view:
        if size < layout.RING_BYTES:
            log.missing.append(f"{path.name}: cut off at byte {size}")
        if size < layout.PAGE_BYTES or view[:4] == bytes(4):
            return None
        magic, _, number, capacity, slots, _ = layout.RING_HEAD.unpack_from(view)
        head = _word(view, layout.HEAD_OFFSET)
        whole = view[: layout.RING_BYTES] if size >= layout.RING_BYTES else bytes(layout.RING_BYTES)
        copied = np.frombuffer(whole[layout.RECORDS_OFFSET :], RECORD)
        open_slots = np.frombuffer(whole[layout.OPEN_OFFSET : layout.RECORDS_OFFSET], _OPEN_SLOT)
        # What left the ring in the meantime may have been written over; it is in a chunk by now.
        tail = _word(view, layout.TAIL_OFFSET) if size >= layout.RING_BYTES else head
        shape = (magic, capacity, slots)
        expected = (layout.RING_MAGIC, layout.RING_RECORDS, layout.OPEN_SLOTS)
        if shape != expected or head - tail > capacity:
            log.faults.append(f"{path.name}: its header is damaged")
            return None
        order = np.arange(min(tail, head), head, dtype=np.uint64) % capacity
        return _Ring(
            number=number,
            head=head,
            tail=tail,
            records=copied[order.astype(np.intp)],
            open=open_slots[open_slots["start_ns"] != 0],
            dropped=_word(view, layout.DROPPED_OFFSET),
            own_ns=_word(view, layout.OWN_NS_OFFSET),
            once_ns=_word(view, layout.ONCE_NS_OFFSET),
            drain_ns=_word(view, layout.DRAIN_NS_OFFSET),
            failed_errno=_word(view, layout.FAILED_ERRNO_OFFSET),
        )


_OPEN_SLOT = np.dtype(
    {
        "names": ["start_ns", "name", "attributes", "lane", "category"],
        "formats": ["<u8", "<u4", "<u4", "<u4", "<u4"],
        "offsets": [0, 8, 12, 16, 20],
        "itemsize": layout.OPEN_SLOT.size,
    }
)


def _word(view: mmap.mmap, offset: int) -> int:
    return int.from_bytes(view[offset : offset + 8], "little")


def _map(path: Path, log: ProcessLog) -> mmap.mmap | None:
    if not files.is_regular(path):
        return None
    try:
        with files.open_regular(path) as file:
            if file.seek(0, 2) == 0:
                return None
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        log.missing.append(f"{path.name}: cannot be read ({error.strerror})")
        log.uncounted = True
        return None


def _read_chunks(
    path: Path, faults: list[str], log: ProcessLog
) -> Iterator[tuple[int, int, Records]]:
    """Yield (ring, first sequence number, records) of every chunk that is whole."""
    view = _map(path, log)
    if view is None:
        return
    offset, size = 0, len(view)
    while offset + layout.CHUNK.size <= size:
        magic, ring, first, count, crc, _ = layout.CHUNK.unpack_from(view, offset)
        begin = offset + layout.CHUNK.size
        end = begin + count * layout.RECORD_BYTES
        if magic == layout.CHUNK_MAGIC and end <= size:
            blank = bytearray(view[offset:begin])
            blank[20:24] = bytes(4)
            body = memoryview(view)[begin:end]
            if zlib.crc32(body, zlib.crc32(blank)) == crc:
                yield ring, first, np.frombuffer(body, RECORD)
                offset = end
                continue
        faults.append(f"{path.name}: no whole chunk at byte {offset}")
        offset = _next_magic(view, offset + 1, layout.CHUNK_MAGIC)


def _next_magic(view: mmap.mmap, offset: int, magic: int) -> int:
    found = view.find(magic.to_bytes(4, "little"), offset)
    return found if found >= 0 else len(view)


def _read_definitions(path: Path, log: ProcessLog, spill: Spill | None = None) -> None:
    view = _map(path, log)
    if view is None:
        return
    log.strings = Strings(view, spill)
    offset, size = 0, len(view)
    while offset + layout.DEFINITION.size <= size:
        magic, kind, number, length, crc = layout.DEFINITION.unpack_from(view, offset)
        begin = offset + layout.DEFINITION.size
        end = begin + length
        if magic == layout.DEFINITION_MAGIC and end <= size:
            body = view[begin:end]
            blank = view[offset : begin - 4] + bytes(4)
            if zlib.crc32(body, zlib.crc32(blank)) == crc:
                if kind == layout.DEFINE_STRING:
                    log.strings.add(number, begin, end)
                else:
                    _define(log, kind, number, body)
                offset = end
                continue
        following = _next_magic(view, offset + 1, layout.DEFINITION_MAGIC)
        if end <= size or following < size:  # else a write that goes on or that a kill has ended
            log.faults.append(f"{path.name}: no whole definition at byte {offset}")
        offset = following
    log.strings.close()


def _define(log: ProcessLog, kind: int, number: int, body: bytes) -> None:
    if kind == layout.DEFINE_LANE:
        log.lanes[number] = json.loads(body)
    elif kind == layout.DEFINE_PROCESS:
        log.process = json.loads(body)
    elif kind == layout.DEFINE_RING:
        log.rings[number] = os.fsdecode(body)
    elif kind == layout.DEFINE_NOTE:
        log.faults.append(f"process {log.process.get('pid')}: {body.decode()}")
