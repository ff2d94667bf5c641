# SPDX-License-Identifier: Apache-2.0
"""strobe.paddle around a training in MindSpore: its tables and its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from programs import Program

pytestmark = pytest.mark.mindspore

pytest.importorskip("mindspore", reason="MindSpore is not installed")

TRAINING = """
    import json
    import numpy as np
    import mindspore as ms
    import polars as pl
    from mindspore import Tensor, nn
    import strobe.paddle as profiler

    ms.set_context(mode=ms.GRAPH_MODE)
    net = nn.SequentialCell(nn.Dense(8, 16), nn.ReLU(), nn.Dense(16, 4))
    optimizer, loss = nn.SGD(net.trainable_params(), 0.01), nn.CrossEntropyLoss()

    def forward(x, y):
        return loss(net(x), y)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    x, y = Tensor(np.ones((4, 8), np.float32)), Tensor(np.zeros((4,), np.int32))

    def step():
        value, found = gradient(x, y)
        optimizer(found)
        return value.asnumpy()

    step()
    with profiler.Profiler(
        scheduler=(1, 4), on_trace_ready=lambda _: None, profile_memory=True
    ) as prof:
        for _ in range(6):
            with profiler.RecordEvent("training"):
                step()
            prof.step()

    def told(tables):
        operators = tables.operator.filter(pl.col("level") == 0)
        return {
            "types": dict(tables.overview.select("type", "calls").iter_rows()),
            "model": dict(tables.model.select("name", "cpu_total_ns").iter_rows()),
            "operators": dict(operators.select("name", "calls").iter_rows()),
            "allocated": tables.memory["allocation_bytes"].sum(),
        }

    found = [told(prof.summary())]
    for form in ("pb", "json"):
        prof.export(f"x.{form}", form)
        found.append(told(profiler.load_profiler_result(f"x.{form}").summary()))
    open("found.json", "w").write(json.dumps(found))
"""


def test_tables_and_files_of_a_training_in_graph_mode(tmp_path: Path) -> None:
    quiet = {"GLOG_v": "3", "OMP_NUM_THREADS": "1"}
    shown = Program("c", tmp_path).run(TRAINING, cwd=tmp_path, env=quiet, warnings="ignore")

    live, *loaded = json.loads((tmp_path / "found.json").read_text())
    assert "Memory Summary - Place(cpu)" in shown
    assert live["types"]["ProfileStep"] == live["types"]["PythonUserDefined"] == 3
    # Two layers of a product and a bias each, and one activation, three times.
    assert live["operators"]["BiasAdd"] == 6
    assert live["operators"]["ReLU"] == 3
    assert {"Forward", "Backward", "Optimization", "Others"} <= live["model"].keys()
    assert min(live["model"].values()) >= 0
    assert live["allocated"] > 0
    for again in loaded:
        assert again["operators"] == live["operators"]
        assert again["types"]["ProfileStep"] == 3
        assert again["allocated"] == live["allocated"]
