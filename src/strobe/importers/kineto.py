# SPDX-License-Identifier: Apache-2.0
"""The trace of PyTorch's own profiler (Kineto): JSON, plain or compressed with gzip.

It is read in pieces that end where an event does, so that memory does not grow with the file:

    {"schemaVersion": 1, ... "traceEvents": [ {...}, {...}, {...}, {...} ], "traceName": ... }
    |---------------- head ----------------||-- piece --|  |----------- tail -----------|
"""

from __future__ import annotations

import gzip
import re
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from strobe.errors import FormatError
from strobe.importers.events import Allocations, Events, Int32, Int64
from strobe.model.tables import CATEGORIES

_PIECE_BYTES = 1 << 20
_WINDOW_BYTES = 1 << 14
"""A piece most likely has the end of an event in its last ones."""
_MOST_BYTES = 1 << 26
"""No head, tail or event is longer: what is, is not a trace."""

_START = re.compile(rb'"traceEvents"\s{0,99}:\s{0,99}\[')
_BETWEEN = re.compile(rb'\}\s{0,99}(,)\s{0,99}\{\s{0,99}"ph"\s{0,99}:')
"""Between two events. It cannot be in a string, where the quotes would have backslashes."""

_EXACT_US = float(1 << 43)
"""Below it a float of microseconds still tells nanoseconds apart."""

_OPERATOR, _BACKWARD, _ANNOTATION, _KERNEL, _COPY, _RUNTIME = (
    CATEGORIES.index(name)
    for name in ("operator", "backward", "annotation", "kernel", "copy", "runtime")
)
_KINDS = {
    "cpu_op": _OPERATOR,
    "user_annotation": _ANNOTATION,
    "kernel": _KERNEL,
    "gpu_memcpy": _COPY,
    "gpu_memset": _COPY,
    "cuda_runtime": _RUNTIME,
    "cuda_driver": _RUNTIME,
    "xpu_runtime": _RUNTIME,
    "xpu_driver": _RUNTIME,
    "mtia_runtime": _RUNTIME,
    "glow_runtime": _RUNTIME,
    "privateuse1_runtime": _RUNTIME,
    "privateuse1_driver": _RUNTIME,
    # Before PyTorch 1.13:
    "Operator": _OPERATOR,
    "Kernel": _KERNEL,
    "Memcpy": _COPY,
    "Memset": _COPY,
    "Runtime": _RUNTIME,
}
_BACKWARD_NAMES = ("autograd::engine", "torch::autograd::")
_ANNOTATION_NAMES = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.")
"""How annotations began when their category was that of operators."""

_NOTHING = Raw(b"")
_APART = b"\0"  # is nowhere in JSON


class _Arguments(Struct, gc=False, frozen=True):
    name: Raw = _NOTHING
    sequence: int = field(default=-1, name="Sequence number")
    forward_thread: int = field(default=-1, name="Fwd thread id")
    shapes: Raw = field(default=_NOTHING, name="Input Dims")
    dtypes: Raw = field(default=_NOTHING, name="Input type")
    strides: Raw = field(default=_NOTHING, name="Input Strides")
    concrete: Raw = field(default=_NOTHING, name="Concrete Inputs")
    correlation: int = -1
    device: int | str = -1
    stream: int | str = -1
    bytes: int = field(default=0, name="Bytes")
    address: int = field(default=0, name="Addr")
    device_kind: int = field(default=0, name="Device Type")
    device_number: int = field(default=-1, name="Device Id")
    allocated_bytes: int = field(default=-1, name="Total Allocated")
    reserved_bytes: int = field(default=-1, name="Total Reserved")


class _Event(Struct, gc=False):
    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments = _Arguments()


class _TextEvent(_Event, gc=False):
    """An event whose times are kept as they are written."""

    ts: Raw = Raw(b"0")  # type: ignore[assignment]
    dur: Raw = Raw(b"0")  # type: ignore[assignment]


class _Document(Struct):
    events: list[_Event] = field(default_factory=list, name="traceEvents")
    base_ns: int = field(default=0, name="baseTimeNanoseconds")


class _TextDocument(_Document):
    events: list[_TextEvent] = field(default_factory=list, name="traceEvents")  # type: ignore[assignment]


_DECODERS = (msgspec.json.Decoder(_Document), msgspec.json.Decoder(_TextDocument))


class _Codes(dict[Any, int]):
    """Numbers what it is asked for, from 0."""

    def __missing__(self, key: Any) -> int:
        code = self[key] = len(self)
        return code


def read(path: Path) -> Events:
    """Return the events of a trace; times are exact.

    Raises FormatError where the file is damaged or no such trace, OSError where it cannot be read.
    """
    reader = _Reader()
    where = 0
    try:
        with path.open("rb") as file:
            compressed = file.peek(2)[:2] == b"\x1f\x8b"
            stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
            for where, document in _documents(stream):  # noqa: B007
                reader.add(document)
        return reader.events()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FormatError(path, f"after byte {where}", f"damaged gzip data ({error})") from None
    except RecursionError:
        raise FormatError(path, f"after byte {where}", "nested too deeply") from None
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise FormatError(path, f"after byte {where}", f"no Kineto trace ({error})") from None


def _documents(stream: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The trace as small documents of the same form, and at which byte each of them ends."""
    text = b""
    done = 0
    opening = b""
    while more := stream.read(max(_PIECE_BYTES, len(text))):
        text += more
        cut = _last_event(text) if opening else _first_event(text)
        if cut:
            end, begin = cut
            yield done + end, opening + text[:end] + b"]}"
            done += begin
            text = text[begin:]
            opening = b'{"traceEvents":['
        elif len(text) > _MOST_BYTES:
            message = f"nothing that ends within {_MOST_BYTES} bytes"
            raise ValueError(message)
    if not opening:
        message = "no traceEvents"
        raise ValueError(message)
    yield done + len(text), opening + text


def _first_event(text: bytes) -> tuple[int, int] | None:
    """Where the head ends and the first event begins."""
    match = _START.search(text)
    return None if match is None else (match.end(), match.end())


def _last_event(text: bytes) -> tuple[int, int] | None:
    """Where the last but one event ends and the last one begins."""
    for window in (_WINDOW_BYTES, len(text)):
        matches = list(_BETWEEN.finditer(text, max(0, len(text) - window)))
        if matches:
            return matches[-1].start(1), matches[-1].end(1)
    return None


class _Reader:
    """Takes the pieces of a trace and holds its columns."""

    def __init__(self) -> None:
        self._exact = False
        self._base_ns = 0
        self._names = _Codes()
        self._attributes = _Codes()
        self._columns = {name: array(code) for name, code in _TYPES.items()}
        told = [part.name for part in fields(Allocations) if part.name != "owner_ns"]
        self._memory = {name: array("q") for name in told}
        self._threads: dict[tuple[int, int], str] = {}
        self._skipped: Counter[str] = Counter()
        # By the code of a name, what it says of the category.
        self._backward: list[bool] = []
        self._annotation: list[bool] = []

    def add(self, text: bytes) -> None:
        """Take one document."""
        document = _DECODERS[self._exact].decode(text)
        latest = 0.0 if self._exact else max([one.ts for one in document.events], default=0.0)
        if latest >= _EXACT_US:
            self._exact = True
            document = _DECODERS[True].decode(text)
        self._base_ns = document.base_ns or self._base_ns
        get = _KINDS.get
        kinds = [get(event.cat, -1) if event.ph == "X" else -1 for event in document.events]
        spans = document.events
        if -1 in kinds:
            spans = [event for event, kind in zip(spans, kinds, strict=True) if kind >= 0]
            for event, kind in zip(document.events, kinds, strict=True):
                if kind < 0:
                    self._add_other(event)
            kinds = [kind for kind in kinds if kind >= 0]
        if spans:
            self._add_spans(spans, np.array(kinds, np.int8))

    def _add_spans(self, spans: list[_Event], category: Any) -> None:
        count = len(self._columns["name"])
        arguments = [event.args for event in spans]
        names = self._names
        name = _int32([names[event.name] for event in spans])
        forward_thread = _int64([one.forward_thread for one in arguments])
        columns = {
            "name": name,
            "category": self._refine(category, name, forward_thread),
            "start_ns": self._times([event.ts for event in spans]),
            "dur_ns": self._times([event.dur for event in spans]),
            "pid": _integers([event.pid for event in spans]),
            "tid": _integers([event.tid for event in spans]),
            "sequence": _int64([one.sequence for one in arguments]),
            "forward_thread": forward_thread,
            "attributes": self._texts(arguments),
        }
        if (category >= _KERNEL).any():
            columns["correlation"] = _int64([one.correlation for one in arguments])
            columns["device"] = _integers([one.device for one in arguments]).astype(np.int32)
            columns["stream"] = _integers([one.stream for one in arguments])
        for key, column in columns.items():
            _pad(self._columns[key], count)
            self._columns[key].frombytes(column.tobytes())

    def _refine(self, category: Any, name: Int32, forward_thread: Int64) -> Any:
        """Tell backward functions and annotations from the operators."""
        for text in list(self._names)[len(self._backward) :]:
            self._backward.append(text.startswith(_BACKWARD_NAMES))
            self._annotation.append(text.startswith(_ANNOTATION_NAMES))
        operator = category == _OPERATOR
        backward = np.array(self._backward)[name] | (forward_thread > 0)
        category[operator & backward] = _BACKWARD
        category[operator & np.array(self._annotation)[name]] = _ANNOTATION
        return category

    def _times(self, times: list[Any]) -> Int64:
        if self._exact:
            return _int64([_exact_ns(text) for text in times])
        us = np.fromiter(times, np.float64, len(times))
        if not (np.abs(us) < _EXACT_US).all():
            message = "a time or a duration of months"
            raise ValueError(message)
        whole = np.floor(us)
        return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)

    def _texts(self, arguments: list[_Arguments]) -> Int32:
        codes = self._attributes
        join = _APART.join
        return np.array(
            [codes[join((one.shapes, one.dtypes, one.strides, one.concrete))] for one in arguments],
            np.int32,
        )

    def _add_other(self, event: _Event) -> None:
        if event.ph == "M":
            if event.name == "thread_name":
                key = (_integer(event.pid), _integer(event.tid))
                self._threads[key] = msgspec.json.decode(event.args.name, type=str)
        elif event.name == "[memory]":
            self._add_memory(event)
        else:
            self._skipped[event.cat or event.name] += 1

    def _add_memory(self, event: _Event) -> None:
        one = event.args
        row = {
            "start_ns": int(self._times([event.ts])[0]),
            "bytes": one.bytes,
            "address": one.address,
            "device": one.device_number if one.device_kind else -1,
            "pid": _integer(event.pid),
            "tid": _integer(event.tid),
            "allocated_bytes": one.allocated_bytes,
            "reserved_bytes": one.reserved_bytes,
        }
        for name, value in row.items():
            self._memory[name].append(value)

    def events(self) -> Events:
        """All that was added."""
        memory = {name: np.array(values, np.int64) for name, values in self._memory.items()}
        memory["device"] = memory["device"].astype(np.int32)
        texts, codes = _attribute_texts(list(self._attributes))
        columns = self._joined()
        columns["attributes"] = codes[columns["attributes"]]
        return Events(
            base_ns=self._base_ns,
            names=list(self._names),
            texts=texts,
            allocations=Allocations(**memory),  # type: ignore[arg-type]
            threads=self._threads,
            skipped=dict(self._skipped),
            **columns,
        )

    def _joined(self) -> dict[str, Any]:
        """The columns; one that only devices have takes no memory where there are none."""
        count = len(self._columns["name"])
        for column in self._columns.values():
            if column:
                _pad(column, count)
        return {
            name: np.asarray(column)
            if column
            else np.broadcast_to(np.array(-1, column.typecode), count)
            for name, column in self._columns.items()
        }


_TYPES = {
    **{"name": "i", "category": "b", "start_ns": "q", "dur_ns": "q", "pid": "q", "tid": "q"},
    **{"sequence": "q", "forward_thread": "q", "correlation": "q", "device": "i"},
    **{"stream": "q", "attributes": "i"},
}


def _pad(column: array[int], count: int) -> None:
    """Fill a column that earlier pieces did not have."""
    if len(column) < count:
        column.extend(array(column.typecode, [-1]) * (count - len(column)))


def _int32(values: list[int]) -> Int32:
    return np.fromiter(values, np.int32, len(values))


def _int64(values: list[int]) -> Int64:
    return np.fromiter(values, np.int64, len(values))


def _attribute_texts(keys: list[bytes]) -> tuple[list[str], Int32]:
    """The attributes as JSON, and which of them each key stands for."""
    texts = _Codes()
    codes = [texts[text] if (text := _attribute_text(key)) else -1 for key in keys]
    return list(texts), np.array(codes, np.int32)


def _attribute_text(key: bytes) -> str:
    pairs = zip(("shapes", "dtypes", "strides", "concrete"), key.split(_APART), strict=True)
    values = {name: msgspec.json.format(value, indent=-1) for name, value in pairs if value}
    inner = ",".join(f'"{name}":{value.decode()}' for name, value in values.items())
    return f"{{{inner}}}" if inner else ""


def _integers(values: list[int | str]) -> Int64:
    try:
        return _int64(values)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return _int64([_integer(value) for value in values])


def _integer(value: int | str) -> int:
    """A number, also where it is written as text: `25738`, `0x0`, `stream 7`."""
    if isinstance(value, int):
        return value
    try:
        return int(value.rpartition(" ")[2], 0)
    except ValueError:
        return -1


def _exact_ns(text: Raw) -> int:
    """Nanoseconds of a decimal number of microseconds."""
    whole, _, part = bytes(text).partition(b".")
    if whole.isdigit() and len(part) <= 3 and (part.isdigit() or not part):
        return int(whole) * 1000 + int(part.ljust(3, b"0"))
    try:
        return round(Decimal(bytes(text).decode()) * 1000)
    except InvalidOperation:
        message = f"{bytes(text[:40])!r} is no time"
        raise ValueError(message) from None
