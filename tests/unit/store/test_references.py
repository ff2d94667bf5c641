# SPDX-License-Identifier: Apache-2.0
"""Who needs a log: what both sides say, whatever a recording claims."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import strobe
from strobe.finalize.run import finalize
from strobe.store import manifest, places, references

ID, OTHER_ID = "0" * 16, "1" * 16


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two recordings that share the log of the first; the second has no tables."""
    with strobe.Profiler(output=tmp_path) as first, strobe.Profiler(output=tmp_path) as second:
        pass
    owner, sharer = first.recording.path, second.recording.path
    finalize(owner)
    finalize(sharer)
    with places.locked(sharer):  # the finalizer may have been here, and comes no more
        shutil.rmtree(sharer / references.TABLES)
        if not (owner / references.LOG).exists():
            make_log(owner)
        references.share_log(owner / references.LOG, sharer, manifest.read(sharer).id)
    return owner, sharer


def make_log(recording: Path) -> Path:
    """A recording's folder with its log."""
    recording.mkdir(parents=True, exist_ok=True)
    return references.make_log(recording)


def test_a_log_goes_with_the_last_recording_that_needed_it(pair: tuple[Path, Path]) -> None:
    owner, sharer = pair
    log = owner / references.LOG

    assert references.is_needed(log)
    assert not places.remove_recording(owner, wait=True)
    assert places.remove_recording(sharer, wait=True)
    assert not log.exists()
    assert places.remove_recording(owner, wait=True)


def test_one_that_is_nowhere_to_be_found_still_needs_it(pair: tuple[Path, Path]) -> None:
    owner, sharer = pair
    log = owner / references.LOG
    sharer.rename(sharer.parent / "moved")

    references.release_log(log)

    assert log.is_dir()
    assert references.is_needed(log)
    # Whoever deletes the owner means it: from its new place the sharer would not find it.
    assert not references.is_needed(log, elsewhere=False)
    assert places.remove_recording(owner, wait=True)


def test_a_reference_without_a_name_counts(tmp_path: Path) -> None:
    log = make_log(tmp_path / "recording")
    (log / references.REFS / ID).touch()

    assert references.is_needed(log)


def test_what_a_kill_left_of_a_link_is_none(pair: tuple[Path, Path]) -> None:
    owner, sharer = pair
    log = owner / references.LOG
    (log / references.LINKS / "0123.4567.part").write_text("../no")

    assert references.find_logs(sharer, manifest.read(sharer)) == references.Logs(found=[log])


def test_a_reference_that_cannot_be_read_does_not_count(tmp_path: Path) -> None:
    log = make_log(tmp_path / "recording")
    (log / references.REFS / ID).symlink_to(tmp_path / "nowhere")
    os.mkfifo(log / references.REFS / OTHER_ID)

    assert not references.is_needed(log)


def test_a_reference_of_one_that_names_another_log_does_not_count(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    owner, sharer = pair
    copy = Path(shutil.copytree(owner, tmp_path / "copy"))

    assert not references.is_needed(copy / references.LOG)
    assert references.is_needed(owner / references.LOG)
    assert references.find_log(sharer, manifest.read(sharer)) == owner / references.LOG


@pytest.mark.parametrize("name", ["/abs/olute/log", "..", "../other", "\0", "", "../../log/.."])
def test_a_name_that_is_no_log_beside_it_is_not_followed(tmp_path: Path, name: str) -> None:
    parent = make_log(tmp_path / "parent")
    (tmp_path / "other").mkdir()
    (parent / references.LINKS / ID).write_text(name)
    content = manifest.Manifest(
        id="0" * 16,
        name="",
        strobe="",
        recorder="C",
        host="",
        boot="",
        pid=0,
        process_start=0,
        log="log",
        start=manifest.Anchor(clock_ns=0, monotonic_ns=0, wall_ns=0),
    )

    found = references.find_logs(tmp_path / "parent", content)

    assert found.found == [parent]
    assert len(found.missing) == 1
