# SPDX-License-Identifier: Apache-2.0
"""Older recordings as today's: all upgraders live here, and the rest sees only the newest format.

A change of the format raises FORMAT_VERSION, adds the step from the version before to UPGRADES, the
columns that tables of that version lack to MISSING, and a paragraph to FORMATS.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from strobe.errors import FormatError
from strobe.model.attributes import FULL_NAME, TYPE
from strobe.store.layout import FORMAT_VERSION

Content = dict[str, Any]

# version -> what turns a manifest of that version into one of the next
UPGRADES: Mapping[int, Callable[[Content], Content]] = {
    1: lambda content: {**content, "format": 2},
}

# (table, column that its older files lack) -> the key of attributes that held it; a user's own
# attributes may have the same key
MISSING: Mapping[tuple[str, str], str] = {
    ("spans", TYPE): TYPE,
    ("spans", FULL_NAME): FULL_NAME,
}


def upgrade(path: Path, content: object) -> Content:
    """Return the content of a manifest in today's format; raises FormatError for a newer one."""
    version = content.get("format") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(version, int):
        raise FormatError(path, "format", "no format version, so this is no recording of strobe")
    if version > FORMAT_VERSION:
        reason = (
            f"format {version} is newer than this strobe reads (up to {FORMAT_VERSION}); "
            f"install strobe {content.get('strobe', 'of that format')} or later"
        )
        raise FormatError(path, "format", reason)
    while version < FORMAT_VERSION:
        if version not in UPGRADES:
            raise FormatError(path, "format", f"format {version} was never released")
        content = UPGRADES[version](content)
        version += 1
    return content
