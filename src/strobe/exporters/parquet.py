# SPDX-License-Identifier: Apache-2.0
"""One Parquet file per table in a folder, with the columns of docs/tables.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from strobe.exporters._rows import read_batches
from strobe.model.tables import TABLES
from strobe.store.parquet import TableWriter
from strobe.store.tables import Tables

NAME = "parquet"
SUFFIX = "_parquet"
DOC = "A folder with one Parquet file per table, for polars, pandas, DuckDB and others"


def write(tables: Tables, path: Path, progress: Callable[[str, float], None]) -> None:
    """Write the folder `path`; other files in it stay."""
    path.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(TABLES):
        with TableWriter(path / f"{table}.parquet", TABLES[table].schema) as writer:
            for rows, share in read_batches(tables, table):
                writer.append(dict(zip(rows.columns, rows.get_columns(), strict=True)))
                progress("exporting", (number + share) / len(TABLES))
    progress("exporting", 1.0)
