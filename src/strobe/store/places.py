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

Other processes add and delete meanwhile: what has gone since it was listed counts as not there. A
symbolic link below the path that a user gave counts as not there either.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from strobe.errors import FormatError
from strobe.store import files, manifest, references
from strobe.store.references import DELETED, LOG, TABLES

# Beside a framework's own trace in a log: what has to be known to read it.
FACTS = ".facts"
# In a log: the source whose framework keeps events to itself until it is stopped.
HELD = ".held"
FAILURE = "finalizer.log"
# In a log: directories of a framework that are kept beside the tables.
ORIGINALS = "minddata-*"
LOCK = ".lock"
CACHE_VARIABLE = "STROBE_CACHE"

_LOCK_FLAGS = (
    os.O_RDWR
    | os.O_CREAT
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)


def is_recording(path: Path) -> bool:
    """Say whether a directory is a recording."""
    return files.is_regular(path / manifest.FILE_NAME)


def is_finalized(recording: Path) -> bool:
    """Say whether a recording's tables have been written."""
    return files.is_folder(recording / TABLES)


def find_recordings(folder: Path) -> list[Path]:
    """Return the recordings in a folder and in the jobs' folders in it, by path.

    The folder itself, if it is one. Links in the folder are not followed.
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
    found = _folders_of_trees(folder)
    return sorted(path for path in found if is_recording(path) and path.suffix != DELETED)


def find_deleted(folder: Path) -> list[Path]:
    """Return what is left of recordings whose deletion was cut short, in the same places."""
    found = {*_folders_of_jobs_too(folder), *_folders_of_trees(folder)}
    return sorted(path for path in found if path.suffix == DELETED and is_recording(path))


def _folders_of_trees(folder: Path) -> list[Path]:
    inner = _folders(folder)
    outer = [folder, *inner, *(path for each in inner for path in files.list_folders(each))]
    return [path for each in outer for path in files.list_folders(each / "FRAMEWORK")]


def _folders_of_jobs_too(folder: Path) -> list[Path]:
    inner = _folders(folder)
    return inner + [
        path for job in inner if not is_recording(job) for path in files.list_folders(job)
    ]


def _folders(folder: Path) -> list[Path]:
    """Return the folders in one that the user gave, which may itself be a link."""
    return [folder / path.name for path in files.list_folders(Path(os.path.realpath(folder)))]


@contextlib.contextmanager
def locked(recording: Path, *, wait: bool = True) -> Iterator[bool]:
    """Let one process at a time finalize or delete a recording; say whether it is our turn.

    It always is for those who `wait`, and where nothing can be written there is nothing to lock.
    """
    descriptor = _open_lock(recording / LOCK)
    if descriptor is None:
        yield True
        return
    import fcntl

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


def _open_lock(path: Path) -> int | None:
    """Return the descriptor of a lock, None where there can be none: a link is not followed."""
    try:
        import fcntl  # noqa: F401

        descriptor = os.open(path, _LOCK_FLAGS, 0o600)
    except (ImportError, OSError):
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def remove_recording(recording: Path, *, wait: bool = False) -> bool:
    """Delete a recording; False if it stays, because its log is needed or it is being finalized.

    Unless we are to `wait` until it has been. Raises OSError when it cannot be deleted, and
    FormatError for a folder whose manifest is not ours.
    """
    if not os.path.lexists(recording):
        return True
    try:
        manifest.read(recording)
    except FormatError:
        if os.path.lexists(recording):
            raise
        return True  # somebody else has just deleted it
    with locked(recording, wait=wait) as ours:
        if not ours or references.is_needed(recording / LOG, elsewhere=False):
            return False
        _check_deletable(recording)
        # Whoever comes for it from now on finds nothing, and adds nothing while it is deleted.
        gone = recording.with_name(recording.name + DELETED)
        with contextlib.suppress(FileNotFoundError):
            recording.rename(gone)
    remove_deleted(gone)
    return True


def _check_deletable(recording: Path) -> None:
    """Raise PermissionError now rather than half way."""
    for folder in (recording.parent, *(Path(each) for each, _, _ in os.walk(recording))):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def remove_deleted(gone: Path) -> None:
    """Delete what remove_recording has begun to; its manifest, by which it is known, last."""
    with contextlib.suppress(FormatError):
        content = manifest.read(gone)
        if content.log != LOG:
            references.release(gone, content)
    references.remove_log(gone / LOG)
    while os.path.lexists(gone):
        with contextlib.suppress(FileNotFoundError):  # somebody else is at it too
            for path in files.list_folder(gone):
                if files.is_folder(path):
                    shutil.rmtree(path)
                elif path.name != manifest.FILE_NAME:
                    path.unlink()
            (gone / manifest.FILE_NAME).unlink(missing_ok=True)
            gone.rmdir()


def cache_folder() -> Path:
    """Return where strobe keeps what it can make again; it need not exist.

    Raises FileNotFoundError where there is no place for it.
    """
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if cache.is_absolute():  # a relative one is to be ignored
        return cache / "strobe"
    with contextlib.suppress(RuntimeError):
        home = Path.home()
        if home.is_absolute() and home.is_dir():
            return home / ".cache" / "strobe"
    message = f"there is no home folder to keep it in: set {CACHE_VARIABLE}"
    raise FileNotFoundError(message)


def scratch_folder() -> Path:
    """Return a folder for files without names: the cache, or where temporary files go.

    The latter may be in memory.
    """
    with contextlib.suppress(OSError):
        cache = cache_folder()
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(cache, os.W_OK | os.X_OK):
            return cache
    return Path(tempfile.gettempdir())


class NotPrivateError(PermissionError):
    """A folder that should be this user's alone belongs to others, or is open to them."""


def runtime_directory(calls: files.Calls | None = None) -> Path:
    """Return this user's directory for control pages and locks, made if need be.

    Raises OSError when it cannot be made, NotPrivateError when others could have a say in it.
    """
    uid = os.getuid() if hasattr(os, "getuid") else 0
    path = Path(tempfile.gettempdir()) / f"strobe-{uid}"
    if (calls or files).is_private_folder(str(path)):
        return path
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != uid:
        message = f"{str(path)!r} is not a directory of user {uid}"
        raise NotPrivateError(message)
    if hasattr(os, "getuid") and status.st_mode & 0o077:
        message = f"{str(path)!r} is open to other users; chmod 700 it or remove it"
        raise NotPrivateError(message)
    return path
