# SPDX-License-Identifier: Apache-2.0
"""The ranks of one run, opened together; successive runs are not ranks of each other."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import strobe
from programs import command
from strobe.store import manifest


def record(folder: Path, monkeypatch: pytest.MonkeyPatch, *ranks: int, job: str = "7") -> None:
    """Record as each of these ranks of a job of four in turn, in a folder of the job's."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank in ranks:
        monkeypatch.setenv("RANK", str(rank))
        with strobe.Profiler(output=folder, name="train"), strobe.span(f"work of {rank}"):
            pass
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name)


def change(recording: Path, **changes: Any) -> None:
    path = recording / "strobe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def names(recording: strobe.Recording) -> list[str]:
    return recording.spans().collect()["name"].to_list()


def test_the_ranks_of_one_run_open_as_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, monkeypatch, 3, 0, 1)
    capsys.readouterr()

    job = strobe.open(tmp_path)

    assert isinstance(job, strobe.Job)
    assert (job.ranks, job.missing) == ([0, 1, 3], [2])
    assert job.path == tmp_path / "train-torch-7"
    assert [type(recording) for recording in job] == [strobe.Recording] * 3
    assert [names(recording) for recording in job] == [[f"work of {rank}"] for rank in job.ranks]
    assert job.rank(3).operators()["name"].to_list() == ["work of 3"]
    assert capsys.readouterr().err == ""  # there is nothing else that could have been meant


def test_one_rank_alone_is_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, 2)

    assert names(strobe.open(tmp_path)) == ["work of 2"]


def test_of_several_jobs_the_newest_is_opened_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, monkeypatch, 0, 1, 2, job="1")
    record(tmp_path, monkeypatch, 0, 1, job="2")
    capsys.readouterr()

    assert strobe.open(tmp_path).path == tmp_path / "train-torch-2"

    assert capsys.readouterr().err == (
        f"strobe: 5 recordings in {str(tmp_path)!r}: opening ranks 0-1 of the newest, "
        "'train-torch-2'; name another one to open it, or count back with run=-2 or --run -2 "
        "('strobe info' lists them)\n"
    )
    assert strobe.open(tmp_path / "train-torch-1").ranks == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_a_rank_that_is_there_twice_was_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, monkeypatch, 0, 1)
    first = {path for path in tmp_path.glob("*/*")}
    record(tmp_path, monkeypatch, 1, 0)  # started again under the same name
    capsys.readouterr()

    job = strobe.open(tmp_path)

    assert job.ranks == [0, 1]
    assert not first & {recording.path for recording in job}
    lowest = os.path.relpath(job.rank(0).path, tmp_path)
    assert f"opening ranks 0-1 of the newest, {lowest!r}" in capsys.readouterr().err


def test_an_older_run_of_a_shared_folder_is_opened_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, monkeypatch, 0, 1)
    first = {path for path in tmp_path.glob("*/*")}
    record(tmp_path, monkeypatch, 1, 0)
    capsys.readouterr()

    for run in (0, -2):
        assert {recording.path for recording in strobe.open(tmp_path, run=run)} == first
    assert not first & {recording.path for recording in strobe.open(tmp_path, run=-1)}

    assert capsys.readouterr().err == ""  # whoever counts knows that there are several
    code, out, _ = command("info", tmp_path, "--run", "-2", "--rank", "1", "--json")
    assert (code, Path(json.loads(out)["path"]) in first) == (0, True)
    code, _, err = command("summary", tmp_path, "--run", "2")
    assert code == 2
    assert "run=2: there are 2 runs; 0 is the first and -1 the newest" in err


def test_successive_runs_of_a_program_without_ranks_are_no_job(tmp_path: Path) -> None:
    for number in range(2):
        with strobe.Profiler(output=tmp_path), strobe.span(f"run {number}"):
            pass

    assert names(strobe.open(tmp_path)) == ["run 1"]


def test_ranks_that_still_record_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, monkeypatch, 0, 1, 2)
    job = strobe.open(tmp_path)
    for recording in job:
        _ = recording.directory
    (job.rank(2).path / "tables").rename(tmp_path / "elsewhere")
    own = {"pid": os.getpid(), "process_start": manifest.process_start(os.getpid())}
    change(job.rank(2).path, stop=None, boot=manifest.boot_id(), **own)
    capsys.readouterr()

    assert strobe.open(tmp_path).ranks == [0, 1]

    told = "opening ranks 0-1 of the newest, without rank 2, still being recorded"
    assert told in capsys.readouterr().err


def test_a_rank_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, 0, 1, 3)
    job = strobe.open(tmp_path)

    for ask in (lambda: job.rank(2), lambda: job[2], lambda: job["0"]):
        with pytest.raises(strobe.UsageError, match=r"this job has ranks 0-1, 3$"):
            ask()


@pytest.mark.parametrize(
    "words", [["summary"], ["summary", "--json"], ["memory"], ["flame"], ["export", "--format=csv"]]
)
def test_commands_take_a_rank_of_a_job(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, 0, 1)
    verb, *options = words

    status, out, said = command(verb, tmp_path, *options)

    assert (status, out) == (2, "")
    assert said == (
        f"strobe: {str(tmp_path)!r} holds ranks 0-1 of one run; choose one, as in --rank 1\n"
    )
    assert command(verb, tmp_path, *options, "--rank", "1")[0] == 0
    status, _, said = command(verb, tmp_path, *options, "--rank", "2")
    assert status == 2
    assert "--rank 2: " in said


def test_the_rank_of_a_command_is_the_one_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, 0, 1)

    _, out, _ = command("summary", tmp_path, "--rank", "1", "--json")

    assert [row["name"] for row in json.loads(out)["operators"]] == ["work of 1"]


def test_info_lists_a_job_and_shows_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, 0, 1)

    _, listed, _ = command("info", tmp_path, "--json")
    _, shown, _ = command("info", tmp_path, "--rank", "1", "--json")

    assert [Path(row["path"]).name[:9] for row in json.loads(listed)] == ["rank00000", "rank00001"]
    assert Path(json.loads(shown)["path"]).name.startswith("rank00001")


def test_a_recording_is_not_taken_for_another_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, 1)
    with strobe.Profiler(output=tmp_path / "alone") as profiler:
        pass
    (path,) = tmp_path.glob("train-*/*")

    assert command("summary", path, "--rank", "1")[0] == 0
    status, _, said = command("summary", path, "--rank", "0")
    assert (status, said) == (2, f"strobe: --rank 0: {str(path)!r} is the recording of rank 1\n")
    _, _, said = command("summary", profiler.recording.path, "--rank", "0")
    assert "is the recording of a program without ranks" in said
