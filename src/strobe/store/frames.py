# SPDX-License-Identifier: Apache-2.0
"""A recording's tables as Parquet files, and back as lazy frames.

`spans` is stored in a form that packs better: the time its children cover instead of self_ns (0 for
most rows), and the parent as a distance in rows.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from strobe.errors import FormatError
from strobe.model.attributes import IN_TABLE, without_columns
from strobe.model.tables import TABLES
from strobe.store import files
from strobe.store.parquet import MAGIC, ColumnType
from strobe.store.upgrade import MISSING

_IS_FRAMEWORKS = pl.col("category").cast(pl.String) != "user"
"""A user's own attributes may have any keys."""
_ATTRIBUTES = pl.col("attributes").cast(pl.String)
_STORED_AS = {"self_ns": "covered_ns", "parent": "parent_distance"}
_ROW = "row"
# Tables that recordings of the first versions do not have.
_NOT_IN_THE_FIRST = {
    *("links", "allocations", "collectives", "batches", "memory_lines"),
    *("stacks", "frames", "samples"),
}
_POLARS = {
    "int64": pl.Int64,
    "int32": pl.Int32,
    "float64": pl.Float64,
    "bool": pl.Boolean,
    "string": pl.String,
}


def file_schema(table: str) -> Mapping[str, ColumnType]:
    """Return the columns of a table's file."""
    schema = TABLES[table].schema
    if table != "spans":
        return schema
    return {_STORED_AS.get(name, name): dtype for name, dtype in schema.items()}


def file_path(directory: Path, table: str) -> Path:
    """Return where a table lies."""
    return directory / f"{table}.parquet"


def scan(directory: Path, table: str) -> pl.LazyFrame:
    """Return a table lazily; raises FormatError if its file is missing.

    A column that older recordings lack is filled from the attributes that held it before, or null.
    A table that older recordings lack has no rows.
    """
    path = file_path(directory, table)
    problem = files.oddity(path)
    if problem is not None:
        raise FormatError(path, table, problem)
    if not files.is_regular(path):
        if table in _NOT_IN_THE_FIRST:
            return empty(table).lazy()
        raise FormatError(path, table, "this table is missing from the recording")
    stored = pl.scan_parquet(_source(path), row_index_name=_ROW, glob=False)
    if table == "spans":
        stored = stored.with_columns(
            self_ns=pl.col("dur_ns") - pl.col("covered_ns"),
            parent=pl.col(_ROW).cast(pl.Int64) - pl.col("parent_distance"),
        )
    schema = TABLES[table].schema
    missing = schema.keys() - stored.collect_schema().names()
    added = {name: _older(table, name, _POLARS[schema[name]]) for name in missing}
    if any((table, name) in MISSING for name in missing):
        added["attributes"] = _older_attributes()
    return stored.with_columns(**added).select(schema.keys())


def are_whole(directory: Path) -> bool:
    """Say whether a directory has the file of every table, each from its first byte to its last."""
    return all(_is_whole(file_path(directory, table)) for table in TABLES)


def _is_whole(path: Path) -> bool:
    try:
        with files.open_regular(path) as file:
            begin = file.read(len(MAGIC))
            file.seek(-len(MAGIC), os.SEEK_END)
            return bool(begin == MAGIC == file.read())
    except OSError:
        return False


def _older(table: str, column: str, dtype: type[pl.DataType]) -> pl.Expr:
    """Return a column that the file lacks, from the attributes that held it before, or null."""
    key = MISSING.get((table, column))
    if key is None:
        return pl.lit(None, dtype=dtype)
    is_text = _ATTRIBUTES.str.contains(rf'"{key}":\s*"')
    return pl.when(_IS_FRAMEWORKS & is_text).then(_ATTRIBUTES.str.json_path_match(f"$.{key}"))


def _older_attributes() -> pl.Expr:
    """Return the attributes without the keys that have become columns."""
    stripped = _ATTRIBUTES.map_batches(_strip, return_dtype=pl.String)
    return pl.when(_IS_FRAMEWORKS).then(stripped).otherwise(_ATTRIBUTES)


def _strip(attributes: pl.Series) -> pl.Series:
    has_key = pl.any_horizontal(
        pl.lit(attributes).str.contains(f'"{key}"', literal=True) for key in IN_TABLE
    )
    texts = attributes.filter(pl.select(has_key).to_series()).unique().to_list()
    replaced: pl.Series = attributes.replace(texts, list(map(_strip_text, texts)))
    return replaced


def _strip_text(text: str) -> str | None:
    content = json.loads(text)
    rest = without_columns(content)
    if len(rest) == len(content):
        return text
    return json.dumps(rest, separators=(",", ":")) if rest else None


def _source(path: Path) -> Path | io.BytesIO:
    """Return what Polars takes: a path only if it is Unicode."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return io.BytesIO(files.read_bytes(path))
    return path


def empty(table: str) -> pl.DataFrame:
    """Return a table without rows."""
    return pl.DataFrame(schema={name: _POLARS[kind] for name, kind in TABLES[table].schema.items()})
