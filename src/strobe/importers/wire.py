# SPDX-License-Identifier: Apache-2.0
"""Protobuf messages read into columns, without a schema compiler and without objects per message.

A file with `message File { repeated Event events = 1; }` and
`message Event { int64 start = 1; double weight = 2; string name = 3; }` is read so:

    file = WireFile(path)
    events = file.find(file.whole, 1)
    start, weight, name = file.columns(events.ranges, [(1, "varint"), (2, "double"), (3, "bytes")])
    texts = file.texts(name)

A string or a submessage is the range of its bytes, decoded only where it is needed.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from strobe.errors import FormatError
from strobe.model.arrays import Int64
from strobe.store import files

try:
    from strobe.importers import _wire as native

    KIND = "C"
except ImportError:  # not built here: same results, hundreds of times slower
    from strobe.importers import _wire_python as native  # type: ignore[no-redef]

    KIND = "Python"

_FEW_BYTES = 16

Kind = Literal["varint", "zigzag", "fixed32", "fixed64", "float", "double", "bytes", "count"]

# In the order of native/importers/wire.h; "bytes" is two columns there.
_KINDS = ("varint", "zigzag", "fixed32", "fixed64", "float", "double", "begin", "end", "count")
_FAULTS = (
    "",
    "a range outside of the file",
    "cut off",
    "a number of more than 10 bytes",
    "a field with number 0",
    "a field of a type that is not known",
    "a length that leads beyond the end of its message",
)


@dataclass(frozen=True)
class Ranges:
    """Pieces of a file: where each begins and ends; -1 where there is none."""

    begin: Int64
    end: Int64

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.begin)

    def __getitem__(self, rows: Any) -> Ranges:
        """Return those that a numpy index or mask picks."""
        return Ranges(np.ascontiguousarray(self.begin[rows]), np.ascontiguousarray(self.end[rows]))

    def or_empty(self) -> Ranges:
        """Return them with an empty one where there is none, to be searched."""
        return Ranges(np.maximum(self.begin, 0), np.maximum(self.end, 0))


@dataclass(frozen=True)
class Found:
    """Submessages, in the file's order."""

    parent: Int64
    """In which of the messages that were searched each lies."""
    ranges: Ranges


class WireFile:
    """The bytes of a file of protobuf messages; every method raises FormatError if damaged."""

    def __init__(self, path: Path) -> None:
        """Map the file, which may be larger than memory; OSError if it cannot be."""
        self.path = path
        self.data = files.map_bytes(path)
        self.whole = Ranges(np.array([0]), np.array([len(self.data)]))

    def find(self, within: Ranges, number: int) -> Found:
        """Return all submessages, or strings, with this field number of the messages `within`."""
        # Most have more bytes than these; memory that is not written to costs nothing.
        room = max(0, int((within.end - within.begin).sum())) // _FEW_BYTES + 16
        arrays = _empty(3, room)
        count = self._run(native.find, within, number, *arrays)
        if count > room:
            arrays = _empty(3, count)
            self._run(native.find, within, number, *arrays)
        parent, begin, end = (array[:count] for array in arrays)
        return Found(parent, Ranges(begin, end))

    def numbers(self, within: Ranges, number: int) -> tuple[Int64, Int64]:
        """Return a repeated field of varints, packed or not: the message of each, and its value."""
        count = self._run(native.numbers, within, number, *_empty(2, 0))
        parent, value = _empty(2, count)
        self._run(native.numbers, within, number, parent, value)
        return parent, value

    def columns(self, within: Ranges, fields: Sequence[tuple[int, Kind]]) -> list[Any]:
        """Return one column per (number, kind), with one row per message `within`.

        "varint" (also of int32, bool and enums), "zigzag", "fixed32" and "fixed64" are int64,
        "float" and "double" float64, 0 where the field is absent. "bytes" are Ranges. "count" is
        how often the field is there, which tells 0 from absent. Of a field that is there several
        times the last one counts; one whose type on the wire is not that of its kind is ignored.
        An unsigned number of 64 bits has the bits of the int64: `.view(np.uint64)`.
        """
        plain = [pair for field in fields for pair in _split(*field)]
        numbers = np.array([number for number, _ in plain], np.int64)
        kinds = np.array([_KINDS.index(kind) for _, kind in plain], np.int64)
        out = np.empty(len(plain) * len(within), np.int64)
        self._run(native.columns, within, numbers, kinds, out)
        rows = iter(out.reshape(len(plain), len(within)))
        return [_column(kind, rows) for _, kind in fields]

    def number(self, texts: Ranges) -> tuple[Int64, Int64]:
        """Number texts, the same ones alike: the number of each, and where each number is first."""
        return number_texts(self.data, texts)

    def texts(self, ranges: Ranges) -> list[str]:
        """Return strings; "" where there is none, and � for what is not UTF-8."""
        pairs = zip(ranges.begin.tolist(), ranges.end.tolist(), strict=True)
        return [
            self.data[begin:end].decode(errors="replace") if begin >= 0 else ""
            for begin, end in pairs
        ]

    def _run(self, function: Any, within: Ranges, *arguments: Any) -> int:
        fault, at, count = function(self.data, within.begin, within.end, *arguments)
        if fault:
            where = f"message {at}" if fault == 1 else f"byte {at}"
            raise FormatError(self.path, where, _FAULTS[fault])
        return int(count)


def number_texts(data: bytes | mmap.mmap, texts: Ranges) -> tuple[Int64, Int64]:
    """Number texts that lie in the data, as WireFile.number does."""
    code, first = _empty(2, len(texts))
    (table,) = _empty(1, 1 << (2 * len(texts)).bit_length())
    _, _, count = native.number(data, texts.begin, texts.end, table, first, code)
    return code, first[:count].copy()


def _empty(arrays: int, rows: int) -> list[Int64]:
    return [np.empty(rows, np.int64) for _ in range(arrays)]


def _split(number: int, kind: Kind) -> list[tuple[int, str]]:
    return [(number, "begin"), (number, "end")] if kind == "bytes" else [(number, kind)]


def _column(kind: Kind, rows: Any) -> Any:
    if kind == "bytes":
        return Ranges(next(rows), next(rows))
    column = next(rows)
    return column.view(np.float64) if kind in ("float", "double") else column
