# SPDX-License-Identifier: Apache-2.0
"""Columns of a foreign trace, with processes and threads by their numbers, become a Trace."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strobe.model.arrays import Bool, Float64, Int8, Int32, Int64, Places
from strobe.model.attributes import PHASE, Attributes, without_columns
from strobe.model.coded import Coded
from strobe.model.collectives import is_communication
from strobe.model.interning import Interner
from strobe.model.tables import CATEGORIES
from strobe.model.text import escape
from strobe.model.trace import (
    Allocations,
    Counters,
    Held,
    Spans,
    Thread,
    Trace,
    attribute_columns,
    split,
)

_ON_DEVICE = [CATEGORIES.index("kernel"), CATEGORIES.index("copy")]
_BACKWARD = CATEGORIES.index("backward")
_COMMUNICATION = CATEGORIES.index("communication")

START_WALL_NS = "start_wall_ns"
"""The key of a trace's metadata: when it began, as clocks on walls show it."""


@dataclass(frozen=True, kw_only=True)
class Events:
    """The spans of a trace, in the file's own order; one row each. Unknown numbers are -1."""

    names: Sequence[str]
    texts: Attributes

    name: Int32
    """Place in `names`."""
    category: Int8
    """Place in model.tables.CATEGORIES."""
    start_ns: Int64
    dur_ns: Int64
    pid: Int64
    """Process; means nothing for what ran on a device."""
    tid: Int64
    attributes: Int32
    """Place in `texts`."""
    correlation: Int64
    device: Int32
    stream: Int64
    sequence: Int64 | None = None
    module: Int32 | None = None
    """Place in `names`."""
    phase: Int8 | None = None
    ends: Int8 | None = None
    step: Int64 | None = None
    type: Coded | None = None
    full_name: Coded | None = None

    def take(self, rows: Bool) -> Events:
        """Return the events where this mask is true."""
        columns: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray):
                columns[name] = value[rows]
            elif isinstance(value, Coded):
                columns[name] = Coded(value.codes[rows], value.texts)
        return replace(self, **columns)


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Blocks of memory that were allocated or freed; one row each."""

    start_ns: Int64
    bytes: Int64
    """Size; negative where it was freed."""
    address: Int64
    device: Int32
    """Accelerator, -1 for the host."""
    pid: Int64
    tid: Int64
    allocated_bytes: Int64
    """In use on the device from then on; -1 where the file does not say, as the next."""
    reserved_bytes: Int64
    owner_ns: Int64 | None = None
    """When what it is for was at work, where that is later than the allocation."""


@dataclass(frozen=True, kw_only=True)
class Values:
    """Values over time; one row each."""

    names: Sequence[str]
    name: Int32
    """Place in `names`."""
    start_ns: Int64
    value: Float64


class AttributeTable:
    """The distinct attributes of a trace, as objects; rows refer to them by number."""

    def __init__(self) -> None:
        self._numbers = Interner[str]()
        self._objects: list[Mapping[str, Any]] = []

    def add(self, content: Mapping[str, Any]) -> int:
        """Return the number of an object, adding it if it is new."""
        number = self._numbers[json.dumps(content)]
        if number == len(self._objects):
            self._objects.append(content)
        return number

    def __getitem__(self, number: int) -> Mapping[str, Any]:
        """Return the object of a number."""
        return self._objects[number]

    def columns(self, numbers: Int32) -> dict[str, Any]:
        """Return the columns of Events that rows with these numbers fill: attributes and others.

        Keys that have a column of their own are removed from the attributes.
        """
        texts, objects = Interner[str](), {}
        codes = []
        for content in self._objects:
            rest = without_columns(content)
            rest.pop(PHASE, None)
            code = texts[json.dumps(rest, separators=(",", ":"))] if rest else -1
            codes.append(code)
            if rest:
                objects[code] = rest
        return {
            "attributes": np.array([*codes, -1], np.int32)[numbers],
            "texts": Attributes(list(texts), objects),
            **attribute_columns(self._objects, numbers),
        }


def to_trace(
    events: Events | None = None,
    *,
    blocks: Blocks | None = None,
    values: Values | None = None,
    threads: Mapping[tuple[int, int], str] | None = None,
    base_ns: int = 0,
    metadata: Mapping[str, Any] | None = None,
    skipped: Mapping[str, int] | None = None,
    notes: Sequence[str] = (),
) -> Trace:
    """Return all of it as a Trace in the file's own clock.

    `threads` has names by process and thread. `base_ns` is what is to be added to a time to have
    that of clocks on walls, 0 where it is that already.
    """
    left_out = Counter(skipped or {})
    if events is not None:
        events, impossible = _possible(events)
        left_out.update(impossible)
    lanes = _Lanes(threads or {}, _process_of(events))
    names = Interner[str]()
    spans = None if events is None else _spans(events, lanes, names)
    allocations = None if blocks is None else _allocations(blocks, lanes)
    counters = None
    if values is not None:
        lane = np.full(len(values.start_ns), lanes.of_nobody(), np.int32)
        counters = Counters(
            start_ns=values.start_ns,
            value=values.value,
            name=_number(values.names, names)[values.name],
            lane=lane,
        )
    start_ns, end_ns = _bounds(spans, allocations, counters)
    return Trace(
        names=list(names),
        threads=lanes.threads,
        spans=[] if spans is None else split(spans),
        allocations=[] if allocations is None else split(allocations),
        counters=[] if counters is None else split(counters),
        held=[] if blocks is None else _held_before(blocks),
        metadata={START_WALL_NS: base_ns + start_ns, **(metadata or {})},
        skipped=left_out,
        notes=tuple(notes),
        start_ns=start_ns,
        end_ns=end_ns,
    )


def _possible(events: Events) -> tuple[Events, dict[str, int]]:
    """Return the events that do not end before they begin, and how many do."""
    end_ns = events.start_ns + events.dur_ns  # what does not fit is negative
    is_possible = (events.dur_ns >= 0) & (end_ns >= events.start_ns)
    count = int(np.count_nonzero(~is_possible))
    return (
        (events.take(is_possible), {"with an impossible duration": count})
        if count
        else (events, {})
    )


def _process_of(events: Events | None) -> int | None:
    """Return the process that what ran on devices is counted to: the first that there is."""
    if events is None:
        return None
    host = events.pid[~np.isin(events.category, _ON_DEVICE)]
    return int(host[0]) if len(host) else None


def _number(texts: Sequence[str], names: Interner[str]) -> Int32:
    """Return the place of each text among the names, to which it is added; -1 stays -1."""
    return np.array([*(names[escape(text)] for text in texts), -1], np.int32)


def _named(column: Coded | None, names: Interner[str]) -> Int32 | None:
    return None if column is None else _number(column.texts, names)[column.codes]


def _launching_processes(events: Events, rows: Places) -> Int64:
    """Return the process of what ran on devices: that of the call which launched it, -1 for none.

    If the trace names none, or two, it is the first process of the trace.
    """
    first = _process_of(events)
    pid = np.full(len(rows), -1 if first is None else first, np.int64)
    calls = np.flatnonzero((events.correlation > 0) & ~np.isin(events.category, _ON_DEVICE))
    if not len(calls) or (events.pid[calls] == events.pid[calls[0]]).all():
        return pid
    pairs = np.unique(np.stack([events.correlation[calls], events.pid[calls]]), axis=1)
    number, count = np.unique(pairs[0], return_counts=True)
    number, of_process = number[count == 1], pairs[1][np.isin(pairs[0], number[count == 1])]
    place = np.searchsorted(number, events.correlation[rows])
    found = place < len(number)
    found[found] = number[place[found]] == events.correlation[rows][found]
    pid[found] = of_process[place[found]]
    return pid


def _spans(events: Events, lanes: _Lanes, names: Interner[str]) -> Spans:
    category = events.category.astype(np.uint8)
    exchanges = np.array([is_communication(name) for name in events.names] or [False])
    category[exchanges[events.name]] = _COMMUNICATION
    places = _number(events.names, names)
    sequence = None if events.sequence is None else _known(events.sequence)
    return Spans(
        start_ns=events.start_ns,
        dur_ns=events.dur_ns,
        name=places[events.name],
        category=category,
        lane=lanes.of_events(events),
        attributes=events.attributes,
        texts=events.texts,
        sequence=sequence,
        numbered_by=None
        if sequence is None
        else _counting_threads(sequence, events.tid, category == _BACKWARD),
        correlation=_known(events.correlation),
        device=_known(events.device),
        stream=_known(events.stream),
        module=None if events.module is None else places[events.module].astype(np.int64),
        type=_named(events.type, names),
        full_name=_named(events.full_name, names),
        phase=events.phase,
        ends=events.ends,
        step=events.step,
    )


def _known(column: NDArray[Any]) -> Int64 | None:
    """Return the column, None where no row has anything."""
    return column.astype(np.int64, copy=False) if (column >= 0).any() else None


def _counting_threads(sequence: Int64, tid: Int64, backward: Bool) -> Int64:
    """Return the thread that numbered each operator, as far as it can be known.

    A trace names it for a backward only, and not as it names threads elsewhere. So a number that
    one thread alone has used for a forward is that thread's, and one that several have is nobody's.
    """
    thread = np.where(sequence >= 0, 0, -1)
    forward = np.flatnonzero((sequence >= 0) & ~backward)
    order = forward[np.lexsort((tid[forward], sequence[forward]))]
    same = (sequence[order][1:] == sequence[order][:-1]) & (tid[order][1:] != tid[order][:-1])
    several = np.unique(sequence[order][1:][same])
    thread[np.isin(sequence, several) & ~backward] = -1
    return thread


def _allocations(blocks: Blocks, lanes: _Lanes) -> Allocations:
    return Allocations(
        start_ns=blocks.start_ns,
        bytes=blocks.bytes,
        address=blocks.address,
        device=blocks.device,
        lane=lanes.of_threads(blocks.pid, blocks.tid),
        reserved_bytes=np.where(blocks.reserved_bytes > 0, blocks.reserved_bytes, -1),
        owner_ns=blocks.start_ns if blocks.owner_ns is None else blocks.owner_ns,
        allocated_bytes=blocks.allocated_bytes,
    )


def _held_before(blocks: Blocks) -> list[Held]:
    """Return the bytes that each process had in use on a device before its first event."""
    order = np.argsort(blocks.start_ns, kind="stable")
    whose = np.stack([blocks.pid[order], blocks.device[order]])
    first = order[np.unique(whose, axis=1, return_index=True)[1]]
    held = []
    for row in first.tolist():
        level = int(blocks.allocated_bytes[row] - blocks.bytes[row])
        if blocks.allocated_bytes[row] >= 0 and level > 0:
            held.append(Held(int(blocks.pid[row]), level, device=int(blocks.device[row])))
    return held


def _bounds(
    spans: Spans | None, allocations: Allocations | None, counters: Counters | None
) -> tuple[int, int]:
    """Return when the first began and the last one ended; (0, 0) if there are none."""
    parts = [part for part in (spans, allocations, counters) if part is not None and len(part)]
    if not parts:
        return 0, 0
    last = max(int(part.start_ns.max()) for part in parts)
    if spans is not None and len(spans):
        last = max(last, int((spans.start_ns + spans.dur_ns).max()))
    return min(int(part.start_ns.min()) for part in parts), last


class _Lanes:
    """The threads and streams of a trace, numbered as they are met."""

    def __init__(self, names: Mapping[tuple[int, int], str], device_pid: int | None) -> None:
        self._names = names
        self._device_pid = device_pid
        self._places = Interner[Thread]()

    @property
    def threads(self) -> list[Thread]:
        return list(self._places)

    def of_events(self, events: Events) -> Int32:
        """Return the lane of each event: its thread's, or its stream's."""
        on_device = np.isin(events.category, _ON_DEVICE)
        lane = np.full(len(events.start_ns), -1, np.int32)
        lane[~on_device] = self.of_threads(events.pid[~on_device], events.tid[~on_device])
        rows = np.flatnonzero(on_device)
        pid = _launching_processes(events, rows)
        for process in np.unique(pid).tolist():
            mine = rows[pid == process]
            stream = functools.partial(self._stream, None if process < 0 else process)
            lane[mine] = self._of_pairs(events.device[mine], events.stream[mine], stream)
        return lane

    def of_threads(self, pid: Int64, tid: Int64) -> Int32:
        """Return the lane of each of these threads."""
        return self._of_pairs(pid, tid, self._thread)

    def of_nobody(self) -> int:
        """Return the lane of values that belong to no thread."""
        return self._place(Thread(self._device_pid, None, None))

    def _of_pairs(self, one: NDArray[Any], other: NDArray[Any], meant: Any) -> Int32:
        # Traces are by thread, or nearly: there are far fewer runs of one than rows.
        changes = (one[1:] != one[:-1]) | (other[1:] != other[:-1])
        first = np.flatnonzero(np.append(True, changes)[: len(one)])
        pairs, where = np.unique(np.stack([one[first], other[first]]), axis=1, return_inverse=True)
        places = [self._place(meant(*pair)) for pair in pairs.T.tolist()]
        of_runs: Int32 = np.array(places, np.int32)[where.reshape(-1)]
        return np.repeat(of_runs, np.diff(np.append(first, len(one))))

    def _thread(self, pid: int, tid: int) -> Thread:
        name = self._names.get((pid, tid), f"thread {tid}")
        return Thread(pid, tid, escape(name), process=str(pid))

    def _stream(self, pid: int | None, device: int, stream: int) -> Thread:
        name = f"device {device} stream {stream}"
        process = "" if pid is None else str(pid)
        return Thread(pid, stream, name, process=process, device=device)

    def _place(self, thread: Thread) -> int:
        return self._places[thread]
