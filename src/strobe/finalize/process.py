# SPDX-License-Identifier: Apache-2.0
"""The finalizer process: nobody's child, one thread, low priority, one at a time per user."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from strobe._version import __version__
from strobe.store import files, manifest, places
from strobe.store.references import TABLES

# A finalizer is no part of the job that it serves.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK_ID")
_FOREIGN_PREFIXES = ("STROBE_", "TORCHELASTIC_", "SLURM_", "PADDLE_", "OMPI_", "GROUP_", "ROLE_")
# In the runtime directory: one file for each recording to be finalized, and the finalizer's lock.
# Another installation's finalizer is none of ours: it may not know what we record.
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])
_INSTALLATION = f"{__version__}-{zlib.crc32(os.fsencode(_PACKAGE_PARENT)):08x}"
_WAITING = f"waiting-{_INSTALLATION}"
_LOCK = f"finalizer-{_INSTALLATION}.lock"
_ONE_THREAD = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS")

Writer = Callable[[Path, dict[str, Any]], object]
"""Writes what a recording's manifest declares in another form: takes the recording and that."""

# Its first act is to step back: whoever started it waits until it runs, so not earlier. It is of
# the room that knows all forms.
_PROGRAM = (
    "import os, sys; hasattr(os, 'nice') and os.nice(10); sys.path.insert(0, sys.argv[1]); "
    "from strobe.session.finalizer import main; main()"
)


class Spawner(Protocol):
    """Starts a program that is nobody's child (record's `spawn_detached`)."""

    def __call__(
        self, argv: tuple[bytes, ...], environment: tuple[bytes, ...], error_path: bytes, /
    ) -> None:
        """Raise OSError when the program cannot be started."""


def launch(recording: Path, exports: list[dict[str, Any]], spawn: Spawner) -> bool:
    """Have a recording finalized: by the finalizer that runs, or by a new one.

    `exports` are the files to be written besides: what the program asked for, since what a manifest
    says is no reason to write anywhere.

    False where there can be none: then the log stays and open() does the work.
    """
    if not sys.executable:
        return False
    try:
        runtime = places.runtime_directory()
        waiting = runtime / _WAITING
        waiting.mkdir(exist_ok=True)
        entry = waiting / manifest.new_id()
        order = {"recording": str(recording.resolve()), "exports": exports}
        entry.with_suffix(".part").write_text(json.dumps(order))
        entry.with_suffix(".part").rename(entry)
        with _turn(runtime) as ours:
            if not ours:
                return True  # the one that runs looks again before it ends
        argv = (sys.executable, "-c", _PROGRAM, _PACKAGE_PARENT)
        spawn(
            tuple(os.fsencode(argument) for argument in argv),
            tuple(os.fsencode(f"{name}={value}") for name, value in environment().items()),
            os.fsencode(runtime / "finalizer.log"),
        )
    except OSError:
        return False
    return True


def environment() -> dict[str, str]:
    """Return the environment of a process of ours that is no part of the program: one thread."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in _RANK_VARIABLES and not name.startswith(_FOREIGN_PREFIXES)
    }
    return kept | dict.fromkeys(_ONE_THREAD, "1")


def main(writers: Mapping[str, Writer]) -> None:
    """Finalize what waits, one recording after the other, until nothing does.

    `writers` writes the forms that no exporter does.
    """
    _raise_limits()
    runtime = places.runtime_directory()
    waiting = runtime / _WAITING
    # Whoever adds to the list while we hold the lock starts no finalizer, so we look again after.
    while _listed(waiting):
        with _turn(runtime) as ours:
            if not ours:
                return
            for entry in _listed(waiting):
                order = json.loads(entry.read_text())
                entry.unlink()
                _finalize(Path(order["recording"]), order["exports"], writers)


def _raise_limits() -> None:
    """Take what may be had: the limits are of the program that happened to start this process."""
    try:
        import resource
    except ImportError:
        return
    for name in ("RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_CPU"):
        limit = getattr(resource, name)
        hard = resource.getrlimit(limit)[1]
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (hard, hard))


def _listed(waiting: Path) -> list[Path]:
    """Return the entries, the oldest first."""
    entries = []
    for path in waiting.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another one has taken it
            if path.suffix != ".part":
                entries.append((path.stat().st_mtime_ns, path))
    return [path for _, path in sorted(entries)]


def _finalize(
    recording: Path, exports: list[dict[str, Any]], writers: Mapping[str, Writer]
) -> None:
    """Finalize one recording; what goes wrong is written beside it and stops no other."""
    if not recording.is_dir():
        return  # deleted while it waited
    try:
        with places.locked(recording):
            pass  # its own program may be at it: then there is nothing to import and to do
        tables = recording / TABLES
        if not places.is_finalized(recording):
            from strobe.finalize.run import finalize

            tables = finalize(recording)
        _export(recording, tables, exports, writers)
    except Exception:  # this process's edge: kept, and shown by whoever opens the recording
        with contextlib.suppress(OSError):
            files.write_whole(recording / places.FAILURE, traceback.format_exc().encode())


def _export(
    recording: Path,
    tables: Path,
    exports: list[dict[str, Any]],
    writers: Mapping[str, Writer],
) -> None:
    """Carry out what the profiler's on_trace_ready declared."""
    from strobe.exporters import find_exporter

    content = manifest.read(recording)
    for wanted in exports:
        if wanted["format"] in writers:
            writers[wanted["format"]](recording, wanted)
            continue
        exporter = find_exporter(wanted["format"])
        folder = Path(wanted["directory"])
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{wanted['prefix']}_time_{_when(content)}" if "prefix" in wanted else recording.name
        target = folder / f"{name}{exporter.SUFFIX}"
        if not target.exists():
            exporter.write(tables, target, lambda _stage, _share: None)


def _when(content: manifest.Manifest) -> str:
    """Return when a recording ended, local time to the microsecond."""
    wall_ns = (content.stop or content.start).wall_ns
    return datetime.fromtimestamp(wall_ns / 1e9).strftime("%Y_%m_%d_%H_%M_%S_%f")


@contextlib.contextmanager
def _turn(runtime: Path) -> Iterator[bool]:
    """Take the lock that the finalizer of this user on this host holds; say whether it was free."""
    try:
        import fcntl
    except ImportError:  # no such locks here: each finalizer is on its own
        yield True
        return
    with (runtime / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
