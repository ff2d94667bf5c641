# SPDX-License-Identifier: Apache-2.0
"""What others delete or lock meanwhile is no error: it is not there, or it stays."""

from __future__ import annotations

import shutil
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


def test_references_and_links_that_have_gone_count_as_none(tmp_path: Path) -> None:
    log = record(tmp_path) / places.LOG
    finalize(log.parent)
    for folder in (places.REFS, places.LINKS):
        (log / folder).mkdir(parents=True, exist_ok=True)
        (log / folder / "gone").symlink_to(tmp_path / "nowhere")  # listed, but not to be read

    assert not places.is_needed(log)
    assert list(places.linked_logs(log)) == [log]
    assert places.release_log(log)


def test_a_reference_that_is_being_written_counts(tmp_path: Path) -> None:
    log = tmp_path / places.LOG
    (log / places.REFS).mkdir(parents=True)
    (log / places.REFS / "new").touch()

    assert places.is_needed(log)


def test_a_log_goes_with_the_last_recording_that_needed_it(tmp_path: Path) -> None:
    with strobe.Profiler(output=tmp_path) as first, strobe.Profiler(output=tmp_path) as second:
        pass
    owner, sharer = first.recording.path, second.recording.path
    finalize(owner)
    with places.locked(sharer):  # the finalizer may have been here, and comes no more
        shutil.rmtree(sharer / places.TABLES, ignore_errors=True)
        (owner / places.LOG / places.REFS).mkdir(parents=True, exist_ok=True)
        (owner / places.LOG / places.REFS / "sharer").write_text(str(sharer))

        assert not places.remove_recording(owner, wait=True)

    assert places.remove_recording(sharer, wait=True)
    assert not (owner / places.LOG).exists()
    assert places.remove_recording(owner, wait=True)


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
