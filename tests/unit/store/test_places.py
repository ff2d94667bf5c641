# SPDX-License-Identifier: Apache-2.0
"""What others delete or lock meanwhile is no error: it is not there, or it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

import strobe
from strobe.errors import FormatError
from strobe.finalize.run import finalize
from strobe.store import inventory, places


def record(output: Path) -> Path:
    with strobe.Profiler(output=output) as profiler, strobe.span("work"):
        pass
    return profiler.recording.path


def test_a_recording_is_spared_while_its_tables_are_written(tmp_path: Path) -> None:
    recording = record(tmp_path)

    with places.locked(recording):
        assert not places.remove_recording(recording)
        assert places.is_recording(recording)

    assert places.remove_recording(recording, wait=True)
    assert list(tmp_path.iterdir()) == []


def test_who_comes_for_a_deleted_recording_finds_none_and_makes_none(tmp_path: Path) -> None:
    recording = record(tmp_path)
    places.remove_recording(recording, wait=True)

    with pytest.raises(FormatError, match="not there, so this is no recording"):
        finalize(recording)

    assert not recording.exists()
    assert places.remove_recording(recording)  # as gone as it can be


def test_what_was_deleted_after_it_was_found_is_left_out(tmp_path: Path) -> None:
    first, second = record(tmp_path), record(tmp_path)
    found = places.find_recordings(tmp_path)
    assert sorted(found) == sorted([first, second])

    places.remove_recording(first, wait=True)

    assert [row["path"] for row in inventory.describe(found)] == [str(second)]


def test_a_deletion_that_was_cut_short_is_known_by_its_manifest(tmp_path: Path) -> None:
    recording = record(tmp_path)
    finalize(recording)
    left = recording.rename(recording.with_name(recording.name + places.DELETED))
    (tmp_path / f"mine{places.DELETED}").mkdir()
    (tmp_path / f"linked{places.DELETED}").symlink_to(left)

    assert places.find_deleted(tmp_path) == [left]


def test_a_deletion_that_was_cut_short_hides_the_recording_and_is_finished(tmp_path: Path) -> None:
    recording = record(tmp_path / "job")
    finalize(recording)
    left = recording.rename(recording.with_name(recording.name + places.DELETED))

    assert places.find_recordings(tmp_path) == []
    assert places.find_deleted(tmp_path) == [left]
    places.remove_deleted(left)
    assert not left.exists()


@pytest.mark.stress
def test_recordings_are_deleted_under_the_finalizers_hands(tmp_path: Path) -> None:
    for _ in range(300):
        recording = record(tmp_path)
        while not places.remove_recording(recording):
            inventory.describe(places.find_recordings(tmp_path))
    assert list(tmp_path.iterdir()) == []
