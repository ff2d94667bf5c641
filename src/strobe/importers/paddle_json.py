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
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from strobe.errors import FormatError
from strobe.importers.events import Events, Int32, Int64
from strobe.importers.paddle import (
    EVENT_TYPES,
    MEMORY_TYPES,
    DeviceEvents,
    HostEvents,
    MemoryEvents,
    Trace,
    to_events,
)

_HEAD_BYTES = 4096
_FINE_NS = 4_000_000_000
"""Up to here a float of 32 bits tells microseconds to a quarter."""
_THREAD = re.compile(r"(-?\d{1,18})(?:\(.*\))?")
_ON_DEVICE = tuple(EVENT_TYPES.index(name) for name in ("Kernel", "Memcpy", "Memset"))
_RUNTIME = EVENT_TYPES.index("CudaRuntime")
_HEX = "0x"
_MOST_MICROS = float(1 << 51)
_MORE = (EVENT_TYPES.index("Operator"), _RUNTIME, *_ON_DEVICE)
"""What may have more arguments than times."""


class _Times(msgspec.Struct, kw_only=True, gc=False):
    """All that most events have beside their name and type."""

    start_time: str = ""
    end_time: str = ""


class _Arguments(_Times, kw_only=True):
    correlation: int = msgspec.field(default=-1, name="correlation id")
    context: int = 0
    stream: int = 0
    device: int = 0
    grid: list[int] = []
    block: list[int] = []
    shared_memory: int = msgspec.field(default=0, name="shared memory")
    registers: int = msgspec.field(default=0, name="registers per thread")
    blocks_per_sm: float = msgspec.field(default=0.0, name="blocks per SM")
    warps_per_sm: float = msgspec.field(default=0.0, name="warps per SM")
    occupancy: float = msgspec.field(default=0.0, name="theoretical achieved occupancy %")
    bytes: int = 0
    value: int = 0
    place: str = ""
    addr: str | int = 0
    increase_bytes: int = 0
    current_allocated: int = 0
    current_reserved: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    input_shapes: dict[str, list[list[int]]] = {}
    input_dtypes: dict[str, list[str]] = {}
    callstack: str = ""


_NO_ARGUMENTS = msgspec.Raw(b"{}")
_NO_TIMES = _Times()
_read_times = msgspec.json.Decoder(_Times).decode
_read_arguments = msgspec.json.Decoder(_Arguments).decode


class _Event(msgspec.Struct, kw_only=True, gc=False):
    name: str = ""
    ph: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = _NO_ARGUMENTS


class _File(msgspec.Struct, kw_only=True):
    schemaVersion: str = ""
    span_index: str | int | None = None
    span_indx: str | int | None = None
    deviceProperties: list[dict[str, Any]] = []
    baseTimeNanoseconds: int | None = None
    traceEvents: list[_Event]
    ExtraInfo: dict[str, str] = {}


def sniff(path: Path) -> bool:
    """Say whether a file is JSON."""
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES).lstrip().startswith(b"{")


def read(path: Path) -> Events:
    """Return the events of a file; raises FormatError, OSError."""
    return to_events(read_trace(path))


def read_trace(path: Path) -> Trace:
    """Return all that is in a file.

    Raises FormatError where it is damaged or no such file, OSError where it cannot be read.
    """
    try:
        content = msgspec.json.decode(path.read_bytes(), type=_File)
    except msgspec.MsgspecError as error:
        raise FormatError(path, "content", f"no trace of Paddle's ({error})") from None
    except (RecursionError, UnicodeDecodeError) as error:
        raise FormatError(path, "content", f"not JSON ({type(error).__name__})") from None
    if not content.schemaVersion:
        raise FormatError(path, "schemaVersion", "no trace of Paddle's (it has its version here)")
    try:
        return _Reader(path, content).read()
    except msgspec.MsgspecError as error:
        raise FormatError(path, "args", f"no trace of Paddle's ({error})") from None
    except (OverflowError, ValueError) as error:
        raise FormatError(path, "traceEvents", f"a number that cannot be ({error})") from None


class _Names:
    """The texts of a file, each once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._places.setdefault(text, len(self._places))

    def shown(self, text: str) -> int:
        """Return the number of a name without the duration that stands behind it."""
        cut = text.rfind("[") if text.endswith("]") else -1
        text = text[:cut] if cut >= 0 else text
        return self._places.setdefault(text, len(self._places))

    @property
    def texts(self) -> list[str]:
        return list(self._places)


class _Rows(NamedTuple):
    """Events of one sort: what they are, and their arguments."""

    events: list[_Event]
    kind: Int64
    args: list[Any]
    """_Times, or _Arguments where there may be more."""


class _Reader:
    def __init__(self, path: Path, content: _File) -> None:
        self._path = path
        self._content = content
        self._names = _Names()
        self._inputs: list[dict[str, Any]] = []
        self._threads: dict[int | str, int] = {}
        lasting = [event for event in content.traceEvents if event.ph == "X"]
        types = {name: number for number, name in enumerate(EVENT_TYPES)}
        kinds = np.array([types.get(event.cat, -1) for event in lasting], np.int64)
        if (kinds < 0).any():
            unknown = lasting[int(np.argmin(kinds))].cat
            raise FormatError(path, "traceEvents", f"an event of unknown category {unknown!r}")
        on_device = np.isin(kinds, _ON_DEVICE)
        calls = kinds == _RUNTIME
        plain = ~on_device & ~calls
        self._exact = content.baseTimeNanoseconds is not None
        self._device = self._chosen(lasting, kinds, np.flatnonzero(on_device))
        # Calls of a runtime come after the other events of the host, as in the protobuf.
        order = np.concatenate([np.flatnonzero(plain), np.flatnonzero(calls)])
        self._host = self._chosen(lasting, kinds, order)
        memory = {name: number for number, name in enumerate(MEMORY_TYPES)}
        points = [event for event in content.traceEvents if event.ph == "i" and event.cat in memory]
        numbers = np.array([memory[event.cat] for event in points], np.int64)
        self._memory = _Rows(points, numbers, [_read_arguments(event.args) for event in points])
        self._base_ns = self._find_base()

    def _chosen(self, events: list[_Event], kinds: Int64, rows: Int64) -> _Rows:
        picked, kind = [events[row] for row in rows.tolist()], kinds[rows]
        more = np.isin(kind, _MORE).tolist()
        if self._exact:  # the times are known
            args = [
                _read_arguments(event.args) if full else _NO_TIMES
                for event, full in zip(picked, more, strict=True)
            ]
        else:
            args = [
                (_read_arguments if full else _read_times)(event.args)
                for event, full in zip(picked, more, strict=True)
            ]
        return _Rows(picked, kind, args)

    def _find_base(self) -> int:
        """Return what to add to the times that count from the first event."""
        base_ns = self._content.baseTimeNanoseconds
        if base_ns is not None:
            if not 0 <= base_ns < _MOST_MICROS * 1000:
                raise FormatError(self._path, "baseTimeNanoseconds", f"{base_ns} is no time")
            return base_ns
        pairs = zip(self._host.events, self._host.args, strict=True)
        first = [event.ts for event, args in pairs if args.start_time.startswith("0.000")]
        return round(min(first, default=0.0)) * 1000

    def read(self) -> Trace:
        content = self._content
        host = self._read_host()
        device = self._read_device(host)
        memory = self._read_memory(host)
        index = content.span_index if content.span_index is not None else content.span_indx
        return Trace(
            version=content.schemaVersion,
            span_index=int(index or 0),
            names=self._names.texts,
            inputs=self._inputs,
            host=host,
            device=device,
            memory=memory,
            extra_info=content.ExtraInfo,
            device_properties=content.deviceProperties,
        )

    def _times(self, rows: _Rows) -> tuple[Int64, Int64, Int64, Int64]:
        """Return begins and ends, and those that tell what is inside what."""
        start_ns = self._in_ns([event.ts for event in rows.events])
        end_ns = start_ns + self._in_ns([event.dur for event in rows.events])
        if self._exact:
            start_ns, end_ns = start_ns + self._base_ns, end_ns + self._base_ns
            return start_ns, end_ns, start_ns, end_ns
        low = np.array([_nanos(args.start_time) for args in rows.args], np.int64)
        high = np.array([_nanos(args.end_time) for args in rows.args], np.int64)
        if (low < 0).any() or (high < low).any():  # without these times, or with odd ones
            return start_ns, end_ns, start_ns, end_ns
        low, high = low + self._base_ns, high + self._base_ns
        if int(high.max(initial=0)) - self._base_ns < _FINE_NS:
            return low, high, low, high
        return start_ns, end_ns, low, high

    def _in_ns(self, micros: list[float]) -> Int64:
        """Return microseconds as nanoseconds; those of the wall clock are too many for a float."""
        values = np.array(micros, np.float64)
        if not ((values >= 0) & (values < _MOST_MICROS)).all():
            reason = "an event ends before it begins, or is of no known time"
            raise FormatError(self._path, "traceEvents", reason)
        whole = np.floor(values)
        return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)

    def _read_host(self) -> HostEvents:
        rows = self._host
        start_ns, end_ns, low, high = self._times(rows)
        tid = self._numbers([event.tid for event in rows.events])
        more = np.flatnonzero(np.isin(rows.kind, _MORE))
        callstack, inputs = np.full((2, len(tid)), -1, np.int32)
        correlation = np.full(len(tid), -1, np.int64)
        for row in more.tolist():
            args = rows.args[row]
            correlation[row] = args.correlation
            callstack[row] = self._names.number(args.callstack) if args.callstack else -1
            inputs[row] = self._described(args)
        return HostEvents(
            name=self._named(rows),
            type=rows.kind,
            start_ns=start_ns,
            end_ns=end_ns,
            pid=self._numbers([event.pid for event in rows.events]),
            tid=tid,
            parent=_parents(tid, low, high, rows.kind == _RUNTIME),
            op_id=np.zeros(len(tid), np.int64),
            callstack=callstack,
            inputs=inputs,
            correlation=correlation,
        )

    def _numbers(self, values: list[int | str]) -> Int64:
        """Return processes or threads as numbers; each distinct text is looked at once."""
        known = self._threads
        for value in set(values) - known.keys():
            known[value] = _thread(value)
        return np.array([known[value] for value in values], np.int64)

    def _named(self, rows: _Rows) -> Int32:
        return np.array([self._names.shown(event.name) for event in rows.events], np.int32)

    def _described(self, args: _Arguments) -> int:
        if not args.input_shapes:
            return -1
        self._inputs.append({"shapes": args.input_shapes, "dtypes": args.input_dtypes})
        return len(self._inputs) - 1

    def _read_device(self, host: HostEvents) -> DeviceEvents:
        rows = self._device
        start_ns, end_ns, _, _ = self._times(rows)
        calls = np.flatnonzero(host.type == _RUNTIME)
        row_of = {int(host.correlation[row]): int(row) for row in calls.tolist()}
        correlation = [args.correlation for args in rows.args]
        return DeviceEvents(
            name=self._named(rows),
            type=rows.kind,
            start_ns=start_ns,
            end_ns=end_ns,
            device=self._numbers([event.pid for event in rows.events]),
            context=np.array([args.context for args in rows.args], np.int64),
            stream=self._numbers([event.tid for event in rows.events]),
            correlation=np.array(correlation, np.int64),
            host=np.array([row_of.get(number, -1) for number in correlation], np.int64),
            details=_details(rows.args),
        )

    def _read_memory(self, host: HostEvents) -> MemoryEvents:
        rows = self._memory
        time_ns = self._in_ns([event.ts for event in rows.events])
        time_ns += self._base_ns if self._exact else 0
        tid = self._numbers([event.tid for event in rows.events])

        def numbers(name: str) -> Int64:
            return np.array([getattr(args, name) for args in rows.args], np.int64)

        return MemoryEvents(
            time_ns=time_ns,
            type=rows.kind,
            address=np.array([_address(args.addr) for args in rows.args], np.uint64).view(np.int64),
            pid=self._numbers([event.pid for event in rows.events]),
            tid=tid,
            bytes=numbers("increase_bytes"),
            place=np.array([self._names.number(args.place) for args in rows.args], np.int32),
            current_allocated=numbers("current_allocated"),
            current_reserved=numbers("current_reserved"),
            peak_allocated=numbers("peak_allocated"),
            peak_reserved=numbers("peak_reserved"),
            host=_around(host, tid, time_ns),
        )


def _nanos(text: str) -> int:
    """Return a time like "1.250 us", -1 where there is none."""
    return round(float(text.partition(" ")[0]) * 1000) if text else -1


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
    if isinstance(value, int):
        return value & (1 << 64) - 1
    return int(value, 16 if value.startswith(_HEX) else 10) & (1 << 64) - 1


def _details(given: list[_Arguments]) -> dict[str, NDArray[Any]]:
    """Return the other numbers of device events, as the protobuf's reader names them."""

    def axis(name: str, place: int) -> Int64:
        values = (getattr(args, name) for args in given)
        return np.array([each[place] if len(each) > place else 0 for each in values], np.int64)

    zero = np.zeros(len(given), np.int64)
    found: dict[str, NDArray[Any]] = {
        f"{name}_{letter}": axis(name, place)
        for name in ("block", "grid")
        for place, letter in enumerate("xyz")
    }
    return found | {
        "dynamic_shared_memory": np.array([args.shared_memory for args in given], np.int64),
        "static_shared_memory": zero,
        "registers_per_thread": np.array([args.registers for args in given], np.int64),
        "blocks_per_sm": np.array([args.blocks_per_sm for args in given], np.float64),
        "warps_per_sm": np.array([args.warps_per_sm for args in given], np.float64),
        "occupancy": np.array([args.occupancy / 100 for args in given], np.float64),
        "num_bytes": np.array([args.bytes for args in given], np.int64),
        "value": np.array([args.value for args in given], np.int64),
    }


def _parents(tid: Int64, start_ns: Int64, end_ns: Int64, is_call: NDArray[np.bool_]) -> Int64:
    """Return the row of the innermost event of the thread around each; a call is around nothing."""
    parent = np.full(len(tid), -1, np.int64)
    order = np.lexsort((is_call, -end_ns, start_ns, tid))
    stack: list[int] = []
    threads, ends, calls = tid.tolist(), end_ns.tolist(), is_call.tolist()
    last = None
    for row in order.tolist():
        if threads[row] != last:
            stack, last = [], threads[row]
        # Whoever ends earlier is not around this one, nor around any that comes.
        while stack and ends[stack[-1]] < ends[row]:
            stack.pop()
        if stack:
            parent[row] = stack[-1]
        if not calls[row]:
            stack.append(row)
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
