# SPDX-License-Identifier: Apache-2.0
"""Ring files that could not lie in their log: on a local disk, or in shared memory.

Their names follow from the recording's id, and they are looked for in the folders that the recorder
uses, never where a recording says. They count only if they are this user's. A copied recording
finds the rings of the original, which are not its own: each ring names the directory of its log,
and only with that directory is it deleted.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from strobe.errors import FormatError
from strobe.store import files, layout, manifest

_NAME = re.compile(r"strobe-[0-9a-f]{16}-(?P<prefix>.+)\.(?P<number>[0-9]{1,10})\.ring")


def folders() -> list[Path]:
    """Return where the recorder of a process with this environment puts rings, the first first."""
    temporary = os.environ.get("TMPDIR", "")
    known = [temporary] if temporary.startswith("/") else []
    return [Path(name) for name in dict.fromkeys([*known, "/tmp", "/dev/shm"])]


def find_elsewhere(log: Path, recording_id: str | None = None) -> dict[tuple[str, int], Path]:
    """Return the rings of a log that lie elsewhere, by the process's prefix and their number.

    The recording's id is that in its manifest, unless given.
    """
    if recording_id is None:
        try:
            recording_id = manifest.read(log.parent).id
        except FormatError:
            return {}
    found: dict[tuple[str, int], Path] = {}
    for folder in folders():
        folder = Path(os.path.realpath(folder))  # the system's own folder may be a link
        for path in files.list_folder(folder, f"strobe-{recording_id}-*.ring"):
            matched = _NAME.fullmatch(path.name)
            if matched and _is_ours(path):
                found.setdefault((matched["prefix"], int(matched["number"])), path)
    return found


def remove_elsewhere(log: Path, recording_id: str | None = None) -> None:
    """Delete the rings of this log, though not those of a log that it is a copy of."""
    for path in find_elsewhere(log, recording_id).values():
        with contextlib.suppress(OSError):
            with files.open_regular(path) as file:
                header = file.read(layout.PAGE_BYTES)
            if len(header) < layout.PAGE_BYTES:
                continue  # its maker was killed, or is still at it
            named = layout.RING_LOG.unpack_from(header, layout.LOG_OFFSET)
            if named == files.identify(log):
                path.unlink()


def _is_ours(path: Path) -> bool:
    try:
        return not hasattr(os, "geteuid") or path.lstat().st_uid == os.geteuid()
    except OSError:
        return False
