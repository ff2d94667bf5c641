# SPDX-License-Identifier: Apache-2.0
"""The Trace: what every producer returns, be it our own log, a framework or a foreign file.

Small sections are plain values. Long sections are batches of columns, of up to a million rows each,
that can be iterated more than once. Every section is empty by default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.model import attributes
from strobe.model.arrays import Bool, Float64, Int8, Int32, Int64, UInt8
from strobe.model.coded import Coded
from strobe.model.interning import Interner
from strobe.model.phases import NONE
from strobe.model.tables import SOURCES
from strobe.model.texts import Attributes

MOST_ROWS = 1_000_000
"""The most rows in a batch."""
NAMES = ("name", "module", "type", "full_name")
"""Columns of Spans that index the trace's names."""
NOTHING = Attributes()
UNFINISHED = -1
"""The duration of a span that has not ended."""

_Batch = TypeVar("_Batch", bound="Columns")
_Recorded = TypeVar("_Recorded", bound="RecordedColumns")
_Other = TypeVar("_Other")
Clock = Callable[[Int64], Int64]
"""Converts times of one clock to another."""


class Thread(NamedTuple):
    """A lane: a thread, one Python context of a thread, or a device's stream."""

    pid: int | None
    tid: int | None
    name: str | None
    context: int | None = 0
    process: str = ""
    """Distinguishes processes that had the same pid."""
    device: int | None = None
    """The device whose stream this is; `tid` is then the stream's number."""


class Frame(NamedTuple):
    """A function in a stack."""

    name: str
    file: str | None = None
    line: int | None = None
    module: str | None = None


class Held(NamedTuple):
    """Memory that was in use when the trace began."""

    pid: int
    bytes: int
    address: int | None = None
    device: int = -1
    """-1: the host."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns of equal length. A column that is None is empty in every row."""

    start_ns: Int64

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.start_ns)

    def take(self: _Batch, rows: NDArray[Any] | slice) -> _Batch:
        """Return the rows at these indices, or where this mask is true."""
        if isinstance(rows, np.ndarray) and rows.dtype == bool and rows.all():
            return self
        columns: dict[str, Any] = {
            name: column[rows] for name, column in vars(self).items() if _is_column(column)
        }
        return replace(self, **columns)


def _is_column(value: object) -> bool:
    return isinstance(value, np.ndarray)


@dataclass(frozen=True, kw_only=True)
class RecordedColumns(Columns):
    """Columns of rows that a source recorded."""

    source: UInt8 | None = None
    """Who recorded it: index into model.tables.SOURCES, the number after the last for nobody that
    we know; None if it is the first for all."""


@dataclass(frozen=True, kw_only=True)
class Spans(RecordedColumns):
    """Spans, in any order."""

    start_ns: Int64
    dur_ns: Int64
    """UNFINISHED if it has not ended."""
    name: Int32
    """Index into the trace's names."""
    category: UInt8
    """Index into model.tables.CATEGORIES."""
    lane: Int32
    """Index into the trace's threads."""
    attributes: Int32
    """Index into `texts`, -1 for none."""
    texts: Attributes = NOTHING

    # For operators and work on devices; -1 if a row has none.
    sequence: Int64 | None = None
    """The framework's number for a differentiable operator and its backward."""
    numbered_by: Int64 | None = None
    """The thread that counted `sequence`. Each thread counts on its own."""
    correlation: Int64 | None = None
    """Pairs a launch with the work that it launched."""
    device: Int64 | None = None
    stream: Int64 | None = None
    module: Int64 | None = None
    """The layer that called it: index into the trace's names."""
    phase: Int8 | None = None
    """The phase that the producer states: index into model.tables.PHASES, or phases.UNKNOWN."""
    ends: Int8 | None = None
    """What ends with it: index into model.attributes.ENDINGS."""
    step: Int64 | None = None
    """Its step number, if it is a step."""
    type: Int32 | None = None
    """The framework's own type for it: index into the trace's names."""
    full_name: Int32 | None = None
    """Its name with all scopes: index into the trace's names."""
    frame: Int32 | None = None
    """The function, if it is a Python call: index into the trace's frames."""


@dataclass(frozen=True, kw_only=True)
class Instants(RecordedColumns):
    """Moments."""

    start_ns: Int64
    name: Int32
    lane: Int32
    attributes: Int32
    texts: Attributes = NOTHING


@dataclass(frozen=True, kw_only=True)
class Counters(RecordedColumns):
    """Values over time."""

    start_ns: Int64
    value: Float64
    name: Int32
    lane: Int32


@dataclass(frozen=True, kw_only=True)
class Allocations(RecordedColumns):
    """Blocks of memory that were allocated or freed."""

    start_ns: Int64
    bytes: Int64
    """Size; negative where it was freed."""
    address: Int64
    """-1: unknown."""
    device: Int32
    """Accelerator, -1 for the host."""
    lane: Int32
    reserved_bytes: Int64
    """Held by the allocator, -1 where that is unknown."""
    owner_ns: Int64
    """A time at which the span that it was made for was open."""
    allocated_bytes: Int64 | None = None
    """Bytes in use on the device afterwards, as the producer reports it; -1 if it does not."""


@dataclass(frozen=True, kw_only=True)
class Samples(RecordedColumns):
    """Stacks of threads at some moments."""

    start_ns: Int64
    interval_ns: Int64
    lane: Int32
    stack: Int64
    """Index into the trace's stacks, -1 if it is lost."""


@dataclass(frozen=True, kw_only=True)
class Steps(RecordedColumns):
    """Steps and requests that the program marked, by start."""

    start_ns: Int64
    dur_ns: Int64
    number: Int64
    samples: Int64
    """-1 if unknown."""
    lane: Int32
    """The lane that ended it, -1 for none."""
    is_request: Bool
    unfinished: Bool


@dataclass(frozen=True, kw_only=True)
class Loads(RecordedColumns):
    """Batches that loaders handed out, and those that they fetched."""

    start_ns: Int64
    dur_ns: Int64
    """UNFINISHED if only the end is known. `start_ns` is then that end, and `wait` is the name of
    the span that ended with it."""
    lane: Int32
    is_batch: Bool
    """True if it was handed out, False if it was fetched."""
    loader: Int32
    """Index into the trace's names, -1 for none; so is `wait`."""
    wait: Int32 | None = None

    # What else is known; -1 if a row has none.
    number: Int64 | None = None
    """Its place in this pass over the loader, from 0."""
    samples: Int64 | None = None
    queue: Int64 | None = None
    """How many batches were ready."""
    worker: Int64 | None = None
    producer: Int64 | None = None
    """The process that fetched it; with `key` and `number`, that identifies the fetch."""
    key: Int64 | None = None
    automatic: Int64 | None = None
    """1 if the framework's loader recorded it, 0 if strobe.watch did."""
    collate_ns: Int64 | None = None
    cpu_ns: Int64 | None = None


@dataclass(frozen=True, kw_only=True)
class Source:
    """A row of `completeness`, before the source's rows are counted."""

    name: str
    source_class: str | None = None
    rows: Literal["own", "all"] | None = None
    """Which rows to count: those that name it as their source, or all; None for none."""
    dropped: int | None = None
    loss_is_shared: bool = False
    """Whether what is dropped may be other sources' too, so that nobody knows what was asked."""
    own_ns: int | None = None
    """What recording took besides `costs_ns`; None if what it took is unknown."""
    costs_ns: Mapping[str, float] = field(default_factory=dict)
    """What recording one row took, by its kind: a category of spans, or the table that has it; and
    what its attributes took besides."""
    once_ns: int | None = None
    drain_ns: int | None = None
    clock_residual_ns: int | None = None
    notes: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many events the producer left out, by kind."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What to keep of a trace. Another profiler of the same program may have recorded more."""

    memory: bool = True
    flops: bool = True
    modules: bool = True
    traced: bool = True
    """Calls of Python functions."""
    sampled: bool = True
    """Samples of stacks."""
    include: tuple[str, ...] = ()
    """Keep only calls of these modules; empty for all."""
    exclude: tuple[str, ...] = ()
    min_ns: int = 0
    """Drop shorter calls."""


class Batches(Generic[_Other]):
    """Batches that are computed again on each iteration."""

    def __init__(self, make: Callable[[], Iterator[_Other]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[_Other]:
        return self._make()


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a program did, with all times on one clock."""

    names: Sequence[str] = ()
    """Without duplicates."""
    threads: Sequence[Thread] = ()
    frames: Sequence[Frame] = ()
    stacks: Sequence[tuple[int, int]] = ()
    """(index of the calling stack, which comes first, or -1; index into `frames`)"""
    steps: Steps | None = None
    loads: Loads | None = None
    held: Sequence[Held] = ()
    memory_lines: Sequence[Mapping[str, Any]] = ()
    """Rows of the table of that name."""
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Groups of processes that exchange data, by name: `ranks` and `backend`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    sources: Sequence[Source] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)
    """How many events the producer left out, by kind."""
    notes: Sequence[str] = ()
    """Problems, as sentences for people."""
    wanted: Wanted = Wanted()
    start_ns: int = 0
    end_ns: int = 0

    spans: Iterable[Spans] = ()
    instants: Iterable[Instants] = ()
    counters: Iterable[Counters] = ()
    allocations: Iterable[Allocations] = ()
    samples: Iterable[Samples] = ()

    def of_source(self, source: str) -> Trace:
        """Return the trace with all rows recorded by this source, by nobody if it is unknown."""
        code = np.uint8((*SOURCES, source).index(source))

        def mark(batch: _Recorded) -> _Recorded:
            return replace(batch, source=np.broadcast_to(code, len(batch)))

        marked: dict[str, Any] = {
            section: _each(getattr(self, section), mark) for section in _SECTIONS
        }
        return replace(self, loads=None if self.loads is None else mark(self.loads), **marked)

    def moved(self, clock: Clock) -> Trace:
        """Return the trace with its times converted to another clock."""

        def at(time_ns: int) -> int:
            return int(clock(np.array([time_ns], np.int64))[0])

        return replace(
            self,
            start_ns=at(self.start_ns),
            end_ns=at(self.end_ns),
            steps=None if self.steps is None else _move_lasting(self.steps, clock),
            loads=None if self.loads is None else _move_lasting(self.loads, clock),
            spans=_each(self.spans, lambda batch: _move_lasting(batch, clock)),
            instants=_each(self.instants, lambda batch: _move(batch, clock)),
            counters=_each(self.counters, lambda batch: _move(batch, clock)),
            samples=_each(self.samples, lambda batch: _move(batch, clock)),
            memory_lines=[{**row, "start_ns": at(row["start_ns"])} for row in self.memory_lines],
            allocations=_each(
                self.allocations,
                lambda batch: replace(_move(batch, clock), owner_ns=clock(batch.owner_ns)),
            ),
        )


def _each(batches: Iterable[_Batch], function: Callable[[_Batch], _Batch]) -> Batches[_Batch]:
    return Batches(lambda: map(function, batches))


def _move(batch: _Batch, clock: Clock) -> _Batch:
    return replace(batch, start_ns=clock(batch.start_ns))


def _move_lasting(batch: _Batch, clock: Clock) -> _Batch:
    columns: Any = batch
    start_ns = clock(columns.start_ns)
    dur_ns = clock(columns.start_ns + columns.dur_ns) - start_ns
    is_open = columns.dur_ns == UNFINISHED
    moved: dict[str, Any] = {"dur_ns": np.where(is_open, UNFINISHED, dur_ns)}
    return replace(batch, start_ns=start_ns, **moved)


def attribute_columns(objects: Sequence[Mapping[str, Any]], codes: Int32) -> dict[str, Any]:
    """Return the columns that these attributes fill: phase, ends, step, type and full_name.

    The last two are Coded. A column that no row fills is left out.
    """
    read: tuple[tuple[str, Callable[[Mapping[str, Any]], int], int, type], ...] = (
        ("phase", attributes.phase, NONE, np.int8),
        ("ends", attributes.ending, -1, np.int8),
        ("step", attributes.step, -1, np.int64),
    )
    columns: dict[str, Any] = {}
    for name, meaning, none, kind in read:
        table: NDArray[Any] = np.array([*map(meaning, objects), none], kind)
        if (table != none).any():
            columns[name] = table[codes]
    for key in attributes.IN_TABLE:
        texts = Interner[str]()
        found = [content.get(key) for content in objects]
        places = [texts[text] if isinstance(text, str) else -1 for text in found]
        if texts:
            columns[key] = Coded(np.array([*places, -1], np.int32)[codes], list(texts))
    return columns


def split(batch: _Batch) -> list[_Batch]:
    """Split the rows into batches of at most MOST_ROWS."""
    if len(batch) <= MOST_ROWS:
        return [batch] if len(batch) else []
    return [
        batch.take(slice(first, first + MOST_ROWS)) for first in range(0, len(batch), MOST_ROWS)
    ]


def concatenate(batches: Iterable[_Batch], kind: type[_Batch]) -> _Batch:
    """Concatenate the rows of all batches; their attributes then share one sequence of texts."""
    parts = [part for part in batches if len(part)]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return _nothing(kind)
    if hasattr(parts[0], "texts"):
        parts = _share_texts(parts)
    columns = {}
    for each in fields(kind):
        found = [getattr(part, each.name) for part in parts]
        if each.name != "texts" and any(_is_column(column) for column in found):
            columns[each.name] = np.concatenate(
                [
                    _fill(each.name, len(part)) if column is None else column
                    for part, column in zip(parts, found, strict=True)
                ]
            )
    return replace(parts[0], **columns)


def _fill(column: str, rows: int) -> NDArray[Any]:
    """Return a column for rows that have none."""
    return np.zeros(rows, np.uint8) if column == "source" else np.full(rows, -1, np.int64)


def _nothing(kind: type[_Batch]) -> _Batch:
    types: dict[str, Any] = {
        "name": np.int32,
        "lane": np.int32,
        "attributes": np.int32,
        "device": np.int32,
    }
    types |= {"category": np.uint8, "value": np.float64, "unfinished": bool}
    needed = [each.name for each in fields(kind) if each.default is not None]
    columns: dict[str, Any] = {
        name: np.zeros(0, types.get(name, np.int64)) for name in needed if name != "texts"
    }
    return kind(**columns)


class SharedTexts:
    """The texts of several batches as one sequence."""

    def __init__(self) -> None:
        self.every = NOTHING
        self._known: dict[int, tuple[int, Attributes]] = {}

    def move(self, batch: _Batch) -> _Batch:
        """Return a batch whose attributes are places among all texts, which it does not carry."""
        columns: Any = batch
        if id(columns.texts) not in self._known:
            self._known[id(columns.texts)] = len(self.every), columns.texts
            self.every = self.every.joined(columns.texts) if len(self.every) else columns.texts
        distance = np.int32(self._known[id(columns.texts)][0])
        places = columns.attributes
        if distance:
            places = np.where(places < 0, places, places + distance)
        moved: dict[str, Any] = {"texts": NOTHING, "attributes": places}
        return replace(batch, **moved)


def _share_texts(parts: list[_Batch]) -> list[_Batch]:
    """Give all batches one sequence of texts."""
    shared = SharedTexts()
    moved = [shared.move(part) for part in parts]
    every: dict[str, Any] = {"texts": shared.every}
    return [replace(part, **every) for part in moved]


def combine(traces: Sequence[Trace]) -> Trace:
    """Merge traces that share a clock. Threads with the same pid and tid become one.

    Sections other than rows, names, threads, frames and stacks are those of the first trace.
    """
    first, *others = traces
    names, frames = Interner[str](), Interner[Frame]()
    for name in first.names:
        names[name]
    for frame in first.frames:
        frames[frame]
    threads = list(first.threads)
    places = {
        (thread.pid, thread.tid, thread.device): place
        for place, thread in reversed(list(enumerate(threads)))
        if thread.context == 0
    }
    stacks = list(first.stacks)
    parts: dict[str, list[Iterable[Any]]] = {
        section: [getattr(first, section)] for section in _SECTIONS
    }
    for other in others:
        lanes = []
        for thread in other.threads:
            key = (thread.pid, thread.tid, thread.device)
            if key not in places or thread.context != 0:
                threads.append(thread)
                if thread.context == 0:
                    places[key] = len(threads) - 1
                lanes.append(len(threads) - 1)
            else:
                lanes.append(places[key])
        numbers = _Numbers(
            names=_table([names[name] for name in other.names]),
            lanes=_table(lanes),
            frames=_table([frames[frame] for frame in other.frames]),
            first_stack=len(stacks),
        )
        stacks += [
            (-1 if above < 0 else above + numbers.first_stack, int(numbers.frames[frame]))
            for above, frame in other.stacks
        ]
        for section in _SECTIONS:
            parts[section].append(_each(getattr(other, section), numbers.renumber))
    sections: dict[str, Any] = {section: _chained(found) for section, found in parts.items()}
    return replace(
        first,
        names=list(names),
        threads=threads,
        frames=list(frames),
        stacks=stacks,
        **sections,
    )


_SECTIONS = ("spans", "instants", "counters", "allocations", "samples")


def _chained(parts: list[Iterable[Any]]) -> Batches[Any]:
    return Batches(lambda: (batch for part in parts for batch in part))


def _table(places: list[int]) -> Int32:
    """Return a look-up table that maps -1 to -1."""
    return np.array([*places, -1], np.int32)


@dataclass(frozen=True)
class _Numbers:
    """Maps the indices of one trace to those of the merged one."""

    names: Int32
    lanes: Int32
    frames: Int32
    first_stack: int

    def renumber(self, batch: Any) -> Any:
        changed = {"lane": self.lanes[batch.lane]}
        if isinstance(batch, (Instants, Counters)):
            changed["name"] = self.names[batch.name]
        if isinstance(batch, Spans):
            for column in NAMES:
                if getattr(batch, column) is not None:
                    changed[column] = self.names[getattr(batch, column)]
            if batch.frame is not None:
                changed["frame"] = self.frames[batch.frame]
        if isinstance(batch, Samples):
            changed["stack"] = np.where(batch.stack < 0, -1, batch.stack + self.first_stack)
        return replace(batch, **changed)
