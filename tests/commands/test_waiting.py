# SPDX-License-Identifier: Apache-2.0
"""Who waits at a real terminal sees a bar with stage and remaining time; a pipe gets nothing."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from strobe.store import places

pty = pytest.importorskip("pty")

TIMEOUT_SECONDS = 300
RECORD = """
import sys
import strobe
sys.executable = ""  # as where no process can be made: nobody else writes the tables
with strobe.Profiler(output=sys.argv[1]):
    for _ in range(int(sys.argv[2]) // 2):
        with strobe.span("outer"), strobe.span("inner"):
            pass
"""
AT_EXIT = """
import sys
from pathlib import Path
import strobe
with strobe.Profiler(output=sys.argv[1]):
    print(next(Path(sys.argv[1]).iterdir()), flush=True)
    sys.stdin.readline()
"""


class Screen:
    """What a program writes to the terminal that is its standard error."""

    def __init__(self, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stderr=theirs,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"},
        )
        os.close(theirs)
        self._written = b""
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(ours,))
        self._reader.start()

    def _read(self, terminal: int) -> None:
        with contextlib.suppress(OSError):  # as Linux says that nobody has it open any more
            while part := os.read(terminal, 4096):
                with self._changed:
                    self._written += part
                    self._changed.notify_all()
        os.close(terminal)

    @property
    def text(self) -> str:
        """All that was ever shown, without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._written.decode(errors="replace"))

    def wait_for(self, pattern: str) -> None:
        with self._changed:
            found = self._changed.wait_for(
                lambda: re.search(pattern, self.text) is not None, TIMEOUT_SECONDS
            )
        assert found, self.text

    def end(self) -> str:
        """Wait for the program's end, and return what it printed."""
        printed, _ = self.process.communicate(timeout=TIMEOUT_SECONDS)
        self._reader.join()
        assert self.process.returncode == 0
        return printed

    @property
    def is_clean(self) -> bool:
        """Whether the last thing done to the line of the bar was to erase it."""
        return re.search(rb"\x1b\[2K[^a-z]*$", self._written) is not None


def record(into: Path, count: int) -> Path:
    command = [sys.executable, "-c", RECORD, str(into), str(count)]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return next(into.iterdir())


def test_the_bar_has_stage_and_remaining_time_and_goes(tmp_path: Path) -> None:
    recording = record(tmp_path, 4_000_000)

    screen = Screen("-m", "strobe", "summary", str(recording))
    printed = screen.end()

    assert "inner" in printed
    assert re.search(r"strobe: (reading|sorting|nesting|summing up) .*\d+% \d+ s left", screen.text)
    shares = [int(share) for share in re.findall(r"(\d+)% \d+ s left", screen.text)]
    assert shares == sorted(shares)
    assert screen.is_clean


def test_a_pipe_gets_nothing(tmp_path: Path) -> None:
    recording = record(tmp_path, 4_000_000)

    done = subprocess.run(
        [sys.executable, "-m", "strobe", "summary", str(recording)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr == ""


def test_the_wait_for_another_process_is_shown(tmp_path: Path) -> None:
    recording = record(tmp_path, 2)

    with places.locked(recording):
        screen = Screen("-m", "strobe", "summary", str(recording))
        screen.wait_for(r"strobe: waiting for another process .* \d+ s so far")
    printed = screen.end()

    assert "inner" in printed
    assert screen.is_clean


def test_the_wait_at_the_end_of_a_program_is_shown(tmp_path: Path) -> None:
    screen = Screen("-c", AT_EXIT, str(tmp_path))
    assert screen.process.stdout is not None
    assert screen.process.stdin is not None
    recording = Path(screen.process.stdout.readline().strip())

    with places.locked(recording):  # so that the finalizer waits, and the program for it
        screen.process.stdin.write("\n")
        screen.process.stdin.flush()
        screen.wait_for(r"strobe: writing the tables .* \d+ s so far")
    screen.end()

    assert screen.is_clean


def test_opening_what_has_its_tables_imports_no_bar(tmp_path: Path) -> None:
    program = "import strobe, sys; strobe.open(sys.argv[1]).operators(); print([*sys.modules])"
    recording = record(tmp_path, 2)
    Screen("-c", program, str(recording)).end()

    printed = Screen("-c", program, str(recording)).end()

    assert "'polars'" in printed
    assert "'rich" not in printed
