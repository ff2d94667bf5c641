# SPDX-License-Identifier: Apache-2.0
"""What recordings there are: when they were made, how large they are, in which state."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from strobe.errors import FormatError
from strobe.store import manifest, places, references


def describe(recordings: Iterable[Path]) -> list[dict[str, Any]]:
    """Return each recording's path, name, age, size and state, the oldest first.

    `readable` says whether its manifest is; `records` whether its program still records into it,
    None where that cannot be known. No tables are opened. A recording that was deleted since it was
    found is left out.
    """
    rows = [row for recording in recordings if (row := _describe(recording))]
    return sorted(rows, key=lambda row: (row["recorded"], row["path"]))


def _describe(recording: Path) -> dict[str, Any] | None:
    records: bool | None = False
    readable = True
    try:
        content = manifest.read(recording)
        wall_ns = content.start.wall_ns
        records = still_records(recording, content)
        state = _state(recording, content, records)
    except FormatError as error:
        try:
            wall_ns, state = recording.lstat().st_mtime_ns, f"unreadable: {error.reason}"
        except OSError:
            return None
        readable = False
    return {
        "path": str(recording),
        "name": recording.name,
        "recorded": local_time(wall_ns),
        "age_days": max(0.0, (time.time_ns() - wall_ns) / 86_400e9),
        "size_bytes": size_bytes(recording),
        "state": state,
        "records": records,
        "readable": readable,
    }


def still_records(recording: Path, content: manifest.Manifest) -> bool | None:
    """Say whether a program or a child of it still records into it.

    None if it ran on another host and may.
    """
    if places.is_finalized(recording) or content.stop is not None:
        return False
    alive = manifest.is_alive(content.pid, content.process_start, content.host, content.boot)
    return alive if alive is not False else _child_records(recording, content)


def _child_records(recording: Path, content: manifest.Manifest) -> bool:
    from strobe.store import log as chunk_log  # needs numpy

    for log in references.find_logs(recording, content).found:
        for process in chunk_log.processes(log):
            pid, start = process.get("pid"), process.get("start")
            if not isinstance(pid, int) or not isinstance(start, int):
                continue
            if manifest.is_alive(pid, start, content.host, content.boot):
                return True
    return False


def _state(recording: Path, content: manifest.Manifest, records: bool | None) -> str:
    if places.is_finalized(recording):
        return "complete" if content.stop is not None else "its program ended without stop()"
    if content.stop is not None:
        return "stopped, tables not written yet"
    if records is None:
        return f"recorded on {content.host}, perhaps still recording"
    return "recording" if records else "its program ended without stop()"


def size_bytes(directory: Path) -> int:
    """Return the bytes that a directory, or a file, takes on disk."""
    total = 0 if directory.is_dir() else directory.stat().st_blocks * 512
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += Path(folder, name).lstat().st_blocks * 512
            except (OSError, AttributeError):
                continue  # gone since it was listed
    return total


def local_time(wall_ns: int) -> str:
    """Return an instant as the user's clock shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ns / 1e9))
