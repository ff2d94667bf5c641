# SPDX-License-Identifier: Apache-2.0
"""Small programs that record, each run in a process of its own, and what they left."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

import strobe
from strobe.cli import main
from strobe.model import check

TARGETS = Path(__file__).resolve().parent / "targets"
# For what hangs: a machine that does other things too may take any time for what takes seconds.
TIMEOUT_SECONDS = 400


@dataclass
class Program:
    """A place where programs record with one recorder: `output` is argv[1] of each."""

    recorder: str
    folder: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    printed: str = ""
    said: str = ""

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def write(self, source: str, name: str = "program.py") -> Path:
        """Make a program of this source; it imports os, sys, time and strobe, OUT is its output."""
        path = self.folder / name
        head = "import os, sys, time, strobe\nOUT = sys.argv[1]\n"
        path.write_text(head + textwrap.dedent(source), encoding="utf-8")
        return path

    def start(
        self, script: Path, *arguments: Any, warnings: str = "error", **options: Any
    ) -> subprocess.Popen[str]:
        """Start a program; it is killed at the end of the test if it is still there."""
        options["env"] = {**os.environ, "STROBE_RECORDER": self.recorder, **options.get("env", {})}
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        command = [sys.executable, "-W", warnings, script, self.output, *arguments]
        process = subprocess.Popen([str(part) for part in command], **options)
        self.running.append(process)
        return process

    def run(self, script: Path | str, *arguments: Any, exits: int = 0, **options: Any) -> str:
        """Run a program, or this source, to its end and return what it printed.

        It must end with `exits` and say nothing on standard error but what strobe says.
        """
        process = self.start(
            self.write(script) if isinstance(script, str) else script, *arguments, **options
        )
        self.printed, self.said = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == exits, self.said
        if exits == 0:
            other = [line for line in self.said.splitlines() if not line.startswith("strobe: ")]
            assert not other, self.said
        return self.printed

    def record(self, source: str, *arguments: Any, **options: Any) -> pl.DataFrame:
        """Run a source inside a Profiler's block and return its spans."""
        body = textwrap.indent(textwrap.dedent(source), "    ")
        self.run(f"with strobe.Profiler(output=OUT):\n{body}", *arguments, **options)
        return self.spans()

    def open(self, path: Path | None = None) -> strobe.Recording:
        """Open the one recording of the output, or this one; it must obey the laws."""
        recording = strobe.open(path or self.output)
        assert check(recording.spans().collect()) == []
        figures = recording.completeness().row(0, named=True)
        if figures["asked"] is not None:  # else a log or a ring is missing, and so is the figure
            assert figures["asked"] == figures["collected"] + figures["dropped"]
        return recording

    def spans(self, path: Path | None = None) -> pl.DataFrame:
        return self.open(path).spans().collect()

    def completeness(self, path: Path | None = None) -> dict[str, Any]:
        return self.open(path).completeness().row(0, named=True)

    def is_gone(self, path: Path) -> bool:
        """Say whether a file has gone, or goes soon: the finalizer may be at work."""
        return happens(lambda: not path.exists())

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.running:
            process.kill()
            with process:  # closes its pipes
                process.wait()

    def recordings(self) -> list[Path]:
        return sorted(path.parent for path in self.output.glob("*/strobe.json"))


def run_python(folder: Path, *arguments: str, exits: int = 0) -> str:
    """Run Python in a folder as if no test did, and return what it said on standard error."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith("STROBE_")}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**variables, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == exits, done.stderr
    return done.stderr


def happens(condition: Callable[[], bool]) -> bool:
    """Say whether something is so, or will be soon: another process may be at work."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def command(*arguments: str | Path) -> tuple[int, str, str]:
    """Run a command of strobe in this process; return its status and what it printed and said."""
    out, err = io.StringIO(), io.StringIO()
    before, sys.argv = sys.argv, ["strobe", *map(str, arguments)]
    status = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        sys.argv = before
        sys.stderr.write(err.getvalue())  # for whoever reads of a test that failed
    return status, out.getvalue(), err.getvalue()


def finished(spans: pl.DataFrame, name: str | None = None) -> pl.DataFrame:
    """The spans that ended, of this name if one is given."""
    ended = spans.filter(~pl.col("unfinished"))
    return ended if name is None else ended.filter(pl.col("name") == name)


def count(spans: pl.DataFrame) -> dict[str, int]:
    """How many spans there are of each name."""
    return dict(spans.group_by("name").len().iter_rows())
