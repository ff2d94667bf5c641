# SPDX-License-Identifier: Apache-2.0
"""A recording's tables in foreign formats: one module per format, each listed here once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from strobe.exporters import chrome, csv, parquet, perfetto

Progress = Callable[[str, float], None]


class Exporter(Protocol):
    """What a module in this room offers."""

    NAME: str
    """What `strobe export --format` calls it."""
    SUFFIX: str
    """How the name of what it writes ends: a file, or a folder where there is no dot in it."""
    DOC: str
    """One line for people."""

    def write(self, tables: Path, path: Path, progress: Progress) -> None:
        """Write the tables in the directory `tables` to `path`, in bounded memory.

        A file has its name once it is whole; an older one stays until then. Raises FormatError
        when a table is missing, OSError when `path` cannot be written.
        """


EXPORTERS: list[Exporter] = [chrome, perfetto, csv, parquet]
