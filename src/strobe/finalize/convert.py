# SPDX-License-Identifier: Apache-2.0
"""Converts a foreign file or folder to tables, which are kept in a cache."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strobe import _version
from strobe.assemble.tables import First, Progress, assemble
from strobe.errors import FormatError
from strobe.finalize.run import temporary_folder
from strobe.importers import Importer, find_importer
from strobe.model.text import escape
from strobe.model.trace import Source, Trace
from strobe.store import files, manifest
from strobe.store.cache import Cache, Entry, bound_bytes
from strobe.store.frames import are_whole
from strobe.store.layout import FORMAT_VERSION
from strobe.store.places import cache_folder, scratch_folder
from strobe.store.spill import Spill

_PACKAGE = Path(__file__).resolve().parents[1]
_ROOMS = ("importers", "assemble", "model", "finalize", "store")
"""The rooms whose code decides what the tables hold."""
_IMPORTED = "imported"


@dataclass(frozen=True)
class Converted:
    """The tables of a foreign file; they are kept as long as this object lives."""

    tables: Path
    kept: Entry | None = None


@dataclass(frozen=True)
class Parsed:
    """A file that was parsed already: the importer for its format, and a function for its Trace."""

    importer: Importer
    trace: Callable[[], Trace]


def convert(
    path: Path,
    progress: Progress = lambda _stage, _share: None,
    first: First = lambda _operators: None,
    parsed: Parsed | None = None,
) -> Converted:
    """Return the tables of a file or folder, from the cache if they are there.

    `parsed` saves reading the file again. If the cache cannot be written, the tables go into a
    temporary folder that this process removes when it ends. Raises FormatError if no importer can
    read the file, or if it is damaged.
    """
    path = path.resolve()  # what the user gives may be a link
    try:
        importer = find_importer(path) if parsed is None else parsed.importer
        key = _key(path, importer)
    except OSError as error:
        raise FormatError(path, "file", f"cannot be read ({error.strerror or error})") from error
    cache = _open_cache()
    entry = None if cache is None else cache.find(key, are_whole)
    if entry is not None:
        return Converted(entry.tables, entry)
    progress("reading", 0.0)
    scratch = scratch_folder()
    try:
        with Spill(scratch).large_arrays():
            trace = _described(_read(path, importer, parsed), path, importer)
            return _write(trace, path, cache, key, progress, first)
    except MemoryError as error:
        reason = f"there is too little memory, or less than 1 GiB is free in {str(scratch)!r}"
        raise FormatError(path, "tables", reason) from error


def _read(path: Path, importer: Importer, parsed: Parsed | None) -> Trace:
    try:
        return importer.read(path) if parsed is None else parsed.trace()
    except OSError as error:
        raise FormatError(path, "file", f"cannot be read ({error.strerror or error})") from error


def _write(
    trace: Trace, path: Path, cache: Cache | None, key: str, progress: Progress, first: First
) -> Converted:
    """Write the tables into the cache, or else into a temporary folder."""
    if cache is not None:
        with contextlib.suppress(OSError):  # a full disk
            with cache.writing(key) as folder:
                assemble(trace, folder, progress, first)
            entry = cache.find(key)
            if entry is not None:
                return Converted(entry.tables, entry)
    try:
        with temporary_folder() as folder:
            assemble(trace, folder, progress, first)
    except OSError as error:
        reason = f"its tables cannot be written ({error.strerror or error})"
        raise FormatError(path, "tables", reason) from error
    return Converted(folder)


def _open_cache() -> Cache | None:
    try:
        cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        return Cache(cache_folder() / _IMPORTED, bound_bytes())
    except OSError:
        return None


def _key(path: Path, importer: Importer) -> str:
    """Return a name for the present content of a path as the present code reads it."""
    content = [path, *_inside(path)]
    code = [file for room in _ROOMS for file in sorted((_PACKAGE / room).glob("*.*"))]
    known = [(str(each), *_stamp(each)) for each in (*content, *code)]
    text = repr((importer.NAME, _version.__version__, known))
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def _inside(path: Path) -> list[Path]:
    """Return the files of a folder and of those in it."""
    folders = [path, *files.list_folders(path)]
    return [each for folder in folders for each in files.list_folder(folder)]


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    # Programs can set a file's mtime, but neither its ctime nor its inode.
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _described(trace: Trace, path: Path, importer: Importer) -> Trace:
    """Add what is known about the file as a whole."""
    pids = [thread.pid for thread in trace.threads if thread.pid is not None]
    facts: dict[str, Any] = {
        "name": escape(path.name),
        "id": manifest.new_id(),
        "strobe": _version.__version__,
        "format": FORMAT_VERSION,
        "recorder": manifest.IMPORTED,
        "importer": importer.NAME,
        "file": escape(str(path)),
        "clock": "of the file",
        "host": "",
        "pid": pids[0] if pids else 0,
        "processes": len(set(pids)),
        "first_step": 0,
        "start_ns": trace.start_ns,
        "end_ns": trace.end_ns,
        **trace.metadata,
    }
    source = Source(
        name=importer.NAME,
        source_class="B",
        rows="all",
        notes=[f"read from {escape(path.name)}", *trace.notes],
        skipped=trace.skipped,
    )
    return replace(trace, metadata=facts, sources=[source])
