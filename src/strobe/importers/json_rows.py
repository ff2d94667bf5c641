# SPDX-License-Identifier: Apache-2.0
"""JSON files that are one object, most of it an array of objects: Chrome traces, as columns.

    file = JsonFile(path, stream)
    for batch in file.batches("traceEvents", head=("displayTimeUnit",), outer=("name", "args"),
                              inner=("bytes",)):
        code, texts = file.distinct(batch["name"])
        sizes = file.numbers(batch["args.bytes"])
    file.head  # {"displayTimeUnit": b'"ms"'}

A value is the range of its bytes, decoded only where it is needed, and each text once.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

from strobe.errors import FormatError
from strobe.importers.wire import Ranges, number_texts
from strobe.model.arrays import Int64, Places, UInt8
from strobe.store import files

try:
    from strobe.importers import _json as native

    KIND = "C"
except ImportError:  # not built here: same results, hundreds of times slower
    from strobe.importers import _json_python as native  # type: ignore[no-redef]

    KIND = "Python"

GZIP = b"\x1f\x8b"
"""What files of gzip begin with."""
_ROWS_AT_ONCE = 10000
_WINDOW_BYTES = 1 << 21
_MOST_BYTES = 1 << 26
"""No head, tail or object is longer: what is, is not a trace."""
_LONGEST_WORD = 8
"""What is wrong so near to the end of a window may only be cut off by it: `false`, an escape."""
_ABSENT, _ODD = -(1 << 63), -(1 << 63) + 1
_FAULTS = (
    "",
    "no JSON, or not of the form that a trace has",
    "nested too deeply",
    "a range outside of the file",
)

Batch = Mapping[str, Ranges]


@dataclass(frozen=True)
class Some:
    """Some objects of a batch."""

    batch: Batch
    rows: Places

    def __getitem__(self, key: str) -> Ranges:
        """Return the values of a member."""
        return self.batch[key][self.rows]


def read_string(text: bytes) -> str:
    """Return a string, "" if it is absent; raises MsgspecError if it is none."""
    try:
        return msgspec.json.decode(text, type=str) if text else ""
    except msgspec.DecodeError:
        return _read_lone_surrogates(text)


def _read_lone_surrogates(text: bytes) -> str:
    r"""Return a string with escapes such as \ud83d, which msgspec refuses; raises MsgspecError."""
    try:
        value = json.loads(text.decode())
    except ValueError as error:
        raise msgspec.DecodeError(str(error)) from None
    if not isinstance(value, str):
        message = "not a string"
        raise msgspec.DecodeError(message)
    return value


def read_integer(text: bytes) -> int:
    """Return an integer of any length; raises MsgspecError if it is none."""
    return msgspec.json.decode(text, type=int)


class Meanings(dict[bytes, int]):
    """Numbers that JSON values stand for; each distinct one is looked at once in a file."""

    def __init__(self, file: JsonFile, meaning: Callable[[bytes], int]) -> None:
        super().__init__()
        self._file = file
        self._meaning = meaning

    def __missing__(self, text: bytes) -> int:
        """Find out what a value stands for."""
        number = self[text] = self._meaning(text)
        return number

    def of(self, values: Ranges) -> Int64:
        """Return the number of each value; what is absent is b""."""
        code, texts = self._file.distinct(values)
        found: Int64 = np.array([self[text] for text in texts], np.int64)[code]
        return found


@contextlib.contextmanager
def open_json(path: Path) -> Iterator[JsonFile]:
    """Open a file, or what gzip has compressed in it; raises FormatError for damaged gzip."""
    try:
        with files.open_regular(path) as file:
            is_compressed = file.peek(2)[:2] == GZIP
            stream: Any = gzip.GzipFile(fileobj=file) if is_compressed else file
            yield JsonFile(path, stream)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FormatError(path, "content", f"damaged gzip data ({error})") from None


class JsonFile:
    """A file, of which a window is held at a time; methods raise FormatError if it is damaged."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        """Read from the stream, which is the file or what is compressed in it."""
        self.path = path
        self.head: dict[str, bytes] = {}
        self._stream = stream
        self._data = b""
        self._passed = 0  # bytes before the window
        self._at = 0  # in the window
        self._ended = False

    def batches(
        self, array: str, *, head: Sequence[str], outer: Sequence[str], inner: Sequence[str]
    ) -> Iterator[Batch]:
        """Return the values of members of the array's objects, many objects at a time.

        `inner` are members of the object that the last of the `outer` ones has, and named after it
        in a batch: `args.bytes`. A batch is valid until the next one is asked for. After the last
        one those of the file's own members that are in `head` are in `self.head`.
        """
        keys = [*outer, *inner]
        names = [*outer, *(f"{outer[-1]}.{name}" for name in inner)]
        begin, end = np.empty((2, len(keys), _ROWS_AT_ONCE), np.int64)
        members = (*_joined(keys), len(outer), begin.reshape(-1), end.reshape(-1))
        if not self._read_members(head, array):
            raise FormatError(self.path, "content", f"there is no array {array!r} in it")
        more = True
        while more:
            more, count = self._run(native.rows, *members)
            yield {
                name: Ranges(begin[key, :count], end[key, :count]) for key, name in enumerate(names)
            }
            more = more or self._read_members(head, array)
        while not self._ended:
            self._at = len(self._data)
            self._fill()
            if self._data[self._at :].strip():
                raise FormatError(self.path, f"byte {self._passed}", "more than one JSON value")

    def _read_members(self, head: Sequence[str], array: str) -> bool:
        """Read on to the array, and say whether it came."""
        begin, end = np.full((2, len(head) + 1), -1)
        more, _ = self._run(native.members, *_joined([*head, array]), begin, end)
        for name, first, last in zip(head, begin.tolist(), end.tolist(), strict=False):
            if first >= 0:
                self.head[name] = self._data[first:last]
        return more

    def _run(self, function: Any, *arguments: Any) -> tuple[bool, int]:
        """Read on; what only the end of the window cuts off is read again with more behind it."""
        while True:
            fault, at, more, count, whole = function(self._data, self._at, *arguments)
            is_cut = at >= len(self._data) - _LONGEST_WORD and not self._ended
            if fault and not (count and is_cut):
                if not is_cut:
                    self._check(fault, at)
                self._fill()
                continue
            self._at = whole if fault else at
            return bool(more or fault), count

    def _fill(self) -> None:
        """Take more bytes behind the window, and off it what has been read but for one byte."""
        if len(self._data) - self._at > _MOST_BYTES:
            reason = f"nothing that ends within {_MOST_BYTES} bytes"
            raise FormatError(self.path, f"byte {self._passed + self._at}", reason)
        passed = max(0, self._at - 1)
        more = self._stream.read(max(_WINDOW_BYTES, len(self._data) - passed))
        self._data = self._data[passed:] + more
        self._passed, self._at = self._passed + passed, self._at - passed
        self._ended = not more

    def distinct(self, values: Ranges) -> tuple[Int64, list[bytes]]:
        """Return the number of each value, and the values that have these; absent is b""."""
        if (values.begin < 0).all():
            return np.zeros(len(values), np.int64), [b""]
        code, first = number_texts(self._data, values)
        pairs = zip(values.begin[first].tolist(), values.end[first].tolist(), strict=True)
        return code, [self._data[begin:end] if begin >= 0 else b"" for begin, end in pairs]

    def first_bytes(self, values: Ranges) -> UInt8:
        """Return with which byte each value begins, which tells what it is; 0 for absent."""
        data = np.frombuffer(self._data, np.uint8)
        first: UInt8 = np.where(values.begin < 0, 0, data[np.maximum(values.begin, 0)])
        return first

    def shorten(self, values: Ranges) -> Ranges:
        """Return strings without their quotes, and without what is in brackets at the end."""
        begin, end = values.begin.copy(), values.end.copy()
        fault, at, *_ = native.shorten(self._data, begin, end)
        self._check(fault, at)
        return Ranges(begin, end)

    def numbers(
        self,
        values: Ranges,
        places: int = 0,
        suffix: bytes = b"",
        *,
        absent: int = 0,
        odd: Callable[[bytes], int] = read_integer,
    ) -> Int64:
        """Return numbers times 10 ** places; with a suffix, of strings that end with it.

        What has more places or digits, or another form, is left to `odd`.
        """
        if (values.begin < 0).all():
            return np.full(len(values), absent)
        out = np.empty(len(values), np.int64)
        begin, end = np.ascontiguousarray(values.begin), np.ascontiguousarray(values.end)
        self._check(native.decimals(self._data, begin, end, places, suffix, out), 0)
        for row in np.flatnonzero(out == _ODD).tolist():
            out[row] = odd(self._data[begin[row] : end[row]])
        out[out == _ABSENT] = absent
        return out

    def _check(self, fault: int, at: int) -> None:
        if fault:
            raise FormatError(self.path, f"byte {self._passed + at}", _FAULTS[fault])


def _joined(names: Sequence[str]) -> tuple[bytes, Int64]:
    """Return names one after another, and where each begins and the last one ends."""
    texts = [name.encode() for name in names]
    return b"".join(texts), np.cumsum([0, *map(len, texts)], dtype=np.int64)
