# SPDX-License-Identifier: Apache-2.0
"""Recordings of every format version that there was: what was in them is found in them."""

import shutil
from pathlib import Path

import pytest

import strobe
from strobe.model import TABLES, check
from strobe.model.text import unescape

SAMPLES = Path(__file__).resolve().parents[2] / "samples" / "strobe"


@pytest.fixture(params=sorted(path.name for path in SAMPLES.iterdir()))
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> strobe.Recording:
    """A copy of the sample: opening may write."""
    copy = tmp_path / "copy"
    shutil.copytree(SAMPLES / request.param / "complete", copy)
    return strobe.open(copy)


def test_a_sample_holds_what_its_program_did(recording: strobe.Recording) -> None:
    """Three steps of forward > matmul and a name with half a surrogate, in a span never ended."""
    spans = recording.spans().collect()
    calls = dict(recording.operators().select("name", "calls").rows())

    assert check(spans) == []
    assert {unescape(name): count for name, count in calls.items()} == {
        "never ended": 1,
        "forward": 3,
        "matmul": 3,
        "lone \ud83d surrogate": 3,
        "in a thread": 1,
    }
    names = spans["name"].to_list()
    parent_of = dict(
        zip(names, (None if p is None else names[p] for p in spans["parent"]), strict=True)
    )
    assert parent_of["matmul"] == "forward"
    assert parent_of["forward"] == "never ended"
    assert parent_of["in a thread"] is None
    assert spans.filter(spans["unfinished"])["name"].to_list() == ["never ended"]


def test_a_sample_holds_its_steps_and_counters(recording: strobe.Recording) -> None:
    steps = recording.steps().collect()

    assert steps["step"].to_list() == [0, 1, 2, 3]
    assert steps["samples"].to_list() == [8, 8, 8, None]
    assert steps["unfinished"].to_list() == [False, False, False, True]
    assert recording.counters().collect()["value"].to_list() == [1.0, 1 / 2, 1 / 3]
    assert recording.instants().collect()["name"].to_list() == ["done"]
    assert recording.threads().collect()["thread"].to_list() == ["MainThread", "worker"]
    assert dict(recording.metadata().collect().iter_rows())["model"] == "two layers"


@pytest.mark.parametrize("table", TABLES)
def test_a_sample_has_every_column_that_is_documented(
    recording: strobe.Recording, table: str
) -> None:
    found = getattr(recording, table)().lazy().collect()

    assert found.columns == [column.name for column in TABLES[table].columns]
