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

from strobe.finalize.build import First, Progress, build
from strobe.store import log as chunk_log
from strobe.store import manifest, places


def finalize(
    recording: Path,
    progress: Progress = lambda _stage, _share: None,
    first: First = lambda _operators: None,
) -> Path:
    """Return the directory of the recording's tables, written first if need be.

    Where they are, `first` gets the table of operators as soon as it is known, before the rest.

    They go into the recording, which then no longer needs its log. Where that cannot be (a full or
    read-only disk, a program that still records, a program on another host that may), they go into
    a temporary directory that this process removes at its end, and the log stays.
    """
    tables = recording / places.TABLES
    if tables.is_dir():
        return tables
    with _locked(recording):
        if tables.is_dir():
            return tables
        content = manifest.read(recording)
        lasting = _is_over(recording, content)
        try:
            return _write(recording, content, lasting, progress, first)
        except OSError:
            if not lasting:
                raise
            return _write(recording, content, False, progress, first)


def _write(
    recording: Path, content: manifest.Manifest, lasting: bool, progress: Progress, first: First
) -> Path:
    part = _make_directory(recording if lasting else None)
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, part, ignore_errors=True)
        build(recording, content, part, progress, first)
        undo.pop_all()
    if not lasting:
        atexit.register(shutil.rmtree, part, ignore_errors=True)
        return part
    tables = recording / places.TABLES
    part.rename(tables)
    places.release_log(places.log_of(recording, content))
    return tables


def _make_directory(recording: Path | None) -> Path:
    if recording is None:
        return Path(tempfile.mkdtemp(prefix="strobe-tables-"))
    for abandoned in recording.glob(f"{places.TABLES}.part-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    part = recording / f"{places.TABLES}.part-{manifest.new_id()}"
    part.mkdir()
    return part


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


@contextlib.contextmanager
def _locked(recording: Path) -> Iterator[None]:
    """Let one process at a time finalize a recording; one we cannot write in needs no lock."""
    try:
        import fcntl

        descriptor = os.open(recording / places.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError):
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Not by closing alone: a child of fork may have it open too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
