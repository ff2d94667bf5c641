# SPDX-License-Identifier: Apache-2.0
"""Files that the Python recorder writes, and which of their failures reach whom."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

_NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "gpfs", "lustre", "nfs", "nfs4", "smb3"}
)
NEW_FILE = os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def give_back(error: BaseException) -> None:
    """Raise the error again if one of the program's signal handlers raised it while we worked."""
    handlers = [getattr(signal.getsignal(n), "__code__", None) for n in signal.valid_signals()]
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            raise error
        trace = trace.tb_next


_forgotten = 0


def forget_error(error: BaseException) -> None:
    """Count a failure of ours, which must not reach the program. It is shown at stop."""
    global _forgotten
    give_back(error)
    _forgotten += 1


def forgotten_errors() -> int:
    """Return how many failures were forgotten."""
    return _forgotten


def refuse_past_limit(end: int) -> None:
    """Raise EFBIG instead of writing past RLIMIT_FSIZE, which may be SIGXFSZ and death."""
    try:
        import resource
    except ImportError:
        return
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and end > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


def write_at(fd: int, data: memoryview, offset: int) -> None:
    """Write all of the data, or raise OSError."""
    while data:
        if hasattr(os, "pwrite"):
            written = os.pwrite(fd, data, offset)
        else:
            os.lseek(fd, offset, os.SEEK_SET)
            written = os.write(fd, data)
        if written == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data = data[written:]
        offset += written


class AppendFile:
    """A file that only grows. A failed write leaves the offset where it was, so the next one
    overwrites the torn bytes and the file stays readable. Needs the log's lock.
    """

    __slots__ = ("fd", "offset")

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_WRONLY | NEW_FILE, 0o600)
        self.offset = 0

    def append(self, *parts: bytes | memoryview) -> None:
        """Write the parts, or raise OSError."""
        length = sum(map(len, parts))
        # Taken before it is filled, and without a call in between: a signal handler that appends
        # now goes behind it.
        began = offset = self.offset
        self.offset = began + length
        written = False
        try:
            refuse_past_limit(began + length)
            for part in parts:
                write_at(self.fd, memoryview(part), offset)
                offset += len(part)
            written = True
        finally:
            if not written:
                self.offset = began

    def close(self) -> None:
        """Close the file; later writes fail."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    # Rings hold their log and threads hold their rings, so the last thread to leave closes it.
    __del__ = close


def is_network(directory: str) -> bool:
    """A shared mapping on such a file system is slow, incoherent or lost with the network."""
    try:
        device = Path(directory).stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    for fields in map(str.split, mounts):
        if fields[2] == number:
            kind = fields[fields.index("-") + 1]
            return kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse")
    return False
