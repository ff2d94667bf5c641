# SPDX-License-Identifier: Apache-2.0
"""The trace of PyTorch's own profiler (Kineto): JSON, plain or compressed with gzip.

{"schemaVersion": 1, "baseTimeNanoseconds": ..., "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 70, "tid": 71, "ts": 3928083140091.849,
   "dur": 21149.776, "args": {"Sequence number": 5, "Input Dims": [[2, 3], [3, 4]]}}, ...
], "traceName": ... }
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from strobe.errors import FormatError
from strobe.importers.columns import Blocks, Events, to_trace
from strobe.importers.json_rows import (
    Batch,
    JsonFile,
    Meanings,
    Some,
    open_json,
    read_integer,
    read_string,
)
from strobe.importers.wire import Ranges
from strobe.model.arrays import Int8, Int32, Int64
from strobe.model.attributes import CONCRETE, DTYPES, SHAPES
from strobe.model.interning import Interner
from strobe.model.tables import CATEGORIES
from strobe.model.text import escape
from strobe.model.texts import Attributes
from strobe.model.trace import Trace
from strobe.store.places import scratch_folder
from strobe.store.spill import Spill

_MOST_US = float(1 << 53)
"""No time is later, nor any duration longer."""

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

NAME = "kineto"
_HEAD = re.compile(
    rb'"schemaVersion"\s*:\s*1\s*[,}]|"cat"\s*:\s*"(' + "|".join(_KINDS).encode() + rb')"'
)
"""Distinguishes it from other Chrome traces: its version is a number, its categories are known."""
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_BASE, _DISTRIBUTED, _HOST_NAME = "baseTimeNanoseconds", "distributedInfo", "host_name"
_NO_ADDRESSES = (
    "blocks of memory have no addresses in it: their sum is known, not which of them was freed",
)

_APART = b"\0"  # is nowhere in JSON
_LASTING, _METADATA = 0, 1
_PHASES = {"X": _LASTING, "M": _METADATA}
_MEMORY = "[memory]"
_EVENT = ("ph", "name", "cat", "pid", "tid", "ts", "dur", "args")
_GIVEN = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
_INTEGERS = ("Bytes", "Addr", "Device Type", "Device Id", "Total Allocated", "Total Reserved")
_ARGUMENTS = (
    *("name", "Sequence number", "Fwd thread id", "correlation", "device", "stream"),
    *(*_GIVEN, *_INTEGERS),
)


def sniff(_path: Path, head: bytes) -> bool:
    """Say whether a file that begins so is such a trace."""
    return head.lstrip()[:1] == b"{" and _HEAD.search(head) is not None


def read(path: Path) -> Trace:
    """Return a trace; times are exact.

    Raises FormatError where the file is damaged or no such trace, OSError where it cannot be read.
    """
    try:
        with open_json(path) as file:
            return _read(file)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise FormatError(path, "content", f"no Kineto trace ({error})") from None


def _read(file: JsonFile) -> Trace:
    reader = _Reader(file)
    head = (_BASE, _HOST_NAME, _DISTRIBUTED)
    for batch in file.batches("traceEvents", head=head, outer=_EVENT, inner=_ARGUMENTS):
        reader.add(batch)
    return reader.trace()


def _host(head: Mapping[str, bytes]) -> dict[str, str]:
    host = head.get(_HOST_NAME)
    return {} if host is None else {"host": escape(read_string(host))}


def _ranks(text: bytes) -> dict[str, int]:
    """Return rank and world_size, as far as they are given."""
    info = msgspec.json.decode(text) if text else {}
    if not isinstance(info, dict):
        return {}
    return {key: info[key] for key in ("rank", "world_size") if isinstance(info.get(key), int)}


class _Reader:
    """Takes the batches of a trace and holds its columns."""

    def __init__(self, file: JsonFile) -> None:
        self._file = file
        self._names, self._categories, self._attributes = (
            Interner[Any](),
            Interner[Any](),
            Interner[Any](),
        )
        self._spill = spill = Spill(scratch_folder())
        self._columns = {name: spill.growing(kind) for name, kind in _TYPES.items()}
        given = [part.name for part in fields(Blocks) if part.name != "owner_ns"]
        self._memory = {name: spill.growing(np.int64) for name in given}
        self._threads: dict[tuple[int, int], str] = {}
        self._skipped: Counter[str] = Counter()
        # By the code of a name, what it says of the category.
        self._backward: list[bool] = []
        self._annotation: list[bool] = []
        self._phase = Meanings(file, lambda text: _PHASES.get(read_string(text), -1))
        self._category = Meanings(file, lambda text: self._categories[read_string(text)])
        self._name = Meanings(file, lambda text: self._names[read_string(text)])
        self._number = Meanings(file, _integer)
        values = (Interner[Any]() for _ in _GIVEN)
        self._given = [Meanings(file, codes.__getitem__) for codes in values]
        self._pairs = [Interner[Any]() for _ in _GIVEN]

    def add(self, batch: Batch) -> None:
        """Take some events."""
        if not np.isin(self._file.first_bytes(batch["args"]), (0, ord("{"))).all():
            message = "arguments that are no object"
            raise ValueError(message)
        phase = self._phase.of(batch["ph"])
        code, name = self._category.of(batch["cat"]), self._name.of(batch["name"])
        kinds = np.array([_KINDS.get(text, -1) for text in self._categories], np.int8)
        kind = np.where(phase == _LASTING, kinds[code], -1)
        spans = np.flatnonzero(kind >= 0)
        if len(spans):
            self._add_spans(Some(batch, spans), name[spans].astype(np.int32), kind[spans])
        if len(spans) < len(kind):
            self._add_others(batch, np.flatnonzero(kind < 0), phase, name, code)

    def _add_spans(self, some: Some, name: Int32, category: Int8) -> None:
        count = len(self._columns["name"])
        file = self._file
        forward_thread = file.numbers(some["args.Fwd thread id"], absent=-1)
        columns = {
            "name": name,
            "category": self._refine(category, name, forward_thread),
            "start_ns": file.numbers(some["ts"], 3, odd=_exact_ns),
            "dur_ns": file.numbers(some["dur"], 3, odd=_exact_ns),
            "pid": self._number.of(some["pid"]),
            "tid": self._number.of(some["tid"]),
            "sequence": file.numbers(some["args.Sequence number"], absent=-1),
            "attributes": self._texts([some[f"args.{key}"] for key in _GIVEN]),
        }
        if (category >= _KERNEL).any():
            columns["correlation"] = file.numbers(some["args.correlation"], absent=-1)
            columns["device"] = self._number.of(some["args.device"]).astype(np.int32)
            columns["stream"] = self._number.of(some["args.stream"])
        for key, column in columns.items():
            self._columns[key].pad(count)
            self._columns[key].extend(column)

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

    def _texts(self, given: Sequence[Ranges]) -> Int32:
        """Return the numbers of what operators were given, all of it together."""
        both = np.zeros(len(given[0]), np.int64)
        for meanings, pairs, values in zip(self._given, self._pairs, given, strict=True):
            code = meanings.of(values)
            known = len(meanings)
            found, where = np.unique(both * known + code, return_inverse=True)
            before, last = (numbers.tolist() for numbers in np.divmod(found, known))
            numbered = [pairs[pair] for pair in zip(before, last, strict=True)]
            both = np.array(numbered, np.int64)[where.reshape(-1)]
        return both.astype(np.int32)

    def _add_others(
        self, batch: Batch, rows: Int64, phase: Int64, name: Int64, category: Int64
    ) -> None:
        names, categories = list(self._names), list(self._categories)
        memory = self._names.get(_MEMORY, -1)
        is_memory = (name[rows] == memory) & (phase[rows] != _METADATA)
        if is_memory.any():
            self._add_memory(Some(batch, rows[is_memory]))
        rows = rows[~is_memory]
        for row in rows[phase[rows] == _METADATA].tolist():
            if names[name[row]] == "thread_name":
                process, thread = (self._number.of(batch[key][[row]])[0] for key in ("pid", "tid"))
                (text,) = self._file.distinct(batch["args.name"][[row]])[1]
                self._threads[int(process), int(thread)] = msgspec.json.decode(text, type=str)
        skipped = rows[phase[rows] != _METADATA]
        for pair, count in Counter(
            zip(category[skipped].tolist(), name[skipped].tolist(), strict=True)
        ).items():
            self._skipped[categories[pair[0]] or names[pair[1]]] += count

    def _add_memory(self, some: Some) -> None:
        size, address, kind, number, allocated, reserved = (
            self._file.numbers(some[f"args.{key}"], absent=absent)
            for key, absent in zip(_INTEGERS, (0, -1, 0, -1, -1, -1), strict=True)
        )
        columns = {
            "start_ns": self._file.numbers(some["ts"], 3, odd=_exact_ns),
            "bytes": size,
            "address": address,
            "device": np.where(kind != 0, number, -1),
            "pid": self._number.of(some["pid"]),
            "tid": self._number.of(some["tid"]),
            "allocated_bytes": allocated,
            "reserved_bytes": reserved,
        }
        for key, column in columns.items():
            self._memory[key].extend(column)

    def trace(self) -> Trace:
        """All that was added."""
        memory = {name: column.values() for name, column in self._memory.items()}
        memory["device"] = memory["device"].astype(np.int32)
        texts, codes = _attribute_texts(self._all_given())
        columns = self._joined()
        steps = np.array([_step_number(name) for name in self._names] or [-1], np.int64)
        if (steps >= 0).any():
            columns["step"] = self._spill.look_up(steps, columns["name"])
        columns["attributes"] = self._spill.look_up(codes, columns["attributes"])
        head = self._file.head
        return to_trace(
            Events(names=list(self._names), texts=Attributes(texts), **columns),
            blocks=Blocks(**memory),
            threads=self._threads,
            base_ns=read_integer(head.get(_BASE, b"0")),
            metadata={**_host(head), **_ranks(head.get(_DISTRIBUTED, b""))},
            skipped=self._skipped,
            notes=_NO_ADDRESSES if (memory["address"] == -1).any() else (),
        )

    def _all_given(self) -> list[bytes]:
        """Return the values that the numbers of _texts() stand for, one after the other."""
        texts: list[bytes] = [b""]
        for meanings, pairs in zip(self._given, self._pairs, strict=True):
            values = {number: text for text, number in meanings.items()}
            texts = [texts[before] + _APART + values[code] for before, code in pairs]
        return [text[1:] for text in texts]

    def _joined(self) -> dict[str, Any]:
        """The columns; one that only devices have takes no memory where there are none."""
        count = len(self._columns["name"])
        joined: dict[str, Any] = {}
        for name, column in self._columns.items():
            if len(column):
                column.pad(count)
            nothing = np.broadcast_to(np.array(-1, _TYPES[name]), count)
            joined[name] = column.values() if len(column) else nothing
        return joined


_TYPES = {
    **{"name": np.int32, "category": np.int8, "start_ns": np.int64, "dur_ns": np.int64},
    **{"pid": np.int64, "tid": np.int64, "sequence": np.int64, "correlation": np.int64},
    **{"device": np.int32, "stream": np.int64, "attributes": np.int32},
}


def _step_number(name: str) -> int:
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else -1


def _attribute_texts(keys: list[bytes]) -> tuple[list[str], Int32]:
    """The attributes as JSON, and which of them each key stands for."""
    texts = Interner[Any]()
    codes = [texts[text] if (text := _attribute_text(key)) else -1 for key in keys]
    return list(texts), np.array(codes, np.int32)


def _attribute_text(key: bytes) -> str:
    pairs = zip((SHAPES, DTYPES, "strides", CONCRETE), key.split(_APART), strict=True)
    values = {name: msgspec.json.format(value, indent=-1) for name, value in pairs if value}
    inner = ",".join(f'"{name}":{value.decode()}' for name, value in values.items())
    return f"{{{inner}}}" if inner else ""


def _integer(text: bytes) -> int:
    """A number, also where it is written as text: `25738`, `0x0`, `stream 7`; -1 if it is none."""
    value = msgspec.json.decode(text, type=int | str) if text else -1
    if isinstance(value, int):
        return value
    try:
        return int(value.rpartition(" ")[2], 0)
    except ValueError:
        return -1


def _exact_ns(text: bytes) -> int:
    """Nanoseconds of a decimal number of microseconds."""
    if not abs(float(text)) < _MOST_US:
        message = f"{text[:40]!r} is no time"
        raise ValueError(message)
    return round(Decimal(text.decode()) * 1000)
