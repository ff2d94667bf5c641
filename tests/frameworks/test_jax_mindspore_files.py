# SPDX-License-Identifier: Apache-2.0
"""JAX under the interface of MindSpore's profiler: its files, from what XLA tells."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from programs import Program

pytestmark = pytest.mark.jax

pytest.importorskip("jax", reason="JAX is not installed")

TRAINING = """
import jax, jax.numpy as jnp
from strobe.mindspore import profile, tensorboard_trace_handler

def loss(weights, x):
    return jnp.mean(jnp.tanh(x @ weights) ** 2)

@jax.jit
def train(weights, x):
    return weights - 0.1 * jax.grad(loss)(weights, x)

weights, x = jnp.ones((64, 16)), jnp.ones((8, 64))
train(weights, x).block_until_ready()
ready = tensorboard_trace_handler(OUT)
with profile(record_shapes=True, profile_memory=True, on_trace_ready=ready):
    for number in range(4):
        with jax.profiler.StepTraceAnnotation("train", step_num=number):
            weights = train(weights, x).block_until_ready()
"""


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_files_are_made_of_what_xla_tells(tmp_path: Path) -> None:
    program = Program("c", tmp_path)

    program.run(TRAINING, env={"JAX_PLATFORMS": "cpu"})

    (root,) = program.output.iterdir()
    raw, results = root / "FRAMEWORK", root / "ASCEND_PROFILER_OUTPUT"
    trace = json.loads((results / "trace_view.json").read_text())
    layers = {each["pid"]: each["args"]["name"] for each in trace if each["name"] == "process_name"}
    drawn = [each for each in trace if each["ph"] == "X" and layers[each["pid"]] == "CPU OP"]
    details = rows(raw / "cpu_op_detail_info_0.csv")
    assert sum(int(row["op_occurrences"]) for row in details) == len(drawn) > 0
    assert all(int(row["op_occurrences"]) % 4 == 0 for row in details)  # the same in each step
    kinds = rows(raw / "cpu_op_type_info_0.csv")
    assert not any(row["op_type"].rpartition(".")[2].isdigit() for row in kinds)
    assert sum(float(row["percent"]) for row in kinds) == pytest.approx(1, abs=1e-4)
    launches = (raw / "cpu_framework_0.txt").read_text().splitlines()
    assert len(launches) == len(drawn)
    assert sum("input_1:[8, 64];input_2:[64, 16];" in line for line in launches) == 4
    steps = rows(results / "step_trace_time.csv")
    assert [row["Step"] for row in steps] == ["0", "1", "2", "3"]
    assert all(float(row["Computing"]) > 0 for row in steps)
    told = json.loads((root / "profiler_info_0.json").read_text())
    assert "no memory statistics" in told["strobe"]["files"]["memory_record.csv"]
    assert told["ms_version"] is None
