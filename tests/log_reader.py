# SPDX-License-Identifier: Apache-2.0
"""A second reader of the chunk log, for tests: slow, short, and independent of strobe.store.

It trusts nothing: a wrong checksum, a sequence number with two different records, a gap that the
ring does not admit to, or an id that was never defined is an AssertionError. Only the end of a file
may be torn.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS = {1: "span", 2: "open", 3: "instant", 4: "counter"}


@dataclass(frozen=True)
class Event:
    """A record with its ids looked up. `value` is a span's duration or a counter's value."""

    kind: str
    name: str
    attributes: str  # JSON, "" for none
    lane: int
    start_ns: int
    value: float
    category: int = 0  # with its source


@dataclass
class ProcessLog:
    """What one process left."""

    process: dict[str, Any]
    lanes: dict[int, dict[str, Any]]
    events: list[Event] = field(default_factory=list)
    dropped: int = 0

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def names(self, kind: str) -> Counter[str]:
        return Counter(event.name for event in self.of(kind))


def _blocks(data: bytes, header: struct.Struct, magic: bytes) -> Iterator[tuple[int, ...]]:
    """Yield (offset of the body, fields of the header) until the end or the torn bytes there."""
    offset = 0
    while data[offset : offset + 4] == magic and offset + header.size <= len(data):
        fields = header.unpack_from(data, offset)
        yield offset + header.size, *fields
        offset += header.size + (fields[3] if magic == b"SDEF" else fields[3] * 32)


def _definitions(data: bytes) -> dict[int, dict[int, bytes]]:
    found: dict[int, dict[int, bytes]] = {1: {}, 2: {}, 3: {}, 5: {}}
    header = struct.Struct("<5I")
    for body, magic, kind, number, length, crc in _blocks(data, header, b"SDEF"):
        text = data[body : body + length]
        if zlib.crc32(text, zlib.crc32(header.pack(magic, kind, number, length, 0))) != crc:
            break  # torn: nothing may follow, and an id that was lost is noticed where it is used
        assert number not in found[kind], f"{KINDS} {number} is defined twice"
        found[kind][number] = text
    return found


def _chunks(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (ring, sequence number, record)."""
    header = struct.Struct("<IIQIIQ")
    for body, magic, ring, first, count, crc, reserved in _blocks(data, header, b"SCHK"):
        records = data[body : body + count * 32]
        if (
            zlib.crc32(records, zlib.crc32(header.pack(magic, ring, first, count, 0, reserved)))
            != crc
        ):
            break
        for i in range(count):
            yield ring, first + i, records[i * 32 : i * 32 + 32]


def _ring(data: bytes) -> tuple[list[tuple[int, int, bytes]], list[bytes], int, int]:
    """Return (ring, sequence number, record) of each, the open slots, the head and the dropped."""
    magic, _version, number, capacity, slots, _pid = struct.unpack_from("<6I", data)
    if magic == 0:  # killed before it was a ring
        return [], [], 0, 0
    assert data[:4] == b"SRNG"
    head, tail, dropped = (struct.unpack_from("<Q", data, at)[0] for at in (64, 128, 192))
    assert tail <= head <= tail + capacity
    start = 4096 + slots * 32
    places = ((n, start + n % capacity * 32) for n in range(tail, head))
    records = [(number, n, data[at : at + 32]) for n, at in places]
    tables = (data[4096 + 32 * slot : 4128 + 32 * slot] for slot in range(slots))
    return records, [slot for slot in tables if slot[:8] != bytes(8)], head, dropped


def _read_process(prefix: str) -> ProcessLog:
    defined = _definitions(Path(f"{prefix}.definitions").read_bytes())
    lanes = {number: json.loads(text) for number, text in defined[2].items()}
    log = ProcessLog(json.loads(defined[3][0]), lanes)
    records: dict[tuple[int, int], bytes] = {}

    def add(ring: int, sequence: int, record: bytes) -> None:
        assert records.setdefault((ring, sequence), record) == record, (ring, sequence)

    for found in _chunks(Path(f"{prefix}.chunks").read_bytes()):
        add(*found)
    opened: list[bytes] = []
    expected = 0
    for path in sorted(Path(prefix).parent.glob(f"{Path(prefix).name}.*.ring")):
        in_ring, slots, head, dropped = _ring(path.read_bytes())
        for found in in_ring:
            add(*found)
        opened += slots
        expected += head - dropped
        log.dropped += dropped
    assert len(records) == expected, "a record is missing that the rings do not count as dropped"
    log.events = list(_events(list(records.values()), opened, defined[1], lanes))
    return log


def _events(
    records: list[bytes], opened: list[bytes], strings: dict[int, bytes], lanes: dict[int, Any]
) -> Iterator[Event]:
    """Yield the records, and as "open" what has begun and not ended, once each."""
    unfinished: set[tuple[int, ...]] = set()
    finished: set[tuple[int, ...]] = set()
    texts = {number: text.decode("utf-8", "surrogatepass") for number, text in strings.items()}
    sets = _values([record for record in records if record[28] == 9], texts)

    def event(
        kind: str, start_ns: int, value: float, name: int, more: int, lane: int, category: int = 0
    ) -> Event:
        assert lane in lanes, f"lane {lane} is not defined"
        attributes = "" if not more else sets[more] if more & 0x80000000 else texts[more]
        text = texts[name] if name else ""
        return Event(kind, text, attributes, lane, start_ns, value, category)

    for slot in opened:
        start_ns, name, more, lane = struct.unpack_from("<QIII", slot)
        unfinished.add((start_ns, name, more, lane))
    for record in (record for record in records if record[28] != 9):
        start_ns, value, name, more, lane, kind, category, reserved = struct.unpack(
            "<QQIIIBBH", record
        )
        assert reserved == 0
        if kind == 2:
            assert value == 0
            unfinished.add((start_ns, name, more, lane))
            continue
        if kind == 1:
            finished.add((start_ns, name, more, lane))
        bits = struct.unpack_from("<d", record, 8)[0] if kind == 4 else value
        yield event(KINDS[kind], start_ns, bits, name, more, lane, category)
    for start_ns, name, more, lane in sorted(unfinished - finished):
        yield event("open", start_ns, 0, name, more, lane)


def _values(records: list[bytes], texts: dict[int, str]) -> dict[int, str]:
    """Return the attributes that are recorded value by value, as JSON."""
    found: dict[int, dict[str, Any]] = {}
    pending, left = b"", 0
    for record in records:
        key, number, string, _, kind, length = struct.unpack_from("<IIIBBH", record, 16)
        assert number & 0x80000000
        values = found.setdefault(number, {})
        whole, real, bits = (struct.unpack_from(form, record, 8)[0] for form in ("<q", "<d", "<Q"))
        assert (left > 0) == (kind == 7), "a text goes on in the next record of its ring"
        if kind == 5:
            pending, left = b"", length
        if kind in (5, 7):
            pending += record[: min(left, 16)]
            left -= min(left, 16)
            value: Any = pending.decode()
        else:
            assert kind in (1, 2, 3, 4, 6)
            value = {1: whole, 2: real, 3: bits == 1, 4: None, 6: texts.get(string)}[kind]
        values[texts[key]] = value
    assert left == 0
    return {number: json.dumps(values) for number, values in found.items()}


def read_log(directory: Path | str) -> list[ProcessLog]:
    """Read what every process left in the directory, in the order of their names."""
    found = sorted(Path(directory).glob("*.definitions"))
    return [_read_process(str(path).removesuffix(".definitions")) for path in found]
