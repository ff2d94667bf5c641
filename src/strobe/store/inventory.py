# SPDX-License-Identifier: Apache-2.0
"""What recordings there are: when they were made, how large they are, in which state."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from strobe.errors import FormatError
from strobe.store import manifest, places


def describe(recordings: Iterable[Path]) -> list[dict[str, Any]]:
    """Return each recording's path, name, age, size and state, without opening its tables.

    One that has been deleted since it was found is left out.
    """
    return [row for recording in recordings if (row := _describe(recording))]


def _describe(recording: Path) -> dict[str, Any] | None:
    try:
        content = manifest.read(recording)
        wall_ns, state = content.start.wall_ns, _state(recording, content)
    except FormatError as error:
        try:
            wall_ns, state = recording.stat().st_mtime_ns, f"unreadable: {error.reason}"
        except OSError:
            return None
    return {
        "path": str(recording),
        "name": recording.name,
        "recorded": local_time(wall_ns),
        "age_days": max(0.0, (time.time_ns() - wall_ns) / 86_400e9),
        "size_bytes": size_bytes(recording),
        "state": state,
    }


def _state(recording: Path, content: manifest.Manifest) -> str:
    if places.is_finalized(recording):
        return "complete"
    if content.stop is not None:
        return "stopped, tables not written yet"
    alive = manifest.is_alive(content.pid, content.process_start, content.host, content.boot)
    if alive is None:
        return f"recorded on {content.host}, perhaps still recording"
    return "recording" if alive else "its program ended without stop()"


def size_bytes(directory: Path) -> int:
    """Return the bytes that a directory takes on disk."""
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            try:
                total += Path(folder, name).lstat().st_blocks * 512
            except (OSError, AttributeError):
                continue  # gone since it was listed
    return total


def local_time(wall_ns: int) -> str:
    """Return an instant as the user's clock shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall_ns / 1e9))
