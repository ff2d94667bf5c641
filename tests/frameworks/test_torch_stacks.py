# SPDX-License-Identifier: Apache-2.0
"""Each operator has the Python stack that called it, and is what it is without stacks."""

from __future__ import annotations

import os
import subprocess
import sys

import polars as pl
import pytest

import strobe
from strobe.session.recording import Recording
from strobe.sources.torch.source import PATH_VARIABLE

pytestmark = pytest.mark.torch

PROGRAM = """
import torch
import strobe

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, x): return self.activate(self.layer(x))
    def activate(self, x): return torch.relu(x)

def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step()
for name, options in {"a": {}, "b": {"with_stack": True}}.items():
    with strobe.Profiler(output="out", name=name, **options):
        for _ in range(3): step()
"""


@pytest.fixture(scope="module", params=["", "kineto"], ids=["by default", "by kineto"])
def recordings(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> list[Recording]:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("strobe.record._core", reason="strobe.record._core is not built")
    folder = tmp_path_factory.mktemp("stacks")
    variables = {PATH_VARIABLE: request.param} if request.param else {}
    (folder / "train.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [strobe.open(path.parent) for path in sorted(folder.glob("out/*/strobe.json"))]


def test_an_operator_has_the_stack_that_called_it(recordings: list[Recording]) -> None:
    recording = recordings[1]
    frames, stacks = recording.frames().collect(), recording.stacks().collect()
    spans = recording.spans().collect()

    def caller(name: str) -> set[str]:
        chosen = spans.filter(pl.col("name") == name, pl.col("stack").is_not_null())["stack"]
        return {frames["name"][stacks["frame"][stack]] for stack in chosen}

    assert caller("aten::relu") == {"relu"}  # torch.relu is a C function
    relu = spans.filter(pl.col("name") == "aten::relu")["stack"][0]
    above = stacks["parent"][relu]
    assert frames["name"][stacks["frame"][above]] == "Model.activate"
    assert caller("aten::linear") == {"linear"}
    # On a CPU the engine runs in the thread that called it.
    assert caller("AddmmBackward0") == {"_EngineBase.run_backward"}


def test_operators_and_phases_are_the_same_with_stacks(recordings: list[Recording]) -> None:
    plain, stacked = recordings

    counts = [dict(r.operators().select("name", "calls").iter_rows()) for r in recordings]
    kinds = [r.spans().select("name", "category", "phase").collect() for r in recordings]

    assert counts[0] == counts[1]
    told = [
        sorted(rows.filter(pl.col("category") != "python").fill_null("-").rows()) for rows in kinds
    ]
    assert told[0] == told[1]
    assert plain.steps().collect().height == stacked.steps().collect().height == 3
    drawn = stacked.flame().nodes
    mm = drawn.filter(pl.col("name") == "aten::addmm")
    assert mm["calls"].sum() == 3
