# SPDX-License-Identifier: Apache-2.0
"""Readers for files that other profilers wrote: one module per format, all in one list.

Each has a `NAME`, `sniff(path, head)`, which says whether it can read a file that begins with these
bytes, and `read(path)`, which returns a Trace.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Protocol

from strobe.errors import FormatError
from strobe.importers import kineto, minddata, mindspore, paddle, paddle_json, xspace
from strobe.importers.json_rows import GZIP
from strobe.model.trace import Trace
from strobe.store import files

_HEAD_BYTES = 1 << 16
_MOST_TRIED = 200
"""The most files to look at in a folder that cannot be opened itself."""
_GZIP_WINDOW = 31  # as zlib numbers it


class Importer(Protocol):
    """A module that reads a format."""

    NAME: str

    def sniff(self, path: Path, head: bytes, /) -> bool:
        """Say whether a file or folder has this format; the head of a folder is empty."""

    def read(self, path: Path, /) -> Trace:
        """Return what the file holds; raises FormatError if it is damaged, and OSError."""


IMPORTERS: tuple[Importer, ...] = (paddle_json, kineto, paddle, xspace, mindspore, minddata)
"""In this order, since Paddle's files are Chrome traces as Kineto's are."""


def find_importer(path: Path) -> Importer:
    """Return the importer for a file or folder.

    Raises FormatError if there is none, and OSError.
    """
    found = _sniff(path)
    if found is not None:
        return found
    known = ", ".join(importer.NAME for importer in IMPORTERS)
    what = "neither a recording nor a folder that holds one, nor" if path.is_dir() else "not"
    reason = f"{what} of a format that strobe reads ({known})"
    inside = _newest_inside(path)
    if inside is not None:
        reason += f"; open {os.fspath(inside.relative_to(path))!r} in it"
    raise FormatError(path, "content", reason)


def _sniff(path: Path) -> Importer | None:
    head = b"" if path.is_dir() else read_head(path)
    return next((importer for importer in IMPORTERS if importer.sniff(path, head)), None)


def _newest_inside(folder: Path) -> Path | None:
    """Return what can be opened in a folder, or further down, and was written last."""
    found: list[Path] = []
    level, tried = [folder], 0
    while level and not found and tried < _MOST_TRIED:
        inside = [path for each in level for path in files.list_folder(each)][:_MOST_TRIED]
        found = list(filter(_can_be_read, inside))
        tried += len(inside)
        level = list(filter(files.is_folder, inside))
    return max(found, key=lambda path: path.lstat().st_mtime_ns, default=None)


def _can_be_read(path: Path) -> bool:
    try:
        return (files.is_regular(path) or files.is_folder(path)) and _sniff(path) is not None
    except OSError:
        return False


def read_head(path: Path) -> bytes:
    """Return the first bytes of a file, or of the JSON that is compressed in it."""
    with files.open_regular(path) as file:
        head: bytes = file.read(_HEAD_BYTES)
    if head[:2] != GZIP:
        return head
    try:
        inner = zlib.decompressobj(wbits=_GZIP_WINDOW).decompress(head, _HEAD_BYTES)
    except zlib.error:
        return head
    return inner if inner.lstrip()[:1] == b"{" else head
