# SPDX-License-Identifier: Apache-2.0
"""Finalizing one recording: once, under a lock, with nothing half written left behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from strobe.errors import FormatError
from strobe.store import files, inventory, manifest, places, references
from strobe.store.places import ORIGINALS
from strobe.store.references import TABLES

if TYPE_CHECKING:
    from strobe.assemble.tables import First, Progress


def finalize(
    recording: Path,
    progress: Progress = lambda _stage, _share: None,
    first: First = lambda _operators: None,
    *,
    keep_log: bool = False,
) -> Path:
    """Return the directory of the recording's tables, written first if need be.

    Where they are, `first` gets the table of operators as soon as it is known, before the rest.

    They go into the recording, which then no longer needs its log; `keep_log` keeps it, here or in
    what the manifest wants exported. Where that cannot be (a full or read-only disk, a program that
    still records, a program on another host that may), or where a part of the log is missing and
    may be found again, they go into a temporary directory that this process removes at its end, and
    the log stays. So it does if there is no room for them anywhere: then this raises FormatError.
    """
    tables = recording / TABLES
    if places.is_finalized(recording):
        return tables
    progress("waiting for another process", 0.0)
    with places.locked(recording):  # before anything heavy is imported: who asks first is first
        if places.is_finalized(recording):
            return tables
        content = manifest.read(recording)
        problem = files.oddity(tables, "a folder")
        if problem is not None:
            raise FormatError(recording, TABLES, problem)
        with _said_if_there_is_no_room(recording):
            if inventory.still_records(recording, content) is not False:
                return _write_aside(recording, content, progress, first)
            try:
                tables = _write(recording, content, progress, first)
            except OSError:
                return _write_aside(recording, content, progress, first)
        keep_log = keep_log or any(wanted.get("keep_log") for wanted in content.exports)
        if places.is_finalized(recording) and not keep_log:
            references.release(recording, content)
    return tables


@contextlib.contextmanager
def _said_if_there_is_no_room(recording: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        reason = "there is not enough memory; the log stays: open it again where 1 GB is free"
        raise FormatError(recording, TABLES, reason) from error
    except OSError as error:
        reason = (
            f"they cannot be written, here or in {tempfile.gettempdir()!r} "
            f"({error.strerror or error}); the log stays: open it again where there is room"
        )
        raise FormatError(recording, TABLES, reason) from error


def _write(recording: Path, content: manifest.Manifest, progress: Progress, first: First) -> Path:
    """Write the tables into the recording: as a whole or not at all. Return where they are."""
    from strobe.finalize.build import build

    for abandoned in filter(files.is_folder, files.list_folder(recording, f"{TABLES}.part-*")):
        shutil.rmtree(abandoned, ignore_errors=True)
    part = recording / f"{TABLES}.part-{manifest.new_id()}"
    part.mkdir()
    with _removed_on_failure(part):
        logs = references.find_logs(recording, content)
        is_complete = build(logs, content, part, progress, first)
        _keep_originals(logs, part)
        if not is_complete:
            return _move_aside(part)
        part.rename(recording / TABLES)
    return recording / TABLES


def _move_aside(part: Path) -> Path:
    with temporary_folder() as aside:
        for file in part.iterdir():
            shutil.move(file, aside / file.name)
        part.rmdir()
    return aside


def _write_aside(
    recording: Path, content: manifest.Manifest, progress: Progress, first: First
) -> Path:
    from strobe.finalize.build import build

    with temporary_folder() as aside:
        logs = references.find_logs(recording, content)
        build(logs, content, aside, progress, first)
        _keep_originals(logs, aside)
    return aside


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a directory that goes with this process, or at once by an exception."""
    aside = Path(tempfile.mkdtemp(prefix="strobe-tables-"))
    with _removed_on_failure(aside):
        yield aside
    atexit.register(_remove_own, aside, os.getpid())


def _remove_own(folder: Path, pid: int) -> None:
    """Delete a folder, unless this is a child of fork: it is the parent's."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _keep_originals(logs: references.Logs, into: Path) -> None:
    """Keep what frameworks saved and the tables cannot hold whole: the pipelines of MindData."""
    for folder in (path for log in logs.found for path in files.list_folder(log, ORIGINALS)):
        if files.is_folder(folder):
            (into / folder.name).mkdir()  # one that can be removed, whatever this one is
            for file in filter(files.is_regular, files.list_folder(folder)):
                target = into / folder.name / file.name
                with files.open_regular(file) as content, target.open("xb") as copy:
                    shutil.copyfileobj(content, copy)


@contextlib.contextmanager
def _removed_on_failure(directory: Path) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        yield
        undo.pop_all()
