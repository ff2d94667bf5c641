# SPDX-License-Identifier: Apache-2.0
"""One CSV file per table in a folder, columns as in docs/tables.md; null is an empty field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from strobe.exporters._rows import read_batches
from strobe.exporters.files import new_file
from strobe.model.tables import TABLES
from strobe.store.frames import empty
from strobe.store.tables import Tables

NAME = "csv"
SUFFIX = "_csv"
DOC = "A folder with one CSV file per table"


def write(tables: Tables, path: Path, progress: Callable[[str, float], None]) -> None:
    """Write the folder `path`; other files in it stay."""
    path.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(TABLES):
        with new_file(path / f"{table}.csv") as file:
            file.write(empty(table).write_csv().encode())
            for rows, share in read_batches(tables, table):
                rows.write_csv(file, include_header=False)
                progress("exporting", (number + share) / len(TABLES))
    progress("exporting", 1.0)
