# SPDX-License-Identifier: Apache-2.0
"""Columns of a foreign trace, with processes and threads by their numbers, become a Trace."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from strobe.model.arrays import Bool, Float64, Int8, Int32, Int64, Places, UInt8
from strobe.model.attributes import PHASE, without_columns
from strobe.model.coded import Coded
from strobe.model.collectives import is_communication
from strobe.model.interning import Interner
from strobe.model.tables import CATEGORIES
from strobe.model.text import escape
from strobe.model.texts import Attributes
from strobe.model.trace import (
    MOST_ROWS,
    Allocations,
    Batches,
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

Pairs: TypeAlias = tuple[Int64, Int64]
_NO_PAIRS: Pairs = (np.zeros(0, np.int64), np.zeros(0, np.int64))

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

    def take(self, rows: Bool | slice) -> Events:
        """Return some of the events."""
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
    names = Interner[str]()
    survey = None if events is None else _Survey(events)
    lanes = _Lanes(threads or {}, None if survey is None else survey.process)
    spans: Iterable[Spans] = []
    if survey is not None:
        left_out.update(survey.impossible)
        spans = _spans(survey, lanes, names)
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
    start_ns, end_ns = _bounds(survey, allocations, counters)
    return Trace(
        names=list(names),
        threads=lanes.threads,
        spans=spans,
        allocations=[] if allocations is None else split(allocations),
        counters=[] if counters is None else split(counters),
        held=[] if blocks is None else _held_before(blocks),
        metadata={START_WALL_NS: base_ns + start_ns, **(metadata or {})},
        skipped=left_out,
        notes=tuple(notes),
        start_ns=start_ns,
        end_ns=end_ns,
    )


class _Survey:
    """What must be known of all events before the first of them can become a span.

    They are looked at part by part: there may be more than fit into memory.
    """

    def __init__(self, events: Events) -> None:
        self.events = events
        self.impossible: Counter[str] = Counter()
        self.process: int | None = None
        """The process that what ran on devices is counted to: the first that there is."""
        self.start_ns: int | None = None
        self.end_ns = 0
        self.used: set[str] = set()
        """The columns in which a row has something."""
        for part in self.parts():
            self._look_at(part)
        self.impossible = self._count_impossible()
        self.launchers = self._owners(_calls)
        """Which process used a correlation, if several used any."""
        self.numbered = self._owners(_numbered_forwards)
        """Which thread used a sequence number, if several used any."""

    def parts(self) -> Iterator[Events]:
        """Yield the events in parts, without those that end before they begin."""
        for part in self._slices():
            is_possible = _are_possible(part)
            yield part if is_possible.all() else part.take(is_possible)

    def _slices(self) -> Iterator[Events]:
        for first in range(0, len(self.events.start_ns), MOST_ROWS):
            yield self.events.take(slice(first, first + MOST_ROWS))

    def _count_impossible(self) -> Counter[str]:
        count = sum(int(np.count_nonzero(~_are_possible(part))) for part in self._slices())
        return Counter({"with an impossible duration": count} if count else {})

    def _look_at(self, part: Events) -> None:
        if not len(part.start_ns):
            return
        on_host = ~np.isin(part.category, _ON_DEVICE)
        if self.process is None and on_host.any():
            self.process = int(part.pid[on_host][0])
        first_ns = int(part.start_ns.min())
        self.start_ns = first_ns if self.start_ns is None else min(self.start_ns, first_ns)
        self.end_ns = max(self.end_ns, int((part.start_ns + part.dur_ns).max()))
        for name in ("sequence", "correlation", "device", "stream"):
            column = getattr(part, name)
            if column is not None and (column >= 0).any():
                self.used.add(name)

    def _owners(self, pairs: Callable[[Events], Pairs]) -> Pairs | None:
        """Return the distinct pairs of a number and its owner; None if all have one owner."""
        owners = [np.unique(pairs(part)[1]) for part in self.parts()]
        if not owners or len(np.unique(np.concatenate(owners))) < 2:
            return None
        found = [np.unique(np.stack(pairs(part)), axis=1) for part in self.parts()]
        numbers, whose = np.unique(np.concatenate(found, axis=1), axis=1)
        return numbers, whose


def _are_possible(events: Events) -> Bool:
    end_ns = events.start_ns + events.dur_ns  # what does not fit is negative
    possible: Bool = (events.dur_ns >= 0) & (end_ns >= events.start_ns)
    return possible


def _calls(events: Events) -> Pairs:
    """Return correlation and process of calls that may launch something on a device."""
    rows = np.flatnonzero((events.correlation > 0) & ~np.isin(events.category, _ON_DEVICE))
    return events.correlation[rows], events.pid[rows]


def _numbered_forwards(events: Events) -> Pairs:
    """Return sequence number and thread of forward operators."""
    if events.sequence is None:
        return _NO_PAIRS
    rows = np.flatnonzero((events.sequence >= 0) & (_categories(events) != _BACKWARD))
    return events.sequence[rows], events.tid[rows]


def _number(texts: Sequence[str], names: Interner[str]) -> Int32:
    """Return the place of each text among the names, to which it is added; -1 stays -1."""
    return np.array([*(names[escape(text)] for text in texts), -1], np.int32)


def _launching_processes(events: Events, rows: Places, survey: _Survey) -> Int64:
    """Return the process of what ran on devices: that of the call which launched it, -1 for none.

    If the trace names none, or two, it is the first process of the trace.
    """
    pid = np.full(len(rows), -1 if survey.process is None else survey.process, np.int64)
    if survey.launchers is None:
        return pid
    pairs = survey.launchers
    number, count = np.unique(pairs[0], return_counts=True)
    number, of_process = number[count == 1], pairs[1][np.isin(pairs[0], number[count == 1])]
    place = np.searchsorted(number, events.correlation[rows])
    found = place < len(number)
    found[found] = number[place[found]] == events.correlation[rows][found]
    pid[found] = of_process[place[found]]
    return pid


def _categories(events: Events) -> UInt8:
    category = events.category.astype(np.uint8)
    exchanges = np.array([is_communication(name) for name in events.names] or [False])
    category[exchanges[events.name]] = _COMMUNICATION
    return category


def _spans(survey: _Survey, lanes: _Lanes, names: Interner[str]) -> Batches[Spans]:
    """Return the spans, of which a part is made at a time."""
    events = survey.events
    places = _number(events.names, names)
    texts = {
        name: _number(column.texts, names)
        for name in ("type", "full_name")
        if (column := getattr(events, name)) is not None
    }
    lane = [lanes.of_events(part, survey) for part in survey.parts()]
    ambiguous = _used_by_several(survey.numbered)

    def convert(part: Events, lane: Int32) -> Spans:
        category = _categories(part)
        sequence = part.sequence if "sequence" in survey.used else None
        named = {name: codes[getattr(part, name).codes] for name, codes in texts.items()}
        return Spans(
            start_ns=part.start_ns,
            dur_ns=part.dur_ns,
            name=places[part.name],
            category=category,
            lane=lane,
            attributes=part.attributes,
            texts=part.texts,
            sequence=sequence,
            numbered_by=None
            if sequence is None
            else _counting_threads(sequence, category == _BACKWARD, ambiguous),
            correlation=_if_used(part, "correlation", survey),
            device=_if_used(part, "device", survey),
            stream=_if_used(part, "stream", survey),
            module=None if part.module is None else places[part.module].astype(np.int64),
            phase=part.phase,
            ends=part.ends,
            step=part.step,
            **named,
        )

    return Batches(lambda: map(convert, survey.parts(), lane))


def _if_used(events: Events, column: str, survey: _Survey) -> Int64 | None:
    """Return the column, None where no row of the trace has anything."""
    if column not in survey.used:
        return None
    values: Int64 = getattr(events, column).astype(np.int64, copy=False)
    return values


def _used_by_several(pairs: Pairs | None) -> Int64:
    if pairs is None:
        return np.zeros(0, np.int64)
    numbers, count = np.unique(pairs[0], return_counts=True)
    return numbers[count > 1]


def _counting_threads(sequence: Int64, backward: Bool, ambiguous: Int64) -> Int64:
    """Return the thread that numbered each operator, as far as it can be known.

    A trace names it for a backward only, and not as it names threads elsewhere. So a number that
    one thread alone has used for a forward is that thread's, and one that several have is nobody's.
    """
    thread = np.where(sequence >= 0, 0, -1)
    thread[np.isin(sequence, ambiguous) & ~backward] = -1
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
    survey: _Survey | None, allocations: Allocations | None, counters: Counters | None
) -> tuple[int, int]:
    """Return when the first began and the last one ended; (0, 0) if there are none."""
    parts = [part.start_ns for part in (allocations, counters) if part is not None and len(part)]
    starts, ends = [int(each.min()) for each in parts], [int(each.max()) for each in parts]
    if survey is not None and survey.start_ns is not None:
        starts.append(survey.start_ns)
        ends.append(survey.end_ns)
    return min(starts, default=0), max(ends, default=0)


class _Lanes:
    """The threads and streams of a trace, numbered as they are met."""

    def __init__(self, names: Mapping[tuple[int, int], str], device_pid: int | None) -> None:
        self._names = names
        self._device_pid = device_pid
        self._places = Interner[Thread]()

    @property
    def threads(self) -> list[Thread]:
        return list(self._places)

    def of_events(self, events: Events, survey: _Survey) -> Int32:
        """Return the lane of each event: its thread's, or its stream's."""
        on_device = np.isin(events.category, _ON_DEVICE)
        lane = np.full(len(events.start_ns), -1, np.int32)
        lane[~on_device] = self.of_threads(events.pid[~on_device], events.tid[~on_device])
        rows = np.flatnonzero(on_device)
        pid = _launching_processes(events, rows, survey)
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
