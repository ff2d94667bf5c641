# SPDX-License-Identifier: Apache-2.0
"""Logs that more than one recording needs: who refers to whom, and when a log may go.

Profilers that overlap share the log of the first. A child process that opens a profiler of its own
has a log of its own, whose records are also its parent's.

<sharer>/strobe.json    log: "../<owner>/log"          <owner>/log/refs/<sharer's id>: "../<sharer>"
<parent>/log/links/<n>: "../<child>/log"               <child>/log/refs/<n>: "../<parent>/log"

Every path is relative to the recording that it is in, so that recordings may be moved together. A
recording may come from anybody, and may be a copy of another:

- Another log is read only where both sides have the reference.
- A reference is taken back only by the one that it names, not by a copy of that.
- A log is deleted only if its own recording has tables and none of its references stands. One
  whose maker is nowhere to be found stands: it may have been moved.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from strobe.errors import FormatError
from strobe.store import files, manifest, rings
from strobe.store.manifest import Manifest

LOG = "log"
REFS = "refs"
LINKS = "links"
TABLES = "tables"
DELETED = ".deleted"
"""The suffix of a recording that is being deleted."""

_MOST_BYTES = 4096
"""No path is longer."""


@dataclass(frozen=True)
class Logs:
    """The logs that a recording is made from, and a sentence for each that is missing."""

    found: list[Path] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def make_log(recording: Path, calls: files.Calls | None = None) -> Path:
    """Make the log of a new recording; raises OSError."""
    log = recording / LOG
    for folder in (log, log / REFS, log / LINKS):
        (calls or files).make_folder(str(folder))
    return log


def share_log(log: Path, recording: Path, recording_id: str) -> None:
    """Note in a log that another recording needs it too; raises OSError."""
    _write_name(log / REFS / recording_id, recording, log.parent)


def link_log(log: Path, *, into: Path, number: str) -> None:
    """Make a log a part of another one: that of a child process, of its parent's. Raises OSError.

    The reference comes first: a child that is killed in between loses nothing.
    """
    _write_name(log / REFS / number, into, log.parent)
    _write_name(into / LINKS / number, log, into.parent)


def name_log(log: Path, recording: Path) -> str:
    """Return how a recording's manifest names its log."""
    if log == recording / LOG:
        return LOG
    return os.path.relpath(os.path.realpath(log), os.path.realpath(recording))


def _write_name(file: Path, target: Path, recording: Path) -> None:
    name = os.path.relpath(os.path.realpath(target), os.path.realpath(recording))
    files.write_whole(file, os.fsencode(name))


def find_logs(recording: Path, content: Manifest) -> Logs:
    """Return the recording's log and those that belong to it."""
    own = find_log(recording, content)
    if own is None:
        return Logs(missing=[_lost_log(recording, content)])
    logs = Logs()
    waiting = [own]
    while waiting:
        log = waiting.pop()
        if log in logs.found:
            continue
        logs.found.append(log)
        listed = [*files.list_folder(log), *files.list_folder(log / LINKS)]
        logs.missing.extend(files.oddities(listed))
        for number, name in _names(log, LINKS):
            linked = _find_linked(log, number, name)
            if linked is not None:
                waiting.append(linked)
            else:
                logs.missing.append(
                    f"the log of a child process is missing: {name!r} is not there; move the two "
                    "together"
                )
    return logs


def find_log(recording: Path, content: Manifest) -> Path | None:
    """Return the recording's log, its own or the one it shared; None if it is not there."""
    if content.log == LOG:
        log = recording / LOG
        return log if files.is_folder(log) else None
    shared = _resolve_log(recording, content.log)
    return shared if shared and _has(shared, REFS, content.id) else None


def _lost_log(recording: Path, content: Manifest) -> str:
    if content.log != LOG:
        return (
            f"the log is missing: it was shared with another recording, as {content.log!r}, and "
            "is not there; move the two together"
        )
    problem = files.oddity(recording / LOG, "a folder")
    return "the log is missing" if problem is None else f"{LOG}: {problem}"


def _find_linked(log: Path, number: str, name: str) -> Path | None:
    linked = _resolve_log(log.parent, name)
    return linked if linked and _has(linked, REFS, number) else None


def _resolve_log(recording: Path, name: str) -> Path | None:
    """Return the log of another recording that is named relative to this one, if it is there."""
    path = _resolve(recording, name)
    if path is None or path.name != LOG or Path(os.path.realpath(path)) != path:
        return None  # a link on the way leads somewhere else
    return path if files.is_folder(path) else None


def _resolve(recording: Path, name: str) -> Path | None:
    if not name or "\0" in name or Path(name).is_absolute():
        return None
    return Path(os.path.normpath(Path(os.path.realpath(recording)) / name))


def is_needed(log: Path, *, elsewhere: bool = True) -> bool:
    """Say whether another recording, or another log, still needs this log.

    `elsewhere`: whether one that is not where the reference says may still be somewhere.
    """
    return any(
        _stands(log, number, name, elsewhere=elsewhere) for number, name in _names(log, REFS)
    )


def needed_by(log: Path) -> list[Path]:
    """Return the recordings that need this log and are where the references say."""
    makers = [
        _resolve(log.parent, name)
        for number, name in _names(log, REFS)
        if _stands(log, number, name, elsewhere=False)
    ]
    return [maker.parent if maker.name == LOG else maker for maker in makers if maker is not None]


def _stands(log: Path, number: str, name: str, *, elsewhere: bool) -> bool:
    maker = _resolve(log.parent, name)
    if maker is None or not files.is_folder(maker):
        # A parent that is complete and has no log any more has taken what it needed.
        is_done = maker is not None and maker.name == LOG and _is_complete(maker.parent)
        return elsewhere and not is_done
    if maker.name == LOG:
        return _has(maker, LINKS, number)
    try:
        content = manifest.read(maker)
    except FormatError:
        return True  # it is being made, or is damaged and may be mended
    if content.id != number or files.is_folder(maker / TABLES):
        return False
    # Of a copy of the log it shared, it needs nothing; of that log under a new name, everything.
    shared = find_log(maker, content)
    return shared is None or shared == Path(os.path.realpath(log))


def release(recording: Path, content: Manifest) -> None:
    """Delete the log of a recording that is complete or being deleted, unless somebody needs it.

    Of a log that it shared, it takes back its reference.
    """
    log = find_log(recording, content)
    if log is None:
        return
    if content.log != LOG and not _take_back(log, content.id, _home(recording)):
        return
    release_log(log)


def release_log(log: Path) -> None:
    """Delete a log whose recording is complete and which nobody needs, then those linked to it."""
    if _is_complete(log.parent) and not is_needed(log):
        remove_log(log)


def _is_complete(recording: Path) -> bool:
    is_recording = files.is_regular(recording / manifest.FILE_NAME)
    return is_recording and files.is_folder(recording / TABLES)


def remove_log(log: Path, recording_id: str | None = None) -> None:
    """Delete a log, its rings that are elsewhere, and the logs linked to it that only it needed.

    `recording_id` is that in the manifest beside the log, unless given.
    """
    if not files.is_folder(log):
        return
    linked = list(_linked(log))
    rings.remove_elsewhere(log, recording_id)
    shutil.rmtree(log, ignore_errors=True)
    for other, number in linked:
        if _take_back(other, number, _home(log.parent) / LOG):
            release_log(other)


def discard_log(log: Path, recording_id: str) -> None:
    """Delete the log of a recording that could not be started, and what links to it."""
    for number, name in _names(log, REFS):
        parent = _resolve_log(log.parent, name)
        if parent is not None and _has(parent, LINKS, number):
            with contextlib.suppress(OSError):
                (parent / LINKS / number).unlink()
    remove_log(log, recording_id)


def _linked(log: Path) -> Iterator[tuple[Path, str]]:
    for number, name in _names(log, LINKS):
        linked = _find_linked(log, number, name)
        if linked is not None:
            yield linked, number


def _take_back(log: Path, number: str, maker: Path) -> bool:
    """Remove a reference if it names this maker; say whether it is gone."""
    if _resolve(log.parent, dict(_names(log, REFS)).get(number, "")) != maker:
        return False
    try:
        (log / REFS / number).unlink(missing_ok=True)
    except OSError:
        return False
    return True


def _home(recording: Path) -> Path:
    """Return the path that a recording had before it began to be deleted."""
    path = Path(os.path.realpath(recording))
    return path.with_name(path.name.removesuffix(DELETED))


def _has(log: Path, kind: str, number: str) -> bool:
    return files.is_folder(log / kind) and files.is_regular(log / kind / number)


def _names(log: Path, kind: str) -> list[tuple[str, str]]:
    """Return the references or links of a log, by number, and what they name."""
    names = []
    for file in files.list_folder(log / kind):
        if not manifest.is_id(file.name):
            continue  # being written, left by one who was killed, or none of ours
        with contextlib.suppress(OSError), files.open_regular(file) as content:
            names.append((file.name, os.fsdecode(content.read(_MOST_BYTES))))
    return names
