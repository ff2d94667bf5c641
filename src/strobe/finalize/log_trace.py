# SPDX-License-Identifier: Apache-2.0
"""Reads our own log into a Trace, with one numbering of names and lanes for all processes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from strobe.finalize.values import LOST_NAME, read_values
from strobe.model import attributes as keys
from strobe.model.arrays import Int32, Int64, UInt32, UInt64
from strobe.model.attributes import Attributes
from strobe.model.coded import Coded
from strobe.model.interning import Interner
from strobe.model.marks import BATCH, FETCH
from strobe.model.tables import CATEGORIES
from strobe.model.text import escape
from strobe.model.trace import (
    UNFINISHED,
    Allocations,
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
from strobe.store.log import RECORD as log_record
from strobe.store.log import ProcessLog, Records
from strobe.store.manifest import Manifest

_Integer = TypeVar("_Integer", np.int32, np.int64)

_USER, _PYTHON = CATEGORIES.index("user"), CATEGORIES.index("python")
_NOBODY_SAID = 0xFFFFFFFF


class LogTrace(NamedTuple):
    """What processes have recorded, on the records' clock."""

    trace: Trace
    nameless: int
    """Records whose names are lost."""
    without_attributes: int
    """Records whose attributes are lost."""


def read_log(processes: Iterable[ProcessLog], manifest: Manifest) -> LogTrace:
    """Return the records of all processes; of the steps, only this recording's."""
    logs = [(process, _by_kind(process.records)) for process in processes]
    reader = _Reader()
    reader.are_numbered = any("of" in lane for log, _ in logs for lane in log.lanes.values())
    parts = [reader.read(process, kinds) for process, kinds in logs]
    spans = [part.spans for part in parts]
    instants = concatenate([part.instants for part in parts], Instants)
    counters = concatenate([part.counters for part in parts], Counters)
    named = [*(batch.name for batch in spans), instants.name, counters.name]
    nameless = sum(int((name < 0).sum()) for name in named)
    if nameless:
        lost = reader.names[LOST_NAME]
        spans = [replace(batch, name=_or(batch.name, lost)) for batch in spans]
        instants = replace(instants, name=_or(instants.name, lost))
        counters = replace(counters, name=_or(counters.name, lost))
    spans = reader.describe(spans)
    names = list(reader.names)
    instants = replace(instants, texts=Attributes(list(reader.texts)))
    instants, handed_out = _split_instants(instants, names)
    counters, watched = _split_counters(counters, names)
    own = f"-{manifest.pid}-{manifest.process_start}-"
    steps = [part.steps for part in parts if own in part.prefix]
    trace = Trace(
        names=names,
        threads=[_name(lane, manifest) for lane in reader.lanes],
        frames=list(reader.frames),
        stacks=reader.stacks,
        steps=_of_window(steps, manifest.window),
        loads=concatenate([handed_out, watched], Loads),
        spans=[batch for part in spans for batch in split(part)],
        instants=split(instants),
        counters=split(counters),
        allocations=[batch for part in parts for batch in split(part.allocations)],
        samples=[batch for part in parts for batch in split(part.samples)],
    )
    return LogTrace(trace, nameless, reader.without_attributes)


def _or(codes: Int32, other: int) -> Int32:
    return np.where(codes < 0, np.int32(other), codes)


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


class _Part(NamedTuple):
    """The records of one process; names and attributes are numbers."""

    prefix: str
    spans: Spans
    instants: Instants
    counters: Counters
    allocations: Allocations
    samples: Samples
    steps: _Marks


class _Reader:
    """Reads processes one after the other, and numbers their names, lanes and stacks in common."""

    def __init__(self) -> None:
        self.names, self.texts = Interner[str](), Interner[str]()
        self.frames = Interner[Frame]()
        self.lanes: list[_Lane] = []
        self.stacks: list[tuple[int, int]] = []
        self.are_numbered = False
        self.without_attributes = 0

    def read(self, process: ProcessLog, kinds: dict[int, list[Records]]) -> _Part:
        translate = _Translation(process, kinds[layout.KIND_VALUE], self)
        ended = translate.spans(kinds[layout.KIND_SPAN])
        if self.are_numbered:
            sequence, numbered_by = translate.sequences(kinds[layout.KIND_SPAN])
            ended = replace(ended, sequence=sequence, numbered_by=numbered_by)
        begun = [translate.spans(kinds[layout.KIND_OPEN]), translate.spans(process.open)]
        return _Part(
            prefix=process.prefix,
            spans=concatenate([ended, _unfinished(begun, ended)], Spans),
            instants=translate.instants(kinds[layout.KIND_INSTANT]),
            counters=translate.counters(kinds[layout.KIND_COUNTER]),
            allocations=translate.allocations(kinds[layout.KIND_MEMORY]),
            samples=translate.samples(kinds[layout.KIND_SAMPLE]),
            steps=translate.steps(kinds[layout.KIND_STEP]),
        )

    def describe(self, parts: Sequence[Spans]) -> list[Spans]:
        """Add the attributes, the columns that they fill, and the functions of calls."""
        parts, texts = _fill_columns(parts, self.texts, self.names)
        described = []
        for part in parts:
            spans = replace(part, texts=texts)
            is_call = spans.category == _PYTHON
            if is_call.any():
                spans = replace(spans, frame=self._frames_of(spans, is_call))
            described.append(spans)
        return described

    def frame(self, name: str, text: str | None) -> int:
        """Return the number of a function, given its name and the attributes of a call of it."""
        content = json.loads(text) if text else {}
        where = (content.get(key) for key in (keys.FILE, keys.LINE, keys.MODULE))
        return self.frames[Frame(name, *where)]

    def _frames_of(self, spans: Spans, is_call: NDArray[np.bool_]) -> Int32:
        names, texts = list(self.names), spans.texts
        rows = np.flatnonzero(is_call)
        pairs = spans.name[rows].astype(np.int64) << 32 | (spans.attributes[rows] + 1)
        used = np.sort(pl.Series(pairs).unique().to_numpy())  # far fewer: no need to sort all
        numbers = [
            self.frame(names[pair >> 32], texts[text - 1] if (text := pair & 0xFFFFFFFF) else None)
            for pair in used.tolist()
        ]
        frame = np.full(len(spans), -1, np.int32)
        frame[rows] = np.array(numbers, np.int32)[np.searchsorted(used, pairs)]
        return frame


def _is_described(spans: Spans) -> NDArray[np.bool_]:
    """Return which spans have attributes of a framework; those of a user may have any keys."""
    of_framework: NDArray[np.bool_] = (spans.category != _USER) & (spans.category != _PYTHON)
    return of_framework & (spans.attributes >= 0)


def _fill_columns(
    parts: Sequence[Spans], texts: Interner[str], names: Interner[str]
) -> tuple[list[Spans], Attributes]:
    """Return the spans with the columns that their attributes fill, and the attributes.

    Each text is parsed once. Keys that the table has columns for are removed from the attributes.
    """
    written = Attributes(list(texts))
    used = [part.attributes[_is_described(part)] for part in parts]
    described = {
        place: written.content(place)
        for place in np.unique(np.concatenate([np.zeros(0, np.int32), *used])).tolist()
        if any(f'"{key}"' in written[place] for key in keys.WITH_COLUMNS)
    }
    if not described:
        return list(parts), written
    place_of = np.append(np.arange(len(written), dtype=np.int32), np.int32(-1))
    known = dict(described)
    for place, content in described.items():
        rest = keys.without_columns(content)
        if not rest:
            place_of[place] = -1
        elif len(rest) < len(content):
            place_of[place] = texts[json.dumps(rest, separators=(",", ":"))]
            known[int(place_of[place])] = rest
    filled = [_fill(part, described, place_of, names) for part in parts]
    return filled, Attributes(list(texts), known)


def _fill(
    spans: Spans,
    described: Mapping[int, Mapping[str, Any]],
    place_of: Int32,
    names: Interner[str],
) -> Spans:
    is_described = _is_described(spans)
    if not is_described.any():
        return spans
    codes = np.where(is_described, spans.attributes, np.int32(-1))
    row_of = np.full(len(place_of), -1, np.int32)
    row_of[list(described)] = np.arange(len(described))
    columns = attribute_columns(list(described.values()), row_of[codes])
    for key in keys.IN_TABLE:
        if key in columns:
            places = [names[escape(text)] for text in columns[key].texts]
            columns[key] = np.array([*places, -1], np.int32)[columns[key].codes]
    columns["attributes"] = np.where(is_described, place_of[codes], spans.attributes)
    return replace(spans, **columns)


def _split_instants(instants: Instants, names: list[str]) -> tuple[Instants, Loads]:
    """Separate the marks of frameworks' loaders, which last from their attribute since_ns."""
    codes = [code for code, name in enumerate(names) if name in (BATCH, FETCH)]
    is_mark = np.isin(instants.name, codes)
    marks = instants.take(is_mark & (instants.attributes >= 0))
    facts = [dict(instants.texts.content(place)) for place in marks.attributes.tolist()]
    since_ns = np.array([fact.get("since_ns", 0) for fact in facts], np.int64)
    loads = Loads(
        start_ns=since_ns,
        dur_ns=marks.start_ns - since_ns,
        lane=marks.lane,
        is_batch=np.array([names[code] == BATCH for code in marks.name.tolist()], bool),
        facts=_objects(facts),
    )
    return instants.take(~is_mark) if is_mark.any() else instants, loads


def _split_counters(counters: Counters, names: list[str]) -> tuple[Counters, Loads]:
    """Separate the marks of strobe.watch: counters whose value is the batch's number."""
    loaders = {
        code: json.loads(name.removeprefix(BATCH))
        for code, name in enumerate(names)
        if name.startswith(BATCH) and name != BATCH
    }
    is_mark = np.isin(counters.name, list(loaders))
    marks = counters.take(is_mark)
    facts = [
        {**loaders[code], "number": int(value), "automatic": 0}
        for code, value in zip(marks.name.tolist(), marks.value.tolist(), strict=True)
    ]
    loads = Loads(
        start_ns=marks.start_ns,
        dur_ns=np.full(len(marks), UNFINISHED, np.int64),
        lane=marks.lane,
        is_batch=np.ones(len(marks), bool),
        facts=_objects(facts),
    )
    return counters.take(~is_mark) if is_mark.any() else counters, loads


def _objects(values: list[Any]) -> NDArray[Any]:
    column = np.empty(len(values), object)
    column[:] = values
    return column


class _Translation:
    """Maps one process's numbers for strings and lanes to those of the whole log."""

    def __init__(self, process: ProcessLog, values: list[Records], reader: _Reader) -> None:
        self._strings = process.strings
        self._reader = reader
        self._lane_of, self._numbered = _number_lanes(process, reader.lanes)
        sets = read_values(values, process.strings)
        distinct = Coded.of(sets.texts)
        codes = [reader.texts[text] for text in distinct.texts]
        self._set_numbers = sets.numbers
        self._set_codes = np.array(codes, np.int32)[distinct.codes]

    def spans(self, records: list[Records]) -> Spans:
        return Spans(
            start_ns=_times(records, "start_ns"),
            dur_ns=_times(records, "dur_ns"),
            name=self._names(records),
            attributes=self._attributes(records),
            lane=self._lanes(records),
            category=_column(records, "category", "u1").astype(np.uint8, copy=False),
        )

    def instants(self, records: list[Records]) -> Instants:
        return Instants(
            start_ns=_times(records, "start_ns"),
            name=self._names(records),
            attributes=self._attributes(records),
            lane=self._lanes(records),
        )

    def counters(self, records: list[Records]) -> Counters:
        return Counters(
            start_ns=_times(records, "start_ns"),
            name=self._names(records),
            value=_times(records, "dur_ns").view(np.float64),
            lane=self._lanes(records),
        )

    def sequences(self, records: list[Records]) -> tuple[Int64, Int64]:
        """Return sequence number and thread of each span, -1 for none: its lane has the first."""
        lane = _column(records, "lane", "<u4")
        first, thread = (_look_up(table, lane) for table in self._numbered)
        sequence = np.where(first < 0, -1, first + _column(records, "window", "<u2"))
        return sequence, thread

    def allocations(self, records: list[Records]) -> Allocations:
        low, high = _column(records, "name", "<u4"), _column(records, "attributes", "<u4")
        device = _column(records, "window", "<u2").astype(np.int32)
        device[_column(records, "category", "u1") == 0] = -1
        start_ns = _times(records, "start_ns")
        return Allocations(
            start_ns=start_ns,
            bytes=_times(records, "dur_ns"),
            address=(low.astype(np.int64) | high.astype(np.int64) << 32),
            device=device,
            lane=self._lanes(records),
            reserved_bytes=np.full(len(low), -1, np.int64),
            owner_ns=start_ns,
        )

    def steps(self, records: list[Records]) -> _Marks:
        samples = _column(records, "attributes", "<u4").astype(np.int64)
        steps = Steps(
            start_ns=_times(records, "start_ns"),
            dur_ns=_times(records, "dur_ns"),
            number=_column(records, "name", "<u4").astype(np.int64),
            samples=np.where(samples == _NOBODY_SAID, -1, samples),
            lane=self._lanes(records),
            is_request=_column(records, "category", "u1") == 1,
            unfinished=np.zeros(len(samples), bool),
        )
        return _Marks(steps, _column(records, "window", "<u2"))

    def samples(self, records: list[Records]) -> Samples:
        ids = _column(records, "name", "<u4")
        known = np.unique(ids)
        places: dict[int, int] = {0: -1}
        for stack_id in known.tolist():
            self._add_stack(stack_id, places)
        place_of = np.array([places[stack_id] for stack_id in known.tolist()], np.int64)
        return Samples(
            start_ns=_times(records, "start_ns"),
            interval_ns=_times(records, "dur_ns"),
            lane=self._lanes(records),
            stack=place_of[np.searchsorted(known, ids)],
        )

    def _add_stack(self, stack_id: int, places: dict[int, int]) -> None:
        """Add a stack, after those above it; its text is three numbers."""
        stacks = self._reader.stacks
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
                (above_place, self._reader.frame(function, self._strings.get(attributes)))
            )
            above_place = places[number]

    def _lanes(self, records: list[Records]) -> Int32:
        return _look_up(self._lane_of, _column(records, "lane", "<u4"))

    def _names(self, records: list[Records]) -> Int32:
        return self._texts(_column(records, "name", "<u4"), self._reader.names, escape)

    def _attributes(self, records: list[Records]) -> Int32:
        ids = _column(records, "attributes", "<u4")
        is_set = ids >= layout.VALUES_BIT
        # JSON in ASCII: nothing in it to escape, and escaping would change what it says.
        codes = self._texts(np.where(is_set, np.uint32(0), ids), self._reader.texts, str)
        if is_set.any():
            numbers = ids[is_set] - np.uint32(layout.VALUES_BIT)
            codes[is_set] = _find(self._set_numbers, self._set_codes, numbers)
        self._reader.without_attributes += int(np.count_nonzero((ids > 0) & (codes < 0)))
        return codes

    def _texts(self, ids: UInt32, texts: Interner[str], form: Callable[[str], str]) -> Int32:
        """Number only the strings that are used here; 0 stands for none."""
        if not ids.any():
            return np.full(len(ids), -1, np.int32)
        largest = max(self._strings, default=0)
        used = np.zeros(largest + 2, bool)
        used[np.minimum(ids, largest + 1)] = True
        number_of = np.full(largest + 1, -1, np.int32)
        for string_id in np.flatnonzero(used[: largest + 1]).tolist():
            if string_id in self._strings:
                number_of[string_id] = texts[form(self._strings[string_id])]
        return _look_up(number_of, ids)


def _number_lanes(process: ProcessLog, lanes: list[_Lane]) -> tuple[Int32, Int64]:
    """Add the process's lanes to the list, also those whose definitions are lost.

    Returns the index of each lane in the list. Some lanes stand for another lane plus sequence
    numbers; for these it returns the first number and the thread that counts, else -1.
    """
    used = [_distinct(records["lane"]) for records in (*process.records, *process.open)]
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


def _distinct(numbers: UInt32) -> UInt32:
    """Return the distinct numbers; most often there is one, and nothing to sort."""
    return numbers[:1] if (numbers == numbers[:1]).all() else np.unique(numbers)


def _by_kind(parts: list[Records]) -> dict[int, list[Records]]:
    """Return the records by kind, without copying parts that hold one kind, as most do."""
    found: dict[int, list[Records]] = defaultdict(list)
    for records in parts:
        kinds = np.ascontiguousarray(records["kind"])
        present = np.flatnonzero(np.bincount(kinds))
        for kind in present.tolist():
            if len(present) > 1:
                rows = np.flatnonzero(kinds == kind)
                chosen = np.take(_words(records), rows, axis=0).view(log_record).reshape(-1)
            found[kind].append(records if len(present) == 1 else chosen)
    return found


def _column(parts: list[Records], name: str, dtype: str) -> NDArray[Any]:
    if not parts or name not in (parts[0].dtype.names or ()):
        return np.zeros(sum(map(len, parts)), dtype)
    return np.concatenate([records[name] for records in parts])


def _times(parts: list[Records], name: str) -> Int64:
    times: Int64 = _column(parts, name, "<u8").view(np.int64)
    return times


def _look_up(table: NDArray[_Integer], ids: UInt32) -> NDArray[_Integer]:
    """Return table[id], or -1 if the table has no such id."""
    if len(ids) == 0 or int(ids.max()) < len(table):
        return table[ids]
    found = np.full(len(ids), -1, table.dtype)
    inside = ids < len(table)
    found[inside] = table[ids[inside]]
    return found


def _find(keys: Int64, values: Int32, wanted: UInt32) -> Int32:
    """Return the values of keys that are in rising order, -1 for a key that is not there."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    if not len(keys):
        return np.full(len(wanted), -1, np.int32)
    return np.where(keys[place] == wanted, values[place], np.int32(-1))


def _words(records: Records) -> UInt64:
    """View each record as four words, which are copied faster than fields."""
    return np.ascontiguousarray(records).view("<u8").reshape(-1, 4)


def _unfinished(begun: list[Spans], ended: Spans) -> Spans:
    """Return the spans that have begun and not ended.

    A program that is killed while a span ends leaves it in two places. So the same start counts
    once, and not at all if it is among the spans that ended.
    """
    candidates = concatenate(begun, Spans)
    if len(candidates) == 0:
        return candidates
    maybe = ended.take(np.isin(ended.start_ns, candidates.start_ns))
    seen = set(zip(maybe.start_ns.tolist(), maybe.lane.tolist(), maybe.name.tolist(), strict=True))
    keep = []
    keys = zip(
        candidates.start_ns.tolist(),
        candidates.lane.tolist(),
        candidates.name.tolist(),
        strict=True,
    )
    for row, key in enumerate(keys):
        if key not in seen:
            seen.add(key)
            keep.append(row)
    chosen = candidates.take(np.array(keep, np.intp))
    return replace(chosen, dur_ns=np.full(len(chosen), UNFINISHED, np.int64))
