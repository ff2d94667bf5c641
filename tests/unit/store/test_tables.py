# SPDX-License-Identifier: Apache-2.0
"""Tables are a directory of files: no session, no recording and no manifest is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from drawing import lanes, make_tables, spans
from strobe.errors import FormatError
from strobe.model.tables import TABLES
from strobe.store.frames import empty
from strobe.store.tables import Tables

# The names of two tables are also those of analyses, which return them collected.
COLLECTED = {"operators", "completeness"}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    drawn = spans("main | forward----  backward--")
    make_tables(tmp_path, spans=drawn, threads=lanes((1, 1, "main", None, None)))
    return tmp_path


@pytest.mark.parametrize("table", sorted(set(TABLES) - COLLECTED))
def test_every_table_has_a_method(directory: Path, table: str) -> None:
    frame = getattr(Tables(directory), table)()

    assert frame.collect_schema() == empty(table).schema
    assert frame.collect().equals(Tables(directory).scan(table).collect())


def test_rows_are_those_of_the_files(directory: Path) -> None:
    tables = Tables(directory)

    assert tables.directory == directory
    assert tables.spans().collect()["name"].to_list() == ["forward", "backward"]
    assert tables.threads().collect()["thread"].to_list() == ["main"]
    assert tables.scan("completeness").collect().is_empty()


def test_keys_of_attributes_that_became_columns_are_only_that(tmp_path: Path) -> None:
    """Format 1 has neither column; a user's attributes are left alone."""
    rows = {
        "user": '{"type":"mine"}',
        "module": '{"type":"Conv","depth":2}',
        "operator": '{"full_name":"a/b"}',
        "annotation": '{"type": 3}',
        "kernel": '{"why": "type"}',
    }
    frame = spans("main | a b c d e").with_columns(
        category=pl.Series(list(rows)), attributes=pl.Series(list(rows.values()))
    )
    make_tables(tmp_path, spans=frame)
    stored = pl.read_parquet(tmp_path / "spans.parquet")
    stored.drop("type", "full_name").write_parquet(tmp_path / "spans.parquet")

    found = Tables(tmp_path).spans().select("type", "full_name", "attributes").collect()

    assert found.rows() == [
        (None, None, '{"type":"mine"}'),
        ("Conv", None, '{"depth":2}'),
        (None, "a/b", None),
        (None, None, '{"type": 3}'),
        (None, None, '{"why": "type"}'),
    ]


def test_a_missing_table_is_named(directory: Path) -> None:
    (directory / "threads.parquet").unlink()

    with pytest.raises(FormatError, match=r"threads: this table is missing"):
        Tables(directory).threads()


def test_the_class_is_imported_without_polars() -> None:
    source = "import sys, strobe.store.tables; print({'polars', 'numpy'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )

    assert done.stdout == "set()\n"
