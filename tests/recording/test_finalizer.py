# SPDX-License-Identifier: Apache-2.0
"""How processes of our own start: with our package and Python's modules, whatever lies around."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import strobe
from programs import TIMEOUT_SECONDS, happens
from strobe.finalize import process

IDLE = "no recording waits to be finalized\n"
VERBS = {"_finalize": (0, IDLE), "_analyse": (2, "")}  # what they do where there is nothing to do


def start(
    command: list[str], folder: Path, **variables: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, where the finalizer's queue is too: other tests have another."""
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "TMPDIR": folder, **variables},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


@pytest.fixture
def traps(tmp_path: Path) -> Path:
    """A folder with modules that have the names of ours, of Python's and of others."""
    folder = tmp_path / "traps"
    folder.mkdir()
    for name in ("strobe", "json", "typing", "runpy", "pathlib", "numpy", "polars"):
        (folder / f"{name}.py").write_text("raise ImportError('of the current directory')")
    return folder


@pytest.mark.parametrize("verb", VERBS)
def test_modules_of_the_current_directory_are_not_imported(verb: str, traps: Path) -> None:
    done = start(process.command(verb), traps)

    assert (done.returncode, done.stdout) == VERBS[verb], done.stderr


@pytest.mark.skipif(not hasattr(os, "nice"), reason="there are no priorities here")
@pytest.mark.parametrize(("verb", "expected"), [("_finalize", f"10 []\n{IDLE}"), ("_analyse", "")])
def test_the_finalizer_steps_back_before_anything_of_ours_is_imported(
    verb: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "os.nice = lambda by: print(by, [name for name in sys.modules if 'strobe' in name])\n"
    )

    done = start(process.command(verb), tmp_path, PYTHONPATH=tmp_path)

    assert done.stdout == expected


def test_the_finalizer_is_of_the_package_that_recorded(
    recorder: str, tmp_path: Path, traps: Path
) -> None:
    """Only the program's own sys.path leads to it; another one's finalizer has another queue."""
    package = tmp_path / "elsewhere" / "strobe"
    shutil.copytree(Path(strobe.__file__).parent, package)
    script = tmp_path / "program.py"
    source = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import strobe
        assert strobe.__file__.startswith(sys.argv[1])
        with strobe.Profiler(output=sys.argv[2]):
            with strobe.span("s"): pass
    """
    script.write_text(textwrap.dedent(source))
    output = tmp_path / "out"

    command = [sys.executable, str(script), str(package.parent), str(output)]
    done = start(command, traps, STROBE_RECORDER=recorder)

    assert done.returncode == 0, done.stderr
    assert happens(lambda: bool(list(output.glob("*/tables"))))
