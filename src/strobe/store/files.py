# SPDX-License-Identifier: Apache-2.0
"""Opens and writes the files of a recording, which anybody may have made.

Only regular files are opened: a symbolic link could lead anywhere, a FIFO would never answer, and
opening a device can do things. The path that a user gives may be a link; what lies below may not.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

_READ = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_WORD = (1 << 64) - 1
PART = ".part"
"""The suffix of a file that is being written."""

_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
    stat.S_IFDIR: "a directory",
}


def open_regular(path: Path) -> io.BufferedReader[io.FileIO]:
    """Open a file for reading; raises OSError for what is not a regular file."""
    _check_regular(path, path.lstat())  # before it is opened: a device notices that it is
    with contextlib.ExitStack() as undo:
        raw = io.FileIO(path, opener=lambda name, _flags: os.open(name, _READ))
        file = undo.enter_context(io.BufferedReader(raw))
        _check_regular(path, os.fstat(file.fileno()))  # it may have been exchanged meanwhile
        undo.pop_all()
    return file


def _check_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"{_kind(status.st_mode)}, not a regular file", str(path))


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file; raises OSError."""
    with open_regular(path) as file:
        return file.read()


def read_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a regular file in UTF-8; raises OSError, or ValueError if it is not."""
    return read_bytes(path).decode("utf-8", errors)


def is_regular(path: Path) -> bool:
    """Say whether there is a regular file, and not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Say whether there is a directory, and not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def identify(folder: Path) -> tuple[int, int]:
    """Return device and inode of a folder, as 64-bit numbers; raises OSError."""
    status = folder.stat()
    return status.st_dev & _WORD, status.st_ino & _WORD


def list_folder(folder: Path, pattern: str = "*") -> list[Path]:
    """Return what is in a directory, by name; nothing if it is not one or has gone."""
    if not is_folder(folder):
        return []
    try:
        return sorted(path for path in folder.iterdir() if fnmatchcase(path.name, pattern))
    except OSError:
        return []


def list_folders(folder: Path) -> list[Path]:
    """Return the directories in a directory, without links to others."""
    return [path for path in list_folder(folder) if is_folder(path)]


def oddity(path: Path, wanted: str = "a regular file") -> str | None:
    """Say what is neither a regular file nor a directory, None for these and for nothing at all."""
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return None
    return f"not opened, because it is {_kind(mode)} and not {wanted}"


def oddities(paths: Iterable[Path]) -> Iterator[str]:
    """Yield a sentence for each of these that is neither a regular file nor a directory."""
    for path in paths:
        problem = oddity(path)
        if problem is not None:
            yield f"{path.name}: {problem}"


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "something else")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a path for a file that takes the name `path` at the end, or vanishes by an exception.

    A link that has that name is replaced. Nobody can have put one at the path that is given.
    """
    part = path.with_name(f"{path.name}.{os.urandom(4).hex()}{PART}")
    with contextlib.ExitStack() as undo:
        undo.callback(part.unlink, missing_ok=True)
        yield part
        part.replace(path)
        undo.pop_all()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old one or the new one, whole; raises OSError."""
    with replacing(path) as part:
        part.write_bytes(content)
