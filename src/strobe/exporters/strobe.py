# SPDX-License-Identifier: Apache-2.0
"""A recording of its own: the tables with a manifest, where the user wants them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from strobe.analysis.metadata import read_metadata, read_number
from strobe.model.tables import TABLES as tables_of_a_recording
from strobe.store import files, inventory, manifest, places
from strobe.store.frames import file_path
from strobe.store.places import ORIGINALS
from strobe.store.references import LOG, TABLES
from strobe.store.tables import Tables

NAME = "strobe"
SUFFIX = "_strobe"
DOC = "A recording of strobe, which needs neither the original nor the cache"

_KNOWN = (
    *("name", "id", "strobe", "format", "recorder", "clock", "host", "pid", "processes"),
    *("first_step", "start_ns", "end_ns", "start_wall_ns", "span_cost_ns"),
)
"""What of the metadata has a place of its own in the manifest, or is in the tables alone."""
_RANKS = ("rank", "world_size", "local_rank")
"""What of it are numbers by which the ranks of a run are found."""


def write(tables: Tables, path: Path, progress: Callable[[str, float], None]) -> None:
    """Write the folder `path`, as a whole; an older recording that is there goes.

    Raises FileExistsError where there is anything else, or a recording that is needed.
    """
    path = path.absolute()
    content = _describe(read_metadata(tables))
    part = path.with_name(f"{path.name}.part-{manifest.new_id()}")
    (part / TABLES).mkdir(parents=True)
    try:
        for number, table in enumerate(tables_of_a_recording):
            tables.scan(table)  # raises FormatError where it is missing and should not be
            file = file_path(tables.directory, table)
            if files.is_regular(file):
                shutil.copyfile(file, part / TABLES / file.name)
            progress("exporting", (number + 1) / len(tables_of_a_recording))
        for folder in filter(files.is_folder, files.list_folder(tables.directory, ORIGINALS)):
            shutil.copytree(folder, part / TABLES / folder.name)
        manifest.write(part, content)
        _make_room(path, tables.directory)
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _has_ended(recording: Path) -> bool:
    return inventory.still_records(recording, manifest.read(recording)) is False


def _make_room(path: Path, source: Path) -> None:
    """Delete the recording at a path, if nobody needs it."""
    if not os.path.lexists(path):
        return
    reason = "it is there, and no recording"
    if places.is_recording(path):
        reason = "the recording there is still being made, or others need its log"
        if source.resolve().is_relative_to(path.resolve()):
            reason = "it is the recording that is to be exported"
        elif _has_ended(path) and places.remove_recording(path):
            return
    raise FileExistsError(errno.EEXIST, reason, str(path))


def _describe(metadata: dict[str, str]) -> manifest.Manifest:
    start_ns, end_ns = (read_number(metadata, key) or 0 for key in ("start_ns", "end_ns"))
    wall_ns = read_number(metadata, "start_wall_ns") or 0
    rest: dict[str, Any] = {key: text for key, text in metadata.items() if key not in _KNOWN}
    for key in _RANKS:
        if (number := read_number(metadata, key)) is not None:
            rest[key] = number
    return manifest.Manifest(
        id=manifest.new_id(),
        name=metadata.get("name", ""),
        strobe=metadata.get("strobe", ""),
        recorder=metadata.get("recorder", manifest.IMPORTED),
        host=metadata.get("host", ""),
        boot="",
        pid=read_number(metadata, "pid") or 0,
        process_start=0,
        log=LOG,
        start=manifest.Anchor(clock_ns=start_ns, monotonic_ns=start_ns, wall_ns=wall_ns),
        stop=manifest.Anchor(
            clock_ns=end_ns, monotonic_ns=end_ns, wall_ns=wall_ns + end_ns - start_ns
        ),
        first_step=read_number(metadata, "first_step") or 0,
        metadata=rest,
    )
