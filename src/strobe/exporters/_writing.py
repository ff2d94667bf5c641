# SPDX-License-Identifier: Apache-2.0
"""The loops that make bytes, in C or in Python, and what their bytes go through."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable, Iterator
from typing import IO

try:
    from strobe.exporters import _writers as writers

    KIND = "C"
except ImportError:  # not built here: same bytes, 10 us instead of 0.05 us per row
    from strobe.exporters import _writers_python as writers  # type: ignore[no-redef]

    KIND = "Python"

__all__ = ["KIND", "Room", "compressed", "writers"]

_ROOM_BYTES = 1 << 20  # what is written at a time: it stays in the cache


@contextlib.contextmanager
def compressed(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """Compress what is written: level 1, as more would take longer than all the rest."""
    with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed:
        yield packed  # type: ignore[misc]


class Room:
    """The bytes that a writer fills again and again."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._bytes = bytearray(_ROOM_BYTES)

    def fill(self, write: Callable[[bytearray, int], tuple[int, int]], rows: int) -> None:
        """Write all rows: `write` gets room and the first row, returns the next and bytes used."""
        first = 0
        while first < rows:
            after, used = write(self._bytes, first)
            with memoryview(self._bytes) as view:
                self._file.write(view[:used])
            if after == first:
                self._bytes = bytearray(2 * len(self._bytes))
            first = after
        if len(self._bytes) > 16 * _ROOM_BYTES:
            self._bytes = bytearray(_ROOM_BYTES)
