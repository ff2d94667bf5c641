# SPDX-License-Identifier: Apache-2.0
"""The Python twin of native/importers/json.c: same arguments, same results, slower.

It stands in where the extension was not built, and the tests hold the two against each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from strobe.model.arrays import Int64

_WRONG, _TOO_DEEP, _OUTSIDE = range(1, 4)
_ABSENT, _ODD = -(1 << 63), -(1 << 63) + 1
_MOST = ((1 << 63) - 10) // 10 * 10 + 9
_SPACE = re.compile(r"[ \t\n\r]*")
_DECIMAL = re.compile(rb"(-?)(\d+)(?:\.(\d+))?")

_Outcome = tuple[int, int, int, int, int]


class _Fault(Exception):
    def __init__(self, fault: int, at: int) -> None:
        super().__init__(fault, at)
        self.fault, self.at = fault, at


class _Text:
    """A JSON text, one character for each byte."""

    def __init__(self, data: bytes, at: int) -> None:
        self.text = data.decode("latin-1")
        self.at = at
        self._scan: Any = json.JSONDecoder(parse_constant=_refuse).scan_once  # type: ignore[attr-defined]

    def peek(self) -> str:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def take(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise _Fault(_WRONG, self.at)
        self.at += 1

    def skip(self) -> tuple[int, int]:
        """Pass over a value, and return where it begins and ends."""
        self.peek()
        begin = self.at
        try:
            _, self.at = self._scan(self.text, self.at)
        except RecursionError:
            raise _Fault(_TOO_DEEP, begin) from None
        except StopIteration as error:
            raise _Fault(_WRONG, error.value) from None
        except json.JSONDecodeError as error:
            cut = error.msg.startswith("Unterminated")
            raise _Fault(_WRONG, len(self.text) if cut else error.pos) from None
        except ValueError:
            raise _Fault(_WRONG, begin) from None
        return begin, self.at

    def members(self, *, is_first: bool) -> Iterator[bytes]:
        """Return the keys of an object, standing before the value of each."""
        while self.goes_on("}", is_first=is_first):
            if self.peek() != '"':
                raise _Fault(_WRONG, self.at)
            begin, end = self.skip()
            self.take(":")
            self.peek()
            yield self.text[begin + 1 : end - 1].encode("latin-1")
            is_first = False

    def goes_on(self, closing: str, *, is_first: bool) -> bool:
        if self.peek() == closing:
            self.at += 1
            return False
        if not is_first:
            self.take(",")
        return True


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def members(
    data: bytes,
    at: int,
    keys: bytes,
    places: Int64,
    begin: Int64,
    end: Int64,
    /,
) -> _Outcome:
    """Find the values of an object's members, up to an array."""
    wanted = _split(keys, places)
    text = _Text(data, at)
    try:
        if at == 0:
            text.take("{")
        for key in text.members(is_first=at == 0):
            if key == wanted[-1] and text.peek() == "[":
                return 0, text.at + 1, 1, 0, at
            value = text.skip()
            if key in wanted:
                number = wanted.index(key)
                begin[number], end[number] = value
        if text.peek():
            raise _Fault(_WRONG, text.at)
    except _Fault as fault:
        return fault.fault, fault.at, 0, 0, at
    return 0, text.at, 0, 0, at


def rows(
    data: bytes,
    at: int,
    keys: bytes,
    places: Int64,
    outer: int,
    begin: Int64,
    end: Int64,
    /,
) -> _Outcome:
    """Find the values of the members of an array's objects."""
    wanted = _split(keys, places)
    begins, ends = (cells.reshape(len(wanted), -1) for cells in (begin, end))
    text = _Text(data, at)
    row, whole = 0, at

    def read(first: int, last: int) -> None:
        text.take("{")
        for key in text.members(is_first=True):
            number = wanted.index(key, first, last) if key in wanted[first:last] else -1
            start = text.at
            if number == outer - 1 and text.peek() == "{":
                read(outer, len(wanted))
            else:
                text.skip()
            if number >= 0:
                begins[number, row], ends[number, row] = start, text.at

    try:
        for row in range(begins.shape[1]):
            if not text.goes_on("]", is_first=row == 0 and data[at - 1 : at] == b"["):
                return 0, text.at, 0, row, whole
            begins[:, row] = ends[:, row] = -1
            read(0, outer)
            whole = text.at
    except _Fault as fault:
        return fault.fault, fault.at, 0, row, whole
    return 0, whole, 1, begins.shape[1], whole


def _split(keys: bytes, places: Int64) -> list[bytes]:
    return [keys[first:last] for first, last in pairwise(places.tolist())]


def decimals(
    data: bytes,
    begin: Int64,
    end: Int64,
    places: int,
    suffix: bytes,
    out: Int64,
    /,
) -> int:
    """Read numbers of a few decimals."""
    for row, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        if first == -1:
            out[row] = _ABSENT
        elif not 0 <= first <= last <= len(data):
            return _OUTSIDE
        else:
            out[row] = _decimal(data[first:last], places, suffix)
    return 0


def _decimal(value: bytes, places: int, suffix: bytes) -> int:
    if suffix:
        if len(value) < len(suffix) + 2 or value[:1] != b'"' or not value.endswith(suffix + b'"'):
            return _ODD
        value = value[1 : -len(suffix) - 1]
    match = _DECIMAL.fullmatch(value)
    if match is None:
        return _ODD
    sign, whole, part = match.groups(b"")
    total = int(whole + part.ljust(places, b"0"))
    if len(part) > places or total > _MOST:
        return _ODD
    return -total if sign else total


def shorten(data: bytes, begin: Int64, end: Int64, /) -> _Outcome:
    """Take the quotes, and what is in brackets at the end, off strings."""
    for row, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        if first == -1:
            continue
        if not 0 <= first <= last <= len(data):
            return _OUTSIDE, first, 0, 0, 0
        if last - first < 2 or data[first : first + 1] != b'"':
            return _WRONG, first, 0, 0, 0
        text = data[first + 1 : last - 1]
        cut = text.rfind(b"[") if text.endswith(b"]") else -1
        begin[row], end[row] = first + 1, first + 1 + (cut if cut >= 0 else len(text))
    return 0, 0, 0, len(begin), 0
