# SPDX-License-Identifier: Apache-2.0
"""Folders of tables that are kept for the next time."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from strobe.errors import UsageError
from strobe.store.cache import BOUND_VARIABLE, MOST_BYTES, Cache, bound_bytes
from strobe.store.inventory import size_bytes

FILE = "spans.parquet"
HOLD = """
import sys
from pathlib import Path
from strobe.store.cache import Cache

entry = Cache(Path(sys.argv[1])).find(sys.argv[2])
print("held" if entry else "not there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def put(cache: Cache, key: str, content: bytes = b"") -> None:
    with cache.writing(key) as tables:
        (tables / FILE).write_bytes(content or key.encode())


def keys(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_an_entry_is_found_by_its_key(folder: Path) -> None:
    cache = Cache(folder)
    put(cache, "one")
    put(cache, "two")

    entry = Cache(folder).find("two")

    assert entry is not None
    assert (entry.tables / FILE).read_bytes() == b"two"
    assert cache.find("three") is None


def test_the_cache_is_its_owners_alone(folder: Path) -> None:
    previous = os.umask(0)
    try:
        put(Cache(folder), "one")
    finally:
        os.umask(previous)

    assert mode(folder) == 0o700
    assert mode(folder / "one" / "tables") == 0o700


def test_a_folder_that_others_may_open_is_closed_to_them(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)

    Cache(folder)

    assert mode(folder) == 0o700


def test_a_link_is_no_cache(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    folder.symlink_to(elsewhere)

    with pytest.raises(PermissionError, match="is no folder of this user"):
        Cache(folder)

    assert mode(elsewhere) == 0o755


def test_a_file_is_no_cache(folder: Path) -> None:
    folder.write_bytes(b"")

    with pytest.raises(OSError, match="exists"):
        Cache(folder)


def test_an_entry_is_not_there_before_it_is_whole(folder: Path) -> None:
    cache = Cache(folder)

    with cache.writing("one") as tables:
        (tables / FILE).write_bytes(b"half")
        assert cache.find("one") is None

    assert cache.find("one") is not None
    assert keys(folder) == ["one"]


def test_what_could_not_be_written_leaves_nothing(folder: Path) -> None:
    def fail() -> None:
        with Cache(folder).writing("one") as tables:
            (tables / FILE).write_bytes(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert keys(folder) == []


def test_of_two_that_write_the_same_the_first_to_end_is_kept(folder: Path) -> None:
    cache = Cache(folder)

    with cache.writing("one") as tables:
        (tables / FILE).write_bytes(b"slower")
        put(cache, "one", b"faster")

    entry = cache.find("one")
    assert entry is not None
    assert (entry.tables / FILE).read_bytes() == b"faster"
    assert keys(folder) == ["one"]


def test_what_was_used_longest_ago_goes_first(folder: Path) -> None:
    cache = Cache(folder)
    for age, key in enumerate(["a", "b", "c", "d"]):
        put(cache, key, bytes(1 << 16))
        os.utime(folder / key, (1000 + age, 1000 + age))
    cache.find("a")
    bound = 2 * size_bytes(folder / "a")

    put(Cache(folder, bound), "e", bytes(1 << 16))

    # beside the new one there is place for two, and a was used just now
    assert keys(folder) == ["a", "d", "e"]


def test_what_was_used_last_may_be_larger_than_the_bound(folder: Path) -> None:
    cache = Cache(folder, 1)

    put(cache, "one", bytes(1 << 16))

    assert keys(folder) == ["one"]


def test_what_is_within_the_bound_stays(folder: Path) -> None:
    cache = Cache(folder)

    for key in ("one", "two", "three"):
        put(cache, key)

    assert keys(folder) == ["one", "three", "two"]


def test_an_entry_that_is_read_stays(folder: Path) -> None:
    cache = Cache(folder, 0)
    put(cache, "one", bytes(1 << 16))
    entry = cache.find("one")

    put(cache, "two", bytes(1 << 16))
    assert keys(folder) == ["one", "two"]

    del entry
    put(cache, "three", bytes(1 << 16))
    assert keys(folder) == ["three"]


def test_an_entry_that_another_process_reads_stays(folder: Path) -> None:
    cache = Cache(folder, 0)
    put(cache, "one", bytes(1 << 16))

    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), "one"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "held\n"
        put(cache, "two", bytes(1 << 16))
        kept = keys(folder)
        reader.communicate()
    put(cache, "three", bytes(1 << 16))

    assert kept == ["one", "two"]
    assert keys(folder) == ["three"]


def test_an_entry_that_is_being_written_stays(folder: Path) -> None:
    cache = Cache(folder, 0)

    with cache.writing("one") as tables:
        (tables / FILE).write_bytes(bytes(1 << 16))
        put(cache, "two")

    entry = cache.find("one")
    assert entry is not None
    assert (entry.tables / FILE).stat().st_size == 1 << 16


def test_what_a_killed_process_had_half_written_goes(folder: Path) -> None:
    cache = Cache(folder, 0)
    part = folder / "one.part-0123456789abcdef" / "tables"
    part.mkdir(parents=True)
    (part / FILE).write_bytes(bytes(1 << 16))

    put(cache, "two")

    assert keys(folder) == ["two"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("123", 123), ("0", 0), ("", MOST_BYTES)],
)
def test_the_environment_may_bound_the_cache(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    monkeypatch.setenv(BOUND_VARIABLE, text)

    assert bound_bytes() == expected


@pytest.mark.parametrize("text", ["-1", "2G"])
def test_a_bound_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(BOUND_VARIABLE, text)

    with pytest.raises(UsageError, match=f"STROBE_CACHE_BYTES='{text}': must be a number"):
        bound_bytes()


def test_an_entry_that_was_half_deleted_is_made_anew(folder: Path) -> None:
    """As by a process that is killed while it makes room; only what is renamed is deleted."""
    cache = Cache(folder)
    put(cache, "one")
    (folder / "one").rename(folder / "one.gone-0123")
    (folder / "one.gone-0123/tables" / FILE).unlink()

    assert cache.find("one") is None
    put(cache, "one")
    assert cache.find("one") is not None
