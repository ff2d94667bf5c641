# SPDX-License-Identifier: Apache-2.0
"""Reads our own log into a Trace, with one numbering of names and lanes for all processes.

A log may be larger than memory. It is surveyed once, for the numbers that stand for its texts and
lanes; its long sections are then made of it batch by batch, as often as they are asked for.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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

_CATEGORY = np.uint8((1 << CATEGORY_BITS) - 1)
_USER, _PYTHON = CATEGORIES.index("user"), CATEGORIES.index("python")
_NOBODY_SAID = 0xFFFFFFFF
_NAMED = (layout.KIND_SPAN, layout.KIND_OPEN, layout.KIND_INSTANT, layout.KIND_COUNTER)
_DESCRIBED = (layout.KIND_SPAN, layout.KIND_OPEN, layout.KIND_INSTANT)
_FEW = (layout.KIND_OPEN, layout.KIND_STEP, layout.KIND_SAMPLE)
"""The kinds of which there are so few that they are kept in memory."""


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
    steps = [log.steps() for log in logs if _own(manifest) in log.prefix]
    trace = Trace(
        names=common.listed,
        threads=[_name(lane, manifest) for lane in common.lanes],
        steps=_of_window(steps, manifest.window),
        loads=concatenate([each for log in logs for each in log.loads()], Loads),
        spans=_chained(logs, _Process.spans),
        instants=_chained(logs, _Process.instants),
        counters=_chained(logs, _Process.counters),
        allocations=_chained(logs, _Process.allocations),
        samples=[batch for log in logs for batch in split(log.samples())],
        # After the samples, which add to them.
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


class _Marks(NamedTuple):
    """Marks of steps, of all windows of a process."""

    steps: Steps
    window: NDArray[np.uint16]


def _of_window(marks: Sequence[_Marks], window: int) -> Steps:
    return concatenate([each.steps.take(each.window == window) for each in marks], Steps)


class _Defined(Texts):
    """Texts that the process has defined one by one: some of all."""

    def __init__(self, strings: Mapping[int, str], ids: Int64) -> None:
        self._strings = strings
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    def text(self, place: int) -> str:
        return self._strings[int(self._ids[place])]


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
        self.listed = list(self.names)

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
        self._few: dict[int, list[Records]] = defaultdict(list)
        self._unfinished = concatenate([], Spans)
        common.are_numbered |= any("of" in lane for lane in log.lanes.values())
        self._survey(log, spill)

    def _read_group(self, number: int) -> dict[int, list[Records]]:
        return by_kind(self._groups[number])

    def _survey(self, log: ProcessLog, spill: Spill) -> None:
        """Number what the records use of names, texts and lanes."""
        largest = max(self._strings, default=0)
        names, texts = np.zeros(largest + 2, bool), np.zeros(largest + 2, bool)
        lanes = [distinct(slots["lane"]) for slots in log.open]
        sets = SetReader(self._strings, spill)
        self._has_sets = self._has_categories = False

        def mark(parts: Parts, *, named: bool, described: bool) -> None:
            if named:
                names[np.minimum(column(parts, "name", "<u4"), largest + 1)] = True
            if described:
                ids = column(parts, "attributes", "<u4")
                is_set = ids >= layout.VALUES_BIT
                self._has_sets |= bool(is_set.any())
                texts[np.minimum(np.where(is_set, np.uint32(0), ids), largest + 1)] = True
                self._has_categories |= bool((codes(parts) & _CATEGORY).any())

        for number in range(len(self._groups)):
            kinds = self._kinds(number)
            for kind, parts in kinds.items():
                mark(parts, named=kind in _NAMED, described=kind in _DESCRIBED)
                if kind in _FEW:
                    self._few[kind] += parts
                if kind == layout.KIND_VALUE:
                    sets.add(parts)
                else:
                    lanes += [distinct(part["lane"]) for part in parts]
        mark(log.open, named=True, described=True)
        self._lane_of, self._numbered = _number_lanes(log, lanes, self._common.lanes)
        self._name_of = np.full(largest + 1, -1, np.int32)
        self._text_of = np.full(largest + 1, -1, np.int32)
        for name in np.flatnonzero(names[:-1]).tolist():
            if name in self._strings:
                self._name_of[name] = self._common.names[escape(self._strings[name])]
        used = [text for text in np.flatnonzero(texts[:-1]).tolist() if text in self._strings]
        first = self._common.add_texts(_Defined(self._strings, np.array(used, np.int64)))
        self._text_of[used] = np.arange(first, first + len(used))
        self._sets = sets.read()
        self._first_set = self._common.add_texts(self._sets.texts)
        self._loses_texts = bool(texts[-1]) or int(np.count_nonzero(texts[1:-1])) > len(used)
        self._lost_name = -1
        if names[-1] or (self._name_of[names[:-1]] < 0).any():
            self._lost_name = self._common.names[LOST_NAME]

    def look_closer(self) -> None:
        """Count what is lost, note what spans have, and find those that have not ended."""
        begun = [self._few[layout.KIND_OPEN], self._open]
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
                for kind in set(_NAMED) - set(_FEW):
                    self._count_lost(kinds[kind], described=kind in _DESCRIBED)
        self._unfinished = candidates.unfinished()
        self._common.note(self._unfinished)

    def spans(self) -> Iterator[Spans]:
        for number in range(len(self._groups)):
            records = self._kinds(number)[layout.KIND_SPAN]
            if records:
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
        for number in range(len(self._groups)):
            records = self._kinds(number)[layout.KIND_MEMORY]
            if records:
                yield self._allocations(records)

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

    def steps(self) -> _Marks:
        records = self._few[layout.KIND_STEP]
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
        return _Marks(steps, column(records, "window", "<u2"))

    def samples(self) -> Samples:
        records = self._few[layout.KIND_SAMPLE]
        ids = column(records, "name", "<u4")
        known = np.unique(ids)
        places: dict[int, int] = {0: -1}
        for stack_id in known.tolist():
            self._add_stack(stack_id, places)
        place_of = np.array([places[stack_id] for stack_id in known.tolist()], np.int64)
        return Samples(
            start_ns=times(records, "start_ns"),
            interval_ns=times(records, "dur_ns"),
            lane=self._lanes(records),
            stack=place_of[np.searchsorted(known, ids)],
        )

    def _add_stack(self, stack_id: int, places: dict[int, int]) -> None:
        """Add a stack, after those above it; its text is three numbers."""
        stacks = self._common.stacks
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
        for number in range(len(self._groups)):
            records = self._kinds(number)[layout.KIND_INSTANT]
            if records:
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
        facts = [dict(instants.texts.content(place)) for place in marks.attributes.tolist()]
        since_ns = np.array([fact.get("since_ns", 0) for fact in facts], np.int64)
        return Loads(
            start_ns=since_ns,
            dur_ns=marks.start_ns - since_ns,
            lane=marks.lane,
            is_batch=marks.name == self._common.names.get(BATCH, -1),
            facts=_objects(facts),
            source=marks.source,
        )

    def _all_counters(self) -> Iterator[Counters]:
        for number in range(len(self._groups)):
            records = self._kinds(number)[layout.KIND_COUNTER]
            if records:
                yield Counters(
                    start_ns=times(records, "start_ns"),
                    name=self._names(records),
                    value=times(records, "dur_ns").view(np.float64),
                    lane=self._lanes(records),
                    source=sources(records),
                )

    def _watched(self) -> Mapping[int, Mapping[str, Any]]:
        """Return what strobe.watch says of its loaders, by the names of its counters."""
        return {
            code: json.loads(name.removeprefix(BATCH))
            for name, code in self._common.names.items()
            if name.startswith(BATCH) and name != BATCH
        }

    def _watched_loads(self, counters: Counters) -> Loads:
        """Return the marks of strobe.watch: counters whose value is the batch's number."""
        loaders = self._watched()
        marks = counters.take(np.isin(counters.name, list(loaders)))
        facts = [
            {**loaders[code], "number": int(value), "automatic": 0}
            for code, value in zip(marks.name.tolist(), marks.value.tolist(), strict=True)
        ]
        return Loads(
            start_ns=marks.start_ns,
            dur_ns=np.full(len(marks), UNFINISHED, np.int64),
            lane=marks.lane,
            is_batch=np.ones(len(marks), bool),
            facts=_objects(facts),
            source=marks.source,
        )

    def _lanes(self, records: Parts) -> Int32:
        return look_up(self._lane_of, column(records, "lane", "<u4"))

    def _names(self, records: Parts) -> Int32:
        names = look_up(self._name_of, column(records, "name", "<u4"))
        return names if self._lost_name < 0 else np.where(names < 0, self._lost_name, names)

    def _attributes(self, records: Parts) -> Int32:
        ids = column(records, "attributes", "<u4")
        if not ids.any():
            return np.full(len(ids), -1, np.int32)
        if not self._has_sets:
            return look_up(self._text_of, ids)
        is_set = ids >= layout.VALUES_BIT
        codes = look_up(self._text_of, np.where(is_set, np.uint32(0), ids))
        places = self._sets.find(ids[is_set] - np.uint32(layout.VALUES_BIT))
        codes[is_set] = np.where(places < 0, np.int32(-1), self._first_set + places)
        return codes

    def _count_lost(self, records: Parts, *, described: bool) -> None:
        names = look_up(self._name_of, column(records, "name", "<u4"))
        self.nameless += int(np.count_nonzero(names < 0))
        if described:
            has_some = column(records, "attributes", "<u4") > 0
            is_lost = has_some & (self._attributes(records) < 0)
            self.without_attributes += int(np.count_nonzero(is_lost))


def _objects(values: list[Any]) -> NDArray[Any]:
    found = np.empty(len(values), object)
    found[:] = values
    return found


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
