# SPDX-License-Identifier: Apache-2.0
"""A program that is nobody's child, started without C; native/core/spawn.c does it better."""

from __future__ import annotations

import errno
import os
import sys

# Runs in an interpreter between us and the program; its end makes the program an orphan, which
# init adopts. Its exit code is the errno of what failed.
_BETWEEN = """
import os, signal, sys
try:
    os.setsid()
    try:
        errors = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        errors = os.open(os.devnull, os.O_WRONLY)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number, fd in enumerate((nothing, nothing, errors)):
        os.dup2(fd, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir("/")
    argv = [os.fsencode(argument) for argument in sys.argv[2:]]
    signals = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    os.posix_spawn(argv[0], argv, os.environb, setsigmask=(), setsigdef=signals)
except OSError as error:
    sys.exit(error.errno)
"""


def spawn_detached(
    argv: tuple[bytes, ...], environment: tuple[bytes, ...], error_path: bytes, /
) -> None:
    """Start a program that is no child: own session, error_path as standard error.

    Raises OSError when it cannot. Unlike the C version it costs an interpreter's start, and the
    program may see a SIGCHLD.
    """
    if not hasattr(os, "posix_spawn"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if not sys.executable:
        raise OSError(errno.ENOENT, "no Python interpreter to start it with")
    variables = dict(variable.split(b"=", 1) for variable in environment if b"=" in variable)
    between: list[str | bytes] = [sys.executable, "-I", "-S", "-c", _BETWEEN, error_path]
    pid = os.posix_spawn(sys.executable, [*between, *argv], variables)
    try:
        failure = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the program ignores SIGCHLD, or has waited for all its children
        return
    if failure != 0:
        failure = failure if failure > 0 else errno.ECHILD
        raise OSError(failure, os.strerror(failure), os.fsdecode(argv[0]))
