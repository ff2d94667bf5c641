# SPDX-License-Identifier: Apache-2.0
"""The commands as a user types them, on recordings made for the occasion."""

import errno
import json
import os
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest

import strobe
from programs import command, happens
from strobe.store import manifest, places


def run(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "strobe", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | variables,
        check=False,
    )
    sys.stderr.write(done.stderr)  # for whoever reads of a test that failed
    return done.returncode, done.stdout, done.stderr


def record(output: Path, name: str, spans: int = 3) -> Path:
    with strobe.Profiler(output=output, name=name) as profiler:
        for number in range(spans):
            with strobe.span("work", number=number):
                strobe.counter("loss", number)
    return profiler.recording.path


def record_long_ago(output: Path, name: str, days: float) -> Path:
    """Make a recording with tables, and set its date back.

    No finalizer comes for it, not even late on a busy machine: it would lock the recording while
    the test deletes it, or write the tables again that the test took away.
    """
    with mock.patch.object(sys, "executable", ""):
        recording = record(output, name)
    _ = strobe.open(recording).directory
    content = json.loads((recording / manifest.FILE_NAME).read_text())
    content["start"]["wall_ns"] -= int(days * 86_400e9)
    (recording / manifest.FILE_NAME).write_text(json.dumps(content))
    return recording


def test_info_counts_what_was_recorded(tmp_path: Path) -> None:
    recording = record(tmp_path, "training", spans=7)

    status, out, _ = run("info", str(tmp_path), "--json")

    facts = json.loads(out)
    assert status == 0
    assert facts["path"] == str(recording)
    assert (facts["name"], facts["spans"], facts["instants"]) == ("training", 7, 0)
    counters = strobe.open(recording).counters().collect()
    of_process = counters["name"].str.starts_with("process ").sum()
    assert facts["counters"] == counters.height == 7 + of_process
    source = facts["completeness"][0]
    assert (source["asked"], source["collected"], source["dropped"]) == (14, 14, 0)
    assert source["own_ns"] > 0


def test_info_says_it_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, "training")
    monkeypatch.setenv("COLUMNS", "200")

    status, out, _ = command("info", tmp_path)

    assert status == 0
    assert "training" in out
    assert "spans: 6 of 6 records, 0 dropped, 0 unfinished" in out
    assert "start and stop took" in out


def test_info_says_what_the_finalizer_could_not_do(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("a file where the traces should go")
    handler = strobe.export_chrome(tmp_path / "in the way")
    with strobe.Profiler(output=tmp_path / "out", on_trace_ready=handler) as profiler:
        pass
    assert happens((profiler.recording.path / "finalizer.log").exists)

    status, out, _ = command("info", profiler.recording.path, "--json")

    assert status == 0
    assert "FileExistsError" in json.loads(out)["finalizer_failure"]


def test_info_lists_the_recordings_of_a_folder(tmp_path: Path) -> None:
    paths = {str(record(tmp_path, name)) for name in ("one", "two")}
    for path in paths:
        strobe.open(path).completeness()  # waits for its tables

    status, out, _ = command("info", tmp_path, "--json")

    assert status == 0
    assert {row["path"] for row in json.loads(out)} == paths
    assert {row["state"] for row in json.loads(out)} == {"complete"}


def test_info_finds_the_ranks_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    paths = set()
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        paths.add(str(record(tmp_path, "train")))

    status, out, _ = command("info", tmp_path, "--json")

    assert status == 0
    assert {row["path"] for row in json.loads(out)} == paths
    assert {Path(path).parent for path in paths} == {tmp_path / "train-torch-job"}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: None, "there is nothing at this path"),
        (lambda path: path.write_text("x"), "not of a format that strobe reads"),
        (lambda path: path.mkdir(), "neither a recording nor a folder that holds one"),
    ],
)
def test_info_on_what_is_no_recording_says_so_in_one_line(tmp_path: Path, make, reason) -> None:
    path = tmp_path / "thing"
    make(path)

    status, out, err = command("info", path)

    assert (status, out) == (1, "")
    assert reason in err
    assert err.count("\n") == 1


def test_wrong_usage_has_its_own_status() -> None:
    assert command("info")[0] == 2
    assert command("no-such-verb")[0] == 2
    assert command("clean", "--older-than", "-1")[0] == 2


def test_the_version_is_that_of_the_package() -> None:
    assert run("--version") == (0, f"{strobe.__version__}\n", "")


@pytest.mark.parametrize("arguments", [["--help"], ["clean", "nowhere"], ["info", "nowhere"]])
def test_what_needs_no_tables_imports_nothing_heavy(arguments: list[str]) -> None:
    source = """
        import sys
        from strobe.cli import main
        try:
            main()
        finally:
            heavy = {"numpy", "polars", "strobe.session.profiler"}
            assert not heavy & set(sys.modules), heavy & set(sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "AssertionError" not in done.stderr, done.stderr
    assert "Usage: " in done.stdout or "strobe: " in done.stderr


@pytest.mark.parametrize("recorder", ["c", "python"])
def test_doctor_names_the_recorder_and_proves_it(recorder: str) -> None:
    status, out, err = run("doctor", "--json", STROBE_RECORDER=recorder)
    if recorder == "c" and "cannot be loaded" in err:
        pytest.skip("this installation has no C core")

    facts = json.loads(out)
    assert status == 0
    assert facts["recorder"].lower() == recorder
    assert facts["a recording"] == "works"
    assert facts["kill_9_safe"] is True
    assert facts["span_cost_ns"] > 0


@pytest.mark.skipif(find_spec("torch") is not None, reason="PyTorch is installed")
def test_doctor_without_a_framework(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    status, out, _ = run("doctor", "--json", STROBE_CACHE=cache)
    built = run("doctor", "--build", STROBE_CACHE=cache)

    assert status == 0
    sources = json.loads(out)["sources"]
    assert sources["torch"] == {"path": "none", "reason": "not installed"}
    assert "jax" in sources
    assert sources["host"]["path"] == "sampling"
    assert "not told here" in sources["host"]
    line = "strobe: doctor --build: PyTorch cannot be imported (No module named 'torch')\n"
    assert built == (1, "", line)
    assert not (tmp_path / "cache").exists()


def test_doctor_refuses_a_recorder_that_does_not_exist() -> None:
    status, _, err = run("doctor", STROBE_RECORDER="fortran")

    assert status != 0
    assert "STROBE_RECORDER='fortran': must be 'c' or 'python'" in err


def test_clean_shows_and_keeps_unless_told_to_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = record_long_ago(tmp_path, "old", days=30), record(tmp_path, "new")
    monkeypatch.setenv("COLUMNS", "200")

    status, out, _ = command("clean", tmp_path)

    assert status == 0
    assert old.name in out
    assert new.name not in out
    assert "add --yes" in out
    assert old.is_dir()


def test_clean_deletes_only_what_is_old(tmp_path: Path) -> None:
    old, new = record_long_ago(tmp_path, "old", days=30), record(tmp_path, "new")

    status, out, _ = command("clean", tmp_path, "--older-than", "7", "--yes", "--json")

    (row,) = json.loads(out)
    assert status == 0
    assert row["path"] == str(old)
    assert row["size_bytes"] > 0
    assert row["state"] == "deleted"
    assert list(tmp_path.iterdir()) == [new]


@pytest.mark.parametrize("columns", ["20", "80"])
def test_clean_lists_every_name_whole_at_any_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    names = ["old", "other-" + "long" * 20]
    old = [record_long_ago(tmp_path, name, days=30) for name in names]
    left = old[0].rename(tmp_path / f"left{places.DELETED}")
    monkeypatch.setenv("COLUMNS", columns)

    _, out, _ = command("clean", tmp_path)

    assert left.name in out
    assert "left over from a deletion that was cut short" in out
    assert old[1].name in out
    assert "2 recordings" in out
    assert left.is_dir()
    assert command("clean", tmp_path, "--yes")[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_clean_skips_links(tmp_path: Path) -> None:
    recording = record_long_ago(tmp_path / "elsewhere", "old", days=30)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / recording.name).symlink_to(recording)
    (folder / "left.deleted").symlink_to(recording)
    (folder / "job").symlink_to(recording.parent)

    for _ in range(2):
        status, out, _ = command("clean", folder, "--yes")
        assert (status, out) == (0, "nothing to delete (0 recordings stay)\n")

    assert strobe.open(recording).spans().collect().height == 3
    assert len(list(folder.iterdir())) == 3


def test_clean_takes_a_link_that_the_user_names(tmp_path: Path) -> None:
    recording = record_long_ago(tmp_path / "data", "old", days=30)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "one").symlink_to(recording)

    assert recording.name in command("clean", tmp_path / "link")[1]
    assert command("clean", tmp_path / "one", "--yes")[0] == 0
    assert not recording.exists()
    assert (tmp_path / "one").is_symlink()


def test_clean_takes_the_folder_that_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = record_long_ago(tmp_path, "old", days=30)
    monkeypatch.chdir(recording)

    status, out, _ = command("clean", ".", "--yes")

    assert status == 0
    assert recording.name in out
    assert not recording.exists()


def test_clean_finds_leftovers_in_the_trees_of_mindspore(tmp_path: Path) -> None:
    recording = record_long_ago(tmp_path, "old", days=30)
    left = tmp_path / "profiler" / "FRAMEWORK" / f"op_range_0{places.DELETED}"
    left.parent.mkdir(parents=True)
    recording.rename(left)

    _, out, _ = command("clean", tmp_path, "--yes")

    assert left.name in out
    assert not left.exists()


@pytest.mark.parametrize(
    ("verb", "suffix"), [("export", ".json"), ("flame", ".html")], ids=["export", "flame"]
)
@pytest.mark.parametrize("force", [True, False])
def test_no_file_is_written_through_a_link_beside_a_recording(
    tmp_path: Path, verb: str, suffix: str, force: bool
) -> None:
    recording = record(tmp_path / "out", "training")
    planted = recording.with_name(recording.name + suffix)
    planted.symlink_to(tmp_path / "diary.txt")
    words = ["--format", "chrome"] if verb == "export" else []

    status, _, err = command(verb, recording, *words, *(["--force"] if force else []))

    assert status == 1
    assert "is a symbolic link; name the file to write with -o" in err
    assert not (tmp_path / "diary.txt").exists()
    assert command(verb, recording, *words, "-o", planted)[0] == 0  # named, so it is meant
    assert (tmp_path / "diary.txt").stat().st_size > 0


@pytest.mark.parametrize("text", ["", "{}", '{"format": 1}', '{"format": 99, "name": "x"}'])
def test_clean_deletes_only_folders_with_our_manifest(tmp_path: Path, text: str) -> None:
    for name in ("project", "project.deleted"):
        (tmp_path / name).mkdir()
        (tmp_path / name / manifest.FILE_NAME).write_text(text)
        (tmp_path / name / "thesis.tex").write_text("years of work")
    (tmp_path / "mine.deleted").mkdir()
    (tmp_path / "mine.deleted" / "thesis.tex").write_text("years of work")

    status, out, _ = command("clean", tmp_path, "--older-than", "0", "--yes")

    assert (status, out) == (0, "nothing to delete (1 recordings stay)\n")
    assert len(list(tmp_path.rglob("thesis.tex"))) == 3


def test_clean_spares_what_may_be_recorded_on_another_host(tmp_path: Path) -> None:
    recording = record_long_ago(tmp_path, "old", days=30)
    content = json.loads((recording / manifest.FILE_NAME).read_text())
    content |= {"stop": None, "host": "another"}
    (recording / manifest.FILE_NAME).write_text(json.dumps(content))
    shutil.rmtree(recording / "tables")

    status, out, _ = command("clean", tmp_path, "--yes")
    assert status == 0
    assert "nothing to delete (1 recordings stay)" in out
    assert f"perhaps still recording  {recording.name}" in out
    assert "--force takes them" in out
    assert recording.is_dir()
    assert command("clean", tmp_path, "--yes", "--force")[0] == 0
    assert not recording.exists()


def test_clean_says_what_it_could_not_delete_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (record_long_ago(tmp_path, name, days=30) for name in ("first", "second"))
    remove = places.remove_recording

    def refuse(recording: Path) -> bool:
        if recording == first:
            raise PermissionError(errno.EACCES, "Permission denied")
        return remove(recording)

    monkeypatch.setattr(places, "remove_recording", refuse)
    status, out, _ = command("clean", tmp_path, "--yes")

    assert status == 1
    assert f"{first.name} stays: cannot be deleted (Permission denied)" in out
    assert first.is_dir()
    assert not second.exists()


def test_clean_spares_a_recording_whose_tables_are_being_written(tmp_path: Path) -> None:
    old = record_long_ago(tmp_path, "old", days=30)

    with places.locked(old):  # as the finalizer does
        status, out, _ = command("clean", tmp_path, "--yes", "--json")
        assert "stays: its tables are being written" in command("clean", tmp_path, "--yes")[1]

    (row,) = json.loads(out)
    assert status == 0
    assert row["state"] == "its tables are being written, or its log is still needed"
    assert list(tmp_path.iterdir()) == [old]


def test_clean_spares_a_recording_that_is_being_made(tmp_path: Path) -> None:
    profiler = strobe.Profiler(output=tmp_path, name="running")
    profiler.start()
    try:
        status, out, _ = command("clean", tmp_path, "--older-than", "0", "--yes", "--json")
        left = list(tmp_path.iterdir())
    finally:
        profiler.stop()

    assert (status, json.loads(out)) == (0, [])
    assert len(left) == 1
    assert profiler.recording.completeness()["dropped"].to_list() == [0, 0]


def test_clean_of_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    status, _, err = command("clean", tmp_path / "nowhere")

    assert status == 1
    assert "there is no such folder" in err


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("out"), "training")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["summary", "nowhere"], 1),
        (["clean", "nowhere"], 1),
        (["summary", "RECORDING", "--sort", "nonsense"], 2),
        (["summary", "RECORDING", "--json", "--csv"], 2),
        (["export", "RECORDING", "--format", "nonsense"], 2),
        (["export", "RECORDING"], 2),
        (["nonsense"], 2),
        (["--version"], 0),
    ],
)
def test_exit_codes_are_those_of_the_docs(
    arguments: list[str], expected: int, recording: Path
) -> None:
    status, _, said = command(*(recording if word == "RECORDING" else word for word in arguments))

    assert status == expected
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["_finalize", "out"], "takes no arguments; strobe starts it by itself"),
        (["_finalize", "--help"], "takes no arguments; strobe starts it by itself"),
        (["_analyse"], "needs one JSON object with a recording"),
        (["_analyse", "out"], "needs one JSON object with a recording"),
        (["_analyse", "[1]"], "needs one JSON object with a recording"),
    ],
)
def test_verbs_for_our_own_processes_refuse_people(arguments: list[str], said: str) -> None:
    status, out, err = command(*arguments)

    assert (status, out) == (2, "")
    assert said in err
    assert arguments[0] not in command("--help")[1]


# What the shell's own script asks, for these words before the cursor and this one at it.
@pytest.mark.parametrize(
    ("words", "at", "offered"),
    [
        (["strobe"], "ex", {"export"}),
        (["strobe", "export", "out", "--format"], "pe", {"perfetto"}),
        (["strobe", "run"], "--ste", {"--steps"}),
        (["strobe", "run", "train.py"], "--ste", set()),  # an option of the program
        (["strobe", "run", "-m", "train"], "--ste", set()),
    ],
)
def test_the_shell_completes_commands_options_and_values(
    words: list[str], at: str, offered: set[str]
) -> None:
    asked = {
        "_STROBE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join([*words, at]),
        "COMP_CWORD": str(len(words)),
    }

    done = subprocess.run(
        [Path(sys.executable).with_name("strobe")],
        capture_output=True,
        text=True,
        env=os.environ | asked,
        check=False,
    )

    assert set(done.stdout.split()) == offered, done.stderr


def test_completion_can_be_installed(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}

    done = subprocess.run(
        [Path(sys.executable).with_name("strobe"), "--install-completion", "bash"],
        capture_output=True,
        text=True,
        env=os.environ | home,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    (script,) = (tmp_path / ".bash_completions").iterdir()
    assert "_STROBE_COMPLETE=complete_bash" in script.read_text()
    assert str(script) in (tmp_path / ".bashrc").read_text()
