# SPDX-License-Identifier: Apache-2.0
"""The examples that need a framework run as they are."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import polars as pl
import pytest

import strobe

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def run(
    framework: str, example: str, folder: Path, *arguments: str
) -> tuple[str, strobe.Recording]:
    """Run an example and return what it printed and what it recorded."""
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    done = subprocess.run(
        [sys.executable, EXAMPLES / example, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, strobe.open(folder / "strobe_data")


def ended_steps(recording: strobe.Recording) -> pl.DataFrame:
    return recording.steps().filter(~pl.col("unfinished")).collect()


@pytest.mark.torch
def test_the_transformer_is_profiled(tmp_path: Path) -> None:
    printed, recording = run("torch", "train_transformer.py", tmp_path, "--steps", "20")

    assert "samples per second" in printed
    assert ended_steps(recording)["step"].to_list() == list(range(6, 16))
    assert set(ended_steps(recording)["samples"]) == {32}


@pytest.mark.jax
def test_the_network_of_jax_is_profiled(tmp_path: Path) -> None:
    printed, recording = run("jax", "train_jax.py", tmp_path, "--steps", "20")

    assert "samples per second" in printed
    assert ended_steps(recording)["step"].to_list() == list(range(6, 16))
    annotated = recording.spans().filter(pl.col("name") == "choose a batch").collect()
    assert annotated.height == 10
    assert set(annotated["category"]) == {"annotation"}


@pytest.mark.paddle
def test_the_network_of_paddle_is_profiled(tmp_path: Path) -> None:
    _, recording = run("paddle", "train_paddle.py", tmp_path, "--steps", "20")

    assert ended_steps(recording)["step"].to_list() == list(range(6, 16))
    assert set(ended_steps(recording)["samples"]) == {32}
    phases = set(recording.spans().collect()["phase"].drop_nulls())
    assert {"data_loading", "forward", "backward", "optimizer", "zero_grad"} <= phases


@pytest.mark.mindspore
def test_stripes_are_learned(tmp_path: Path) -> None:
    printed, recording = run("mindspore", "train_mindspore.py", tmp_path)

    assert "MatMul" in printed
    assert recording.steps().collect().height == 40
