# SPDX-License-Identifier: Apache-2.0
"""PyTorch under the interface of MindSpore's profiler: its files, from what PyTorch tells."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from programs import Program

pytestmark = pytest.mark.torch

pytest.importorskip("torch", reason="PyTorch is not installed")

TRAINING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from strobe.mindspore import Profiler

model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = DataLoader(TensorDataset(torch.ones(40, 64)), batch_size=8)
profiler = Profiler(output_path=OUT, profile_memory=True, record_shapes=True)
for (x,) in data:
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
profiler.analyse()
"""


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_files_are_made_of_what_pytorch_tells(tmp_path: Path) -> None:
    program = Program("c", tmp_path)

    program.run(TRAINING, env={"OMP_NUM_THREADS": "1"})

    root = program.output / "profiler"
    worked = {row["full_kernel_name"]: row for row in rows(root / "flops_0.txt")}
    forward = 2 * 8 * 64 * 64 + 2 * 8 * 64 * 8  # of a step, by the two layers
    assert float(worked["aten::addmm"]["MFLOPs(10^6 cube)"]) == pytest.approx(5 * forward / 1e6)
    summary = json.loads((root / "flops_summary_0.json").read_text())
    assert summary["cube_FLOPs"] > 5 * forward / 1e6  # the backward too
    steps = rows(root / "step_trace_raw_0_detail_time.csv")
    assert [row["step_num"] for row in steps] == ["1", "2", "3", "4", "5", "-"]
    points = json.loads((root / "step_trace_point_info_0.json").read_text())
    assert points["fp_start"] == "aten::linear"
    kinds = {row["op_type"]: row for row in rows(root / "cpu_op_type_info_0.csv")}
    assert kinds["aten::addmm"]["execution_frequency(per-step)"] == "2"
    assert sum(float(row["percent"]) for row in kinds.values()) == pytest.approx(1, abs=1e-4)
    blocks = rows(root / "operator_memory_0.csv")
    outputs = [row for row in blocks if row["Name"] == "aten::addmm"]
    assert {row["Size(KB)"] for row in outputs} == {"2", "0.25"}  # 8 x 64 and 8 x 8 floats
    waits = (root / "dataset_iterator_profiling_0.txt").read_text().splitlines()
    assert sum(line.startswith("0 2 ") for line in waits) == 5  # without that which found the end
    (results,) = root.glob("rank-0_*_ascend_ms")
    records = rows(results / "ASCEND_PROFILER_OUTPUT" / "memory_record.csv")
    assert {row["Component"] for row in records} == {"PyTorch"}
