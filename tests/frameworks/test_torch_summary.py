# SPDX-License-Identifier: Apache-2.0
"""A real training program that marks nothing: steps, phases, operations, memory are found."""

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

data = torch.utils.data.TensorDataset(torch.randn(12, 3, 9, 9), torch.randint(4, (12,)))
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.Flatten(),
    torch.nn.Linear(648, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with strobe.Profiler(
    output="out", record_shapes=True, with_flops=True, profile_memory=True, with_modules=True
):
    for images, labels in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
"""


@pytest.fixture(scope="module", params=["", "kineto"], ids=["by default", "by kineto"])
def recording(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Recording:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = tmp_path_factory.mktemp("training")
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
    return strobe.open(folder / "out")


def test_steps_are_those_of_the_optimizer(recording: Recording) -> None:
    steps = recording.steps().collect()

    assert steps["kind"].to_list() == ["optimizer"] * 3
    assert not steps["unfinished"].any()


def test_phases_sum_to_the_steps(recording: Recording) -> None:
    phases = dict(recording.phases().select("phase", "total_ns").rows())

    assert sum(phases.values()) == recording.steps().collect()["dur_ns"].sum()
    for phase in ("data_loading", "forward", "backward", "optimizer", "zero_grad"):
        assert phases[phase] > 0, phase


def test_operations_are_those_of_the_layers(recording: Recording) -> None:
    counted = recording.spans().filter(pl.col("flops") > 0).collect()
    found = dict(counted.group_by("name").agg(pl.sum("flops")).rows())

    convolution = 2 * 4 * 9 * 9 * 8 * 3 * 9
    linear = 2 * 4 * 648 * 4
    assert found["aten::conv2d"] == 3 * convolution
    assert found["aten::addmm"] == 3 * linear
    assert found["aten::mm"] == 3 * 2 * linear  # the gradients of input and weight
    # The images want no gradient: only the kernel's.
    assert found["aten::convolution_backward"] == 3 * convolution
    rate = recording.flops_rate()
    assert rate is not None
    assert rate.over == "steps"
    assert rate.total == sum(found.values())


def test_the_summary_shows_it_all(recording: Recording) -> None:
    text = recording.summary(width=140)

    for shown in ("where the step goes, by phase", "zero_grad", "FLOP/s over the", "on the host"):
        assert shown in text
    (peak,) = recording.peak_allocated()["peak_bytes"]
    assert peak > 4 * 648 * 4  # the linear layer's weights alone


def test_operators_are_grouped_by_their_layers(recording: Recording) -> None:
    rows = recording.operators_by("module").select("module", "name").rows()

    layers = {module for module, name in rows if name == "aten::addmm"}
    assert len(layers) == 1
    assert layers != {"-"}
    assert layers == {module for module, name in rows if name == "AddmmBackward0"}
