# SPDX-License-Identifier: Apache-2.0
"""Recordings that share a log, or link to that of a child, after they were moved or copied."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import strobe
from programs import Program, command, count
from strobe.store import places, references


@pytest.fixture(autouse=True)
def _without_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the counters of the process: records are counted here, one by one."""
    monkeypatch.setenv("STROBE_USAGE", "0")


OVERLAPPING = """
    sys.executable = ""             # no finalizer: the log stays
    with strobe.Profiler(output=OUT, name="owner"):
        with strobe.span("before"): pass
        with strobe.Profiler(output=sys.argv[2] if sys.argv[2:] else OUT, name="sharer"):
            for _ in range(200):
                with strobe.span("both"): pass
"""

WITH_CHILD = """
    sys.executable = ""
    profiler = strobe.Profiler(output=OUT, name="parent")
    profiler.start()
    for _ in range(100):
        with strobe.span("parent"): pass
    if os.fork() == 0:
        with strobe.Profiler(output=OUT, name="child"):
            for _ in range(200):
                with strobe.span("child"): pass
        os._exit(0)
    os.wait()
    profiler.stop()
"""

OWNER = {"before": 1, "both": 200}
SHARER = {"both": 200}
PARENT = {"parent": 100, "child": 200}
CHILD = {"child": 200}
EXPECTED = {"owner": OWNER, "sharer": SHARER, "parent": PARENT, "child": CHILD}


def find(folder: Path, name: str) -> Path:
    (found,) = folder.glob(f"{name}-*")
    return found


def spans(recording: Path) -> dict[str, int]:
    return count(strobe.open(recording).spans().collect())


def figures(recording: Path) -> dict[str, Any]:
    return strobe.open(recording).completeness().row(0, named=True)


def is_whole(recording: Path) -> bool:
    found = figures(recording)
    return found["note"] is None and found["asked"] == found["collected"] == sum(
        spans(recording).values()
    )


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def overlapping(program: Program) -> Path:
    program.run(OVERLAPPING)
    return program.output


@pytest.fixture
def family(program: Program) -> Path:
    program.run(WITH_CHILD)
    return program.output


def test_nothing_in_a_recording_is_an_absolute_path_to_another(
    overlapping: Path, family: Path
) -> None:
    assert overlapping == family  # four recordings in one folder
    names = [path.read_text() for path in family.glob("*/log/refs/*")]
    names += [path.read_text() for path in family.glob("*/log/links/*")]
    logs = [json.loads(path.read_text())["log"] for path in family.glob("*/strobe.json")]

    assert len(names) == 3
    assert all(name.startswith("../") for name in names)
    assert sorted(logs)[1:] == ["log"] * 3
    assert sorted(logs)[0] == f"../{find(family, 'owner').name}/log"


@pytest.mark.parametrize("first", ["owner", "sharer"])
@pytest.mark.parametrize("how", ["mv", "cp"])
def test_a_folder_of_recordings_that_overlap_is_moved(
    overlapping: Path, tmp_path: Path, first: str, how: str
) -> None:
    moved = tmp_path / "else" / "where" / "new"
    moved.parent.mkdir(parents=True)
    if how == "mv":
        overlapping.rename(moved)
    else:
        shutil.copytree(overlapping, moved)
    owner, sharer = find(moved, "owner"), find(moved, "sharer")

    for recording in (owner, sharer) if first == "owner" else (sharer, owner):
        assert is_whole(recording)
        assert (owner / "log").exists() == (recording == (owner if first == "owner" else sharer))

    assert spans(owner) == OWNER
    assert spans(sharer) == SHARER
    if how == "cp":
        assert is_whole(find(overlapping, "sharer"))
        assert is_whole(find(overlapping, "owner"))
    assert not list(tmp_path.rglob("log"))


def test_a_recording_that_was_moved_away_from_its_log_waits_for_it(
    overlapping: Path, tmp_path: Path
) -> None:
    owner, sharer = find(overlapping, "owner"), find(overlapping, "sharer")
    before = files_of(owner / "log")
    away = sharer.rename(tmp_path / sharer.name)

    found = figures(away)
    assert found["collected"] == 0
    assert found["dropped"] is found["asked"] is None
    assert "the log is missing" in found["note"]
    assert "move the two together" in found["note"]
    assert files_of(away) - {".lock"} == {"strobe.json"}
    assert is_whole(owner)
    assert files_of(owner / "log") == before
    back = away.rename(sharer)
    assert is_whole(back)
    assert spans(back) == SHARER
    assert not (owner / "log").exists()


def test_a_log_that_was_moved_away_is_found_again(overlapping: Path, tmp_path: Path) -> None:
    owner, sharer = find(overlapping, "owner"), find(overlapping, "sharer")
    (tmp_path / "away").mkdir()
    away = owner.rename(tmp_path / "away" / owner.name)

    assert is_whole(away)
    assert (away / "log").is_dir()  # for the one that is elsewhere
    assert figures(sharer)["collected"] == 0
    sharer.rename(tmp_path / "away" / sharer.name)
    assert spans(tmp_path / "away" / sharer.name) == SHARER


def test_recordings_that_overlap_in_two_folders(program: Program, tmp_path: Path) -> None:
    program.run(OVERLAPPING, tmp_path / "second" / "deep")
    owner = find(program.output, "owner")
    sharer = find(tmp_path / "second" / "deep", "sharer")

    assert is_whole(owner)
    assert (owner / "log").is_dir()
    assert is_whole(sharer)
    assert spans(sharer) == SHARER
    assert not (owner / "log").exists()


@pytest.mark.parametrize("first", ["parent", "child"])
def test_the_recordings_of_a_parent_and_its_child_are_moved(
    family: Path, tmp_path: Path, first: str
) -> None:
    moved = family.rename(tmp_path / "new")
    parent, child = find(moved, "parent"), find(moved, "child")

    for recording in (parent, child) if first == "parent" else (child, parent):
        assert is_whole(recording)

    assert (spans(parent), spans(child)) == (PARENT, CHILD)
    assert not list(tmp_path.rglob("log"))


def test_a_parent_that_was_moved_away_from_its_child_says_what_it_lacks(
    family: Path, tmp_path: Path
) -> None:
    parent, child = find(family, "parent"), find(family, "child")
    (tmp_path / "away").mkdir()
    away = parent.rename(tmp_path / "away" / parent.name)

    found = figures(away)
    assert found["collected"] == 100
    assert found["asked"] is None  # nobody knows what the child has recorded
    assert "the log of a child process is missing" in found["note"]
    assert not (away / "tables").exists()
    assert is_whole(child)
    assert (child / "log").is_dir()  # for the one that is elsewhere
    child.rename(tmp_path / "away" / child.name)
    assert is_whole(away)
    assert spans(away) == PARENT
    assert not list((tmp_path / "away").rglob("log"))


def test_a_copy_beside_the_original_takes_nothing_from_it(overlapping: Path) -> None:
    owner, sharer = find(overlapping, "owner"), find(overlapping, "sharer")
    copy = Path(shutil.copytree(owner, overlapping / "copy"))

    assert spans(copy) == OWNER
    assert not (copy / "log").exists()
    assert spans(sharer) == SHARER
    assert spans(owner) == OWNER


@pytest.mark.parametrize(
    ("copied", "other"), [("sharer", "owner"), ("parent", "child")], ids=["sharer", "parent"]
)
def test_a_copy_takes_back_no_reference_of_the_original(
    overlapping: Path, family: Path, copied: str, other: str
) -> None:
    assert overlapping == family
    original, partner = find(family, copied), find(family, other)
    copy = Path(shutil.copytree(original, family / "copy"))

    assert spans(copy) == EXPECTED[copied]
    assert spans(partner) == EXPECTED[other]
    assert spans(original) == EXPECTED[copied]
    assert not (partner / "log").exists()


def test_an_owner_that_was_renamed_keeps_its_log_for_the_sharer(overlapping: Path) -> None:
    owner, sharer = find(overlapping, "owner"), find(overlapping, "sharer")
    renamed = owner.rename(overlapping / "renamed")

    assert spans(renamed) == OWNER
    assert (renamed / "log").is_dir()
    assert not places.remove_recording(renamed, wait=True)
    renamed.rename(owner)
    assert spans(sharer) == SHARER


def test_a_crafted_link_does_not_take_back_the_reference_of_another(family: Path) -> None:
    parent, child = find(family, "parent"), find(family, "child")
    assert spans(child) == CHILD
    (reference,) = (child / "log" / "refs").iterdir()
    crafted = Path(shutil.copytree(parent, family.parent / "crafted"))
    (link,) = (crafted / "log" / "links").iterdir()
    link.write_text(os.path.relpath(child / "log", crafted))

    _ = spans(crafted)

    assert not (crafted / "log").exists()
    assert reference.is_file()
    assert spans(parent) == PARENT


def test_a_deletion_that_was_cut_short_takes_back_its_reference(overlapping: Path) -> None:
    owner, sharer = find(overlapping, "owner"), find(overlapping, "sharer")
    sharer.rename(sharer.with_name(sharer.name + references.DELETED))

    assert command("clean", overlapping, "--yes")[0] == 0

    assert [path.name for path in overlapping.iterdir()] == [owner.name]
    assert spans(owner) == OWNER
    assert not (owner / "log").exists()


def test_a_child_keeps_no_log_for_a_parent_that_is_complete(family: Path) -> None:
    parent, child = find(family, "parent"), find(family, "child")
    renamed = parent.rename(family / "renamed")
    assert spans(child) == CHILD
    assert spans(renamed) == PARENT
    assert (child / "log").is_dir()
    renamed.rename(parent)

    references.release_log(child / "log")

    assert not (child / "log").exists()


def test_those_who_share_a_log_are_deleted_together(overlapping: Path, family: Path) -> None:
    assert overlapping == family
    status, out, _ = command("clean", family, "--older-than", "0", "--yes")

    assert status == 0
    assert "4 recordings" in out
    assert "stays" not in out
    assert list(family.iterdir()) == []


def test_a_link_that_only_one_side_knows_is_not_followed(family: Path) -> None:
    parent, child = find(family, "parent"), find(family, "child")
    (reference,) = (child / "log" / "refs").iterdir()
    reference.unlink()

    assert spans(parent) == {"parent": 100}
    assert "the log of a child process is missing" in figures(parent)["note"]
    assert (child / "log").is_dir()


def test_an_empty_log_is_a_missing_one(overlapping: Path) -> None:
    owner = find(overlapping, "owner")
    kept = owner.parent.parent / "kept"
    (owner / "log").rename(kept)
    (owner / "log").mkdir()

    assert "the log is missing: its folder is empty" in figures(owner)["note"]
    assert not (owner / "tables").exists()
    (owner / "log").rmdir()
    kept.rename(owner / "log")
    assert is_whole(owner)
