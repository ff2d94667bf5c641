# SPDX-License-Identifier: Apache-2.0
"""Finalizing one recording: once, under a lock, with nothing half written left behind."""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from strobe.store import log as chunk_log
from strobe.store import manifest, places

if TYPE_CHECKING:
    from strobe.finalize.build import First, Progress


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
    still records, a program on another host that may), they go into a temporary directory that this
    process removes at its end, and the log stays.
    """
    tables = recording / places.TABLES
    if tables.is_dir():
        return tables
    with places.locked(recording):  # before anything heavy is imported: who asks first is first
        if tables.is_dir():
            return tables
        content = manifest.read(recording)
        if not _is_over(recording, content):
            return _write_aside(recording, content, progress, first)
        try:
            _write(recording, content, progress, first)
        except OSError:
            return _write_aside(recording, content, progress, first)
        if not keep_log and not any(wanted.get("keep_log") for wanted in content.exports):
            places.release_log(places.log_of(recording, content))
    return tables


def _write(recording: Path, content: manifest.Manifest, progress: Progress, first: First) -> None:
    """Write the tables into the recording: as a whole or not at all."""
    from strobe.finalize.build import build

    for abandoned in recording.glob(f"{places.TABLES}.part-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    part = recording / f"{places.TABLES}.part-{manifest.new_id()}"
    part.mkdir()
    with _removed_on_failure(part):
        build(recording, content, part, progress, first)
        _keep_originals(places.log_of(recording, content), part)
        part.rename(recording / places.TABLES)


def _write_aside(
    recording: Path, content: manifest.Manifest, progress: Progress, first: First
) -> Path:
    from strobe.finalize.build import build

    part = Path(tempfile.mkdtemp(prefix="strobe-tables-"))
    with _removed_on_failure(part):
        build(recording, content, part, progress, first)
        _keep_originals(places.log_of(recording, content), part)
    atexit.register(shutil.rmtree, part, ignore_errors=True)
    return part


def _keep_originals(log: Path, into: Path) -> None:
    """Keep what frameworks saved and the tables cannot hold whole: the pipelines of MindData."""
    for each in places.linked_logs(log):
        for folder in each.glob(places.ORIGINALS):
            if folder.is_dir():
                (into / folder.name).mkdir()  # one that can be removed, whatever this one is
                for file in folder.iterdir():
                    shutil.copyfile(file, into / folder.name / file.name)


@contextlib.contextmanager
def _removed_on_failure(directory: Path) -> Iterator[None]:
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        yield
        undo.pop_all()


def _is_over(recording: Path, content: manifest.Manifest) -> bool:
    """Say whether no process can add to the recording any more."""
    if content.stop is not None:
        return True
    if (
        manifest.is_alive(content.pid, content.process_start, content.host, content.boot)
        is not False
    ):
        return False
    for log in places.linked_logs(places.log_of(recording, content)):
        for process in chunk_log.processes(log):
            pid, start = process.get("pid", 0), process.get("start", 0)
            if manifest.is_alive(pid, start, content.host, content.boot):
                return False
    return True
