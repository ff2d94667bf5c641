# SPDX-License-Identifier: Apache-2.0
"""strobe.mindspore with MindSpore: the examples of its documents, and files as its own."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
import strobe.mindspore as ms_interface
from programs import Program

pytestmark = pytest.mark.mindspore

pytest.importorskip("mindspore", reason="MindSpore is not installed")

QUIET = {"GLOG_v": "3", "OMP_NUM_THREADS": "1"}

NET = """
import numpy as np
from mindspore import nn
import mindspore as ms
import mindspore.dataset as ds


class Net(nn.Cell):
    def __init__(self):
        super(Net, self).__init__()
        self.fc = nn.Dense(2, 2)

    def construct(self, x):
        return self.fc(x)


def generator():
    for i in range(2):
        yield (np.ones([2, 2]).astype(np.float32), np.ones([2]).astype(np.int32))


def train(net, epochs=1, callbacks=None):
    optimizer = nn.Momentum(net.trainable_params(), 1, 0.9)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True)
    data = ds.GeneratorDataset(generator, ["data", "label"])
    model = ms.Model(net, loss, optimizer)
    model.train(epochs, data, callbacks=callbacks)
"""


@pytest.fixture
def mindspore(tmp_path: Path) -> Program:
    return Program("c", tmp_path)


def run(program: Program, source: str, *arguments: Any, **options: Any) -> str:
    environment = QUIET | options.pop("env", {})
    script = program.write(source)
    return program.run(script, *arguments, warnings="ignore", env=environment, **options)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def occurrences(root: Path) -> dict[str, int]:
    """How often each type of operator ran."""
    return {
        row["op_type"]: int(row["type_occurrences"])
        for row in rows(root / "cpu_op_type_info_0.csv")
    }


EXAMPLES = (
    NET
    + """
from strobe.mindspore import Profiler, profile, schedule, tensorboard_trace_handler


class StopAtStep(ms.Callback):
    def __init__(self, start_step, stop_step):
        super(StopAtStep, self).__init__()
        self.start_step = start_step
        self.stop_step = stop_step
        self.profiler = Profiler(start_profile=False, output_path=OUT + "/step")

    def step_begin(self, run_context):
        cb_params = run_context.original_args()
        step_num = cb_params.cur_step_num
        if step_num == self.start_step:
            self.profiler.start()

    def step_end(self, run_context):
        cb_params = run_context.original_args()
        step_num = cb_params.cur_step_num
        if step_num == self.stop_step:
            self.profiler.stop()

    def end(self, run_context):
        self.profiler.analyse()


class StopAtEpoch(ms.Callback):
    def __init__(self, start_epoch, stop_epoch):
        super(StopAtEpoch, self).__init__()
        self.start_epoch = start_epoch
        self.stop_epoch = stop_epoch
        self.profiler = Profiler(start_profile=False, output_path=OUT + "/epoch")

    def epoch_begin(self, run_context):
        cb_params = run_context.original_args()
        epoch_num = cb_params.cur_epoch_num
        if epoch_num == self.start_epoch:
            self.profiler.start()

    def epoch_end(self, run_context):
        cb_params = run_context.original_args()
        epoch_num = cb_params.cur_epoch_num
        if epoch_num == self.stop_epoch:
            self.profiler.stop()

    def end(self, run_context):
        self.profiler.analyse()


if __name__ == '__main__':
    profiler = Profiler(output_path=OUT + "/plain", profile_memory=True, record_shapes=True)
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")  # it was made before
    net = Net()
    train(net)
    profiler.analyse()

    again = Profiler(output_path=OUT + "/again", start_profile=False, data_process=True)
    for _ in range(2):
        again.start()
        train(net)
        again.stop()
    again.analyse()

    train(net, 3, [StopAtStep(2, 4)])
    train(net, 3, [StopAtEpoch(2, 3)])

    net.set_train(False)
    x = ms.Tensor(np.ones([2, 2]).astype(np.float32))
    net(x)
    profiler = Profiler(start_profile=False, output_path=OUT + "/loop")
    for i in range(250):
        net(x)
        if i==100:
            profiler.start()
        if i==200:
            profiler.stop()
    profiler.analyse()

    data = ds.GeneratorDataset(generator, ["data", "label"])
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True)
    profiler = Profiler(output_path=OUT + "/evaluation")
    ms.Model(net, loss, metrics={"loss"}).eval(data)
    profiler.analyse()

    with profile(
        activities=[ms.profiler.ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=tensorboard_trace_handler(OUT + "/profile"),
    ) as profiler:
        for i in range(5):
            net(x)
            profiler.step()
"""
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Program:
    program = Program("c", tmp_path_factory.mktemp("examples"))
    run(program, EXAMPLES)
    return program


def test_the_examples_of_the_documents_run(examples: Program) -> None:
    mindspore = examples
    ran = {
        name: occurrences(mindspore.output / name / "profiler")
        for name in ("plain", "step", "epoch", "loop")
    }
    assert {name: each.get("ApplyMomentum", 0) for name, each in ran.items()} == {
        "plain": 4,  # two parameters, two steps
        "step": 6,
        "epoch": 8,
        "loop": 0,
    }
    assert ran["loop"]["MatMul"] == 100
    for name in ("profiler", "profiler_2"):  # stopped and started again, MindData too
        root = mindspore.output / "again" / name
        assert occurrences(root)["ApplyMomentum"] == 4
        batches = (root / "dataset_iterator_profiling_0.txt").read_text().splitlines()
        assert [line.split()[2] for line in batches if line.startswith("0 0 ")] == ["1", "2"]
    (made,) = (mindspore.output / "profile").iterdir()
    assert occurrences(made / "FRAMEWORK")["MatMul"] == 2
    assert [row["Step"] for row in rows(made / "ASCEND_PROFILER_OUTPUT/step_trace_time.csv")] == [
        *("2", "3")
    ]
    plain = mindspore.output / "plain" / "profiler"
    written = {path.name for path in plain.iterdir()}
    assert written >= {
        *("step_trace_raw_0_detail_time.csv", "step_trace_point_info_0.json"),
        *("cpu_ms_memory_record_0.txt", "pipeline_profiling_0.json"),
        *("minddata_pipeline_raw_0.csv", "minddata_pipeline_summary_0.json"),
        *("minddata_cpu_utilization_0.json", "dataset_iterator_profiling_0.txt"),
    }
    points = json.loads((plain / "step_trace_point_info_0.json").read_text())
    assert points["fp_start"].startswith("Default/network-WithLossCell/_backbone-Net/fc-Dense/")
    assert points["bp_end"].startswith("Gradients/")
    steps = rows(plain / "step_trace_raw_0_detail_time.csv")
    assert [row["step_num"] for row in steps] == ["1", "2", "-"]
    for row in steps[:2]:
        parts = ("iteration_interval", "fp_and_bp", "tail")
        assert sum(int(row[part]) for part in parts) == int(row["total"])
    (results,) = plain.glob("rank-0_*_ascend_ms")
    assert rows(results / "ASCEND_PROFILER_OUTPUT" / "memory_record.csv")[0]["Component"] == (
        "MindSpore"
    )
    evaluation = mindspore.output / "evaluation" / "profiler"
    steps = rows(evaluation / "step_trace_raw_0_detail_time.csv")
    assert [row["step_num"] for row in steps] == ["1", "2", "-"]
    per_step = {
        row["op_type"]: float(row["execution_frequency(per-step)"])
        for row in rows(evaluation / "cpu_op_type_info_0.csv")
    }
    assert per_step["MatMul"] == 1  # the wait that finds no more data is no step
    inference = mindspore.output / "loop" / "profiler"
    info = json.loads((inference / "profiler_info_0.json").read_text())
    assert info["context_mode"] == "graph"
    assert info["ms_version"] == "2.10.0"


def test_figures_are_those_that_mindspore_itself_writes(mindspore: Program) -> None:
    """The same steps by MindSpore's own profiler: the same operators, names and columns."""
    run(
        mindspore,
        NET
        + """
import strobe.mindspore
ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
net = Net()
net.set_train(False)
x = ms.Tensor(np.ones([2, 2]).astype(np.float32))
net(x)
for module, folder in ((ms.profiler, "theirs"), (strobe.mindspore, "ours")):
    handler = module.tensorboard_trace_handler(OUT + "/" + folder)
    with module.profile(activities=[module.ProfilerActivity.CPU], on_trace_ready=handler):
        for _ in range(5):
            net(x)
""",
    )
    (theirs,) = (mindspore.output / "theirs").iterdir()
    (ours,) = (mindspore.output / "ours").iterdir()
    for name in ("cpu_op_detail_info_0.csv", "cpu_op_type_info_0.csv"):
        expected = rows(theirs / "FRAMEWORK" / name)
        found = rows(ours / "FRAMEWORK" / name)
        assert list(found[0]) == list(expected[0])
        same = ("op_side", "op_type", "op_name", "full_op_name", "op_occurrences", "subgraph")
        same += ("type_occurrences",)

        def told(lines: list[dict[str, str]], same: tuple[str, ...] = same) -> set[Any]:
            return {tuple(line.get(key) for key in same) for line in lines}

        assert told(found) == told(expected)
    inputs = [
        sorted(
            ";".join(line.split(";")[:2] + line.split(";")[3:])
            for line in (root / "FRAMEWORK" / "cpu_framework_0.txt").read_text().splitlines()
        )
        for root in (theirs, ours)
    ]
    assert inputs[0] == inputs[1]
    traces = [
        json.loads((root / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").read_text())
        for root in (theirs, ours)
    ]
    counts = []
    for trace in traces:
        layers = {
            each["pid"]: each["args"]["name"] for each in trace if each["name"] == "process_name"
        }
        drawn = [each for each in trace if each["ph"] == "X"]
        counts.append(
            {
                layer: sorted(each["name"] for each in drawn if layers[each["pid"]] == layer)
                for layer in ("CPU OP", "Scope Layer")
            }
        )
    assert counts[0] == counts[1]


UNCHANGED = (
    NET
    + """
if __name__ == '__main__':
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    profiler = ms.Profiler(output_path='./profiler_data')
    net = Net()
    train(net)
    profiler.analyse()
    from mindspore.profiler.profiler import Profiler, analyse, tensorboard_trace_handler
    with Profiler(output_path='./other', on_trace_ready=tensorboard_trace_handler()):
        train(net)
    analyse('./other')
"""
)


def test_a_program_with_their_profiler_runs_unchanged(mindspore: Program) -> None:
    script = mindspore.folder / "train.py"
    script.write_text(UNCHANGED)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "strobe", "run", "--mindspore", script],
        cwd=mindspore.folder,
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr  # MindSpore calls EnvProfiler when it ends
    assert occurrences(mindspore.folder / "profiler_data" / "profiler")["ApplyMomentum"] == 4
    (root,) = (mindspore.folder / "other").iterdir()
    assert occurrences(root / "FRAMEWORK")["ApplyMomentum"] == 4


def test_the_variable_is_theirs_if_mindspore_came_first(mindspore: Program) -> None:
    options = {"start": True, "output_path": str(mindspore.output), "activities": ["CPU"]}
    run(
        mindspore,
        NET
        + """
import strobe.mindspore
assert strobe.mindspore.EnvProfiler.profiler is None
""",
        env={"MS_PROFILER_OPTIONS": json.dumps(options)},
    )
    assert "is obeyed by MindSpore, which was imported first" in mindspore.said
    assert not list(mindspore.output.rglob("strobe.json"))


def test_the_variable_is_obeyed_to_the_end_of_the_program(mindspore: Program) -> None:
    """MindSpore, imported later, clears its profiler away before what runs at our exit."""
    options = {"start": True, "output_path": str(mindspore.output), "data_process": True}
    run(
        mindspore,
        "import strobe.mindspore\n"
        + NET
        + """
assert "MS_PROFILER_OPTIONS" not in os.environ
ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
train(Net())
""",
        env={"MS_PROFILER_OPTIONS": json.dumps(options)},
    )
    assert len(mindspore.said.splitlines()) == 1, mindspore.said  # where it records
    (made,) = mindspore.output.iterdir()
    assert occurrences(made / "FRAMEWORK")["ApplyMomentum"] == 4
    info = json.loads((made / "profiler_info_0.json").read_text())
    assert info["ms_version"] == "2.10.0"
    assert info["strobe"]["not_collected"] == {}
    assert info["strobe"]["files"]["minddata_pipeline_raw_0.csv"] == "written"


def test_a_file_starts_a_profiler_in_model_train(mindspore: Program) -> None:
    run(
        mindspore,
        NET
        + """
import json
from pathlib import Path
from strobe.mindspore import DynamicProfilerMonitor

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
config = Path(OUT) / "config"
config.mkdir(parents=True)
(config / "profiler_config.json").write_text(json.dumps({"start_step": 2, "stop_step": 3}))
monitor = DynamicProfilerMonitor(str(config), OUT)
assert isinstance(monitor, ms.Callback)
train(Net(), 2, [monitor])
""",
    )
    (made,) = (mindspore.output / "rank0_start2_stop3").iterdir()
    ms_interface.analyse(made)
    assert occurrences(made / "FRAMEWORK")["ApplyMomentum"] == 4
    assert strobe.open(made).steps().collect().height == 2


@pytest.fixture
def tools() -> Path:
    """Where the programs of the tools that read these files are."""
    if "STROBE_ASCEND_TOOLS" not in os.environ:
        pytest.skip("STROBE_ASCEND_TOOLS names no tools; make test-mindspore installs them")
    return Path(os.environ["STROBE_ASCEND_TOOLS"])


def test_mindinsight_reads_what_we_know(examples: Program, tools: Path) -> None:
    root = examples.output / "plain" / "profiler"
    script = Path(__file__).with_name("open_with_mindinsight.py")
    done = subprocess.run(
        [tools / "python", script, root], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    recording = strobe.open(root)
    steps = recording.steps().collect()
    assert found["step_trace"]["total_steps"] == steps.height == 2
    assert found["step_trace"]["total_time"] == pytest.approx(steps["dur_ns"][1] / 1e6, abs=1e-3)
    totals = {row["name"]: row for row in recording.operators().to_dicts()}
    kinds = {row[0]: row for row in found["cpu_op_type"]["object"]}
    for name, (_, calls, _, total_us, *_) in kinds.items():
        assert calls == totals[name]["calls"]
        assert total_us == pytest.approx(totals[name]["self_ns"] / 1e3, abs=1e-2)
    assert sum(row[4] for row in found["cpu_op_info"]["object"]) == sum(
        row[1] for row in kinds.values()
    )
    assert found["timeline"]["op_exe_times"] == sum(row[1] for row in kinds.values())
    assert found["display"] > found["timeline"]["op_exe_times"]
    (queue,) = found["minddata_pipeline"]["object"]
    sizes = recording.counters().collect().filter(pl.col("name").str.contains("queue"))["value"]
    assert queue[1] == "GeneratorOp"
    assert queue[2] == pytest.approx(sizes.mean(), abs=1e-2)
    assert found["minddata_cpu_utilization"]["sampling_interval"] == 50


def test_msprof_analyze_reads_what_we_know(examples: Program, tools: Path, tmp_path: Path) -> None:
    root = examples.output / "plain" / "profiler"
    done = subprocess.run(
        [tools / "msprof-analyze", "cluster", "-m", "all", "-d", root, "-o", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    result = tmp_path / "cluster_analysis_output" / "cluster_step_trace_time.csv"
    assert result.exists(), done.stdout + done.stderr  # its status is 0 even if it fails
    found = [row for row in rows(result) if row["Type"] == "rank"]

    recording = strobe.open(root)
    steps = recording.steps().collect()
    spans = recording.spans().filter(pl.col("category") == "operator").collect()
    assert len(found) == steps.height == 2
    for row, start_ns, dur_ns in zip(found, steps["start_ns"], steps["dur_ns"], strict=True):
        mine = spans.filter(pl.col("start_ns").is_between(start_ns, start_ns + dur_ns))
        # Operators of one lane do not overlap, and none of these reaches over a step's end.
        assert float(row["Computing"]) == pytest.approx(mine["dur_ns"].sum() / 1e3, abs=1e-2)
        whole = float(row["Computing"]) + float(row["Free"])
        assert whole == pytest.approx(dur_ns / 1e3, abs=1e-2)
