# SPDX-License-Identifier: Apache-2.0
"""Columns that are too long for memory, filled at once or bit by bit."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from strobe.store import files
from strobe.store.spill import Spill, _arrays


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


needs_c = pytest.mark.skipif(_arrays is None, reason="the C extension is not built")


def lies_in_a_file(column: Any) -> bool:
    """Whether an array's memory is a mapped file without a name."""
    address = column.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, *_, name = line.split(maxsplit=5)
        first, last = (int(bound, 16) for bound in bounds.split("-"))
        if first <= address < last:
            return name.endswith("(deleted)")
    return False


@needs_c
def test_large_arrays_of_numpys_own_are_in_files(tmp_path: Path) -> None:
    numbers = np.arange(2000)

    with Spill(tmp_path, in_memory_rows=1000).large_arrays():
        made = [numbers + 1, np.concatenate([numbers, numbers]), np.zeros(1000), numbers[::2] + 1]
        short = np.arange(999)
    after = numbers + 1

    assert [lies_in_a_file(column) for column in (*made, short, after)] == [True] * 4 + [False] * 2
    assert [column.sum() for column in made] == [2_001_000, 3_998_000, 0, 1_000_000]
    assert list(tmp_path.iterdir()) == []


@needs_c
def test_large_arrays_can_be_resized_and_outlive_the_block(tmp_path: Path) -> None:
    with Spill(tmp_path, in_memory_rows=1000).large_arrays():
        longer, shorter = np.arange(2000), np.arange(2000)
    longer.resize(5000, refcheck=False)
    shorter.resize(10, refcheck=False)

    assert lies_in_a_file(longer)
    assert not lies_in_a_file(shorter)
    assert longer[1998:2002].tolist() == [1998, 1999, 0, 0]
    assert shorter.tolist() == list(range(10))


@needs_c
def test_large_arrays_in_blocks_inside_each_other_are_each_in_their_folder(tmp_path: Path) -> None:
    outer, inner = (Spill(tmp_path, in_memory_rows=rows) for rows in (1000, 10))

    with outer.large_arrays():
        with inner.large_arrays():
            column = np.arange(100)
        after = np.arange(100)

    assert (lies_in_a_file(column), lies_in_a_file(after)) == (True, False)


@needs_c
def test_a_large_array_that_a_disk_has_no_room_for_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LEFT_FREE_BYTES", 1 << 60)

    with (
        Spill(tmp_path, in_memory_rows=1000).large_arrays(),
        pytest.raises(MemoryError, match="allocate"),
    ):
        np.arange(2000)


@needs_c
def test_large_arrays_do_not_count_as_memory(tmp_path: Path) -> None:
    before = anonymous_bytes()
    with Spill(tmp_path).large_arrays():
        column = np.arange(10_000_000)
        column = column[column % 2 == 0] * 2

    assert int(column[-1]) == 19_999_996
    assert anonymous_bytes() - before < 20_000_000
