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


@pytest.mark.torch
def test_the_transformer_is_profiled(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")

    shown = subprocess.run(
        [sys.executable, EXAMPLES / "train_transformer.py", "--steps", "20"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert shown.returncode == 0, shown.stderr
    assert "samples per second" in shown.stdout
    steps = strobe.open(tmp_path / "strobe_data").steps().filter(~pl.col("unfinished")).collect()
    assert steps["step"].to_list() == list(range(6, 16))
    assert set(steps["samples"]) == {32}


@pytest.mark.jax
def test_the_network_of_jax_is_profiled(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="JAX is not installed")

    shown = subprocess.run(
        [sys.executable, EXAMPLES / "train_jax.py", "--steps", "20"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert shown.returncode == 0, shown.stderr
    assert "samples per second" in shown.stdout
    recording = strobe.open(tmp_path / "strobe_data")
    steps = recording.steps().filter(~pl.col("unfinished")).collect()
    assert steps["step"].to_list() == list(range(6, 16))
    annotated = recording.spans().filter(pl.col("name") == "choose a batch").collect()
    assert annotated.height == 10
    assert set(annotated["category"]) == {"annotation"}


@pytest.mark.paddle
def test_the_network_of_paddle_is_profiled(tmp_path: Path) -> None:
    if find_spec("paddle") is None:
        pytest.skip("PaddlePaddle is not installed")

    shown = subprocess.run(
        [sys.executable, EXAMPLES / "train_paddle.py", "--steps", "20"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert shown.returncode == 0, shown.stderr
    recording = strobe.open(tmp_path / "strobe_data")
    steps = recording.steps().filter(~pl.col("unfinished")).collect()
    assert steps["step"].to_list() == list(range(6, 16))
    assert set(steps["samples"]) == {32}
    phases = set(recording.spans().collect()["phase"].drop_nulls())
    assert {"data_loading", "forward", "backward", "optimizer", "zero_grad"} <= phases


@pytest.mark.mindspore
def test_stripes_are_learned(tmp_path: Path) -> None:
    pytest.importorskip("mindspore", reason="MindSpore is not installed")

    shown = subprocess.run(
        [sys.executable, EXAMPLES / "train_mindspore.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert shown.returncode == 0, shown.stderr
    assert "MatMul" in shown.stdout
    recording = strobe.open(tmp_path / "strobe_data")
    assert recording.steps().collect().height == 40
