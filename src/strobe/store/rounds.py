# SPDX-License-Identifier: Apache-2.0
"""The finished rounds of one program, and a bound on what they take on disk together.

A ledger is a small file in the runtime directory: the program's rounds, the oldest first, with
their sizes, and how many were deleted. The finalizer keeps it, not the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from strobe.errors import FormatError
from strobe.store import files, inventory, manifest, places

DELETED_ROUNDS = "deleted_rounds"
DELETED_BYTES = "deleted_bytes"
MAX_TOTAL_BYTES = "max_total_bytes"

_PREFIX = "rounds-"
_MARK = ".deleted"


@dataclass(frozen=True)
class Bound:
    """Where the rounds of a program are listed, and how many bytes they may take together."""

    ledger: Path
    max_bytes: int

    @property
    def mark(self) -> Path:
        """A file that exists once a round was deleted."""
        return self.ledger.with_name(self.ledger.name + _MARK)


@dataclass
class _Ledger:
    kept: list[tuple[str, int]] = field(default_factory=list)
    deleted_rounds: int = 0
    deleted_bytes: int = 0


def find_bound(runtime: Path, pid: int, start: int, max_bytes: int) -> Bound:
    """Return the bound that all profilers of a process with this `max_bytes` share."""
    name = f"{_PREFIX}{socket.gethostname()}-{pid}-{start}-{max_bytes}"
    return Bound(runtime / name, max_bytes)


def make_room(bound: Bound, newest: Path, waiting: Iterable[Path] = ()) -> None:
    """Delete the oldest rounds of the program until all of them fit, and say so in the newest.

    `waiting` are rounds that ended after it. Neither they nor the newest are deleted, nor one whose
    tables are being written or whose log is needed.
    """
    with _edit(bound) as ledger:
        later = inventory.size_bytes(newest) + sum(map(inventory.size_bytes, waiting))
        _delete_oldest(ledger, bound.max_bytes - later)
        if ledger.deleted_rounds:
            bound.mark.touch()
            _note_deletions(newest, ledger, bound.max_bytes)


def add(bound: Bound, recording: Path) -> None:
    """List a round that is finished: it may be deleted when a later one needs the room."""
    with _edit(bound) as ledger:
        ledger.kept.append((str(recording), inventory.size_bytes(recording)))


def remove_stale(runtime: Path) -> None:
    """Remove the ledgers of programs of this host that have ended."""
    if manifest.process_start(os.getpid()) is None:
        return  # this system does not say who runs
    prefix = f"{_PREFIX}{socket.gethostname()}-"
    for path in files.list_folder(runtime, f"{prefix}*"):
        pid, _, start = path.name.removeprefix(prefix).rpartition("-")[0].partition("-")
        if pid.isdigit() and str(manifest.process_start(int(pid)) or 0) != start:
            path.unlink(missing_ok=True)


def _delete_oldest(ledger: _Ledger, room_bytes: int) -> None:
    left = []
    excess = sum(size for _, size in ledger.kept) - room_bytes
    for name, size in ledger.kept:
        existed = files.is_folder(Path(name))
        if existed and not (excess > 0 and _is_deleted(Path(name))):
            left.append((name, size))
            continue
        excess -= size
        ledger.deleted_rounds += existed
        ledger.deleted_bytes += size if existed else 0
    ledger.kept = left


def _is_deleted(recording: Path) -> bool:
    try:
        return places.remove_recording(recording)
    except (OSError, FormatError):  # it may go next time
        return False


def _note_deletions(recording: Path, ledger: _Ledger, max_bytes: int) -> None:
    """Let a recording that has no tables yet say what came before it and is gone."""
    with contextlib.suppress(OSError, FormatError), places.locked(recording, wait=False) as ours:
        if not ours or places.is_finalized(recording):
            return
        content = manifest.read(recording)
        facts = {
            DELETED_ROUNDS: ledger.deleted_rounds,
            DELETED_BYTES: ledger.deleted_bytes,
            MAX_TOTAL_BYTES: max_bytes,
        }
        manifest.write(recording, replace(content, metadata={**content.metadata, **facts}))


@contextlib.contextmanager
def _edit(bound: Bound) -> Iterator[_Ledger]:
    """Read the ledger, and write it after the changes; one that cannot be read begins anew."""
    ledger = _Ledger()
    with contextlib.suppress(OSError, ValueError, TypeError):
        ledger = _Ledger(**json.loads(files.read_text(bound.ledger)))
    try:
        yield ledger
    finally:  # what is deleted is gone, whatever failed after that
        with contextlib.suppress(OSError):
            files.write_whole(bound.ledger, json.dumps(asdict(ledger)).encode())
