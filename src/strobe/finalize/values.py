# SPDX-License-Identifier: Apache-2.0
"""Attributes that were recorded value by value, as the JSON texts that the tables hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from strobe.model.arrays import Bool, Int32, Int64, Places, UInt32, UInt64
from strobe.model.coded import Coded
from strobe.store import layout
from strobe.store.log import Records
from strobe.store.spill import Spill
from strobe.store.strings import Strings
from strobe.store.text_file import TextFile

LOST_NAME = "(name lost)"
_NOT_FINITE = {"NaN": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
"""JSON has no such numbers: how polars writes a float -> the text that stands for it."""
_WORDS = layout.VALUE_BYTES // 8
_LOOK_ROWS = 4096
"""As many texts are looked at to tell whether they repeat."""
_MOST_BLOCKS = layout.LONGEST_TEXT // layout.VALUE_BYTES


class ValueSets(NamedTuple):
    """The sets of values of one process: `texts[i]` is the JSON of the set `numbers[i]`."""

    numbers: Int64
    """In rising order."""
    texts: pl.Series


class Sets(NamedTuple):
    """The sets of a whole process."""

    texts: TextFile
    numbers: Int64
    """In rising order; where there are gaps among them, one of each set."""
    places: Int32
    """The place in `texts` of each of these."""

    def find(self, numbers: UInt32) -> Int32:
        """Return the places of sets, -1 for those that are lost."""
        found = np.full(len(numbers), -1, np.int32)
        if len(self.numbers):
            place = np.minimum(np.searchsorted(self.numbers, numbers), len(self.numbers) - 1)
            known = self.numbers[place] == numbers
            found[known] = self.places[place[known]]
        return found


class SetReader:
    """Reads the values of a process in parts, in the order in which they lie in its rings."""

    def __init__(self, strings: Strings, spill: Spill) -> None:
        self._strings = strings
        self._spill = spill
        self._rest: list[Records] = []
        self._found: list[tuple[Int64, Int32]] = []
        self._texts = spill.texts()

    def add(self, parts: Sequence[Records]) -> None:
        """Read some records. The last set of them may go on in the next ones."""
        records = np.concatenate([*self._rest, *parts])
        is_last = records["attributes"] == records["attributes"][-1]
        self._rest = [records[is_last]]
        self._read(records[~is_last])

    def read(self) -> Sets:
        """Return all sets."""
        if self._rest:
            self._read(self._rest.pop())
        total = sum(len(numbers) for numbers, _ in self._found)
        every, places = self._spill.empty(total, np.int64), self._spill.empty(total, np.int32)
        first = 0
        for numbers, place in self._found:
            rows = slice(first, first + len(numbers))
            every[rows], places[rows] = numbers, place
            first = rows.stop
        if (every[1:] < every[:-1]).any():  # of several threads
            order = np.argsort(every, kind="stable")
            every[:], places[:] = every[order], places[order]
        return Sets(self._texts, every, places)

    def _read(self, records: Records) -> None:
        sets = read_values([records] if len(records) else [], self._strings)
        first, texts = len(self._texts), sets.texts
        place = np.arange(first, first + len(texts), dtype=np.int32)
        if texts[:_LOOK_ROWS].n_unique() <= min(len(texts), _LOOK_ROWS) // 2:
            distinct = Coded.of(texts)
            texts = pl.Series(distinct.texts, dtype=pl.String)
            place = (first + distinct.codes).astype(np.int32)
        self._texts.extend(texts)
        if self._found:  # what comes after the first may be as long as the log
            kept = (
                self._spill.on_disk(len(place), np.int64),
                self._spill.on_disk(len(place), np.int32),
            )
            kept[0][:], kept[1][:] = sets.numbers, place
            self._found.append(kept)
        else:
            self._found.append((sets.numbers, place))


def read_values(parts: Sequence[Records], strings: Strings) -> ValueSets:
    """Return the sets of values that these records, of kind KIND_VALUE, make up.

    A key or a text that is lost is LOST_NAME or null.
    """
    if not parts:
        return ValueSets(np.zeros(0, np.int64), pl.Series([], dtype=pl.String))
    records = np.concatenate(parts)
    numbers = (records["attributes"] & ~np.uint32(layout.VALUES_BIT)).astype(np.int64)
    if (np.diff(numbers) < 0).any():  # of several threads
        order = np.argsort(numbers, kind="stable")
        records, numbers = records[order], numbers[order]
    first = np.flatnonzero(records["category"] != layout.VALUE_MORE)
    values = _values(records, numbers, first, strings)
    keys = _by_distinct(records["name"][first], lambda key: _quote(strings.get(key, LOST_NAME)))
    pairs = pl.select(pl.concat_str(keys, pl.lit(":"), values)).to_series()
    return _join(numbers[first], pairs)


def _join(numbers: Int64, pairs: pl.Series) -> ValueSets:
    """Put the pairs of each set into one object."""
    begins = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)])
    sizes = np.diff(np.append(begins, len(numbers)))
    texts: list[pl.Series] = []
    rows: list[Int64] = []
    for size in np.unique(sizes).tolist():
        chosen = np.flatnonzero(sizes == size)
        members = [pairs.gather(begins[chosen] + place) for place in range(size)]
        joined = pl.concat_str([pl.lit("{"), pl.concat_str(members, separator=","), pl.lit("}")])
        texts.append(pl.select(joined).to_series())
        rows.append(chosen)
    if len(rows) <= 1:
        return ValueSets(numbers[begins], texts[0] if texts else pairs)
    order = np.argsort(np.concatenate(rows))
    return ValueSets(numbers[begins], pl.concat(texts).gather(order))


def _values(records: Records, numbers: Int64, first: Int64, strings: Strings) -> pl.Series:
    """Return the JSON of each value; `first` are the rows that values begin with."""
    kinds = records["category"][first]
    found = _nulls(len(first))
    read: Mapping[int, Callable[[Int64], pl.Series]] = {
        layout.VALUE_INT: lambda rows: _ints(records["dur_ns"][rows]),
        layout.VALUE_FLOAT: lambda rows: _floats(records["dur_ns"][rows]),
        layout.VALUE_BOOL: lambda rows: _bools(records["dur_ns"][rows] != 0),
        layout.VALUE_TEXT: lambda rows: _texts(records, numbers, rows),
        layout.VALUE_STRING: lambda rows: _by_distinct(
            records["lane"][rows], lambda text: _quote(strings.get(text))
        ),
    }
    for kind, values in read.items():
        places = np.flatnonzero(kinds == kind)
        if len(places) == len(first):
            return values(first)
        if len(places):
            found = found.scatter(places, values(first[places]))
    return found


def _nulls(count: int) -> pl.Series:
    nulls: pl.Series = pl.repeat("null", count, dtype=pl.String, eager=True)
    return nulls


def _ints(bits: UInt64) -> pl.Series:
    texts: pl.Series = pl.Series(bits.view(np.int64)).cast(pl.String)
    return texts


def _floats(bits: UInt64) -> pl.Series:
    texts: pl.Series = pl.Series(bits.view(np.float64)).cast(pl.String).replace(_NOT_FINITE)
    return texts


def _bools(values: Bool) -> pl.Series:
    return _gather(["false", "true"], values.astype(np.intp))


def _texts(records: Records, numbers: Int64, rows: Int64) -> pl.Series:
    """Return the texts that begin at these rows; one that is cut off is null."""
    length = records["window"][rows].astype(np.int64)
    blocks = np.maximum(1, -(-length // layout.VALUE_BYTES))
    found = _nulls(len(rows))
    for count in range(1, _MOST_BLOCKS + 1):  # more are none of ours
        chosen = np.flatnonzero((blocks == count) & (rows + count <= len(records)))
        begins = rows[chosen]
        whole = np.ones(len(begins), bool)
        words = np.zeros((len(begins), 1 + count * _WORDS), np.uint64)
        words[:, 0] = length[chosen]
        for block in range(count):
            row = begins + block
            words[:, 1 + block * _WORDS] = records["start_ns"][row]
            words[:, 2 + block * _WORDS] = records["dur_ns"][row]
            if block:
                whole &= (records["category"][row] == layout.VALUE_MORE) & (
                    numbers[row] == numbers[begins]
                )
        if len(begins):
            found = found.scatter(chosen[whole], _decode(words[whole]))
    return found


def _decode(words: UInt64) -> pl.Series:
    """Return texts as JSON: a row is the length in bytes, and these bytes."""
    width = words.shape[1]
    rows = np.ascontiguousarray(words).view(np.dtype((np.void, 8 * width))).reshape(-1)
    distinct, places = np.unique(rows, return_inverse=True)
    texts = []
    for row in distinct:
        content = row.tobytes()
        length = int.from_bytes(content[:8], "little")
        texts.append(_quote(content[8 : 8 + length].decode(errors="replace")))
    return _gather(texts, places.reshape(-1))


def _by_distinct(numbers: UInt32, text_of: Callable[[int], str]) -> pl.Series:
    distinct, places = np.unique(numbers, return_inverse=True)
    return _gather([text_of(number) for number in distinct.tolist()], places.reshape(-1))


def _gather(texts: Sequence[str], places: Places) -> pl.Series:
    gathered: pl.Series = pl.Series(texts, dtype=pl.String).gather(places)
    return gathered


def _quote(text: Any) -> str:
    """Return a text, or None, as ASCII JSON."""
    return json.dumps(text)
