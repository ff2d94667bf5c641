# SPDX-License-Identifier: Apache-2.0
"""Where things lie: a recording's directory, its log, its tables, this user's runtime directory.

<recording>/strobe.json        the manifest
<recording>/log/               chunk log; gone once every recording that needs it has its tables
<recording>/log/refs/<id>      names a recording (or a log) that needs this log too
<recording>/log/links/<id>     names a log that belongs to this one: a child's own recording
<recording>/tables/*.parquet   the tables; there as a whole or not at all
<recording>/finalizer.log      only where the finalizer failed: why
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from strobe.store import manifest

LOG = "log"
REFS = "refs"
LINKS = "links"
TABLES = "tables"
# Beside a framework's own trace in a log: what has to be known to read it.
FACTS = ".facts"
FAILURE = "finalizer.log"
LOCK = ".lock"


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
    found = (*folder.glob(f"*/{manifest.FILE_NAME}"), *folder.glob(f"*/*/{manifest.FILE_NAME}"))
    return sorted(path.parent for path in found)


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
        waiting += [Path(link.read_text()) for link in sorted((current / LINKS).glob("*"))]


def is_needed(log: Path) -> bool:
    """Say whether another recording, or another log, still needs this log."""
    needed_by = (Path(reference.read_text()) for reference in (log / REFS).glob("*"))
    return any(path.exists() and not is_finalized(path) for path in needed_by)


def release_log(log: Path) -> bool:
    """Delete a log that nobody needs any more; return whether it is gone."""
    if not log.is_dir():
        return True
    if not is_finalized(log.parent) or is_needed(log):
        return False
    links = [Path(link.read_text()) for link in (log / LINKS).glob("*")]
    remove_log(log)
    for link in links:
        release_log(link)
    return not log.exists()


def remove_log(log: Path) -> None:
    """Delete a log, and its rings that had to be elsewhere."""
    for ring in log.glob("*.ring"):
        if ring.is_symlink():
            ring.resolve().unlink(missing_ok=True)
    shutil.rmtree(log, ignore_errors=True)


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
