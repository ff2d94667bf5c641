# SPDX-License-Identifier: Apache-2.0
"""The trace of XLA's profiler, which JAX's is: an XSpace, a protobuf message (*.xplane.pb).

XSpace   planes: the host, each device, the profiler itself
XPlane   lines: a thread or a stream; names of events and statistics, by number
XLine    begin in ns; events
XEvent   number of its name, offset and duration in ps, statistics (of which few have any)
XStat    number of its name, and a number, a text, or the number of a name that is its text
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from strobe.errors import FormatError
from strobe.importers import hlo
from strobe.importers.columns import Events, to_trace
from strobe.importers.wire import Kind, Ranges, WireFile
from strobe.model.arrays import Bool, Int8, Int32, Int64
from strobe.model.attributes import PHASE, STATED, WAITED
from strobe.model.collectives import XLA
from strobe.model.interning import Interner
from strobe.model.tables import CATEGORIES
from strobe.model.texts import Attributes
from strobe.model.trace import Trace, attribute_columns
from strobe.store.places import scratch_folder
from strobe.store.spill import Spill

_OPERATOR, _ANNOTATION, _KERNEL, _COPY, _RUNTIME, _COMPILE = (
    CATEGORIES.index(name)
    for name in ("operator", "annotation", "kernel", "copy", "runtime", "compile")
)
_UNKNOWN, _LEFT_OUT = -1, -2
_TYPES = {
    **{"name": np.int32, "category": np.int8, "start_ns": np.int64, "dur_ns": np.int64},
    **{"pid": np.int64, "tid": np.int64, "correlation": np.int64, "device": np.int32},
    **{"stream": np.int64, "attributes": np.int32},
}

NAME = "xspace"
_HEAD = re.compile(rb"\n.{1,12}\x12.{1,2}(/host:|/device:|Task Environment)", re.DOTALL)
"""The first plane, by its name."""

_HOST = "/host:CPU"
_PROGRAMS = "/host:metadata"
_DEVICE = re.compile(r"/device:[^:]*:(\d{1,9})")
_STREAM = re.compile(r"Stream #(\d{1,9})")
_DERIVED = re.compile(r"Steps|XLA Modules|Framework .*|Source code|.*\(Derived\)")
"""Lines of a device that say again, coarser or otherwise named, what others say."""

# Marks without a duration, of XLA's thread pools, and of the end of what is there as a whole.
_MARKS = re.compile(r"ThreadpoolListener::|end: ")
_COMPILING = re.compile(
    r"backend_compile|lower_(sharding_computation|jaxpr|mesh)|trace_to_jaxpr|\w*::Compile\b"
    r"|\w*Compiler::|pickle_util\."
)
_RUNNING = re.compile(
    r"(\[\d+\] )?(\w+::)*[A-Z]\w*::|(xla|tsl|mlir|ifrt|pjrt)::|PjitFunction\(|ParseArguments"
    r"|shard_args|ExecuteReplicated|DevicePut|CopyTo(Memory|Host|Device)|\S*copy_to_host_async"
    r"|batched_(copy|device_put)|Batched(Copy|DevicePut)|np\.asarray\(jax|AllocateOutput"
    r"|Wait(: | for (donation|usage|Launch))|Handle input|(Invoke)?Rendezvous$"
)
"""What JAX and XLA mark in the user's threads outside of all else that they do."""
_COMPILERS = re.compile(r".*([Cc]ompil|codegen|llvm)")
"""Threads that compile."""
_THREAD_OF_XLA = re.compile(r"(tf|tsl|xla|pjrt)_")
_COPYING = re.compile(r"(?i)mem(cpy|set)|copy-?(start|done)?\b")

_encode = msgspec.json.Encoder().encode

_EVENTS_AT_ONCE = 1 << 18
_MADE = -2
_WAITING = re.compile(r"Wait: pending_threads|Wait for rendezvous")
_ASKED = re.compile(r"CommonPjRtLoadedExecutable::ExecutePrepare$")
_ENDED = re.compile(r"ThunkExecutor::Execute \(wait for completion\)$")
"""Each once for a program that a CPU runs: where it is handed over, and when it has run."""
_LINE: list[tuple[int, Kind]] = [(1, "varint"), (2, "bytes"), (3, "varint"), (11, "bytes")]
_STATS: list[tuple[int, Kind]] = [
    *((1, "varint"), (5, "bytes"), (2, "fixed64"), (2, "count"), (3, "varint"), (3, "count")),
    *((4, "varint"), (4, "count"), (7, "varint"), (7, "count")),
]
_DOUBLE, _UNSIGNED, _SIGNED, _REFERENCE, _TEXT, _OTHER = range(6)
_NUMBERS = (_DOUBLE, _UNSIGNED, _SIGNED, _REFERENCE)


def thread_number(line: Int64) -> Int64:
    """Return a thread's number for people: a line's is a hash, of which 30 bits are enough.

    No system numbers its threads so high.
    """
    number: Int64 = (1 << 30) | (line & ((1 << 30) - 1))
    return number


def sniff(_path: Path, head: bytes) -> bool:
    """Say whether a file that begins so is such a trace."""
    return _HEAD.match(head) is not None


def read(path: Path, *, shapes: bool = True) -> Trace:
    """Return a trace, by line; operators with `shapes`, where the trace has programs.

    Raises FormatError where the file is damaged or no such trace, OSError where it cannot be read.
    """
    file = WireFile(path)
    planes = file.find(file.whole, 1).ranges
    if not len(planes):
        raise FormatError(path, "byte 0", "no XSpace: it has no planes")
    reader = _Reader(file, shapes=shapes)
    (name,) = file.columns(planes, [(2, "bytes")])
    names = file.texts(name)
    for row in sorted(range(len(names)), key=lambda row: names[row] != _PROGRAMS):
        reader.add(names[row], planes[row : row + 1])
    return reader.trace()


@dataclass(frozen=True)
class _Plane:
    """What the lines of a plane have in common."""

    pid: int
    device: int
    names: list[str]
    """Of its events, in the file's order."""
    codes: Int32
    """Their places in the trace's names."""
    numbers: Int64
    """What events call them, sorted; `order` leads to their places."""
    order: Int64
    stats: dict[int, str]
    """Names of statistics, which are texts of statistics too."""


class _Reader:
    """Takes the planes of a trace and holds its columns."""

    def __init__(self, file: WireFile, *, shapes: bool) -> None:
        self._file = file
        self._shapes = shapes
        self._names, self._texts = Interner[str](), Interner[str]()
        self._stated: list[dict[str, Any]] = []  # what each text states that code reads
        # Made of two: each of its own, and numbered from _MADE down until the others are complete.
        self._made: list[str] = []
        self._made_stated: list[dict[str, Any]] = []
        self._operators: dict[tuple[int, str], hlo.Operator] = {}
        self._spill = Spill(scratch_folder())
        self._columns = {name: self._spill.growing(kind) for name, kind in _TYPES.items()}
        self._programs: Counter[re.Pattern[str]] = Counter()
        self._has_devices = False
        self._threads: dict[tuple[int, int], str] = {}
        self._skipped: Counter[str] = Counter()
        self._base_ns = 0

    def add(self, name: str, plane: Ranges) -> None:
        """Take a plane."""
        file = self._file
        stats = self._stat_names(plane)
        own = self._own_stats(plane, stats)
        self._base_ns = max(self._base_ns, _whole(own.get("profile_start_time", 0)))
        if name == _PROGRAMS:
            (programs,) = file.columns(file.find(plane, 4).ranges, [(2, "bytes")])
            self._operators = hlo.operators(file, programs.or_empty(), _named(stats, "program_id"))
        match = _DEVICE.match(name)
        lines = file.find(plane, 3).ranges
        if not len(lines):
            return
        if not match and name != _HOST:
            self._skipped[name] += len(file.find(lines, 4).ranges)
            return
        described = self._describe(plane, stats, own, int(match[1]) if match else -1)
        number, line_name, begin_ns, display = file.columns(lines, _LINE)
        thread = thread_number(number) if not match else number
        texts = zip(file.texts(display), file.texts(line_name), strict=True)
        for row, (shown, plain) in enumerate(texts):
            events = file.find(lines[row : row + 1], 4).ranges
            one = _Line(shown or plain, int(thread[row]), int(begin_ns[row]))
            if match and _DERIVED.fullmatch(one.name):
                self._skipped[one.name] += len(events)
                continue
            if not match:
                self._threads[described.pid, one.thread] = one.name.partition("/")[0]
            parts = [
                self._read_events(described, one, events[first : first + _EVENTS_AT_ONCE])
                for first in range(0, len(events), _EVENTS_AT_ONCE)
            ]
            if not match and parts:
                _settle(parts, one)
                self._note_waits(parts)
            self._add_line(parts)

    def _add_line(self, parts: list[dict[str, Any]]) -> None:
        for part in parts:
            for name, column in part.items():
                self._columns[name].extend(column)
            self._has_devices |= bool((part["device"] >= 0).any())
            for kind in (_ASKED, _ENDED):
                self._programs[kind] += len(self._named_like(kind.match, [part]))

    def _stat_names(self, plane: Ranges) -> dict[int, str]:
        file = self._file
        entries = file.find(plane, 5).ranges
        number, metadata = file.columns(entries, [(1, "varint"), (2, "bytes")])
        (name,) = file.columns(metadata.or_empty(), [(2, "bytes")])
        return dict(zip(number.tolist(), file.texts(name), strict=True))

    def _own_stats(self, plane: Ranges, names: dict[int, str]) -> dict[str, Any]:
        found = self._file.find(plane, 6)
        stats = _Stats.of(self._file, found.parent, found.ranges)
        return dict(stats.named(self._file, names, np.arange(len(stats.number))))

    def _describe(
        self, plane: Ranges, stats: dict[int, str], own: dict[str, Any], device: int
    ) -> _Plane:
        file = self._file
        entries = file.find(plane, 4).ranges
        number, metadata = file.columns(entries, [(1, "varint"), (2, "bytes")])
        (name,) = file.columns(metadata.or_empty(), [(2, "bytes")])
        names = file.texts(name)
        codes = [self._names[text] for text in names]
        order = np.argsort(number, kind="stable")
        return _Plane(
            pid=_whole(own.get("process_id")),
            device=device,
            names=names,
            codes=np.array(codes, np.int32),
            numbers=number[order],
            order=order,
            stats=stats,
        )

    def _read_events(self, plane: _Plane, line: _Line, events: Ranges) -> dict[str, Any]:
        file = self._file
        number, offset_ps, dur_ps, aggregated = file.columns(
            events, [(1, "varint"), (2, "varint"), (3, "varint"), (5, "count")]
        )
        found = np.searchsorted(plane.numbers, number)
        known = found < len(plane.numbers)
        known[known] = plane.numbers[found[known]] == number[known]
        if not known.all():
            where = f"byte {int(events.begin[~known][0])}"
            raise FormatError(file.path, where, "an event without a name")
        place = plane.order[found]
        found_stats = file.find(events, 4)
        (stat_number,) = file.columns(found_stats.ranges, [(1, "varint")])
        start_ns = line.begin_ns + offset_ps // 1000
        end_ns = line.begin_ns + (offset_ps + dur_ps) // 1000
        kinds = _kinds(plane, line)[place]
        kinds[aggregated > 0] = _LEFT_OUT
        if plane.device < 0:
            for name, kind in (("hlo_op", _OPERATOR), ("_r", _ANNOTATION)):
                kinds[found_stats.parent[np.isin(stat_number, _numbers(plane, name))]] = kind
        hidden = [number for number, name in plane.stats.items() if name[:1] in ("", "_")]
        shown = np.flatnonzero(~np.isin(stat_number, hidden))
        stats = _Stats.of(file, found_stats.parent[shown], found_stats.ranges[shown])
        rows = np.flatnonzero(kinds != _LEFT_OUT)
        left_out, counts = np.unique(place[kinds == _LEFT_OUT], return_counts=True)
        for each, count in zip(left_out.tolist(), counts.tolist(), strict=True):
            self._skipped[_mark_kind(plane.names[each])] += count
        return {
            "name": plane.codes[place[rows]],
            "category": kinds[rows],
            "start_ns": start_ns[rows],
            "dur_ns": np.maximum(end_ns - start_ns, 0)[rows],
            "pid": np.broadcast_to(np.int64(plane.pid), len(rows)),
            "tid": np.broadcast_to(np.int64(line.thread), len(rows)),
            "correlation": self._correlation(plane, stats, len(events))[rows],
            "device": np.broadcast_to(np.int32(plane.device), len(rows)),
            "stream": np.broadcast_to(np.int64(line.stream(plane.device)), len(rows)),
            "attributes": self._attributes(plane, stats, place, len(events))[rows],
        }

    def _correlation(self, plane: _Plane, stats: _Stats, events: int) -> Int64:
        correlation = np.full(events, -1, np.int64)
        chosen = np.isin(stats.number, _numbers(plane, "correlation_id"))
        correlation[stats.event[chosen]] = stats.value[chosen]
        return correlation

    def _attributes(self, plane: _Plane, stats: _Stats, place: Int64, events: int) -> Int32:
        """Return the place of each event's attributes among the texts.

        A hash of 64 bits over an event's statistics identifies events with the same ones.
        """
        other = np.isin(stats.number, _numbers(plane, "correlation_id")) | (stats.kind == _OTHER)
        kept = np.flatnonzero(~other & ~self._says_name(plane, stats, place))
        codes = np.full(events, -1, np.int32)
        if not len(kept):
            return codes
        event = stats.event[kept]
        first = np.flatnonzero(np.append(True, event[1:] != event[:-1]))
        mixed = _mix(_mix(stats.value[kept]) ^ (stats.number[kept] * 8 + stats.kind[kept]))
        key = np.add.reduceat(mixed, first)
        _, sample, inverse = np.unique(key, return_index=True, return_inverse=True)
        length = np.diff(np.append(first, len(kept)))[sample]
        rows = np.repeat(first[sample] - np.cumsum(length) + length, length) + np.arange(
            length.sum()
        )
        values = iter(stats.named(self._file, plane.stats, kept[rows]))
        found = (dict(islice(values, count)) for count in length.tolist())
        texts = np.array([self._number(content) for content in found], np.int32)
        codes[event[first]] = texts[inverse.reshape(-1)]
        return self._with_operators(plane, stats, place, codes) if self._operators else codes

    def _number(self, content: dict[str, Any]) -> int:
        """Return the place of attributes among the texts."""
        text = _encode(content).decode()
        code = self._texts[text]
        if code == len(self._stated):
            self._stated.append({key: content[key] for key in STATED if key in content})
        return code

    def _with_operators(self, plane: _Plane, stats: _Stats, place: Int64, codes: Int32) -> Int32:
        """Add what the compiled program says of each operator."""
        chosen = np.isin(stats.number, _numbers(plane, "program_id"))
        event, program = stats.event[chosen], stats.value[chosen]
        kept = codes[event] >= 0
        event, program = event[kept], program[kept]
        distinct, number = np.unique(program, return_inverse=True)
        operator = number.reshape(-1) * len(plane.names) + place[event]
        told, which = np.unique(operator, return_inverse=True)
        added = [self._added(plane, distinct, each) for each in told.tolist()]
        says: Bool = np.array([bool(phase or text) for phase, text in added] or [False])
        event, which = event[says[which.reshape(-1)]], which.reshape(-1)[says[which.reshape(-1)]]
        pairs, inverse = np.unique(which * len(self._texts) + codes[event], return_inverse=True)
        known = list(self._texts)
        extra, base = np.divmod(pairs, max(1, len(self._texts)))
        first = _MADE - len(self._made)
        for code, more in zip(base.tolist(), extra.tolist(), strict=True):
            phase, text = added[more]
            self._made.append(f"{known[code][:-1]},{text}}}" if text else known[code])
            self._made_stated.append({**self._stated[code], **({PHASE: phase} if phase else {})})
        codes[event] = first - inverse.reshape(-1).astype(np.int32)
        return codes

    def _added(self, plane: _Plane, programs: Int64, operator: int) -> tuple[str | None, str]:
        """Return what a program says of an operator, by the number of both: phase, and text."""
        number, place = divmod(operator, len(plane.names))
        told = self._operators.get((int(programs[number]), plane.names[place]))
        if told is None:
            return None, ""
        return told.phase, told.whole if self._shapes else told.plain

    def _note_waits(self, parts: list[dict[str, Any]]) -> None:
        """Add to the collectives of a line how long they waited for other devices."""
        waits = self._named_like(_WAITING.match, parts)
        exchanges = self._named_like(XLA.fullmatch, parts)
        if not len(exchanges):
            return
        start_ns, dur_ns = (
            np.concatenate([part[name] for part in parts]) for name in ("start_ns", "dur_ns")
        )
        waits = waits[np.argsort(start_ns[waits], kind="stable")]
        until = np.append(0, np.cumsum(dur_ns[waits]))
        first, last = (
            np.searchsorted(start_ns[waits], times)
            for times in (start_ns[exchanges], (start_ns + dur_ns)[exchanges])
        )
        waited = (until[last] - until[first]).tolist()
        ends = np.cumsum([len(part["name"]) for part in parts])
        known = list(self._texts)
        for row, wait_ns in zip(exchanges.tolist(), waited, strict=True):
            which = int(np.searchsorted(ends, row, side="right"))
            codes = parts[which]["attributes"]
            at = row - (int(ends[which - 1]) if which else 0)
            code = int(codes[at])
            before = known[code] if code >= 0 else self._made[_MADE - code] if code < -1 else "{}"
            stated = self._made_stated[_MADE - code] if code < -1 else {}
            comma = "," if len(before) > 2 else ""
            codes[at] = _MADE - len(self._made)
            self._made.append(f'{before[:-1]}{comma}"{WAITED}":{wait_ns}}}')
            self._made_stated.append(self._stated[code] if code >= 0 else stated)

    def _named_like(self, matches: Callable[[str], object], parts: list[dict[str, Any]]) -> Int64:
        """Return the rows of these parts whose names match."""
        chosen = np.array([bool(matches(name)) for name in self._names])
        return np.flatnonzero(chosen[np.concatenate([part["name"] for part in parts])])

    def _says_name(self, plane: _Plane, stats: _Stats, place: Int64) -> Bool:
        """Return which statistics are an operator's name that is the event's name too."""
        operator = np.isin(stats.number, _numbers(plane, "hlo_op")) & (stats.kind == _REFERENCE)
        numbers = np.array([*plane.stats, -1], np.int64)
        order = np.argsort(numbers)
        codes = np.array([*(self._names.get(text, -1) for text in plane.stats.values()), -1])
        found = np.minimum(np.searchsorted(numbers[order], stats.value), len(numbers) - 1)
        same = codes[order][found] == plane.codes[place[stats.event]]
        says: Bool = operator & same & (numbers[order][found] == stats.value)
        return says

    def trace(self) -> Trace:
        """All that was added."""
        columns: dict[str, Any] = {name: each.values() for name, each in self._columns.items()}
        codes = columns["attributes"]
        for rows in self._spill.parts(len(codes)):
            made = len(self._texts) + _MADE - codes[rows]
            codes[rows] = np.where(codes[rows] > _MADE, codes[rows], made)
        stated = attribute_columns([*self._stated, *self._made_stated], columns["attributes"])
        texts = Attributes([*self._texts, *self._made])
        events = Events(names=list(self._names), texts=texts, **columns, **stated)
        return to_trace(
            events,
            threads=self._threads,
            base_ns=max(0, self._base_ns),
            skipped=self._skipped,
            notes=self._note_unended(),
        )

    def _note_unended(self) -> tuple[str, ...]:
        """Tell of programs on a CPU whose operators are not all there: they ran beyond the end."""
        asked, ended = self._programs[_ASKED], self._programs[_ENDED]
        if ended >= asked or self._has_devices:
            return ()
        return (
            f"XLA tells the end of {ended} of {asked} programs that it was given: of the others "
            "operators may be missing",
        )


@dataclass(frozen=True)
class _Line:
    name: str
    thread: int
    begin_ns: int

    def stream(self, device: int) -> int:
        match = _STREAM.match(self.name)
        return int(match[1]) if match else self.thread if device >= 0 else -1


@dataclass(frozen=True)
class _Stats:
    """Statistics of events: one row each."""

    event: Int64
    number: Int64
    """Of its name."""
    kind: Int8
    value: Int64
    """A number, the bits of a double, the number of a name, or the hash of a text."""
    text: Ranges

    @staticmethod
    def of(file: WireFile, event: Int64, ranges: Ranges) -> _Stats:
        number, text, *columns = file.columns(ranges, _STATS)
        kind = np.full(len(number), _OTHER, np.int8)
        value = np.zeros(len(number), np.int64)
        for each, (bits, count) in enumerate(zip(columns[::2], columns[1::2], strict=True)):
            present = count > 0
            kind[present] = _NUMBERS[each]
            value[present] = bits[present]
        kind[text.begin >= 0] = _TEXT
        texts = np.flatnonzero(kind == _TEXT)
        code, first = file.number(text[texts])
        pairs = zip(*(part[texts[first]].tolist() for part in (text.begin, text.end)), strict=True)
        hashes = [hash(file.data[begin:end]) for begin, end in pairs]
        value[texts] = np.array([*hashes, 0], np.int64)[code]
        return _Stats(event, number, kind, value, text)

    def named(self, file: WireFile, names: dict[int, str], rows: Int64) -> list[tuple[str, Any]]:
        """Return names and values of these rows."""
        columns = (self.number, self.kind, self.value, self.text.begin, self.text.end)
        return [
            (names.get(number, ""), _value(file, names, kind, bits, begin, end))
            for number, kind, bits, begin, end in zip(
                *(column[rows].tolist() for column in columns), strict=True
            )
        ]


def _value(
    file: WireFile, names: dict[int, str], kind: int, bits: int, begin: int, end: int
) -> Any:
    if kind == _REFERENCE:
        return names.get(bits, "")
    if kind == _TEXT:
        return file.data[begin:end].decode(errors="replace")
    if kind == _UNSIGNED:
        return bits % (1 << 64)
    if kind == _DOUBLE:
        number = float(np.int64(bits).view(np.float64))
        return number if math.isfinite(number) else str(number)  # JSON has no other numbers
    return bits


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 63 else -1


def _numbers(plane: _Plane, name: str) -> list[int]:
    return _named(plane.stats, name)


def _named(stats: dict[int, str], name: str) -> list[int]:
    return [number for number, text in stats.items() if text == name]


def _kinds(plane: _Plane, line: _Line) -> Int8:
    """Return what each name of a plane is on this line, as far as the name alone tells."""
    if plane.device >= 0:
        kinds = [_COPY if _COPYING.match(name) else _KERNEL for name in plane.names]
    elif _COMPILERS.match(line.name):
        kinds = [_LEFT_OUT if _MARKS.match(name) else _COMPILE for name in plane.names]
    else:
        kinds = [_host_kind(name) for name in plane.names]
    return np.array(kinds, np.int8)


def _host_kind(name: str) -> int:
    if _MARKS.match(name):
        return _LEFT_OUT
    if _COMPILING.match(name):
        return _COMPILE
    return _RUNTIME if _RUNNING.match(name) else _UNKNOWN


def _settle(parts: list[dict[str, Any]], line: _Line) -> None:
    """Decide what the name does not tell: what the runtime does inside its calls, or the user's.

    The parts are all of a line. The user's threads are those that XLA has not named.
    """
    kinds = np.concatenate([part["category"] for part in parts])
    if _THREAD_OF_XLA.match(line.name):
        kinds[kinds == _UNKNOWN] = _RUNTIME
    else:
        start_ns = np.concatenate([part["start_ns"] for part in parts])
        end_ns = start_ns + np.concatenate([part["dur_ns"] for part in parts])
        order = np.lexsort((-end_ns, start_ns))
        for kind in (_COMPILE, _RUNTIME):
            around = np.where(kinds[order] == kind, end_ns[order], np.iinfo(np.int64).min)
            inside = np.zeros(len(kinds), bool)
            inside[order] = np.maximum.accumulate(around) >= end_ns[order]
            kinds[(kinds == _UNKNOWN) & inside] = kind
        kinds[kinds == _UNKNOWN] = _ANNOTATION
    ends = np.cumsum([len(part["category"]) for part in parts])
    for part, piece in zip(parts, np.split(kinds, ends[:-1]), strict=True):
        part["category"] = piece


def _mark_kind(name: str) -> str:
    return "end:" if name.startswith("end:") else name


def _mix(values: Any) -> Any:
    """Spread numbers over 64 bits (splitmix64)."""
    bits = values.astype(np.int64).view(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (bits ^ (bits >> np.uint64(31))).view(np.int64)
