# SPDX-License-Identifier: Apache-2.0
"""Which rounds are deleted when a program's rounds take more than they may."""

import os
from pathlib import Path

import strobe
from strobe.store import inventory, manifest, places, rounds


def record(output: Path, count: int) -> list[Path]:
    found = []
    for _ in range(count):
        with strobe.Profiler(output=output, max_total_bytes=None) as profiler:
            pass
        profiler.recording.completeness()  # its tables are there
        found.append(profiler.recording.path)
    return found


def list_all(bound: rounds.Bound, recordings: list[Path]) -> None:
    for recording in recordings:
        rounds.add(bound, recording)


def test_only_as_many_go_as_must(tmp_path: Path) -> None:
    *old, newest = record(tmp_path, 4)
    sizes = [inventory.size_bytes(path) for path in (*old, newest)]
    bound = rounds.Bound(tmp_path / "ledger", sum(sizes) - 1)
    list_all(bound, old)

    rounds.make_room(bound, newest)

    assert [path.exists() for path in (*old, newest)] == [False, True, True, True]
    assert bound.mark.exists()


def test_rounds_that_wait_count_too(tmp_path: Path) -> None:
    *old, newest, waiting = record(tmp_path, 4)
    total = sum(map(inventory.size_bytes, (*old, newest)))
    bound = rounds.Bound(tmp_path / "ledger", total)
    list_all(bound, old)

    rounds.make_room(bound, newest)
    assert all(path.exists() for path in old)

    rounds.make_room(bound, newest, [waiting])
    assert not old[0].exists()
    assert newest.exists()
    assert waiting.exists()


def test_one_that_is_in_use_is_spared_and_goes_later(tmp_path: Path) -> None:
    first, second, newest = record(tmp_path, 3)
    bound = rounds.Bound(tmp_path / "ledger", inventory.size_bytes(newest))
    list_all(bound, [first, second])

    with places.locked(first):
        rounds.make_room(bound, newest)
        assert [first.exists(), second.exists()] == [True, False]
    rounds.make_room(bound, newest)

    assert not first.exists()
    assert newest.exists()


def test_what_the_user_deleted_is_forgotten_and_not_counted(tmp_path: Path) -> None:
    first, second, newest = record(tmp_path, 3)
    bound = rounds.Bound(tmp_path / "ledger", 1 << 40)
    list_all(bound, [first, second])
    places.remove_recording(first, wait=True)

    rounds.make_room(bound, newest)

    assert second.exists()
    assert not bound.mark.exists()


def test_ledgers_of_programs_that_have_ended_are_removed(tmp_path: Path) -> None:
    pid = os.getpid()
    ours = rounds.find_bound(tmp_path, pid, manifest.process_start(pid) or 0, 100)
    reused = rounds.find_bound(tmp_path, pid, 1, 100)
    for bound in (ours, reused):
        bound.ledger.touch()
        bound.mark.touch()

    rounds.remove_stale(tmp_path)

    assert sorted(tmp_path.iterdir()) == sorted([ours.ledger, ours.mark])
