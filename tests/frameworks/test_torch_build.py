# SPDX-License-Identifier: Apache-2.0
"""The callback for PyTorch is built once or not at all; either way the program is recorded.

The compiler is a script that counts its calls and, at best, copies what was built once for real.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from programs import TIMEOUT_SECONDS, Program, count

pytestmark = pytest.mark.torch

FALLBACK = "strobe: PyTorch is recorded by Kineto, not by the callback: "
BUILDING = "strobe: building the callback"
BUILT = "strobe: the callback for PyTorch is built and can be loaded"
OPERATORS = {"aten::ones", "aten::empty", "aten::fill_", "aten::add_"}
RECORD = """
import torch
with strobe.Profiler(output=OUT):
    torch.ones(3).add_(1)
"""
# Many processes at once: all are ready before the first may go on.
LOAD = """
import torch
from pathlib import Path
from strobe.errors import CaptureError
from strobe.sources.torch import build
print("ready", flush=True)
while not Path(sys.argv[2]).exists():
    time.sleep(0.01)
try:
    build.load()
    print("loaded")
except CaptureError as error:
    print(error)
"""
FAIL = "echo \"callback.cpp:1:2: error: 'addGlobalCallback' is not a member of 'at'\" >&2; exit 1"
HANG = "sleep 1000 & echo $! >> {folder}/sleeping; wait"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled for real, by the command that does it ahead."""
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = tmp_path_factory.getbasetemp()
    # One for all workers of pytest-xdist, of which each has a folder there.
    cache = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "built"

    done = doctor("--build", "--json", STROBE_CACHE=str(cache), STROBE_BUILD_CALLBACK="0")

    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == BUILT
    facts = json.loads(done.stdout)["sources"]["torch"]
    assert (facts["path"], facts["callback"], facts["cache"]) == ("callback", "built", str(cache))
    (library,) = cache.glob("*.so")
    assert facts["library"] == str(library)
    assert library.stat().st_mode & 0o077 == 0
    return library


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    program = Program("c", tmp_path)
    yield program
    program.end()
    for pid in sleeping(program):
        os.kill(pid, signal.SIGKILL)


def doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strobe", "doctor", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def compiler(program: Program, action: str) -> dict[str, str]:
    """An environment with this compiler, `$2` being the file it is to write, and a cold cache."""
    script = program.folder / "compiler"
    action = action.replace("{folder}", str(program.folder))
    script.write_text(
        f"#!/bin/sh\necho called >> {program.folder}/calls\n"
        f'while [ "$1" != -o ]; do shift; done\n{action}\n'
    )
    script.chmod(0o755)
    return {"CXX": str(script), "STROBE_CACHE": str(program.folder / "cache")}


def copying(built: Path) -> str:
    return f'cp {built} "$2"'


def calls(program: Program) -> int:
    log = program.folder / "calls"
    return log.read_text().count("called\n") if log.exists() else 0


def sleeping(program: Program) -> list[int]:
    """The processes that a compiler which hangs has left behind."""
    log = program.folder / "sleeping"
    pids = [int(line) for line in log.read_text().split()] if log.exists() else []
    return [pid for pid in pids if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""  # a zombie has none
    except OSError:
        return False


def record(program: Program, variables: dict[str, str], before: str = "") -> list[str]:
    """Record a few operators and return what strobe said about PyTorch."""
    shutil.rmtree(program.output, ignore_errors=True)
    program.run(before + RECORD, env={"XDG_CACHE_HOME": "", **variables})
    return [line for line in program.said.splitlines() if "recording into" not in line]


def check_path(program: Program, path: str, reason: str) -> None:
    """The operators are there, and the recording says by which path and why."""
    recording = program.open()
    assert count(recording.spans().collect()).keys() >= OPERATORS
    (row,) = recording.completeness().filter(pl.col("source") == "torch").rows(named=True)
    assert row["source_class"] == {"callback": "A", "kineto": "B"}[path]
    assert row["note"].startswith(f"by {path}: ")
    assert reason in row["note"]
    metadata = dict(recording.metadata().collect().iter_rows())
    assert metadata["torch_path"] == path
    assert reason in metadata["torch_reason"]


def check_fallback(program: Program, said: list[str], reason: str) -> None:
    (line,) = [line for line in said if not line.startswith(BUILDING)]
    assert line.startswith(FALLBACK)
    assert reason in line
    check_path(program, "kineto", reason)


def check_callback(program: Program, said: list[str]) -> None:
    assert [line for line in said if not line.startswith(BUILDING)] == []
    check_path(program, "callback", "built for the installed PyTorch")


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        pytest.param(FAIL, "error: 'addGlobalCallback' is not a member of 'at'", id="fails"),
        pytest.param(
            "echo '#include <ATen/record_function.h>' | c++ -fsyntax-only -x c++ -",
            "error: ATen/record_function.h: No such file",
            id="a header that is no longer there",
        ),
        pytest.param(r"printf '\377\n' >&2; exit 1", "\N{REPLACEMENT CHARACTER}", id="no text"),
        pytest.param("exit 1", "failed and did not say why", id="silent"),
        pytest.param("exit 0", "failed and did not say why", id="makes nothing"),
        pytest.param("kill -9 $$", "failed and did not say why", id="killed"),
        pytest.param('echo rubbish > "$2"', "cannot be loaded", id="makes rubbish"),
        pytest.param(
            f'cp {strobe.record.recorder.core.__file__} "$2"', "cannot be loaded", id="another's"
        ),
    ],
)
def test_a_build_that_fails_is_remembered(program: Program, action: str, reason: str) -> None:
    variables = compiler(program, action)

    first = record(program, variables)
    check_fallback(program, first, reason)
    again = record(program, variables)

    check_fallback(program, again, reason)
    assert [len(first), len(again), calls(program)] == [2, 1, 1]
    assert sorted(path.suffix for path in (program.folder / "cache").iterdir()) == [
        ".failed",
        ".lock",
    ]


def test_a_compiler_that_hangs_is_ended_with_all_it_started(program: Program) -> None:
    before = "from strobe.sources import building\nbuilding.BUILD_SECONDS = 5\n"

    said = record(program, compiler(program, HANG), before)

    check_fallback(program, said, "was at it for more than 5 s")
    assert (program.folder / "sleeping").exists()
    assert sleeping(program) == []


def test_another_compiler_is_tried_after_a_failure(program: Program, built: Path) -> None:
    check_fallback(program, record(program, compiler(program, FAIL)), "is not a member")

    check_callback(program, record(program, compiler(program, copying(built))))
    assert calls(program) == 2


def test_doctor_builds_after_a_failure(program: Program, built: Path) -> None:
    action = f"[ -e {{folder}}/repaired ] || {{ {FAIL}; }}\n{copying(built)}"
    variables = compiler(program, action)
    record(program, variables)

    failed = doctor("--build", **variables)
    examined = json.loads(doctor("--json", **variables).stdout)["sources"]["torch"]
    (program.folder / "repaired").touch()
    repaired = doctor("--build", **variables)
    said = record(program, variables)

    assert (failed.returncode, failed.stdout) == (1, "")
    building, line = failed.stderr.splitlines()
    assert building.startswith(BUILDING)
    assert line.startswith("strobe: doctor --build: the callback for PyTorch cannot be used: ")
    assert "is not a member" in line
    assert examined["path"] == "kineto"
    assert "is not a member" in examined["reason"]
    assert (repaired.returncode, calls(program)) == (0, 3)
    building, line = repaired.stderr.splitlines()
    assert building.startswith(BUILDING)
    assert line == BUILT
    assert said == []
    check_callback(program, said)


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        pytest.param({"CXX": "", "PATH": "{folder}"}, "there is no C++ compiler", id="none"),
        pytest.param({"CXX": "no-such -m64"}, "CXX='no-such -m64' is not a program", id="CXX"),
        pytest.param({"STROBE_CACHE": "{folder}/file"}, "cannot be made", id="cache is a file"),
        pytest.param({"STROBE_CACHE": "{folder}/open"}, "can be written by others", id="open"),
        pytest.param(
            {"STROBE_CACHE": "", "HOME": "{folder}/gone"}, "there is no home folder", id="HOME"
        ),
        pytest.param({"STROBE_BUILD_CALLBACK": "0"}, "STROBE_BUILD_CALLBACK=0", id="forbidden"),
        pytest.param({"STROBE_TORCH": "callback", "CXX": "no"}, "is not a program", id="wanted"),
    ],
)
def test_where_nothing_can_be_built(
    program: Program, variables: dict[str, str], reason: str
) -> None:
    (program.folder / "file").touch()
    (program.folder / "open").mkdir()
    (program.folder / "open").chmod(0o777)
    given = {name: text.format(folder=program.folder) for name, text in variables.items()}

    said = record(program, {**compiler(program, FAIL), **given})

    assert len(said) == 1
    check_fallback(program, said, reason)
    assert calls(program) == 0
    assert not (program.folder / "gone").exists()


def test_a_version_that_is_too_old(program: Program) -> None:
    old = program.folder / "torch"
    old.mkdir()
    (old / "version.py").write_text("__version__ = '2.0.1+cpu'\n")
    before = f"""
from pathlib import Path
from strobe.sources.torch import build
build._find_torch = lambda: Path({str(old)!r})
"""

    said = record(program, compiler(program, FAIL), before)

    check_fallback(program, said, "PyTorch 2.0.1+cpu is older than 2.1")
    assert calls(program) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("what", ["the folder", "the library"])
def test_what_another_user_owns_is_not_loaded(program: Program, built: Path, what: str) -> None:
    variables = compiler(program, copying(built))
    cache = program.folder / "cache"
    check_callback(program, record(program, variables))
    (library,) = cache.glob("*.so")
    os.chown(cache if what == "the folder" else library, 65534, 65534)

    said = record(program, variables)

    check_fallback(program, said, "belongs to another user")
    assert calls(program) == 1


def test_a_library_that_others_can_write_is_not_loaded(program: Program, built: Path) -> None:
    variables = compiler(program, copying(built))
    record(program, variables)
    (library,) = (program.folder / "cache").glob("*.so")
    library.chmod(0o770)

    said = record(program, variables)

    check_fallback(program, said, "can be written by others: chmod go-w it")
    assert calls(program) == 1


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every user can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_cache_that_cannot_be_written_is_used_if_it_is_warm(
    program: Program, built: Path, reachable: Path
) -> None:
    program.folder = reachable
    program.output.mkdir()
    program.output.chmod(0o777)
    variables = compiler(program, copying(built))
    cache = reachable / "cache"
    cache.mkdir()
    cache.chmod(0o555)
    # Permissions do not hold root back. Python itself may be out of reach for others.
    run = LOAD.replace("try:", "if os.geteuid() == 0: os.seteuid(65534)\ntry:")
    go = reachable / "go"
    go.touch()

    cold = program.run(run, go, env=variables)
    assert calls(program) == 0
    cache.chmod(0o755)
    assert program.run(LOAD, go, env=variables).split() == ["ready", "loaded"]
    cache.chmod(0o555)
    (library,) = cache.glob("*.so")
    library.chmod(0o755)
    warm = program.run(run, go, env=variables)

    assert f"{str(cache)!r} cannot be written (Permission denied)" in cold
    assert warm.split() == ["ready", "loaded"]
    assert calls(program) == 1


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"STROBE_BUILD_CALLBACK": "0"}, id="forbidden"),
        pytest.param({"CXX": "", "PATH": "/nowhere"}, id="no compiler"),
    ],
)
def test_what_was_built_ahead_is_used(
    program: Program, built: Path, variables: dict[str, str]
) -> None:
    given = compiler(program, copying(built))
    record(program, given)

    said = record(program, {**given, **variables})

    assert said == []
    check_callback(program, said)
    assert calls(program) == 1


def test_a_damaged_library_is_built_again(program: Program, built: Path) -> None:
    variables = compiler(program, copying(built))
    record(program, variables)
    (library,) = (program.folder / "cache").glob("*.so")
    library.write_bytes(library.read_bytes()[:1000])  # to load it would be a SIGBUS

    said = record(program, variables)

    check_callback(program, said)
    assert calls(program) == 2


def test_a_program_that_waits_for_no_child(program: Program, built: Path) -> None:
    before = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"

    failed = record(program, compiler(program, FAIL), before)
    check_fallback(program, failed, "is not a member")
    said = record(program, compiler(program, copying(built)), before)

    check_callback(program, said)


def test_a_compiler_is_not_profiled(program: Program, built: Path) -> None:
    variables = compiler(program, f"env > {{folder}}/environment\n{copying(built)}")

    check_callback(program, record(program, variables))

    environment = (program.folder / "environment").read_text()
    assert "CXX=" in environment
    assert "STROBE_" not in environment


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("STROBE_TORCH", "cupti", "'callback' or 'kineto'"),
        ("STROBE_BUILD_CALLBACK", "no", "'0' or '1'"),
    ],
)
def test_a_wrong_setting_is_said_and_nothing_else(
    program: Program, variable: str, value: str, allowed: str
) -> None:
    said = record(program, {**compiler(program, FAIL), variable: value})

    problem = f"{variable}={value!r}: must be {allowed}, or not be set"
    assert said == [f"strobe: torch is not recorded ({problem})"]
    recording = program.open()
    assert recording.spans().collect().is_empty()
    notes = recording.completeness()["note"].to_list()
    assert notes[1] == f"not recorded: it failed: {problem}"
    assert calls(program) == 0


def test_the_python_recorder_is_beside_kineto(program: Program) -> None:
    program.recorder = "python"

    said = record(program, {**compiler(program, FAIL), "STROBE_TORCH": "callback"})

    assert said == []
    check_path(program, "kineto", "the Python recorder has nothing")
    assert calls(program) == 0


LOAD_AT_ONCE = """
import torch
from strobe.errors import CaptureError
from strobe.sources.torch import build

def load():
    try:
        build.load()
    except CaptureError as error:
        return str(error)
    return "loaded"

wait, go = os.pipe()
children = []
for _ in range(int(sys.argv[2])):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(go)
        os.read(wait, 1)
        os.write(1, f"{load()}\\n".encode())
        os._exit(0)
os.close(go)
for child in children:
    os.waitpid(child, 0)
"""


def load_at_once(program: Program, variables: dict[str, str], processes: int) -> list[str]:
    """What each process got."""
    return program.run(LOAD_AT_ONCE, processes, env=variables).splitlines()


def test_64_processes_build_it_once(program: Program, built: Path) -> None:
    variables = compiler(program, f"sleep 1; {copying(built)}")

    assert load_at_once(program, variables, 64) == ["loaded"] * 64
    assert calls(program) == 1
    assert [line.startswith(BUILDING) for line in program.said.splitlines()] == [True]


def test_64_processes_fail_once_and_agree(program: Program) -> None:
    got = load_at_once(program, compiler(program, f"sleep 1; {FAIL}"), 64)

    assert len(got) == 64
    (reason,) = set(got)
    assert "is not a member" in reason
    assert calls(program) == 1
    assert len(program.said.splitlines()) == 1


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_who_is_killed_while_building_holds_nobody_up(program: Program, built: Path) -> None:
    action = f"[ -e {{folder}}/sleeping ] || {{ {HANG}; }}\n{copying(built)}"
    variables = compiler(program, action)
    script, go = program.write(LOAD), program.folder / "go"
    go.touch()
    builder = program.start(script, go, env=variables)
    wait_for(lambda: sleeping(program) or builder.poll() is not None)
    assert builder.returncode is None, builder.communicate()

    waiting = program.start(script, go, env=variables)
    assert waiting.stdout
    assert waiting.stdout.readline() == "ready\n"
    builder.kill()
    out, _ = waiting.communicate(timeout=TIMEOUT_SECONDS)

    assert out == "loaded\n"
    assert calls(program) == 2


JOB = f"""
import torch.distributed as distributed
{RECORD.strip()}
    distributed.init_process_group("gloo")
    distributed.barrier()
    distributed.destroy_process_group()
"""


@pytest.mark.parametrize("path", ["callback", "kineto"])
def test_the_ranks_of_a_job_take_the_same_path(program: Program, built: Path, path: str) -> None:
    action = copying(built) if path == "callback" else FAIL
    variables = compiler(program, f"sleep 2; {action}")
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]

    done = subprocess.run(
        [sys.executable, *launch, str(program.write(JOB)), str(program.output)],
        env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert calls(program) == 1
    recordings = [strobe.open(path.parent) for path in program.output.glob("*/*/strobe.json")]
    notes = [recording.completeness()["note"].to_list()[1] for recording in recordings]
    assert len(notes) == 2
    assert notes[0] == notes[1]
    assert notes[0].startswith(f"by {path}: ")


def test_doctor_imports_no_framework(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    code = """
import sys
from strobe.cli._app import app
app(["doctor", "--json"], standalone_mode=False)
assert "torch" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "STROBE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)["sources"]["torch"]
    assert facts["path"] == "callback"
    assert facts["callback"] == "not built"
    assert facts["reason"].startswith("it will be built on first use")
