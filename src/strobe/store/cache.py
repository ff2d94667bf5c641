# SPDX-License-Identifier: Apache-2.0
"""A cache of tables converted from foreign files, accessible to its user alone.

<cache>/<key>/tables/*.parquet
<cache>/<key>/.lock             locked by readers and writers, so that nobody deletes the tables
<cache>/<key>.part-<id>         being written
<cache>/<key>.gone-<id>         being deleted

If the entries together grow too large, those that were not used for the longest time go first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from strobe.errors import UsageError
from strobe.store import files, inventory, manifest

MOST_BYTES = 2 << 30
"""The bound on all entries together, except the one that was used last."""
BOUND_VARIABLE = "STROBE_CACHE_BYTES"
_TABLES = "tables"
_LOCK = ".lock"
_PART = ".part-"
_GONE = ".gone-"


class Entry:
    """A folder of tables, which is not deleted while this object lives."""

    def __init__(self, folder: Path) -> None:
        self.tables = folder / _TABLES
        self._lock = _hold(folder)

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Let others delete the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class Cache:
    """Entries by key, in a folder that only this user may open."""

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        """Make the folder; raises OSError, and PermissionError if another user owns it."""
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_ours = not hasattr(os, "getuid") or status.st_uid == os.getuid()
        if not stat.S_ISDIR(status.st_mode) or not is_ours:
            message = f"{str(folder)!r} is no folder of this user"
            raise PermissionError(message)
        if status.st_mode & 0o077:
            folder.chmod(0o700)
        self._folder = folder
        self._most_bytes = most_bytes

    def find(self, key: str, is_whole: Callable[[Path], bool] = files.is_folder) -> Entry | None:
        """Return the entry of a key, None if there is none. Deletes one that is not whole."""
        folder = self._folder / key
        if not files.is_folder(folder / _TABLES):
            return None
        entry = Entry(folder)
        with contextlib.suppress(OSError):
            os.utime(folder)
        # Looked at only now: it may have been deleted before we held its lock.
        if is_whole(entry.tables):
            return entry
        entry.release()
        _remove(folder)
        return None

    @contextlib.contextmanager
    def writing(self, key: str) -> Iterator[Path]:
        """Yield a folder to write the tables of a key into; they appear whole or not at all."""
        part = self._folder / f"{key}{_PART}{manifest.new_id()}"
        lock = None
        try:
            part.mkdir(mode=0o700)
            (part / _TABLES).mkdir(mode=0o700)
            (part / _LOCK).touch(mode=0o600)
            lock = _hold(part)
            yield part / _TABLES
            for file in files.list_folder(part / _TABLES):
                file.chmod(0o600)
            with contextlib.suppress(OSError):  # another process was faster
                part.rename(self._folder / key)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            if lock is not None:
                os.close(lock)
        self._bound(self._folder / key)

    def _bound(self, used: Path) -> None:
        """Delete the entries that were used longest ago until the rest are within the bound."""
        found = [path for path in files.list_folders(self._folder) if path != used]
        sizes = {path: inventory.size_bytes(path) for path in found}
        total = sum(sizes.values())
        for path in sorted(found, key=_last_used):
            if total <= self._most_bytes:
                return
            if _remove(path):
                total -= sizes[path]


def bound_bytes() -> int:
    """Return the bound that the environment sets, else MOST_BYTES.

    Raises UsageError if it is not a number.
    """
    text = os.environ.get(BOUND_VARIABLE, "")
    if text and not text.isdecimal():
        message = f"{BOUND_VARIABLE}={text!r}: must be a number of bytes"
        raise UsageError(message)
    return int(text) if text else MOST_BYTES


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _hold(folder: Path) -> int | None:
    """Keep others from deleting a folder until the descriptor is closed; None if that fails."""
    try:
        import fcntl

        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    except (ImportError, OSError):
        return None
    return descriptor


def _remove(folder: Path) -> bool:
    """Delete a folder unless a process reads or writes it."""
    gone = folder
    try:
        import fcntl

        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _GONE not in folder.name:  # so that nobody finds it half deleted
            gone = folder.with_name(f"{folder.name}{_GONE}{manifest.new_id()}")
            folder.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
