# SPDX-License-Identifier: Apache-2.0
"""The finalizer process: nobody's child, one thread, low priority, one at a time per user."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from strobe._version import __version__
from strobe.store import files, manifest, places, rounds

# A finalizer is no part of the job that it serves.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK_ID")
_FOREIGN_PREFIXES = ("STROBE_", "TORCHELASTIC_", "SLURM_", "PADDLE_", "OMPI_", "GROUP_", "ROLE_")
# In the runtime directory: one file for each recording to be finalized, and the finalizer's lock.
# Another installation's finalizer is none of ours: it may not know what we record.
_PACKAGE = str(Path(__file__).resolve().parents[1])
_INSTALLATION = f"{__version__}-{zlib.crc32(os.fsencode(_PACKAGE)):08x}"
_WAITING = f"waiting-{_INSTALLATION}"
_LOCK = f"finalizer-{_INSTALLATION}.lock"
_ONE_THREAD = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS")

_VERB = "_finalize"


class Order(NamedTuple):
    """A recording to finalize, and the files that its program asked for besides tables."""

    recording: Path
    exports: list[dict[str, Any]]
    bound: rounds.Bound | None = None
    """Of all rounds of its program."""


class Calls(files.Calls, Protocol):
    """What it takes to hand over a recording: strobe.record.recorder.core."""

    def spawn_detached(
        self, argv: tuple[bytes, ...], environment: tuple[bytes, ...], error_path: bytes, /
    ) -> None:
        """Start a program that is nobody's child; raises OSError."""


def launch(
    recording: Path,
    exports: list[dict[str, Any]],
    calls: Calls,
    max_total_bytes: int | None = None,
) -> bool:
    """Have a recording finalized: by the finalizer that runs, or by a new one.

    `exports` are the files to be written besides: what the program asked for, since what a manifest
    says is no reason to write anywhere. `max_total_bytes` bounds all rounds of this process that
    are handed over with the same bound: the oldest are deleted.

    False where there can be none: then the log stays and open() does the work.
    """
    if not sys.executable:
        return False
    try:
        runtime = places.runtime_directory(calls)
        order: dict[str, Any] = {"recording": str(recording.absolute()), "exports": exports}
        if max_total_bytes is not None:
            bound = find_bound(runtime, max_total_bytes)
            order["bound"] = [str(bound.ledger), bound.max_bytes]
        _leave_order(runtime / _WAITING, json.dumps(order).encode(), calls)
        if calls.is_locked(str(runtime / _LOCK)):
            return True  # the one that runs looks again before it ends
        calls.spawn_detached(
            tuple(os.fsencode(argument) for argument in command(_VERB)),
            tuple(os.fsencode(f"{name}={value}") for name, value in environment().items()),
            os.fsencode(runtime / "finalizer.log"),
        )
    except OSError:
        return False
    return True


def find_bound(runtime: Path, max_total_bytes: int) -> rounds.Bound:
    """Return the bound of this process's rounds."""
    pid = os.getpid()
    return rounds.find_bound(runtime, pid, manifest.own_start(pid), max_total_bytes)


def rounds_waiting(bound: rounds.Bound) -> list[Path]:
    """Return the rounds under this bound that wait to be finalized."""
    waiting = places.runtime_directory() / _WAITING
    orders = [order for entry in _listed(waiting) if (order := _read_order(entry))]
    return [order.recording for order in orders if order.bound == bound]


@functools.cache  # an order does not change while it waits
def _read_order(entry: Path) -> Order | None:
    try:
        order = json.loads(entry.read_text())
    except FileNotFoundError:  # another finalizer has taken it
        return None
    ledger, max_bytes = order.get("bound") or (None, 0)
    bound = rounds.Bound(Path(ledger), max_bytes) if ledger else None
    return Order(Path(order["recording"]).resolve(), order["exports"], bound)


def _leave_order(waiting: Path, order: bytes, calls: Calls) -> None:
    entry = waiting / manifest.new_id()
    try:
        files.write_whole(entry, order, calls)
    except FileNotFoundError:
        waiting.mkdir(exist_ok=True)
        files.write_whole(entry, order, calls)


def environment() -> dict[str, str]:
    """Return the environment of a process of ours that is no part of the program: one thread."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _RANK_VARIABLES and not name.startswith(_FOREIGN_PREFIXES)
    }
    return kept | dict.fromkeys(_ONE_THREAD, "1")


def command(verb: str, *arguments: str) -> list[str]:
    """Return the command line of a process of ours: Python, our package, a hidden verb of cli/.

    The package is named by its path, not with -m. The process then runs this very package, even if
    only the program's own sys.path led to it. No module in the current directory can stand in for
    one of Python's; with -m, Python 3.10 has no option that prevents it. And __main__ runs before
    anything of ours is imported.
    """
    return [sys.executable, _PACKAGE, verb, *arguments]


def take_orders() -> Iterator[Order]:
    """Yield what waits to be finalized until nothing does; nothing if another finalizer runs."""
    _raise_limits()
    _spare_the_program()
    runtime = places.runtime_directory()
    waiting = runtime / _WAITING
    # Whoever adds to the list while we hold the lock starts no finalizer, so we look again after.
    while _listed(waiting):
        with _turn(runtime) as ours:
            if not ours:
                return
            for entry in _listed(waiting):
                order = _read_order(entry)
                entry.unlink(missing_ok=True)
                if order is not None:
                    yield order


def _raise_limits() -> None:
    """Lift the limits that the program set for itself: it happened to start this process."""
    try:
        import resource
    except ImportError:
        return
    for name in ("RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_CPU"):
        limit = getattr(resource, name)
        hard = resource.getrlimit(limit)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (hard, hard))


def _spare_the_program() -> None:
    """If memory runs out, have the system end this process rather than the program it serves."""
    with contextlib.suppress(OSError):  # only Linux has this, and a container may forbid it
        Path("/proc/self/oom_score_adj").write_text("1000")


def _listed(waiting: Path) -> list[Path]:
    """Return the entries, the oldest first."""
    entries = []
    for path in files.list_folder(waiting):
        with contextlib.suppress(FileNotFoundError):  # another one has taken it
            if path.suffix != ".part":
                entries.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(entries)]


def keep_failure(recording: Path, text: str) -> None:
    """Write into a recording why it could not be finalized, for whoever opens it."""
    with contextlib.suppress(OSError):
        files.write_whole(recording / places.FAILURE, text.encode())


@contextlib.contextmanager
def _turn(runtime: Path) -> Iterator[bool]:
    """Take the lock that the finalizer of this user on this host holds; say whether it was free."""
    try:
        import fcntl
    except ImportError:  # no such locks here: each finalizer is on its own
        yield True
        return
    lock = os.open(runtime / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(lock)
