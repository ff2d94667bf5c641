# SPDX-License-Identifier: Apache-2.0
"""Columns that are too long for memory: they lie in files without names, beside the tables."""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from strobe.store import files
from strobe.store.text_file import TextFile

try:
    from strobe.store import _arrays
except ImportError:  # not built here: what numpy makes itself stays in memory
    _arrays = None  # type: ignore[assignment]

IN_MEMORY_ROWS = 1 << 21
"""The most rows of a column that is kept in memory."""


class Spill:
    """Makes columns: in memory if they are short, else in files.

    The system writes such a file's pages to the disk when memory is scarce, so that they do not
    count as the process's own. A file is gone when its array is, even if the process is killed.
    """

    def __init__(self, folder: Path, in_memory_rows: int = IN_MEMORY_ROWS) -> None:
        self._folder = folder
        self.in_memory_rows = in_memory_rows

    @contextlib.contextmanager
    def large_arrays(self) -> Iterator[None]:
        """Put whatever large arrays numpy makes in this thread meanwhile into files, too.

        So code that computes with whole columns needs no more memory than code that takes them
        part by part. Where the disk has no room, numpy raises MemoryError.
        """
        if _arrays is None:
            yield
            return
        table, least_bytes = _function_table(), self.in_memory_rows * 8
        before = _arrays.begin(table, self._folder, least_bytes, files.LEFT_FREE_BYTES)
        try:
            yield
        finally:
            _arrays.end(table, before)

    def empty(self, rows: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a column to be filled. Raises OSError if the disk has no room for it."""
        if rows <= self.in_memory_rows:
            return np.empty(rows, dtype)
        return self.on_disk(rows, dtype)

    def full(self, rows: int, value: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a column of one value."""
        column = self.empty(rows, dtype)
        column[:] = value
        return column

    def look_up(self, table: npt.NDArray[Any], places: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return table[places]."""
        found = self.empty(len(places), table.dtype)
        for part in self.parts(len(places)):
            found[part] = table[places[part]]
        return found

    def parts(self, rows: int, columns: int = 1) -> list[slice]:
        """Return slices of all rows, each small beside what memory may hold.

        `columns` is how many times as much memory as a column a computation needs for its rows.
        """
        size = max(1, self.in_memory_rows // (2 * columns))
        return [slice(first, min(first + size, rows)) for first in range(0, rows, size)]

    def growing(self, dtype: npt.DTypeLike) -> GrowingColumn:
        """Return a column to be filled bit by bit, whose length is not known beforehand."""
        return GrowingColumn(self._folder, dtype, self.in_memory_rows)

    def texts(self) -> TextFile:
        """Return a sequence of texts to be filled."""
        return TextFile(self._folder)

    def on_disk(self, rows: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return a column to be filled, in a file however short it is."""
        size = rows * np.dtype(dtype).itemsize
        if size == 0:
            return np.empty(rows, dtype)
        files.leave_room(self._folder, size)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            # A page of a file with holes that finds the disk full is a SIGBUS.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.frombuffer(mmap.mmap(file.fileno(), size), dtype)


def _function_table() -> Any:
    """Return numpy's functions for C, whose module has had two names."""
    try:
        module = importlib.import_module("numpy._core._multiarray_umath")
    except ImportError:
        module = importlib.import_module("numpy.core._multiarray_umath")
    return module._ARRAY_API


class GrowingColumn:
    """A column that is filled bit by bit: in memory while it is short, then in a file."""

    def __init__(self, folder: Path, dtype: npt.DTypeLike, in_memory_rows: int) -> None:
        self._folder = folder
        self._in_memory: npt.NDArray[Any] = np.empty(max(1, in_memory_rows // 2), dtype)
        self._rows = self._written = 0
        self._file: IO[bytes] | None = None

    def __len__(self) -> int:
        """Return how many rows there are."""
        return self._rows

    def extend(self, values: npt.NDArray[Any]) -> None:
        """Add rows. Raises OSError if the disk has no room for them."""
        while len(values):
            if self._rows - self._written == len(self._in_memory):
                self._write()
            used = self._rows - self._written
            some, values = np.split(values, [len(self._in_memory) - used])
            self._in_memory[used : used + len(some)] = some
            self._rows += len(some)

    def pad(self, rows: int) -> None:
        """Add rows of -1 until there are so many."""
        if rows > self._rows:
            self.extend(np.broadcast_to(np.int64(-1), rows - self._rows))

    def values(self) -> npt.NDArray[Any]:
        """Return the rows. No more can be added after that."""
        if self._file is None:
            return self._in_memory[: self._rows]
        self._write()
        self._file.flush()
        return np.frombuffer(mmap.mmap(self._file.fileno(), 0), self._in_memory.dtype)

    def _write(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        rows = self._in_memory[: self._rows - self._written]
        files.leave_room(self._folder, rows.nbytes)
        self._file.write(rows.data)
        self._written = self._rows
