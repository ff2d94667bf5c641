# SPDX-License-Identifier: Apache-2.0
"""CSV and Parquet folders hold the tables as documented; the list of exporters is complete."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import strobe
from strobe.errors import FormatError, UsageError
from strobe.exporters import NAMES, _writers_python, _writing, chrome, csv, parquet, perfetto
from strobe.exporters import find_exporter as find
from strobe.model.tables import TABLES
from strobe.store.tables import Tables


def silent(stage: str, share: float) -> None:
    assert stage
    assert 0 <= share <= 1


def test_parquet_holds_every_table(tables: Tables, tmp_path: Path) -> None:
    parquet.write(tables, tmp_path / "out", silent)

    assert len(list((tmp_path / "out").iterdir())) == len(TABLES)
    for table in TABLES:
        written = pl.read_parquet(tmp_path / "out" / f"{table}.parquet")
        assert_frame_equal(written, tables.scan(table).collect())


def test_csv_holds_every_table(tables: Tables, tmp_path: Path) -> None:
    csv.write(tables, tmp_path / "out", silent)

    assert len(list((tmp_path / "out").iterdir())) == len(TABLES)
    for table in TABLES:
        expected = tables.scan(table).collect()
        path = tmp_path / "out" / f"{table}.csv"
        written = pl.read_csv(path, schema=expected.schema)
        # Of texts the reader makes null and "" the same; the file does not.
        assert_frame_equal(written.fill_null(""), expected.fill_null(""))


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_table_is_an_error_and_leaves_no_file(
    name: str, tables: Tables, tmp_path: Path
) -> None:
    for file in tables.directory.glob("*.parquet"):
        if file.stem != "threads":
            shutil.copyfile(file, tmp_path / file.name)
    target = tmp_path / "out"

    with pytest.raises(FormatError, match="threads"):
        find(name).write(Tables(tmp_path), target, silent)

    assert [file for file in tmp_path.rglob("*.part") if file.is_file()] == []
    assert not target.is_file()


def test_exporters_have_names_suffixes_and_texts_of_their_own() -> None:
    assert tuple(find(name).NAME for name in NAMES) == NAMES
    for attribute in ("SUFFIX", "DOC"):
        values = {getattr(find(name), attribute) for name in NAMES}
        assert len(values) == len(NAMES)
        assert all(values)


def test_a_format_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'\.\.store': must be one of chrome, perfetto"):
        find("..store")


@pytest.mark.parametrize("exporter", [chrome, perfetto], ids=["chrome", "perfetto"])
def test_without_the_extension_the_file_is_the_same(
    exporter: object, tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter.write(tables, tmp_path / "c", silent)  # type: ignore[attr-defined]
    monkeypatch.setattr(exporter, "writers", _writers_python)
    monkeypatch.setattr("strobe.exporters._rows.writers", _writers_python)
    exporter.write(tables, tmp_path / "python", silent)  # type: ignore[attr-defined]

    assert (tmp_path / "c").read_bytes() == (tmp_path / "python").read_bytes()
    assert _writing.KIND in ("C", "Python")


def test_a_recording_of_many_batches_is_exported_whole(
    hostile: strobe.Recording, tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chrome.write(tables, tmp_path / "one", silent)
    monkeypatch.setattr("strobe.exporters._rows.ROW_GROUP_ROWS", 7)
    chrome.write(tables, tmp_path / "many", silent)

    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()
