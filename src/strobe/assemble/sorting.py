# SPDX-License-Identifier: Apache-2.0
"""Rows sorted by start in bounded memory: sorted runs are spilled, and merged range by range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.model.arrays import Int64, Places
from strobe.model.trace import Columns, SharedTexts, concatenate
from strobe.store.spill import Spill

_Batch = TypeVar("_Batch", bound=Columns)
_SAMPLE_ROWS = 1024
"""One start of as many is looked at to choose the ranges."""


class Sorter(Generic[_Batch]):
    """Sorts batches of rows by start, the longer ones first; what is equal stays as it came."""

    def __init__(self, spill: Spill, kind: type[_Batch]) -> None:
        self._spill = spill
        self._kind = kind
        self._waiting: list[_Batch] = []
        self._runs: list[_Batch] = []
        self._texts = SharedTexts() if "texts" in (each.name for each in fields(kind)) else None

    def add(self, batch: _Batch) -> None:
        """Add rows in any order."""
        if self._texts is not None:
            batch = self._texts.move(batch)
        if self._waiting and sum(map(len, self._waiting)) + len(batch) > self._spill.in_memory_rows:
            self._runs.append(_moved(self._sorted(), self._spill))
        self._waiting.append(batch)

    def rows(self) -> _Batch:
        """Return all rows, sorted. Call it once."""
        last = self._sorted()
        runs, self._runs = [*self._runs, last], []
        rows = last if len(runs) == 1 else merge(runs, self._kind, self._spill)
        texts: dict[str, Any] = {} if self._texts is None else {"texts": self._texts.every}
        return replace(rows, **texts)

    def _sorted(self) -> _Batch:
        rows = concatenate(self._waiting, self._kind)
        self._waiting = []
        return rows.take(_order(rows.start_ns, getattr(rows, "dur_ns", None)))


def merge(
    runs: Sequence[_Batch], kind: type[_Batch], spill: Spill, place: Int64 | None = None
) -> _Batch:
    """Merge runs, each of which is sorted by start. They share their texts.

    place: takes the new number of each row; the rows of the runs are counted one after the other.
    """
    total = sum(map(len, runs))
    columns = {name: spill.empty(total, dtype) for name, dtype in _dtypes(runs, kind).items()}
    first_of = np.cumsum([0, *map(len, runs)])
    for part in _ranges(runs, len(spill.parts(total))):
        into = slice(part.first, part.first + len(part.order))
        for name, column in columns.items():
            found = [
                _cells(getattr(run, name), rows)
                for run, rows in zip(runs, part.slices, strict=True)
            ]
            column[into] = np.concatenate(found)[part.order]
        if place is not None:
            numbers = [
                np.arange(rows.start, rows.stop) + first
                for rows, first in zip(part.slices, first_of[:-1], strict=True)
            ]
            place[np.concatenate(numbers)[part.order]] = np.arange(into.start, into.stop)
    return replace(runs[0], **columns)


class _Range(NamedTuple):
    """Rows that follow each other in the merged table."""

    first: int
    """The number of the first in the merged table."""
    slices: Sequence[slice]
    """Where they are in each run."""
    order: Places
    """The rows of all slices, one slice after the other, in the order of the merged table."""


def _ranges(runs: Sequence[Any], count: int) -> Iterator[_Range]:
    """Yield the ranges of a merged table, about `count`; equal starts are in one."""
    has_length = all(hasattr(run, "dur_ns") for run in runs)
    bounds = _bounds([run.start_ns for run in runs], count)
    cuts = [[0, *np.searchsorted(run.start_ns, bounds).tolist(), len(run)] for run in runs]
    first = 0
    for number in range(len(bounds) + 1):
        slices = [slice(*cut[number : number + 2]) for cut in cuts]
        start_ns, dur_ns = (
            np.concatenate(
                [getattr(run, name)[rows] for run, rows in zip(runs, slices, strict=True)]
            )
            for name in ("start_ns", "dur_ns" if has_length else "start_ns")
        )
        yield _Range(first, slices, _order(start_ns, dur_ns if has_length else None))
        first += len(start_ns)


def _bounds(starts: Sequence[Int64], count: int) -> Int64:
    """Return starts that part all of them into about `count` ranges of the same size."""
    samples = np.sort(np.concatenate([each[::_SAMPLE_ROWS] for each in starts]))
    places = np.linspace(0, len(samples), count, endpoint=False).astype(np.intp)
    return np.unique(samples[places[1:]])


def _order(start_ns: Int64, dur_ns: Int64 | None) -> Places:
    order = np.argsort(start_ns, kind="stable")
    if dur_ns is not None and (np.diff(start_ns[order]) == 0).any():
        return np.lexsort((-dur_ns, start_ns))
    return order


def _cells(column: NDArray[Any] | None, rows: slice) -> NDArray[Any]:
    return np.full(rows.stop - rows.start, -1) if column is None else column[rows]


def _dtypes(runs: Sequence[Columns], kind: type[Columns]) -> Mapping[str, Any]:
    """Return the types of the columns that any of the runs has."""
    found = {}
    for each in fields(kind):
        columns = [getattr(run, each.name) for run in runs]
        types = [column.dtype for column in columns if isinstance(column, np.ndarray)]
        if types:
            found[each.name] = np.result_type(*types)
    return found


def _moved(rows: _Batch, spill: Spill) -> _Batch:
    """Return the rows in files."""
    columns: dict[str, Any] = {}
    for name, column in vars(rows).items():
        if isinstance(column, np.ndarray):
            columns[name] = spill.on_disk(len(column), column.dtype)
            columns[name][:] = column
    return replace(rows, **columns)
