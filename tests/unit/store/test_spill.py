# SPDX-License-Identifier: Apache-2.0
"""Columns that are too long for memory, filled at once or bit by bit."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from strobe.store import files
from strobe.store.spill import Spill


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (size,) = (line.split()[1] for line in lines if line.startswith("RssAnon"))
    return int(size) * 1024


def test_a_short_column_is_in_memory_and_a_long_one_in_a_file(tmp_path: Path) -> None:
    spill = Spill(tmp_path, in_memory_rows=10)

    short, long = spill.empty(10, np.int64), spill.empty(11, np.int64)

    assert (short.base is None, long.base is None) == (True, False)
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_a_long_column_does_not_count_as_memory(tmp_path: Path) -> None:
    before = anonymous_bytes()
    column = Spill(tmp_path).full(10_000_000, 7, np.int64)

    assert int(column.sum()) == 70_000_000
    assert anonymous_bytes() - before < 20_000_000


@pytest.mark.parametrize("in_memory_rows", [1000, 6, 2, 1])
def test_a_growing_column_keeps_all_that_is_added(tmp_path: Path, in_memory_rows: int) -> None:
    column = Spill(tmp_path, in_memory_rows).growing(np.int32)

    column.extend(np.arange(5))
    column.pad(8)
    column.pad(3)
    column.extend(np.array([100]))
    column.extend(np.zeros(0))

    assert len(column) == 9
    assert column.values().dtype == np.int32
    assert column.values().tolist() == [0, 1, 2, 3, 4, -1, -1, -1, 100]


def test_an_empty_growing_column_has_no_rows(tmp_path: Path) -> None:
    assert Spill(tmp_path).growing(np.int64).values().tolist() == []


def test_looking_up_is_indexing(tmp_path: Path) -> None:
    table, places = np.array([5, 6, 7, -1]), np.array([2, 0, -1, 1, 1, 2, 3])

    for spill in (Spill(tmp_path), Spill(tmp_path, 2)):
        assert spill.look_up(table, places).tolist() == table[places].tolist()


def test_a_file_that_may_not_be_written_is_an_oserror(tmp_path: Path) -> None:
    """Not a SIGBUS when a page is touched."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            Spill(tmp_path, 10).empty(1_000_000, np.int64)
        except OSError:
            os._exit(3)
        os._exit(0)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3


def test_a_disk_is_not_filled_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spill = Spill(tmp_path, 10)
    growing, texts = spill.growing(np.int64), spill.texts()
    monkeypatch.setattr(files, "LEFT_FREE_BYTES", shutil.disk_usage(tmp_path).total)

    with pytest.raises(OSError, match="would stay free"):
        spill.empty(11, np.int64)
    with pytest.raises(OSError, match="would stay free"):
        growing.extend(np.zeros(1000))
    with pytest.raises(OSError, match="would stay free"):
        texts.extend(pl.Series(["a text"]))
