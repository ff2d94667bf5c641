# SPDX-License-Identifier: Apache-2.0
"""Protobuf messages written from columns: one message for each row, all rows at once.

event = row_by_row([varint(3, start_ns), text(1, names, code)])    # fields of each row's message
nodes = row_by_row([varint(1, ids), message(3, event)])            # a message inside another
trees = gathered(message(2, nodes), owner, count)                  # repeated fields of owners
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from strobe.model.arrays import Float64, Int64, UInt8

_MOST_BYTES = 10  # of a varint
_BYTES = 2  # the wire type of what has a length
_FIXED32 = 5


class Rows(NamedTuple):
    """The bytes of each row, one after the other."""

    data: UInt8
    length: Int64

    def tobytes(self) -> bytes:
        """Return the bytes of all rows."""
        return self.data.tobytes()


def varint(number: int, values: Int64) -> Rows:
    """Return an integer field of each row; negative ones take ten bytes, as in int64."""
    return row_by_row([_constant(_key(number, 0), len(values)), _varints(values)])


def float32(number: int, values: Float64) -> Rows:
    """Return a float field of each row."""
    data = np.ascontiguousarray(values.astype("<f4")).view(np.uint8)
    rows = Rows(data, np.full(len(values), 4))
    return row_by_row([_constant(_key(number, _FIXED32), len(values)), rows])


class Pieces(NamedTuple):
    """Some texts, each of them a field."""

    data: UInt8
    begin: Int64
    length: Int64


def texts(number: int, values: Sequence[str]) -> Pieces:
    """Return string fields, for rows to choose from."""
    encoded = (value.encode(errors="replace") for value in values)
    return pieces(head(number, len(each)) + each for each in encoded)


def pieces(fields: Iterable[bytes]) -> Pieces:
    """Return fields as they are, for rows to choose from."""
    listed = list(fields)
    length = np.array([len(field) for field in listed], np.int64)
    return Pieces(np.frombuffer(b"".join(listed), np.uint8), np.cumsum(length) - length, length)


def chosen(options: Pieces, code: Int64) -> Rows:
    """Return for each row the piece that its code is the place of."""
    length = options.length[code]
    return Rows(options.data[spread(options.begin[code], length)], length)


def message(number: int, inner: Rows) -> Rows:
    """Return each row's bytes as a submessage."""
    key = _constant(_key(number, _BYTES), len(inner.length))
    return row_by_row([key, _varints(inner.length), inner])


def row_by_row(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several columns side by side."""
    length: Int64 = np.add.reduce([part.length for part in parts])
    out = np.empty(int(length.sum()), np.uint8)
    at = np.cumsum(length) - length
    for part in parts:
        out[spread(at, part.length)] = part.data
        at = at + part.length
    return Rows(out, length)


def gathered(rows: Rows, owner: Int64, owners: int) -> Rows:
    """Return the rows of each owner one after the other; they come sorted by owner."""
    return Rows(rows.data, np.bincount(owner, rows.length, owners).astype(np.int64))


def begins(rows: Rows) -> Int64:
    """Return where each row begins, and where the last one ends."""
    return np.append(0, np.cumsum(rows.length))


def part(rows: Rows, at: Int64, first: int, last: int) -> Rows:
    """Return some of the rows; `at` is where they begin."""
    return Rows(rows.data[at[first] : at[last]], rows.length[first:last])


def nothing(rows: int) -> Rows:
    """Return rows without bytes."""
    return Rows(np.zeros(0, np.uint8), np.zeros(rows, np.int64))


def spread(begin: Int64, length: Int64) -> Int64:
    """Return begin[i], begin[i] + 1, ... for the length of each."""
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    steps: Int64 = np.repeat(begin - (ends - length), length) + np.arange(total)
    return steps


def _constant(piece: bytes, rows: int) -> Rows:
    data = np.frombuffer(piece, np.uint8)
    return Rows(np.tile(data, rows), np.full(rows, len(data)))


def _varints(values: Int64) -> Rows:
    left = values.astype(np.int64).view(np.uint64)
    bytes_of = np.empty((len(left), _MOST_BYTES), np.uint8)
    length = np.ones(len(left), np.int64)
    for place in range(_MOST_BYTES):
        bytes_of[:, place] = (left & np.uint64(0x7F)).astype(np.uint8)
        left = left >> np.uint64(7)
        more = left > 0
        if not more.any():
            break
        bytes_of[:, place] |= more.astype(np.uint8) << 7
        length += more
    return Rows(bytes_of[np.arange(_MOST_BYTES) < length[:, None]], length)


def head(number: int, length: int) -> bytes:
    """Return what stands before a string or submessage of this length."""
    return _key(number, _BYTES) + _one(length)


def _one(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _key(number: int, kind: int) -> bytes:
    return _one(number << 3 | kind)
