# SPDX-License-Identifier: Apache-2.0
"""Where a command writes its file."""

from __future__ import annotations

from pathlib import Path

from strobe.errors import CommandError


def choose_target(recording: Path, output: Path | None, suffix: str, *, force: bool) -> Path:
    """Return what the user named, else a path beside the recording; raises CommandError.

    A link that the user names is followed. One that lies beside the recording may be anybody's.
    """
    target = output or recording.with_name(recording.name + suffix)
    if output is None and target.is_symlink():
        message = f"{str(target)!r} is a symbolic link; name the file to write with -o"
        raise CommandError(message)
    if target.exists() and not force:
        message = f"{str(target)!r} exists; add --force to overwrite it"
        raise CommandError(message)
    return target
