# SPDX-License-Identifier: Apache-2.0
"""The list of analyses: each answers on any Tables, and is a method of a recording."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from drawing import COLUMN_NS, lanes, make_tables, spans
from strobe.analysis.answers import NAMES, Answers
from strobe.analysis.flame import Flame
from strobe.errors import FormatError
from strobe.reports.json import answer, as_values, json_text
from strobe.session.recording import Recording
from strobe.store.tables import Tables

GIVEN: dict[str, tuple[Any, ...]] = {"operators_by": ("thread",), "breakdown": ("train",)}
"""The arguments of analyses that need some."""


@pytest.fixture
def training(tmp_path: Path) -> Tables:
    """The tables of a step of 24 columns: a wait for a batch, then an operator that allocates."""
    drawn = spans("""
        main | train----------------
        main |   load--  mm------
    """)
    category = pl.Series(["user", "data_loading", "operator"])
    step = {"step": 0, "kind": "step", "start_ns": 0, "dur_ns": 24 * COLUMN_NS, "lane": 0}
    batch = {"loader": "batches", "lane": 0, "start_ns": 2 * COLUMN_NS, "wait_ns": 6 * COLUMN_NS}
    fetch = {"worker": 0, "fetch_ns": 500, "collate_ns": 100, "cpu_ns": 400}
    block = {"pid": 7, "tid": 7, "start_ns": 11 * COLUMN_NS, "span": 2, "address": 64}
    frame = {"name": "fit", "file": "fit.py", "line": 3, "module": "fit"}
    sample = {"lane": 0, "start_ns": 5, "interval_ns": 10, "stack": 0}
    return make_tables(
        tmp_path,
        spans=drawn.with_columns(
            category=category,
            phase=pl.Series([None, "data_loading", "forward"], dtype=pl.String),
            flops=pl.Series([None, None, 6000], dtype=pl.Int64),
            pid=pl.lit(7, pl.Int64),
        ),
        threads=lanes((7, 7, "main", 0, "p")),
        operators=pl.DataFrame({"name": ["mm"], "calls": [1]}),
        steps=pl.DataFrame([step | {"unfinished": False, "samples": 8}]),
        batches=pl.DataFrame([batch | fetch | {"samples": 8}]),
        counters=pl.DataFrame([{"name": "loss", "pid": 7, "start_ns": 5, "value": 0.5}]),
        allocations=pl.DataFrame([block | {"bytes": 8, "allocated_bytes": 8}]),
        stacks=pl.DataFrame({"frame": [0]}),
        frames=pl.DataFrame([frame]),
        samples=pl.DataFrame([sample]),
        completeness=pl.DataFrame([{"source": "spans", "asked": 3, "collected": 3}]),
    )


def ask(name: str, tables: Tables) -> Any:
    return getattr(Answers, name)(tables, *GIVEN.get(name, ()))


def rows_of(found: Any) -> int:
    frame = found.nodes if isinstance(found, Flame) else found
    return int(frame.height)


@pytest.mark.parametrize("name", NAMES)
def test_every_analysis_answers_on_tables_of_a_directory(name: str, training: Tables) -> None:
    found = ask(name, training)

    assert is_dataclass(found) or isinstance(found, pl.DataFrame)
    assert name == "flops_rate" or rows_of(found) > 0


@pytest.mark.parametrize("name", NAMES)
def test_without_rows_every_analysis_answers_with_nothing(name: str, tmp_path: Path) -> None:
    found = ask(name, make_tables(tmp_path))

    assert found is None or rows_of(found) == 0


@pytest.mark.parametrize("name", NAMES)
def test_columns_are_the_same_with_and_without_rows(
    name: str, training: Tables, tmp_path: Path
) -> None:
    empty = ask(name, make_tables(tmp_path / "empty"))

    if isinstance(empty, pl.DataFrame):
        assert ask(name, training).columns == empty.columns


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_is_json(name: str, training: Tables) -> None:
    text = json_text(as_values(ask(name, training)))

    assert json.loads(text)


@pytest.mark.parametrize("name", NAMES)
def test_an_analysis_takes_tables_and_has_a_docstring(name: str) -> None:
    first = next(iter(inspect.signature(getattr(Answers, name)).parameters.values()))

    assert (first.name, first.annotation) == ("tables", "Tables")
    assert getattr(Answers, name).__doc__


def test_answers_are_named_as_the_asker_likes(training: Tables) -> None:
    found = answer(training, {"flops": "flops_rate", "steps": "step_statistics"})

    assert found["flops"] == {"total": 6000, "over_ns": 24_000, "over": "steps"}
    assert [row["steps"] for row in found["steps"]] == [1]


def test_a_recording_has_every_analysis_as_a_method(training: Tables, tmp_path: Path) -> None:
    recording = Recording(tmp_path)

    for name in NAMES:
        method = getattr(recording, name)
        assert method.__doc__ == getattr(Answers, name).__doc__
        assert "tables" not in inspect.signature(method).parameters
    assert set(NAMES) <= set(dir(recording))
    with pytest.raises(AttributeError, match="'Recording' object has no attribute 'answer'"):
        recording.answer  # type: ignore[attr-defined]  # noqa: B018


def test_the_class_has_every_analysis_too() -> None:
    """In a process of its own: once looked up, an analysis is an ordinary method."""
    source = """
import pydoc, strobe
assert hasattr(strobe.Recording, "step_breakdown") and not hasattr(strobe.Recording, "answer")
text = pydoc.plain(pydoc.render_doc(strobe.Recording))
from strobe.analysis.answers import NAMES
print([name for name in NAMES if f" {name}(" not in text])
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )

    assert done.stdout == "[]\n"


def test_what_a_recording_lacks_is_not_taken_for_an_analysis(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"strobe\.json"):
        Recording(tmp_path).phases()


def test_a_recording_is_imported_without_polars() -> None:
    source = """
import sys, pathlib
from strobe.session.recording import Recording
recording = Recording(pathlib.Path("nowhere"))
assert not hasattr(recording, "_repr_png_")
print({"polars", "numpy"} & {*sys.modules})
"""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )

    assert done.stdout == "set()\n"
