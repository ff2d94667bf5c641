# SPDX-License-Identifier: Apache-2.0
"""Texts that are too many for memory: they lie in files without names, beside the tables."""

from __future__ import annotations

import mmap
import tempfile
import weakref
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from strobe.model.arrays import Int64
from strobe.model.texts import Packed, Texts
from strobe.store import files


class TextFile(Texts):
    """Texts in files without names, which are gone with this object."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._content: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._ends: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        for file in (self._content, self._ends):
            weakref.finalize(self, file.close)
        self._size = 0
        self._count = 0
        self._views: tuple[bytes | mmap.mmap, Int64] | None = None

    def __len__(self) -> int:
        """Return how many there are."""
        return self._count

    def extend(self, texts: pl.Series) -> None:
        """Add texts. Raises OSError if the disk has no room for them."""
        if texts.is_empty():
            return
        self._views = None
        ends = self._size + np.cumsum(texts.str.len_bytes().to_numpy().astype(np.int64))
        files.leave_room(self._folder, int(ends[-1]) - self._size + ends.nbytes)
        self._content.write(texts.str.join("").item().encode())
        self._ends.write(ends.tobytes())
        self._size, self._count = int(ends[-1]), self._count + len(texts)

    def text(self, place: int) -> str:
        """Return a text."""
        content, ends = self._map()
        begin = int(ends[place - 1]) if place else 0
        return content[begin : int(ends[place])].decode()

    def packed(self, places: Int64) -> Packed:
        """Return these texts one after the other."""
        content, ends = self._map()
        begins = np.where(places > 0, ends[places - 1], 0)
        lengths = ends[places] - begins
        if (np.diff(places) == 1).all():
            return Packed(lengths, content[int(begins[0]) : int(ends[places[-1]])])
        bounds = zip(begins.tolist(), ends[places].tolist(), strict=True)
        return Packed(lengths, b"".join([content[begin:end] for begin, end in bounds]))

    def _map(self) -> tuple[bytes | mmap.mmap, Int64]:
        if self._views is None:
            self._content.flush()
            self._ends.flush()
            content = b"" if self._size == 0 else _mapped(self._content)
            self._views = content, np.frombuffer(_mapped(self._ends), np.int64)
        return self._views


def _mapped(file: IO[bytes]) -> mmap.mmap:
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
