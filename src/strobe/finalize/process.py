# SPDX-License-Identifier: Apache-2.0
"""The finalizer process: nobody's child, one thread, low priority, one at a time per user."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from strobe.store import manifest, places

# A finalizer is no part of the job that it serves.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "RANK_ID")
_FOREIGN_PREFIXES = ("STROBE_", "TORCHELASTIC_", "SLURM_", "PADDLE_", "OMPI_", "GROUP_", "ROLE_")
_ONE_THREAD = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS")

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[2]); "
    "from strobe.finalize.process import main; main(sys.argv[1])"
)


class Spawner(Protocol):
    """Starts a program that is nobody's child (record's `spawn_detached`)."""

    def __call__(
        self, argv: tuple[bytes, ...], environment: tuple[bytes, ...], error_path: bytes, /
    ) -> None:
        """Raise OSError when the program cannot be started."""


def launch(recording: Path, spawn: Spawner) -> bool:
    """Start the finalizer for a recording; False where no process can be made.

    Then the log stays and open() does the work.
    """
    if not sys.executable:
        return False
    package_parent = str(Path(__file__).resolve().parents[2])
    argv = (sys.executable, "-c", _PROGRAM, str(recording.resolve()), package_parent)
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _RANK_VARIABLES and not name.startswith(_FOREIGN_PREFIXES)
    }
    environment |= dict.fromkeys(_ONE_THREAD, "1")
    try:
        spawn(
            tuple(os.fsencode(argument) for argument in argv),
            tuple(os.fsencode(f"{name}={value}") for name, value in environment.items()),
            os.fsencode(recording.resolve() / "finalizer.log"),
        )
    except OSError:
        return False
    return True


def main(recording: str) -> None:
    """Finalize a recording; what goes wrong goes to standard error, which is a file beside it."""
    from strobe.finalize.run import finalize

    path = Path(recording)
    with _turn():
        _export(path, finalize(path))
    errors = path / "finalizer.log"
    with contextlib.suppress(OSError):
        if errors.stat().st_size == 0:
            errors.unlink()


def _export(recording: Path, tables: Path) -> None:
    """Carry out what the profiler's on_trace_ready declared."""
    from strobe.exporters import EXPORTERS

    by_name = {exporter.NAME: exporter for exporter in EXPORTERS}
    for wanted in manifest.read(recording).exports:
        exporter = by_name[wanted["format"]]
        folder = Path(wanted["directory"])
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{recording.name}{exporter.SUFFIX}"
        if not target.exists():
            exporter.write(tables, target, lambda _stage, _share: None)


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Wait until no other finalizer of this user runs on this host."""
    try:
        import fcntl

        lock = (places.runtime_directory() / "finalizer.lock").open("w")
    except (ImportError, OSError):
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
