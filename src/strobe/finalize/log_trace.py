# SPDX-License-Identifier: Apache-2.0
"""Reads our own log into a Trace, with one numbering of names and lanes for all processes.

A log may be larger than memory. It is surveyed once, for the numbers that stand for its texts and
lanes; its long sections are then made of it batch by batch, as often as they are asked for.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import numpy as np

from strobe.assemble.sorting import Sorter
from strobe.finalize.records import (
    Parts,
    by_kind,
    codes,
    column,
    distinct,
    grouped,
    look_up,
    sources,
    times,
)
from strobe.finalize.values import LOST_NAME, SetReader
from strobe.model import attributes as keys
from strobe.model.arrays import Bool, Int32, Int64, UInt32
from strobe.model.interning import Interner
from strobe.model.marks import BATCH, FETCH
from strobe.model.tables import CATEGORIES, CATEGORY_BITS
from strobe.model.text import escape
from strobe.model.texts import Attributes, Chain, Texts
from strobe.model.trace import (
    MOST_ROWS,
    UNFINISHED,
    Allocations,
    Batches,
    Counters,
    Frame,
    Instants,
    Loads,
    Samples,
    Spans,
    Steps,
    Thread,
    Trace,
    attribute_columns,
    concatenate,
    split,
)
from strobe.store import layout
from strobe.store.log import ProcessLog, Records
from strobe.store.manifest import Manifest
from strobe.store.spill import Spill
from strobe.store.strings import Strings

_CATEGORY = np.uint8((1 << CATEGORY_BITS) - 1)
_USER, _PYTHON = CATEGORIES.index("user"), CATEGORIES.index("python")
_NOBODY_SAID = 0xFFFFFFFF
_NAMED = (layout.KIND_SPAN, layout.KIND_OPEN, layout.KIND_INSTANT, layout.KIND_COUNTER)
_DESCRIBED = (layout.KIND_SPAN, layout.KIND_OPEN, layout.KIND_INSTANT)


class LogTrace(NamedTuple):
    """What processes have recorded, on the records' clock."""

    trace: Trace
    nameless: int
    """Records whose names are lost."""
    without_attributes: int
    """Records whose attributes are lost."""


def read_log(processes: Iterable[ProcessLog], manifest: Manifest, spill: Spill) -> LogTrace:
    """Return the records of all processes; of the steps, only this recording's."""
    common = _Common()
    logs = [_Process(log, common, spill) for log in processes]
    common.close()
    for log in logs:
        log.look_closer()
    common.describe()
    steps = Sorter(spill, Steps)
    for log in logs:
        if _own(manifest) in log.prefix:
            for batch in log.steps(manifest.window):
                steps.add(batch)
    for log in logs:
        log.add_stacks()
    loads = concatenate([each for log in logs for each in log.loads()], Loads)
    trace = Trace(
        names=list(common.names),
        threads=[_name(lane, manifest) for lane in common.lanes],
        steps=steps.rows(),
        loads=loads,
        spans=_chained(logs, _Process.spans),
        instants=_chained(logs, _Process.instants),
        counters=_chained(logs, _Process.counters),
        allocations=_chained(logs, _Process.allocations),
        samples=_chained(logs, _Process.samples),
        stacks=common.stacks,
        frames=list(common.frames),
    )
    nameless = sum(log.nameless for log in logs)
    return LogTrace(trace, nameless, sum(log.without_attributes for log in logs))


def _own(manifest: Manifest) -> str:
    return f"-{manifest.pid}-{manifest.process_start}-"


def _chained(
    logs: Sequence[_Process], section: Callable[[_Process], Iterator[Any]]
) -> Batches[Any]:
    return Batches(lambda: (batch for log in logs for batch in section(log) if len(batch)))


class _Lane(NamedTuple):
    thread: Thread
    has_system_name: bool


def _name(lane: _Lane, manifest: Manifest) -> Thread:
    """Prefer the name that Python knew at the stop to one that only the system gave."""
    thread = lane.thread
    if not lane.has_system_name or thread.pid != manifest.pid:
        return thread
    name = manifest.threads.get(str(thread.tid), thread.name)
    return thread._replace(name=None if name is None else escape(name))


class _Mark(msgspec.Struct):
    """What a loader says of a batch: -1 or "" for what it does not say."""

    since_ns: int = 0
    loader: str = ""
    wait: str = ""
    number: int = -1
    samples: int = -1
    queue: int = -1
    worker: int = -1
    producer: int = -1
    key: int = -1
    automatic: int = -1
    collate_ns: int = -1
    cpu_ns: int = -1


_read_mark = msgspec.json.Decoder(_Mark).decode
_NUMBERS = [name for name in _Mark.__struct_fields__ if name not in ("since_ns", "loader", "wait")]


class _Defined(Texts):
    """Texts that the process has defined one by one: some of all."""

    def __init__(self, strings: Strings, places: Int64) -> None:
        self._strings = strings
        self._places = places

    def __len__(self) -> int:
        return len(self._places)

    def text(self, place: int) -> str:
        return self._strings.text(int(self._places[place]))


class _Common:
    """What the processes have in common: the numbers of names, texts, lanes, stacks and frames."""

    def __init__(self) -> None:
        self.names = Interner[str]()
        self.frames = Interner[Frame]()
        self.lanes: list[_Lane] = []
        self.stacks: list[tuple[int, int]] = []
        self.are_numbered = False
        self.listed: list[str] = []
        self.attributes = Attributes()
        self._texts: list[Sequence[str]] = []
        self._text_count = 0
        self._stated = np.zeros(0, np.int64)
        self._called = np.zeros(0, np.int64)
        self._frame_of = np.zeros(0, np.int32)
        self._place_of = np.zeros(0, np.int32)
        self._contents: list[Mapping[str, Any]] = []
        self._row_of = np.zeros(0, np.int32)

    def add_texts(self, texts: Sequence[str]) -> int:
        """Add attributes and return the number of the first."""
        first = self._text_count
        self._texts.append(texts)
        self._text_count += len(texts)
        return first

    def close(self) -> None:
        """Take the texts that were added as they are."""
        self.listed = list(self.names)
        self.attributes = Attributes(Chain(self._texts))

    def number_names(self, names: Sequence[str]) -> Int32:
        """Return the number of each name, -1 for an empty one."""
        numbers = [self.names[escape(name)] if name else -1 for name in names]
        return np.array(numbers, np.int32)

    def note(self, spans: Spans) -> None:
        """Note what framework's attributes and what functions some spans have."""
        is_call = spans.category == _PYTHON
        if is_call.any():
            self._called = np.union1d(self._called, np.unique(_pairs(spans, is_call)))
        stated = spans.attributes[_is_described(spans)]
        if len(stated):
            self._stated = np.union1d(self._stated, np.unique(stated))

    def describe(self) -> None:
        """Find out what was noted: the columns that attributes fill, and the functions."""
        self._frame_of = np.array([self._frame(pair) for pair in self._called.tolist()], np.int32)
        written = self.attributes
        described = {
            place: written.content(place)
            for place in self._stated.tolist()
            if any(f'"{key}"' in written[place] for key in keys.WITH_COLUMNS)
        }
        if not described:
            return
        self._contents = list(described.values())
        self._row_of = np.full(int(self._stated[-1]) + 1, -1, np.int32)
        self._row_of[list(described)] = np.arange(len(described))
        self._place_of = np.arange(len(self._row_of), dtype=np.int32)
        known, rests = dict(described), Interner[str]()
        for place, content in described.items():
            rest = keys.without_columns(content)
            if not rest:
                self._place_of[place] = -1
            elif len(rest) < len(content):
                number = self._text_count + rests[json.dumps(rest, separators=(",", ":"))]
                self._place_of[place] = number
                known[number] = rest
        self.attributes = Attributes(Chain([*self._texts, list(rests)]), known)
        for key in keys.IN_TABLE:
            for content in self._contents:
                if isinstance(text := content.get(key), str):
                    self.names[escape(text)]

    def described(self, spans: Spans) -> Spans:
        """Return spans with the columns that their attributes fill, and the functions of calls."""
        spans = replace(self._filled(spans), texts=self.attributes)
        is_call = spans.category == _PYTHON
        if not is_call.any():
            return spans
        frame = np.full(len(spans), -1, np.int32)
        frame[is_call] = self._frame_of[np.searchsorted(self._called, _pairs(spans, is_call))]
        return replace(spans, frame=frame)

    def _filled(self, spans: Spans) -> Spans:
        is_described = _is_described(spans)
        if not self._contents or not is_described.any():
            return spans
        codes = np.where(is_described, spans.attributes, np.int32(0))
        rows = np.where(is_described, self._row_of[codes], np.int32(-1))
        columns = attribute_columns(self._contents, rows)
        for key in keys.IN_TABLE:
            if key in columns:
                places = [self.names[escape(text)] for text in columns[key].texts]
                columns[key] = np.array([*places, -1], np.int32)[columns[key].codes]
        columns["attributes"] = np.where(is_described, self._place_of[codes], spans.attributes)
        return replace(spans, **columns)

    def frame(self, name: str, text: str | None) -> int:
        """Return the number of a function, given its name and the attributes of a call of it."""
        content = json.loads(text) if text else {}
        where = (content.get(key) for key in (keys.FILE, keys.LINE, keys.MODULE))
        return self.frames[Frame(name, *where)]

    def _frame(self, pair: int) -> int:
        text = pair & 0xFFFFFFFF
        return self.frame(self.listed[pair >> 32], self.attributes[text - 1] if text else None)


def _pairs(spans: Spans, rows: Bool) -> Int64:
    """Return name and attributes of some spans as one number."""
    pairs: Int64 = spans.name[rows].astype(np.int64) << 32 | (spans.attributes[rows] + 1)
    return pairs


def _is_described(spans: Spans) -> Bool:
    """Return which spans have attributes of a framework; those of a user may have any keys."""
    of_framework: Bool = (spans.category != _USER) & (spans.category != _PYTHON)
    return of_framework & (spans.attributes >= 0)


class _Process:
    """The records of one process, and how its numbers map to the common ones."""

    def __init__(self, log: ProcessLog, common: _Common, spill: Spill) -> None:
        self.prefix = log.prefix
        self.nameless = self.without_attributes = 0
        self._strings = log.strings
        self._common = common
        self._groups = grouped(log.records, MOST_ROWS)
        self._kinds = functools.lru_cache(maxsize=1)(self._read_group)
        self._open = log.open
        self._begun: list[Records] = []
        self._unfinished = concatenate([], Spans)
        self._stacks = {0: -1}
        common.are_numbered |= any("of" in lane for lane in log.lanes.values())
        self._survey(log, spill)

    def _read_group(self, number: int) -> dict[int, list[Records]]:
        return by_kind(self._groups[number])

    def _survey(self, log: ProcessLog, spill: Spill) -> None:
        """Number what the records use of names, texts and lanes."""
        # By place among the strings; the last one is for those that are lost.
        names, texts = (np.zeros(len(self._strings) + 1, bool) for _ in range(2))
        lanes = [distinct(slots["lane"]) for slots in log.open]
        sets = SetReader(self._strings, spill)
        self._has_sets = self._has_categories = False

        def mark(parts: Parts, *, named: bool, described: bool) -> None:
            if named:
                names[self._strings.places(column(parts, "name", "<u4"))] = True
            if described:
                ids = column(parts, "attributes", "<u4")
                self._has_sets |= bool((ids >= layout.VALUES_BIT).any())
                texts[self._strings.places(ids[(ids > 0) & (ids < layout.VALUES_BIT)])] = True
                self._has_categories |= bool((codes(parts) & _CATEGORY).any())

        for number in range(len(self._groups)):
            kinds = self._kinds(number)
            for kind, parts in kinds.items():
                mark(parts, named=kind in _NAMED, described=kind in _DESCRIBED)
                if kind == layout.KIND_OPEN:
                    self._begun += parts
                if kind == layout.KIND_VALUE:
                    sets.add(parts)
                else:
                    lanes += [distinct(part["lane"]) for part in parts]
        mark(log.open, named=True, described=True)
        self._lane_of, self._numbered = _number_lanes(log, lanes, self._common.lanes)
        self._name_of, self._text_of = (np.full(len(names), -1, np.int32) for _ in range(2))
        for place in np.flatnonzero(names[:-1]).tolist():
            self._name_of[place] = self._common.names[escape(self._strings.text(place))]
        used = np.flatnonzero(texts[:-1])
        first = self._common.add_texts(_Defined(self._strings, used))
        self._text_of[used] = np.arange(first, first + len(used))
        self._sets = sets.read()
        self._first_set = self._common.add_texts(self._sets.texts)
        self._loses_texts = bool(texts[-1])
        self._lost_name = self._common.names[LOST_NAME] if names[-1] else -1

    def look_closer(self) -> None:
        """Count what is lost, note what spans have, and find those that have not ended."""
        begun = [self._begun, self._open]
        candidates = _Begun(concatenate([self._spans(records) for records in begun], Spans))
        for records in begun:
            self._count_lost(records, described=True)
        needs = (self._has_sets, self._has_categories, self._loses_texts, self._lost_name >= 0)
        if any(needs) or len(candidates):
            for number in range(len(self._groups)):
                kinds = self._kinds(number)
                spans = self._spans(kinds[layout.KIND_SPAN])
                self._common.note(spans)
                candidates.note_ended(spans)
                for kind in set(_NAMED) - {layout.KIND_OPEN}:
                    self._count_lost(kinds[kind], described=kind in _DESCRIBED)
        self._unfinished = candidates.unfinished()
        self._common.note(self._unfinished)

    def spans(self) -> Iterator[Spans]:
        for records in self._each(layout.KIND_SPAN):
            yield self._common.described(self._numbered_spans(records))
        yield from split(self._common.described(self._unfinished))

    def _spans(self, records: Parts) -> Spans:
        return Spans(
            start_ns=times(records, "start_ns"),
            dur_ns=times(records, "dur_ns"),
            name=self._names(records),
            attributes=self._attributes(records),
            lane=self._lanes(records),
            category=codes(records) & _CATEGORY,
            source=sources(records),
        )

    def _numbered_spans(self, records: Parts) -> Spans:
        """Return spans with their sequence numbers; the lanes of these have the first of each."""
        spans = self._spans(records)
        if not self._common.are_numbered:
            return spans
        lane = column(records, "lane", "<u4")
        first, thread = (look_up(table, lane) for table in self._numbered)
        sequence = np.where(first < 0, -1, first + column(records, "window", "<u2"))
        return replace(spans, sequence=sequence, numbered_by=thread)

    def instants(self) -> Iterator[Instants]:
        for batch in self._all_instants():
            yield batch.take(~np.isin(batch.name, self._marks()))

    def counters(self) -> Iterator[Counters]:
        for batch in self._all_counters():
            yield batch.take(~np.isin(batch.name, list(self._watched())))

    def allocations(self) -> Iterator[Allocations]:
        yield from map(self._allocations, self._each(layout.KIND_MEMORY))

    def _allocations(self, records: Parts) -> Allocations:
        low, high = column(records, "name", "<u4"), column(records, "attributes", "<u4")
        device = column(records, "window", "<u2").astype(np.int32)
        device[codes(records) & _CATEGORY == 0] = -1
        start_ns = times(records, "start_ns")
        return Allocations(
            start_ns=start_ns,
            bytes=times(records, "dur_ns"),
            address=(low.astype(np.int64) | high.astype(np.int64) << 32),
            device=device,
            lane=self._lanes(records),
            reserved_bytes=np.full(len(low), -1, np.int64),
            owner_ns=start_ns,
            source=sources(records),
        )

    def steps(self, window: int) -> Iterator[Steps]:
        """Yield the steps that were marked in this window."""
        for records in self._each(layout.KIND_STEP):
            samples = column(records, "attributes", "<u4").astype(np.int64)
            steps = Steps(
                start_ns=times(records, "start_ns"),
                dur_ns=times(records, "dur_ns"),
                number=column(records, "name", "<u4").astype(np.int64),
                samples=np.where(samples == _NOBODY_SAID, -1, samples),
                lane=self._lanes(records),
                is_request=column(records, "category", "u1") == 1,
                unfinished=np.zeros(len(samples), bool),
            )
            yield steps.take(column(records, "window", "<u2") == window)

    def add_stacks(self) -> None:
        """Add the stacks that samples have to the common ones."""
        for records in self._each(layout.KIND_SAMPLE):
            for stack_id in np.unique(column(records, "name", "<u4")).tolist():
                self._add_stack(stack_id)
        self._stack_ids = np.array(sorted(self._stacks), np.uint32)
        self._stack_places = np.array([self._stacks[each] for each in sorted(self._stacks)])

    def samples(self) -> Iterator[Samples]:
        for records in self._each(layout.KIND_SAMPLE):
            ids = column(records, "name", "<u4")
            yield Samples(
                start_ns=times(records, "start_ns"),
                interval_ns=times(records, "dur_ns"),
                lane=self._lanes(records),
                stack=self._stack_places[np.searchsorted(self._stack_ids, ids)],
            )

    def _each(self, kind: int) -> Iterator[Parts]:
        """Yield the records of a kind, group by group."""
        for number in range(len(self._groups)):
            if records := self._kinds(number)[kind]:
                yield records

    def _add_stack(self, stack_id: int) -> None:
        """Add a stack, after those above it; its text is three numbers."""
        stacks, places = self._common.stacks, self._stacks
        chain = []
        while stack_id not in places:
            above, name, attributes = map(int, self._strings.get(stack_id, "0 0 0").split())
            chain.append((stack_id, name, attributes))
            places[stack_id] = -1  # if the log is damaged, a stack may not be above itself
            stack_id = above
        above_place = places[stack_id]
        for number, name, attributes in reversed(chain):
            places[number] = len(stacks)
            function = escape(self._strings.get(name, LOST_NAME))
            stacks.append(
                (above_place, self._common.frame(function, self._strings.get(attributes)))
            )
            above_place = places[number]

    def loads(self) -> Iterator[Loads]:
        """Return what loaders have marked: by instants, and strobe.watch by counters."""
        if self._marks():
            yield from map(self._handed_out, self._all_instants())
        if self._watched():
            yield from map(self._watched_loads, self._all_counters())

    def _all_instants(self) -> Iterator[Instants]:
        for records in self._each(layout.KIND_INSTANT):
            yield Instants(
                start_ns=times(records, "start_ns"),
                name=self._names(records),
                attributes=self._attributes(records),
                lane=self._lanes(records),
                texts=self._common.attributes,
                source=sources(records),
            )

    def _marks(self) -> list[int]:
        names = self._common.names
        return [names[name] for name in (BATCH, FETCH) if name in names]

    def _handed_out(self, instants: Instants) -> Loads:
        """Return the marks of frameworks' loaders, which last from their attribute since_ns."""
        marks = instants.take(np.isin(instants.name, self._marks()) & (instants.attributes >= 0))
        facts = [_read_mark(instants.texts[place]) for place in marks.attributes.tolist()]
        since_ns = np.array([fact.since_ns for fact in facts], np.int64)
        numbers: dict[str, Any] = {
            key: np.array([getattr(fact, key) for fact in facts], np.int64) for key in _NUMBERS
        }
        return Loads(
            start_ns=since_ns,
            dur_ns=marks.start_ns - since_ns,
            lane=marks.lane,
            is_batch=marks.name == self._common.names.get(BATCH, -1),
            loader=self._common.number_names([fact.loader for fact in facts]),
            source=marks.source,
            **numbers,
        )

    def _all_counters(self) -> Iterator[Counters]:
        for records in self._each(layout.KIND_COUNTER):
            yield Counters(
                start_ns=times(records, "start_ns"),
                name=self._names(records),
                value=times(records, "dur_ns").view(np.float64),
                lane=self._lanes(records),
                source=sources(records),
            )

    def _watched(self) -> Mapping[int, _Mark]:
        """Return what strobe.watch says of its loaders, by the names of its counters."""
        return {
            code: _read_mark(name.removeprefix(BATCH))
            for name, code in self._common.names.items()
            if name.startswith(BATCH) and name != BATCH
        }

    def _watched_loads(self, counters: Counters) -> Loads:
        """Return the marks of strobe.watch: counters whose value is the batch's number."""
        loaders = self._watched()
        marks = counters.take(np.isin(counters.name, list(loaders)))
        codes = np.array(sorted(loaders))
        which = np.searchsorted(codes, marks.name)
        facts = [loaders[code] for code in codes.tolist()]
        return Loads(
            start_ns=marks.start_ns,
            dur_ns=np.full(len(marks), UNFINISHED, np.int64),
            lane=marks.lane,
            is_batch=np.ones(len(marks), bool),
            loader=self._common.number_names([fact.loader for fact in facts])[which],
            wait=self._common.number_names([fact.wait for fact in facts])[which],
            number=marks.value.astype(np.int64),
            samples=np.array([fact.samples for fact in facts], np.int64)[which],
            automatic=np.zeros(len(marks), np.int64),
            source=marks.source,
        )

    def _lanes(self, records: Parts) -> Int32:
        return look_up(self._lane_of, column(records, "lane", "<u4"))

    def _names(self, records: Parts) -> Int32:
        names = self._known_names(records)
        return names if self._lost_name < 0 else np.where(names < 0, self._lost_name, names)

    def _known_names(self, records: Parts) -> Int32:
        return self._name_of[self._strings.places(column(records, "name", "<u4"))]

    def _attributes(self, records: Parts) -> Int32:
        ids = column(records, "attributes", "<u4")
        if not ids.any():
            return np.full(len(ids), -1, np.int32)
        codes = self._text_of[self._strings.places(ids)]
        codes[ids == 0] = -1
        if self._has_sets:
            is_set = ids >= layout.VALUES_BIT
            places = self._sets.find(ids[is_set] - np.uint32(layout.VALUES_BIT))
            codes[is_set] = np.where(places < 0, np.int32(-1), self._first_set + places)
        return codes

    def _count_lost(self, records: Parts, *, described: bool) -> None:
        self.nameless += int(np.count_nonzero(self._known_names(records) < 0))
        if described:
            has_some = column(records, "attributes", "<u4") > 0
            is_lost = has_some & (self._attributes(records) < 0)
            self.without_attributes += int(np.count_nonzero(is_lost))


def _number_lanes(
    process: ProcessLog, used: Sequence[UInt32], lanes: list[_Lane]
) -> tuple[Int32, Int64]:
    """Add the process's lanes to the list, also those whose definitions are lost.

    Returns the index of each lane in the list. Some lanes stand for another lane plus sequence
    numbers; for these it returns the first number and the thread that counts, else -1.
    """
    same = {number: known for number, known in process.lanes.items() if "of" in known}
    meant = [known["of"] for known in same.values()]
    numbers = np.unique(np.concatenate([*used, np.array([*process.lanes, *meant], np.uint32)]))
    lane_of = np.full(int(numbers.max(initial=0)) + 1, -1, np.int32)
    for number in numbers.tolist():
        if number in same:
            continue
        known = process.lanes.get(number, {})
        lane_of[number] = len(lanes)
        thread = Thread(
            pid=process.process.get("pid"),
            tid=known.get("tid"),
            name=escape(known["thread"]) if "thread" in known else None,
            context=known.get("context"),
            process=process.prefix,
        )
        lanes.append(_Lane(thread, known.get("system_name", False)))
    numbered = np.full((2, len(lane_of)), -1, np.int64)
    for number, known in same.items():
        lane_of[number] = lane_of[known["of"]]
        numbered[:, number] = known["sequence"], known["thread"]
    return lane_of, numbered


class _Begun:
    """Spans of which the log has the beginning; of most of them it has the end, too."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans.take(np.argsort(spans.start_ns, kind="stable"))
        self._has_ended = np.zeros(len(spans), bool)

    def __len__(self) -> int:
        return len(self._spans)

    def note_ended(self, ended: Spans) -> None:
        """Strike out those that are among these spans, which ended."""
        rows = np.arange(len(ended) if len(self) else 0)
        place = np.searchsorted(self._spans.start_ns, ended.start_ns[rows])
        while len(rows):  # once, but for spans that began in one instant
            begun = self._spans.take(np.minimum(place, len(self._spans) - 1))
            goes_on = (place < len(self._spans)) & (begun.start_ns == ended.start_ns[rows])
            is_same = goes_on & (begun.lane == ended.lane[rows]) & (begun.name == ended.name[rows])
            self._has_ended[place[is_same]] = True
            rows, place = rows[goes_on], place[goes_on] + 1

    def unfinished(self) -> Spans:
        """Return those that have not ended.

        A program that is killed while a span ends leaves it in two places: it counts once.
        """
        left = self._spans.take(~self._has_ended)
        columns = (left.start_ns.tolist(), left.lane.tolist(), left.name.tolist())
        first_of = {key: row for row, key in reversed([*enumerate(zip(*columns, strict=True))])}
        chosen = left.take(np.array(sorted(first_of.values()), np.intp))
        return replace(chosen, dur_ns=np.full(len(chosen), UNFINISHED, np.int64))
