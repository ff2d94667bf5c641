# SPDX-License-Identifier: Apache-2.0
"""The Python twin of native/importers: same arguments, same results, slower.

It stands in where the extension was not built, and the tests hold the two against each other.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from strobe.model.arrays import Int64

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_OUTSIDE, _CUT_OFF, _LONG_VARINT, _FIELD_ZERO, _UNKNOWN_TYPE, _BEYOND_END = range(1, 7)
_MOST_VARINT = 10

_Outcome = tuple[int, int, int]


class _Fault(Exception):
    def __init__(self, fault: int, at: int) -> None:
        super().__init__(fault, at)
        self.outcome = (fault, at, 0)


class _Field(NamedTuple):
    row: int
    number: int
    type: int
    value: int
    begin: int
    end: int


def find(
    data: bytes | mmap.mmap,
    begin: Int64,
    end: Int64,
    number: int,
    parent: Int64,
    found_begin: Int64,
    found_end: Int64,
    /,
) -> _Outcome:
    """Find all submessages (or strings) of a field and write as many as there is room for."""
    found = 0
    try:
        for field in _fields(data, begin, end):
            if field.number != number or field.type != _BYTES:
                continue
            if found < len(parent):
                parent[found], found_begin[found], found_end[found] = (
                    field.row,
                    field.begin,
                    field.end,
                )
            found += 1
    except _Fault as fault:
        return fault.outcome
    return 0, 0, found


def numbers(
    data: bytes | mmap.mmap,
    begin: Int64,
    end: Int64,
    number: int,
    parent: Int64,
    value: Int64,
    /,
) -> _Outcome:
    """Find all varints of a repeated field and write as many as there is room for."""
    found = 0
    try:
        for field in _fields(data, begin, end):
            if field.number != number or field.type not in (_BYTES, _VARINT):
                continue
            at = field.begin
            while at < field.end:
                bits, at = _varint(data, at, field.end, where=at)
                if found < len(parent):
                    parent[found], value[found] = field.row, _signed(bits)
                found += 1
    except _Fault as fault:
        return fault.outcome
    return 0, 0, found


def number(
    data: bytes | mmap.mmap,
    begin: Int64,
    end: Int64,
    _table: Int64,
    first: Int64,
    code: Int64,
    /,
) -> _Outcome:
    """Number texts, the same ones alike; the table is what the extension needs for it."""
    places: dict[bytes, int] = {}
    for row, (at, until) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        if at != -1 and not 0 <= at <= until <= len(data):
            return _OUTSIDE, row, 0
        text = data[at:until] if at >= 0 else b""
        if text not in places:
            first[len(places)] = row
        code[row] = places.setdefault(text, len(places))
    return 0, 0, len(places)


def columns(
    data: bytes | mmap.mmap,
    begin: Int64,
    end: Int64,
    numbers: Int64,
    kinds: Int64,
    out: Int64,
    /,
) -> _Outcome:
    """Write one row per message and one column after the other."""
    cells = out.reshape(len(numbers), len(begin))
    cells[:] = np.where(np.isin(kinds, (6, 7)), -1, 0)[:, None]
    wanted: dict[int, list[tuple[int, int]]] = {}
    for column, pair in enumerate(zip(numbers.tolist(), kinds.tolist(), strict=True)):
        wanted.setdefault(pair[0], []).append((column, pair[1]))
    try:
        for field in _fields(data, begin, end):
            for column, kind in wanted.get(field.number, ()):
                if _TYPES[kind] in (field.type, None):
                    cells[column, field.row] = _cell(field, kind, int(cells[column, field.row]))
    except _Fault as fault:
        return fault.outcome
    return 0, 0, len(begin)


_TYPES = (_VARINT, _VARINT, _FIXED32, _FIXED64, _FIXED32, _FIXED64, _BYTES, _BYTES, None)
"""Of the kinds, in the order of wire.h."""


def _cell(field: _Field, kind: int, before: int) -> int:
    if kind in (0, 3, 5):
        return _signed(field.value)
    if kind == 1:
        return _signed((field.value >> 1) ^ -(field.value & 1) & (1 << 64) - 1)
    if kind == 4:
        (wide,) = struct.unpack("<f", struct.pack("<I", field.value))
        return int(np.float64(wide).view(np.int64))
    return (field.value, field.begin, field.end, before + 1)[(2, 6, 7, 8).index(kind)]


def _fields(data: bytes | mmap.mmap, begin: Int64, end: Int64) -> Iterator[_Field]:
    for row, (at, until) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        if not 0 <= at <= until <= len(data):
            raise _Fault(_OUTSIDE, row)
        while at < until:
            field = _field(data, at, until, row)
            yield field
            at = field.end


def _field(data: bytes | mmap.mmap, where: int, end: int, row: int) -> _Field:
    key, at = _varint(data, where, end, where)
    number, kind = key >> 3, key & 7
    if number == 0:
        raise _Fault(_FIELD_ZERO, where)
    if kind == _VARINT:
        value, after = _varint(data, at, end, where)
        return _Field(row, number, kind, value, at, after)
    if kind in (_FIXED64, _FIXED32):
        after = at + (8 if kind == _FIXED64 else 4)
        if after > end:
            raise _Fault(_CUT_OFF, where)
        return _Field(row, number, kind, int.from_bytes(data[at:after], "little"), at, after)
    if kind != _BYTES:
        raise _Fault(_UNKNOWN_TYPE, where)
    length, at = _varint(data, at, end, where)
    if length > end - at:
        raise _Fault(_BEYOND_END, where)
    return _Field(row, number, kind, 0, at, at + length)


def _varint(data: bytes | mmap.mmap, at: int, end: int, where: int) -> tuple[int, int]:
    total = 0
    for place in range(_MOST_VARINT):
        if at >= end:
            raise _Fault(_CUT_OFF, where)
        byte = data[at]
        at += 1
        total |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return total & (1 << 64) - 1, at
    raise _Fault(_LONG_VARINT, where)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
