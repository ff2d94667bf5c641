# SPDX-License-Identifier: Apache-2.0
"""The records of a log as columns: one numbering of names and lanes for all processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.model.arrays import Bool, Int32, Int64, UInt8, UInt16, UInt32, UInt64
from strobe.model.interning import Interner
from strobe.model.text import escape
from strobe.store import layout
from strobe.store.log import RECORD as log_record
from strobe.store.log import ProcessLog, Records

_Integer = TypeVar("_Integer", np.int32, np.int64)

LOST_NAME = "(name lost)"


@dataclass
class Gathered:
    """Records of one kind, column by column."""

    start_ns: Int64
    dur_ns: Int64
    name: Int32
    attributes: Int32
    lane: Int32
    category: UInt8
    # Of operators and what runs on devices: -1 for none, None where none of the rows has any.
    sequence: Int64 | None = None
    thread: Int64 | None = None
    correlation: Int64 | None = None
    device: Int64 | None = None
    stream: Int64 | None = None
    module: Int64 | None = None  # number of its name

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.start_ns)

    def take(self, rows: NDArray[Any]) -> Gathered:
        """Return the rows at these places, or where this mask is true."""
        taken: dict[str, Any] = {
            name: None if column is None else column[rows] for name, column in vars(self).items()
        }
        return Gathered(**taken)


@dataclass
class Memory:
    """Allocations and frees, of all processes."""

    start_ns: Int64
    bytes: Int64
    address: Int64
    device: Int32  # -1: the host
    lane: Int32
    reserved: Int64  # -1: unknown
    owner_ns: Int64  # a time in the span that it is for


@dataclass
class Steps:
    """Marks of steps, of all windows of all processes."""

    start_ns: Int64
    dur_ns: Int64
    number: UInt32
    samples: UInt32
    lane: Int32
    request: Bool
    window: UInt16
    process: list[str]  # whose prefix, one for each


@dataclass
class Samples:
    """Stacks of threads at some instants, of all processes."""

    start_ns: Int64
    interval_ns: Int64
    lane: Int32
    stack: Int64  # place in `stacks`
    stacks: list[tuple[int, int, int]]  # place of the stack above or -1, name, attributes or -1


@dataclass
class Log:
    """A whole log: all processes, names and lanes numbered once."""

    spans: Gathered
    unfinished: Gathered
    instants: Gathered
    counters: Gathered
    steps: Steps
    memory: Memory
    samples: Samples
    names: list[str]
    attributes: list[str]
    lanes: list[dict[str, Any]]
    nameless: int  # records whose names are lost


def gather(processes: Iterable[ProcessLog]) -> Log:
    """Number names and lanes over all processes and sort the records by kind."""
    names, attributes = Interner[str](), Interner[str]()
    lanes: list[dict[str, Any]] = []
    parts: dict[str, list[Gathered]] = {
        "spans": [],
        "unfinished": [],
        "instants": [],
        "counters": [],
    }
    steps: list[Steps] = []
    memory: list[Memory] = []
    samples: list[Samples] = []
    logs = [(process, _by_kind(process.records)) for process in processes]
    numbered = any("of" in lane for process, _ in logs for lane in process.lanes.values())
    for process, kinds in logs:
        translate = _Translation(process, names, attributes, lanes)
        spans = translate.columns(kinds[layout.KIND_SPAN])
        if numbered:
            spans.sequence, spans.thread = translate.sequences(kinds[layout.KIND_SPAN])
        memory.append(translate.memory(kinds[layout.KIND_MEMORY]))
        samples.append(translate.samples(kinds[layout.KIND_SAMPLE]))
        parts["spans"].append(spans)
        parts["instants"].append(translate.columns(kinds[layout.KIND_INSTANT]))
        parts["counters"].append(translate.columns(kinds[layout.KIND_COUNTER]))
        steps.append(translate.steps(kinds[layout.KIND_STEP]))
        begun = translate.columns(kinds[layout.KIND_OPEN])
        still_open = translate.columns(process.open)
        parts["unfinished"].append(_unfinished([begun, still_open], spans))
    merged = {kind: concatenate(found) for kind, found in parts.items()}
    nameless = 0
    for part in merged.values():
        lost = part.name < 0
        if lost.any():
            part.name[lost] = names[LOST_NAME]
            nameless += int(lost.sum())
    return Log(
        **merged,
        steps=_concatenate_steps(steps),
        memory=concatenate_memory(memory),
        samples=_concatenate_samples(samples),
        names=list(names),
        attributes=list(attributes),
        lanes=lanes,
        nameless=nameless,
    )


class _Translation:
    """One process's numbers for strings and lanes, in terms of the whole log's."""

    def __init__(
        self,
        process: ProcessLog,
        names: Interner[str],
        attributes: Interner[str],
        lanes: list[dict[str, Any]],
    ) -> None:
        self._strings = process.strings
        self._prefix = process.prefix
        self._names = names
        self._attributes = attributes
        self._lane_of, self._numbered = _number_lanes(process, lanes)

    def columns(self, records: list[Records]) -> Gathered:
        return Gathered(
            start_ns=_column(records, "start_ns", "<u8").view(np.int64),
            dur_ns=_column(records, "dur_ns", "<u8").view(np.int64),
            name=self._texts(_column(records, "name", "<u4"), self._names, escape),
            # JSON in ASCII: nothing in it to escape, and escaping would change what it says.
            attributes=self._texts(_column(records, "attributes", "<u4"), self._attributes, str),
            lane=_look_up(self._lane_of, _column(records, "lane", "<u4")),
            category=_column(records, "category", "u1").astype(np.uint8, copy=False),
        )

    def sequences(self, records: list[Records]) -> tuple[Int64, Int64]:
        """Return sequence number and thread of each span, -1 for none: its lane has the first."""
        lane = _column(records, "lane", "<u4")
        first, thread = (_look_up(table, lane) for table in self._numbered)
        sequence = np.where(first < 0, -1, first + _column(records, "window", "<u2"))
        return sequence, thread

    def memory(self, records: list[Records]) -> Memory:
        low, high = _column(records, "name", "<u4"), _column(records, "attributes", "<u4")
        device = _column(records, "window", "<u2").astype(np.int32)
        device[_column(records, "category", "u1") == 0] = -1
        start_ns = _column(records, "start_ns", "<u8").view(np.int64)
        return Memory(
            start_ns=start_ns,
            bytes=_column(records, "dur_ns", "<u8").view(np.int64),
            address=(low.astype(np.int64) | high.astype(np.int64) << 32),
            device=device,
            lane=_look_up(self._lane_of, _column(records, "lane", "<u4")),
            reserved=np.full(len(low), -1, np.int64),
            owner_ns=start_ns,
        )

    def steps(self, records: list[Records]) -> Steps:
        lanes = _column(records, "lane", "<u4")
        return Steps(
            start_ns=_column(records, "start_ns", "<u8").view(np.int64),
            dur_ns=_column(records, "dur_ns", "<u8").view(np.int64),
            number=_column(records, "name", "<u4"),
            samples=_column(records, "attributes", "<u4"),
            lane=_look_up(self._lane_of, lanes),
            request=_column(records, "category", "u1") == 1,
            window=_column(records, "window", "<u2"),
            process=[self._prefix] * len(lanes),
        )

    def samples(self, records: list[Records]) -> Samples:
        ids = _column(records, "name", "<u4")
        places: dict[int, int] = {0: -1}
        stacks: list[tuple[int, int, int]] = []
        for stack_id in np.unique(ids).tolist():
            self._add_stack(stack_id, places, stacks)
        known = np.unique(ids)
        place_of = np.array([places[stack_id] for stack_id in known.tolist()], np.int64)
        return Samples(
            start_ns=_column(records, "start_ns", "<u8").view(np.int64),
            interval_ns=_column(records, "dur_ns", "<u8").view(np.int64),
            lane=_look_up(self._lane_of, _column(records, "lane", "<u4")),
            stack=place_of[np.searchsorted(known, ids)],
            stacks=stacks,
        )

    def _add_stack(
        self, stack_id: int, places: dict[int, int], stacks: list[tuple[int, int, int]]
    ) -> None:
        """Give a stack a place, those above it first: its text is three numbers."""
        chain = []
        while stack_id not in places:
            above, name, attributes = map(int, self._strings.get(stack_id, "0 0 0").split())
            chain.append((stack_id, name, attributes))
            places[stack_id] = -1  # should the log be damaged, no stack is above itself
            stack_id = above
        above_place = places[stack_id]
        for number, name, attributes in reversed(chain):
            text = self._strings.get(attributes)
            places[number] = len(stacks)
            stacks.append(
                (
                    above_place,
                    self._names[escape(self._strings.get(name, LOST_NAME))],
                    -1 if text is None else self._attributes[text],
                )
            )
            above_place = places[number]

    def _texts(self, ids: UInt32, texts: Interner[str], form: Callable[[str], str]) -> Int32:
        """Number only the strings that are used here: a name is no attribute; 0 is none."""
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


def _number_lanes(process: ProcessLog, lanes: list[dict[str, Any]]) -> tuple[Int32, Int64]:
    """Add the process's lanes to the list; one whose definition was lost is there without it.

    Returns the places of all numbers of lanes there; and of those that are another lane with
    sequence numbers, the first of these and the thread that counts them, -1 for the others.
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
        lanes.append(
            {
                "pid": process.process.get("pid"),
                "tid": known.get("tid"),
                "thread": escape(known["thread"]) if "thread" in known else None,
                "system_name": known.get("system_name", False),
                "context": known.get("context"),
                "process": process.prefix,
            }
        )
    numbered = np.full((2, len(lane_of)), -1, np.int64)
    for number, known in same.items():
        lane_of[number] = lane_of[known["of"]]
        numbered[:, number] = known["sequence"], known["thread"]
    return lane_of, numbered


def _distinct(numbers: UInt32) -> UInt32:
    """Return the distinct numbers; most often there is one, and nothing to sort."""
    return numbers[:1] if (numbers == numbers[:1]).all() else np.unique(numbers)


def _by_kind(parts: list[Records]) -> dict[int, list[Records]]:
    """Return the records of each kind; a part of one kind, as most are, is taken as it is."""
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


def _look_up(table: NDArray[_Integer], ids: UInt32) -> NDArray[_Integer]:
    """Return table[id], and -1 for an id that the table does not have."""
    if len(ids) == 0 or int(ids.max()) < len(table):
        return table[ids]
    found = np.full(len(ids), -1, table.dtype)
    inside = ids < len(table)
    found[inside] = table[ids[inside]]
    return found


def _words(records: Records) -> UInt64:
    """Return the records as four words each, which are copied faster than fields."""
    return np.ascontiguousarray(records).view("<u8").reshape(-1, 4)


def _unfinished(begun: list[Gathered], ended: Gathered) -> Gathered:
    """Return what has begun and not ended.

    A program that is killed while a span ends leaves it in two places, so the same beginning counts
    once, and not at all when it is among those that ended.
    """
    candidates = concatenate(begun)
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
    return candidates.take(np.array(keep, np.intp))


def concatenate(parts: list[Gathered]) -> Gathered:
    """Put the rows of several one after the other."""
    parts = [part for part in parts if len(part)] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        none = np.zeros(0, np.int64)
        codes = np.zeros(0, np.int32)
        return Gathered(none, none, codes, codes, codes, np.zeros(0, np.uint8))
    sizes = [len(part) for part in parts]
    return Gathered(
        *(_concatenate_known(columns, sizes) for columns in zip(*map(_columns, parts), strict=True))
    )


def _concatenate_known(columns: Sequence[NDArray[Any] | None], sizes: list[int]) -> Any:
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.full(size, -1, np.int64) if column is None else column
            for column, size in zip(columns, sizes, strict=True)
        ]
    )


def concatenate_memory(parts: list[Memory]) -> Memory:
    """Put the rows of several one after the other."""

    def column(name: str, dtype: type) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0, dtype)])

    return Memory(
        start_ns=column("start_ns", np.int64),
        bytes=column("bytes", np.int64),
        address=column("address", np.int64),
        device=column("device", np.int32),
        lane=column("lane", np.int32),
        reserved=column("reserved", np.int64),
        owner_ns=column("owner_ns", np.int64),
    )


def _concatenate_samples(parts: list[Samples]) -> Samples:
    def column(name: str, dtype: type) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0, dtype)])

    stacks: list[tuple[int, int, int]] = []
    for part in parts:
        first = len(stacks)
        part.stack = np.where(part.stack < 0, -1, part.stack + first)
        stacks += [
            (above + first if above >= 0 else -1, name, attributes)
            for above, name, attributes in part.stacks
        ]
    return Samples(
        start_ns=column("start_ns", np.int64),
        interval_ns=column("interval_ns", np.int64),
        lane=column("lane", np.int32),
        stack=column("stack", np.int64),
        stacks=stacks,
    )


def _concatenate_steps(parts: list[Steps]) -> Steps:
    def column(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts] or [np.zeros(0, np.int64)])

    return Steps(
        start_ns=column("start_ns"),
        dur_ns=column("dur_ns"),
        number=column("number"),
        samples=column("samples"),
        lane=column("lane"),
        request=column("request"),
        window=column("window"),
        process=[name for part in parts for name in part.process],
    )


def _columns(part: Gathered) -> list[NDArray[Any] | None]:
    return list(vars(part).values())
