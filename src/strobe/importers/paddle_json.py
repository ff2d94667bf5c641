# SPDX-License-Identifier: Apache-2.0
"""The Chrome trace of Paddle's profiler, into what its protobuf is read into.

    {"schemaVersion": "1.0.2", "span_index": "0", "traceEvents": [
      {"name": "matmul dygraph[12.250 us]", "pid": 7, "tid": "7(C++)", "ph": "X", "cat": "Operator",
       "ts": 1794766788256423, "dur": 12.250,
       "args": {"start_time": "1.250 us", "end_time": "13.500 us"}}, ..., {}
    ], "ExtraInfo": {"7": "MainThread"}}

Paddle cuts `ts` to microseconds, so that an event may end after what is around it. start_time and
end_time are floats of 32 bits, which keep the order: what is inside what is told by these, and so
are the times in short traces. In longer ones they are too coarse, and ts and dur are taken. Files
that strobe wrote (with baseTimeNanoseconds) are exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from strobe.errors import FormatError
from strobe.importers.json_rows import (
    Batch,
    JsonFile,
    Meanings,
    Some,
    open_json,
    read_string,
)
from strobe.importers.paddle_events import to_trace
from strobe.importers.paddle_trace import (
    EVENT_TYPES,
    MEMORY_TYPES,
    DeviceEvents,
    HostEvents,
    MemoryEvents,
    PaddleTrace,
)
from strobe.importers.wire import Ranges
from strobe.model.arrays import Bool, Int32, Int64
from strobe.model.interning import Interner
from strobe.model.nesting import nest
from strobe.model.trace import Trace
from strobe.store.places import scratch_folder
from strobe.store.spill import GrowingColumn, Spill

NAME = "paddle_json"
_HEAD = re.compile(rb'"schemaVersion"\s*:\s*"|"span_ind(ex|x)"\s*:')
"""Its version is a text, or its index tells."""
_FINE_NS = 4_000_000_000
"""Up to here a float of 32 bits tells microseconds to a quarter."""
_THREAD = re.compile(r"(-?\d{1,18})(?:\(.*\))?")
_ON_DEVICE = tuple(EVENT_TYPES.index(name) for name in ("Kernel", "Memcpy", "Memset"))
_RUNTIME = EVENT_TYPES.index("CudaRuntime")
_HEX = "0x"
_MOST_NS = (1 << 51) * 1000
_LASTING, _INSTANT = 0, 1
_FIRST_OF_MEMORY = 1000
_KINDS = {
    **{name: number for number, name in enumerate(EVENT_TYPES)},
    **{name: _FIRST_OF_MEMORY + number for number, name in enumerate(MEMORY_TYPES)},
}
"""What categories stand for: a type of an event, or of an allocation."""

_EVENT = ("name", "ph", "cat", "pid", "tid", "ts", "dur", "args")
_INTEGERS = {
    "context": "context",
    "dynamic_shared_memory": "shared memory",
    "registers_per_thread": "registers per thread",
    "num_bytes": "bytes",
    "value": "value",
}
"""Of device events, as the protobuf's reader names them, and as they are written here."""
_FRACTIONS = {
    "blocks_per_sm": "blocks per SM",
    "warps_per_sm": "warps per SM",
    "occupancy": "theoretical achieved occupancy %",
}
_SIZES = ("block", "grid")
_MEMORY = (
    *("increase_bytes", "current_allocated", "current_reserved"),
    *("peak_allocated", "peak_reserved"),
)
_ARGUMENTS = (
    *("start_time", "end_time", "correlation id", "input_shapes", "input_dtypes", "callstack"),
    *("place", "addr", *_MEMORY, *_INTEGERS.values(), *_FRACTIONS.values(), *_SIZES),
)


class _Head(msgspec.Struct, kw_only=True):
    schemaVersion: str = ""
    span_index: str | int | None = None
    span_indx: str | int | None = None
    deviceProperties: list[dict[str, Any]] = []
    baseTimeNanoseconds: int | None = None
    ExtraInfo: dict[str, str] = {}


def sniff(_path: Path, head: bytes) -> bool:
    """Say whether a file that begins so is one of Paddle's."""
    return head.lstrip()[:1] == b"{" and _HEAD.search(head) is not None


def read(path: Path) -> Trace:
    """Return a file; raises FormatError, OSError."""
    return read_parsed(path, read_trace(path))


def read_parsed(_path: Path, parsed: PaddleTrace) -> Trace:
    """Return what read() does, of a file that read_trace() has parsed already."""
    return to_trace(parsed)


def read_trace(path: Path) -> PaddleTrace:
    """Return all that is in a file.

    Raises FormatError where it is damaged or no such file, OSError where it cannot be read.
    """
    try:
        with open_json(path) as file:
            return _read(file)
    except msgspec.MsgspecError as error:
        raise FormatError(path, "content", f"no trace of Paddle's ({error})") from None
    except (OverflowError, ValueError) as error:
        raise FormatError(path, "content", f"a value that cannot be ({error})") from None


def _read(file: JsonFile) -> PaddleTrace:
    reader = _Reader(file)
    wanted = _Head.__struct_fields__
    for batch in file.batches("traceEvents", head=wanted, outer=_EVENT, inner=_ARGUMENTS):
        reader.add(batch)
    told = (b'"%b":%b' % (name.encode(), value) for name, value in file.head.items())
    head = msgspec.json.decode(b"{%b}" % b",".join(told), type=_Head)
    if not head.schemaVersion:
        reason = "no trace of Paddle's (it has its version here)"
        raise FormatError(file.path, "schemaVersion", reason)
    return reader.trace(head)


_Columns = dict[str, NDArray[Any]]


class _Reader:
    """Takes the batches of a file, and holds the columns of each sort of event."""

    def __init__(self, file: JsonFile) -> None:
        self._file = file
        self._spill = Spill(scratch_folder())
        self._columns: dict[str, dict[str, GrowingColumn]] = {}
        self._names, self._values = Interner[str](), Interner[bytes]()
        phases = {"X": _LASTING, "i": _INSTANT}
        self._phase = Meanings(file, lambda text: phases.get(read_string(text), -1))
        self._kind = Meanings(file, lambda text: _KINDS.get(read_string(text), -1))
        self._name = Meanings(file, lambda text: self._names[read_string(b'"%b"' % text)])
        self._text = Meanings(file, lambda text: self._names[read_string(text)])
        self._value = Meanings(file, self._values.__getitem__)
        self._thread = Meanings(file, lambda text: _thread(_plain(text)))
        self._address = Meanings(file, lambda text: _address(_plain(text)))

    def add(self, batch: Batch) -> None:
        """Take some events."""
        phase, kind = self._phase.of(batch["ph"]), self._kind.of(batch["cat"])
        lasting = phase == _LASTING
        unknown = np.flatnonzero(lasting & ((kind < 0) | (kind >= _FIRST_OF_MEMORY)))
        if len(unknown):
            _, (category,) = self._file.distinct(batch["cat"][unknown[:1]])
            reason = f"an event of unknown category {read_string(category)!r}"
            raise FormatError(self._file.path, "traceEvents", reason)
        on_device = lasting & np.isin(kind, _ON_DEVICE)
        for sort, chosen, more in (
            ("host", lasting & ~on_device, self._of_host),
            ("device", on_device, self._of_device),
            ("memory", (phase == _INSTANT) & (kind >= _FIRST_OF_MEMORY), self._of_memory),
        ):
            rows = np.flatnonzero(chosen)
            if len(rows) or sort not in self._columns:
                some = Some(batch, rows)
                self._add(sort, {"kind": kind[rows], **self._of_all(some), **more(some)})

    def _add(self, sort: str, columns: _Columns) -> None:
        """Add rows, which have all columns of their sort."""
        if sort not in self._columns:
            self._columns[sort] = {
                name: self._spill.growing(column.dtype) for name, column in columns.items()
            }
        for name, column in columns.items():
            self._columns[sort][name].extend(column)

    def _of_all(self, some: Some) -> _Columns:
        file = self._file
        return {
            "name": self._name.of(file.shorten(some["name"])).astype(np.int32),
            "pid": self._thread.of(some["pid"]),
            "tid": self._thread.of(some["tid"]),
            "ts": file.numbers(some["ts"], 3, odd=_odd_micros),
        }

    def _times(self, some: Some) -> _Columns:
        file = self._file
        return {
            "dur": file.numbers(some["dur"], 3, odd=_odd_micros),
            "low": file.numbers(some["args.start_time"], 3, b" us", absent=-1, odd=_odd_shown),
            "high": file.numbers(some["args.end_time"], 3, b" us", absent=-1, odd=_odd_shown),
            "correlation": file.numbers(some["args.correlation id"], absent=-1),
        }

    def _of_host(self, some: Some) -> _Columns:
        stack = np.where(
            some["args.callstack"].begin < 0, -1, self._text.of(some["args.callstack"])
        )
        return {
            **self._times(some),
            "callstack": stack.astype(np.int32),
            "shapes": self._value.of(some["args.input_shapes"]),
            "dtypes": self._value.of(some["args.input_dtypes"]),
        }

    def _of_device(self, some: Some) -> _Columns:
        """Return the other numbers of device events, as the protobuf's reader names them."""
        found = self._times(some)
        found |= {name: self._file.numbers(some[f"args.{key}"]) for name, key in _INTEGERS.items()}
        found["static_shared_memory"] = np.zeros_like(found["value"])
        for name, key in _FRACTIONS.items():
            found[name] = self._decoded(some[f"args.{key}"], float, 0.0)
        found["occupancy"] /= 100
        for name in _SIZES:
            sizes = self._decoded(some[f"args.{name}"], _three_sizes, (0, 0, 0)).reshape(-1, 3)
            found |= {f"{name}_{letter}": sizes[:, at] for at, letter in enumerate("xyz")}
        return found

    def _decoded(self, values: Ranges, decode: Callable[[bytes], Any], absent: Any) -> NDArray[Any]:
        code, texts = self._file.distinct(values)
        return np.array([decode(text) if text else absent for text in texts] or [absent])[code]

    def _of_memory(self, some: Some) -> _Columns:
        return {
            "address": self._address.of(some["args.addr"]),
            "place": self._text.of(some["args.place"]).astype(np.int32),
            **{name: self._file.numbers(some[f"args.{name}"]) for name in _MEMORY},
        }

    def trace(self, head: _Head) -> PaddleTrace:
        """Return all that was taken."""
        host, device, memory = (self._joined(sort) for sort in ("host", "device", "memory"))
        calls = host["kind"] == _RUNTIME
        if calls.any():  # they come after the other events of the host, as in the protobuf
            order = np.concatenate([np.flatnonzero(~calls), np.flatnonzero(calls)])
            host = {name: column[order] for name, column in host.items()}
        clock = _Clock(self._file.path, head.baseTimeNanoseconds, host)
        inputs, place = self._inputs(host)
        events = _host_events(host, clock, place)
        index = head.span_index if head.span_index is not None else head.span_indx
        return PaddleTrace(
            version=head.schemaVersion,
            span_index=int(index or 0),
            device=_device_events(device, clock, events),
            memory=_memory_events(memory, clock, events),
            host=events,
            names=list(self._names),
            inputs=inputs,
            extra_info=head.ExtraInfo,
            device_properties=head.deviceProperties,
        )

    def _joined(self, sort: str) -> _Columns:
        return {name: column.values() for name, column in self._columns.pop(sort).items()}

    def _inputs(self, host: _Columns) -> tuple[list[dict[str, Any]], Int32]:
        """Return what operators were given, each pair of shapes and dtypes once, and which."""
        place = np.full(len(host["shapes"]), -1, np.int32)
        texts = list(self._values)
        told = np.array([text not in (b"", b"{}") for text in texts] or [False])
        rows = np.flatnonzero(told[host["shapes"]])
        key = host["shapes"][rows] * len(texts) + host["dtypes"][rows]
        pairs, code = np.unique(key, return_inverse=True)
        place[rows] = code.reshape(-1)
        found = []
        for pair in pairs.tolist():
            shapes, dtypes = (texts[number] or b"{}" for number in divmod(pair, len(texts)))
            found.append({"shapes": _read_shapes(shapes), "dtypes": _read_dtypes(dtypes)})
        return found, place


_read_shapes = msgspec.json.Decoder(dict[str, list[list[int]]]).decode
_read_dtypes = msgspec.json.Decoder(dict[str, list[str]]).decode


class _Clock:
    """The times of a file: which of those that it tells are to be taken."""

    def __init__(self, path: Path, base_ns: int | None, host: _Columns) -> None:
        self._path = path
        self._exact = base_ns is not None
        if base_ns is not None and not 0 <= base_ns < _MOST_NS:
            raise FormatError(path, "baseTimeNanoseconds", f"{base_ns} is no time")
        first = host["ts"][host["low"] == 0] // 1000 * 1000
        # What is to be added to times that count from the first event.
        self._base_ns = int(first.min(initial=_MOST_NS)) % _MOST_NS if base_ns is None else base_ns

    def times(self, columns: _Columns) -> tuple[Int64, Int64, Int64, Int64]:
        """Return begins and ends, and those that tell what is inside what."""
        start_ns = self.points(columns["ts"])
        end_ns = start_ns + self._checked(columns["dur"])
        low, high = columns["low"], columns["high"]
        if self._exact or (low < 0).any() or (high < low).any():  # known, or odd ones
            return start_ns, end_ns, start_ns, end_ns
        low, high = low + self._base_ns, high + self._base_ns
        if int(high.max(initial=0)) - self._base_ns < _FINE_NS:
            return low, high, low, high
        return start_ns, end_ns, low, high

    def points(self, times_ns: Int64) -> Int64:
        return self._checked(times_ns) + (self._base_ns if self._exact else 0)

    def _checked(self, times_ns: Int64) -> Int64:
        if not ((times_ns >= 0) & (times_ns < _MOST_NS)).all():
            reason = "an event ends before it begins, or is of no known time"
            raise FormatError(self._path, "traceEvents", reason)
        return times_ns


def _host_events(host: _Columns, clock: _Clock, inputs: Int32) -> HostEvents:
    start_ns, end_ns, low, high = clock.times(host)
    return HostEvents(
        name=host["name"],
        type=host["kind"],
        start_ns=start_ns,
        end_ns=end_ns,
        pid=host["pid"],
        tid=host["tid"],
        parent=_parents(host["tid"], low, high, host["kind"] == _RUNTIME),
        op_id=np.zeros(len(start_ns), np.int64),
        callstack=host["callstack"],
        inputs=inputs,
        correlation=host["correlation"],
    )


def _device_events(device: _Columns, clock: _Clock, host: HostEvents) -> DeviceEvents:
    start_ns, end_ns, _, _ = clock.times(device)
    calls = np.flatnonzero(host.type == _RUNTIME)
    calls = calls[np.argsort(host.correlation[calls], kind="stable")]
    numbers = np.append(-1, host.correlation[calls])
    place = np.searchsorted(numbers[1:], device["correlation"], side="right")
    is_known = numbers[place] == device["correlation"]
    details = (*_INTEGERS, *_FRACTIONS, "static_shared_memory")
    sizes = (f"{name}_{letter}" for name in _SIZES for letter in "xyz")
    return DeviceEvents(
        name=device["name"],
        type=device["kind"],
        start_ns=start_ns,
        end_ns=end_ns,
        device=device["pid"],
        context=device["context"],
        stream=device["tid"],
        correlation=device["correlation"],
        host=np.where(is_known, np.append(-1, calls)[place], -1),
        details={name: device[name] for name in (*details, *sizes) if name != "context"},
    )


def _memory_events(memory: _Columns, clock: _Clock, host: HostEvents) -> MemoryEvents:
    time_ns = clock.points(memory["ts"])
    return MemoryEvents(
        time_ns=time_ns,
        type=memory["kind"] - _FIRST_OF_MEMORY,
        address=memory["address"],
        pid=memory["pid"],
        tid=memory["tid"],
        bytes=memory["increase_bytes"],
        place=memory["place"],
        host=_around(host, memory["tid"], time_ns),
        **{name: memory[name] for name in _MEMORY[1:]},
    )


def _plain(text: bytes) -> int | str:
    return msgspec.json.decode(text, type=int | str) if text else 0


def _three_sizes(text: bytes) -> list[int]:
    return [*msgspec.json.decode(text, type=list[int]), 0, 0, 0][:3]


def _odd_micros(text: bytes) -> int:
    """Return microseconds that are written in another way than Paddle does, as nanoseconds."""
    return round(msgspec.json.decode(text, type=float) * 1000)


def _odd_shown(text: bytes) -> int:
    """Return a time like "1.250 us" that is written in another way."""
    shown = read_string(text)
    return round(float(shown.partition(" ")[0]) * 1000) if shown else -1


def _thread(value: int | str) -> int:
    """Return the number in "7(Python)"; raises ValueError."""
    if isinstance(value, int):
        return value
    match = _THREAD.fullmatch(value)
    if match is None:
        message = f"{value!r} is no thread"
        raise ValueError(message)
    return int(match[1])


def _address(value: int | str) -> int:
    """Return an address as a number with a sign."""
    number = value if isinstance(value, int) else int(value, 16 if value.startswith(_HEX) else 10)
    number &= (1 << 64) - 1
    return number - (number >> 63 << 64)


def _parents(tid: Int64, start_ns: Int64, end_ns: Int64, is_call: Bool) -> Int64:
    """Return the row of the innermost event of the thread around each; a call is around nothing."""
    _, lane = np.unique(tid, return_inverse=True)
    order = np.argsort(start_ns, kind="stable")
    as_before = np.append(False, np.diff(start_ns[order]) == 0)[: len(order)]
    tied = np.flatnonzero(as_before | np.append(as_before[1:], False)[: len(order)])
    rows = order[tied]
    order[tied] = rows[np.lexsort((is_call[rows], -end_ns[rows], start_ns[rows]))]
    lanes = lane.reshape(-1).astype(np.int32)[order]
    above, _ = nest(lanes, start_ns[order], end_ns[order])
    parent = np.full(len(order), -1)
    parent[order] = np.where(above < 0, -1, order[above])
    while (inside := (parent >= 0) & is_call[parent]).any():
        parent[inside] = parent[parent[inside]]
    return parent


def _around(host: HostEvents, tid: Int64, time_ns: Int64) -> Int64:
    """Return the row of the innermost event of the thread open at each time; -1 if none."""
    found = np.full(len(tid), -1, np.int64)
    for thread in np.unique(tid).tolist():
        rows = np.flatnonzero((host.tid == thread) & (host.type != _RUNTIME))
        rows = rows[np.lexsort((-host.end_ns[rows], host.start_ns[rows]))]
        mine = np.flatnonzero(tid == thread)
        place = np.searchsorted(host.start_ns[rows], time_ns[mine], side="right") - 1
        row = np.where(place >= 0, rows[np.maximum(place, 0)] if len(rows) else -1, -1)
        while True:
            over = (row >= 0) & (host.end_ns[row] < time_ns[mine])
            if not over.any():
                break
            row = np.where(over, host.parent[row], row)
        found[mine] = row
    return found
