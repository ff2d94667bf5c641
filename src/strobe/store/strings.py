# SPDX-License-Identifier: Apache-2.0
"""The texts that a process has defined in its log, by number."""

from __future__ import annotations

import mmap
import tempfile
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import overload

import numpy as np

from strobe.model.arrays import UInt32
from strobe.store.spill import Spill

_AT_ONCE = 1 << 16


class Strings:
    """Texts that stay in the file that defines them; only where each one lies is kept.

    Numbers most often rise by one. They may be any, and a text that has the number of an earlier
    one takes its place.
    """

    def __init__(self, content: bytes | mmap.mmap = b"", spill: Spill | None = None) -> None:
        spill = Spill(Path(tempfile.gettempdir())) if spill is None else spill
        self._content = content
        self._columns = [spill.growing(np.int64) for _ in range(3)]
        self._latest = [array("q") for _ in self._columns]
        self._number = self._begin = self._end = np.zeros(0, np.int64)
        self._is_dense = True

    @staticmethod
    def of(texts: Mapping[int, str]) -> Strings:
        """Return these texts."""
        encoded = [text.encode("utf-8", "surrogatepass") for text in texts.values()]
        strings = Strings(b"".join(encoded))
        end = 0
        for number, text in zip(texts, encoded, strict=True):
            strings.add(number, end, end := end + len(text))
        strings.close()
        return strings

    def __len__(self) -> int:
        """Return how many there are, once they are closed."""
        return len(self._number)

    def add(self, number: int, begin: int, end: int) -> None:
        """Add the text that lies there."""
        for values, value in zip(self._latest, (number, begin, end), strict=True):
            values.append(value)
        if len(self._latest[0]) == _AT_ONCE:
            self._store()

    def close(self) -> None:
        """Make all texts ready to be found. No more can be added."""
        self._store()
        columns = [column.values() for column in self._columns]
        number = columns[0]
        if not (number[1:] > number[:-1]).all():
            order = np.argsort(number, kind="stable")
            is_last = np.append(number[order[1:]] != number[order[:-1]], True)[: len(order)]
            columns = [column[order[is_last]] for column in columns]
        self._number, self._begin, self._end = columns
        self._is_dense = not len(self) or int(self._number[-1]) - self._first == len(self) - 1

    def places(self, numbers: UInt32) -> UInt32:
        """Return the place of the text with each of these numbers, len(self) for none."""
        none = np.uint32(len(self))
        if self._is_dense:
            # A smaller number than the first one wraps around to a large one.
            places: UInt32 = np.minimum(numbers - np.uint32(self._first), none)
            return places
        place = np.searchsorted(self._number, numbers).astype(np.uint32)
        is_known = np.append(self._number, -1)[place] == numbers
        return np.where(is_known, place, none)

    def text(self, place: int) -> str:
        """Return the text at a place."""
        content = self._content[int(self._begin[place]) : int(self._end[place])]
        return content.decode("utf-8", "surrogatepass")

    @overload
    def get(self, number: int) -> str | None: ...
    @overload
    def get(self, number: int, default: str) -> str: ...
    def get(self, number: int, default: str | None = None) -> str | None:
        """Return the text with this number."""
        place = number - self._first
        if not self._is_dense:
            place = int(self.places(np.array([number], np.uint32))[0])
        return self.text(place) if 0 <= place < len(self) else default

    @property
    def _first(self) -> int:
        return int(self._number[0]) if len(self._number) else 0

    def _store(self) -> None:
        for column, values in zip(self._columns, self._latest, strict=True):
            column.extend(np.array(values, np.int64))
        self._latest = [array("q") for _ in self._columns]
