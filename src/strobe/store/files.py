# SPDX-License-Identifier: Apache-2.0
"""Opens and writes the files of a recording, which anybody may have made.

Only regular files are opened: a symbolic link could lead anywhere, a FIFO would never answer, and
opening a device can do things. The path that a user gives may be a link; what lies below may not.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol

_READ = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_WORD = (1 << 64) - 1
LEFT_FREE_BYTES = 1 << 30
"""What long files of ours leave free on a disk: the program may want to write there."""
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


def leave_room(folder: Path, size_bytes: int) -> None:
    """Raise OSError if so many more bytes in a folder would fill its disk nearly up."""
    if shutil.disk_usage(folder).free - size_bytes < LEFT_FREE_BYTES:
        message = f"less than {LEFT_FREE_BYTES >> 20} MiB would stay free"
        raise OSError(errno.ENOSPC, message, str(folder))


def read_bytes(path: Path) -> bytes:
    """Return the content of a regular file; raises OSError."""
    with open_regular(path) as file:
        return file.read()


def map_bytes(path: Path) -> bytes | mmap.mmap:
    """Return the content of a regular file, whose pages are read when they are used.

    Raises OSError.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


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
    part = _part(path)
    with contextlib.ExitStack() as undo:
        undo.callback(part.unlink, missing_ok=True)
        yield part
        part.replace(path)
        undo.pop_all()


_AT_ONCE, _MOST_RANDOM = 64, 16
_random: list[bytes] = []


def random_bytes(count: int) -> bytes:
    """Return up to 16 bytes of os.urandom, which many calls share: it lets go of the GIL."""
    while True:
        try:
            return _random.pop()[:count]  # no two threads get the same
        except IndexError:
            drawn = os.urandom(_AT_ONCE * _MOST_RANDOM)
            size = _MOST_RANDOM
            _random.extend(drawn[at : at + size] for at in range(0, len(drawn), size))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_random.clear)  # else it would draw what its parent draws


def _part(path: Path) -> Path:
    return path.with_name(f"{path.name}.{random_bytes(4).hex()}{PART}")


class Calls(Protocol):
    """Writes files with other means than Python's: strobe.record.recorder.core is one.

    Python lets go of the GIL in each system call, and beside busy threads it may take long to get
    it back. A recorder that ends a round in the program's thread has better means.
    """

    def replace_file(self, part: str, path: str, content: bytes, /) -> None:
        """Write a new file `part` and give it the name `path`; raises OSError."""

    def make_folder(self, path: str, /) -> None:
        """Make a folder; raises OSError."""

    def is_private_folder(self, path: str, /) -> bool:
        """Say whether there is a folder, no link to one, of this user's alone."""

    def is_locked(self, path: str, /) -> bool:
        """Say whether somebody holds the lock on a file, made if need be; raises OSError."""


def write_whole(path: Path, content: bytes, calls: Calls | None = None) -> None:
    """Write a file so that a reader sees the old one or the new one, whole; raises OSError."""
    (calls.replace_file if calls else replace_file)(str(_part(path)), str(path), content)


def replace_file(part: str, path: str, content: bytes, /) -> None:
    """Write a new file `part` and give it the name `path`; raises OSError."""
    with contextlib.ExitStack() as undo:
        undo.callback(Path(part).unlink, missing_ok=True)
        Path(part).write_bytes(content)
        Path(part).replace(path)
        undo.pop_all()


def make_folder(path: str, /) -> None:
    """Make a folder; raises OSError."""
    Path(path).mkdir()


def is_private_folder(path: str, /) -> bool:
    """Say whether there is a folder, no link to one, of this user's alone."""
    try:
        status = Path(path).lstat()
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return stat.S_ISDIR(status.st_mode)
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return ours and not status.st_mode & 0o077


def is_locked(path: str, /) -> bool:
    """Say whether somebody holds the lock on a file, made if need be; raises OSError."""
    try:
        import fcntl
    except ImportError:  # there are no such locks here
        return False
    with Path(path).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
