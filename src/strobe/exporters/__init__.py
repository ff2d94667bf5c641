# SPDX-License-Identifier: Apache-2.0
"""A recording's tables in foreign formats: one module per format, each listed here once."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from strobe.errors import UsageError
from strobe.store.tables import Tables

Progress = Callable[[str, float], None]


class Exporter(Protocol):
    """What a module in this room offers."""

    NAME: str
    """What `strobe export --format` calls it: the module's own name."""
    SUFFIX: str
    """How the name of what it writes ends: a file, or a folder where there is no dot in it."""
    DOC: str
    """One line for people."""

    def write(self, tables: Tables, path: Path, progress: Progress) -> None:
        """Write the tables to `path`, in bounded memory.

        A file has its name once it is whole; an older one stays until then. Raises FormatError
        when a table is missing, OSError when `path` cannot be written.
        """


NAMES = ("chrome", "perfetto", "csv", "parquet", "paddle", "paddle_pb", "strobe")


def find_exporter(name: str) -> Exporter:
    """Return the exporter of this name, imported only now, as it imports much.

    Raises UsageError if there is none.
    """
    if name not in NAMES:
        message = f"format {name!r}: must be one of {', '.join(NAMES)}"
        raise UsageError(message)
    return cast(Exporter, import_module(f"strobe.exporters.{name}"))
