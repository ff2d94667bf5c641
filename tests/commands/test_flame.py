# SPDX-License-Identifier: Apache-2.0
"""strobe run --stack and strobe flame, as a user types them."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

import strobe
from programs import TIMEOUT_SECONDS

pytestmark = pytest.mark.skipif(
    find_spec("strobe.record._core") is None, reason="strobe.record._core is not built"
)

PROGRAM = """
import sys
def leaf(n): return sum(range(n))
def main():
    assert sys.argv[1:] == ["--stack"]
    for _ in range(20): leaf(100)
main()
"""


def type_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strobe", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def test_run_and_flame(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    # The program has an option of that name too.
    ran = type_in(
        tmp_path,
        "run",
        "-o",
        "out",
        "--stack",
        "--stack-include",
        "__main__",
        "program.py",
        "--stack",
    )
    drawn = type_in(tmp_path, "flame", "out", "-o", "flame.html")
    again = type_in(tmp_path, "flame", "out", "-o", "flame.html")
    other = type_in(tmp_path, "flame", "out", "--format", "speedscope", "-o", "flame.json")

    assert ran.returncode == 0, ran.stderr
    recording = strobe.open(tmp_path / "out")
    functions = recording.functions().filter(pl.col("module") == "__main__")
    assert dict(functions.select("name", "calls").iter_rows())["leaf"] == 20
    assert (drawn.returncode, again.returncode, other.returncode) == (0, 1, 0)
    assert "flame.html' exists; add --force" in again.stderr
    page = (tmp_path / "flame.html").read_text()
    assert "leaf" in page
    assert "http" not in page.replace("http-equiv", "")
    profiles = json.loads((tmp_path / "flame.json").read_text())["profiles"]
    assert sum(sum(each["weights"]) for each in profiles) == recording.flame().total_ns


def test_run_samples_at_a_rate(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("print('ran')")

    ran = type_in(
        tmp_path, "run", "-o", "out", "--stack", "sample", "--stack-rate", "20", "program.py"
    )

    assert (ran.returncode, ran.stdout) == (0, "ran\n"), ran.stderr
    facts = dict(strobe.open(tmp_path / "out").metadata().collect().iter_rows())
    assert json.loads(facts["python_calls_rate_hz"]) == 20
