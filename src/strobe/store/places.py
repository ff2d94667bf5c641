# SPDX-License-Identifier: Apache-2.0
"""Where things lie: a recording's directory, its log, its tables, this user's runtime directory.

<recording>/strobe.json        the manifest
<recording>/log/               chunk log; gone once every recording that needs it has its tables
<recording>/log/refs/<id>      names a recording (or a log) that needs this log too
<recording>/log/links/<id>     names a log that belongs to this one: a child's own recording
<recording>/tables/*.parquet   the tables; there as a whole or not at all
<recording>/tables/minddata-*  what MindData saved of its pipeline
<recording>/finalizer.log      only where the finalizer failed: why
<recording>/.lock              held by whoever writes the tables, or deletes the recording
<recording>.deleted            what is left of a recording whose deletion was cut short

Other processes add and delete meanwhile: what has gone since it was listed counts as not there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from strobe.errors import FormatError
from strobe.store import manifest

LOG = "log"
REFS = "refs"
LINKS = "links"
TABLES = "tables"
# Beside a framework's own trace in a log: what has to be known to read it.
FACTS = ".facts"
# In a log: the source whose framework keeps events to itself until it is stopped.
HELD = ".held"
FAILURE = "finalizer.log"
# In a log: directories of a framework that are kept beside the tables.
ORIGINALS = "minddata-*"
LOCK = ".lock"
DELETED = ".deleted"


def is_recording(path: Path) -> bool:
    """Say whether a directory is a recording."""
    return (path / manifest.FILE_NAME).is_file()


def is_finalized(recording: Path) -> bool:
    """Say whether a recording's tables have been written."""
    return (recording / TABLES).is_dir()


def log_of(recording: Path, content: manifest.Manifest) -> Path:
    """Return the recording's log: its own, or the one it shared."""
    return recording / content.log


def find_recordings(folder: Path) -> list[Path]:
    """Return the recordings in a folder and in the jobs' folders in it, by path.

    The folder itself, if it is one.
    """
    if is_recording(folder):
        return [folder]
    found = [*_folders_of_jobs_too(folder), *find_in_trees(folder)]
    return sorted({path for path in found if is_recording(path) and path.suffix != DELETED})


def find_in_trees(folder: Path) -> list[Path]:
    """Return the recordings in MindSpore's trees in a folder, or in the one that it is, by path.

    FRAMEWORK/*, <run>_ascend_ms/FRAMEWORK/*, profiler/FRAMEWORK/*, rank_<n>/profiler/FRAMEWORK/*
    """
    if is_recording(folder):
        return [folder]
    inner = _folders(folder)
    outer = [folder, *inner, *(path for each in inner for path in _folders(each))]
    found = (path for each in outer for path in _folders(each / "FRAMEWORK"))
    return sorted(path for path in found if is_recording(path) and path.suffix != DELETED)


def find_deleted(folder: Path) -> list[Path]:
    """Return what is left of recordings whose deletion was cut short, in the same places."""
    return sorted(path for path in _folders_of_jobs_too(folder) if path.suffix == DELETED)


def _folders_of_jobs_too(folder: Path) -> list[Path]:
    inner = _folders(folder)
    return inner + [path for job in inner if not is_recording(job) for path in _folders(job)]


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []


def linked_logs(log: Path) -> Iterator[Path]:
    """Yield the log and those that belong to it."""
    seen: set[Path] = set()
    waiting = [log]
    while waiting:
        current = waiting.pop()
        if current in seen or not current.is_dir():
            continue
        seen.add(current)
        yield current
        waiting += _links(current)


def is_needed(log: Path) -> bool:
    """Say whether another recording, or another log, still needs this log."""
    return any(
        not name or (Path(name).exists() and not is_finalized(Path(name)))
        for name in _names(log / REFS)
    )


def _links(log: Path) -> list[Path]:
    return [Path(name) for name in _names(log / LINKS) if name]


def _names(folder: Path) -> list[str]:
    """Return what the files in a folder name, by file; "" for one that is being written."""
    names = []
    for file in _files(folder):
        with contextlib.suppress(OSError):
            names.append(os.fsdecode(file.read_bytes()))
    return names


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def release_log(log: Path) -> bool:
    """Delete a log that nobody needs any more; return whether it is gone."""
    if not log.is_dir():
        return True
    if not is_finalized(log.parent) or is_needed(log):
        return False
    links = _links(log)
    remove_log(log)
    for link in links:
        release_log(link)
    return not log.exists()


def remove_log(log: Path) -> None:
    """Delete a log, and its rings that had to be elsewhere."""
    for ring in _files(log):
        if ring.suffix == ".ring" and ring.is_symlink():
            ring.resolve().unlink(missing_ok=True)
    shutil.rmtree(log, ignore_errors=True)


@contextlib.contextmanager
def locked(recording: Path, *, wait: bool = True) -> Iterator[bool]:
    """Let one process at a time finalize or delete a recording; say whether it is our turn.

    It always is for those who `wait`, and where nothing can be written there is nothing to lock.
    """
    try:
        import fcntl

        descriptor = os.open(recording / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError):
        yield True
        return
    try:
        ours = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ours = False
        yield ours
    finally:
        # Not by closing alone: a child of fork may have it open too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def remove_recording(recording: Path, *, wait: bool = False) -> bool:
    """Delete a recording; False if it stays, because its log is needed or it is being finalized.

    Unless we are to `wait` until it has been. Raises OSError when it cannot be deleted.
    """
    with locked(recording, wait=wait) as ours:
        if not ours or is_needed(recording / LOG):
            return False
        kept = _kept_logs(recording)
        # Whoever comes for it from now on finds nothing, and adds nothing while it is deleted.
        gone = recording.with_name(recording.name + DELETED)
        with contextlib.suppress(FileNotFoundError):
            recording.rename(gone)
    remove_deleted(gone)
    for log in kept:
        release_log(log)
    return True


def remove_deleted(gone: Path) -> None:
    """Delete what remove_recording has begun to."""
    remove_log(gone / LOG)
    while gone.exists():
        with contextlib.suppress(FileNotFoundError):  # somebody else is at it too
            shutil.rmtree(gone)


def _kept_logs(recording: Path) -> list[Path]:
    """Return the logs of other recordings that this one may be the last to need."""
    links = _links(recording / LOG)
    try:
        shared = log_of(recording, manifest.read(recording))
    except FormatError:
        return links
    return links if shared == recording / LOG else [*links, shared.resolve()]


def runtime_directory() -> Path:
    """Return this user's directory for control pages and locks, made if need be.

    Raises OSError when it cannot be made or belongs to somebody else.
    """
    uid = os.getuid() if hasattr(os, "getuid") else 0
    path = Path(tempfile.gettempdir()) / f"strobe-{uid}"
    path.mkdir(mode=0o700, exist_ok=True)
    owner = path.lstat().st_uid
    if owner != uid or path.is_symlink():
        message = f"{str(path)!r} is not a directory of user {uid}"
        raise PermissionError(message)
    return path
