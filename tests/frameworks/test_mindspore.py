# SPDX-License-Identifier: Apache-2.0
"""MindSpore on a CPU: what it ran is in the tables, as its own profiler says."""

from __future__ import annotations

import csv
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import strobe
from programs import Program, count
from strobe.importers import mindspore as importer
from strobe.importers.events import align
from strobe.store.places import find_recordings

pytestmark = pytest.mark.mindspore

pytest.importorskip("mindspore", reason="MindSpore is not installed")

# MindSpore's own log says much; what a program does not expect is an error there.
QUIET = {"GLOG_v": "3", "OMP_NUM_THREADS": "1"}

MODELS = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
import mindspore.dataset as ds

ms.set_device("CPU")

class Perceptron(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(6, 5), nn.ReLU(), nn.Dense(5, 2))

    def construct(self, x):
        return self.layers(x)

class Images(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.head = nn.Dense(4 * 8 * 8, 10)

    def construct(self, x):
        x = self.pool(ops.relu(self.conv(x)))
        return ops.softmax(self.head(x.reshape((x.shape[0], -1))))

def trainer():
    model = Perceptron()
    optimizer = nn.SGD(model.trainable_params(), 0.1)
    step = nn.TrainOneStepCell(nn.WithLossCell(model, nn.MSELoss()), optimizer)
    step.set_train()
    inputs = Tensor(np.ones((3, 6), np.float32)), Tensor(np.ones((3, 2), np.float32))
    return lambda: step(*inputs).asnumpy()

def classifier():
    model = Images()
    model.set_train(False)
    image = Tensor(np.ones((2, 1, 16, 16), np.float32))
    return lambda: model(image).asnumpy()

def samples():
    for number in range(24):
        yield np.full((6,), number, np.float32), np.ones((2,), np.float32)

def dataset():
    pipeline = ds.GeneratorDataset(samples, ["x", "y"], shuffle=False, num_parallel_workers=1)
    return pipeline.map(lambda x: x * 2, ["x"], num_parallel_workers=1).batch(4)
"""


@pytest.fixture
def mindspore(tmp_path: Path) -> Program:
    return Program("c", tmp_path)


def run(program: Program, source: str, *arguments: Any, **options: Any) -> str:
    """Run a source after the models, whose first lines are not indented."""
    environment = QUIET | options.pop("env", {})
    return program.run(
        program.write(MODELS + source), *arguments, warnings="ignore", env=environment, **options
    )


def operators(program: Program, path: Path | None = None) -> pl.DataFrame:
    spans = program.spans(path)
    return spans.filter(pl.col("category").cast(pl.String).is_in(["operator", "communication"]))


def full_names(spans: pl.DataFrame) -> list[str]:
    return [json.loads(text)["full_name"] for text in spans["attributes"]]


BOTH = """
ms.set_context(mode=ms.GRAPH_MODE if sys.argv[2] == "graph" else ms.PYNATIVE_MODE)
step = {"trainer": trainer, "classifier": classifier}[sys.argv[3]]()
step()
theirs = ms.profiler.profile(
    activities=[ms.profiler.ProfilerActivity.CPU],
    start_profile=False,
    on_trace_ready=ms.profiler.tensorboard_trace_handler(OUT + "-theirs"),
)
theirs.start()
for _ in range(4):
    step()
theirs.stop()
for _ in range(2):
    with strobe.Profiler(output=OUT, record_shapes=True):
        for _ in range(4):
            step()
"""


@pytest.mark.parametrize("model", ["trainer", "classifier"])
@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_the_operators_are_those_of_mindspore_profiler(
    mindspore: Program, mode: str, model: str
) -> None:
    run(mindspore, BOTH, mode, model)

    (output,) = Path(f"{mindspore.output}-theirs").glob("*_ascend_ms")
    details = (output / "FRAMEWORK/cpu_op_detail_info_0.csv").read_text().splitlines()
    expected = {row["full_op_name"]: row for row in csv.DictReader(details)}
    times = {name: int(row["op_occurrences"]) for name, row in expected.items()}
    types: Counter[str] = Counter()
    for row in expected.values():
        types[row["op_type"]] += int(row["op_occurrences"])
    trace = json.loads((output / "ASCEND_PROFILER_OUTPUT/trace_view.json").read_text())
    drawn = Counter(each["name"] for each in trace if each.get("ph") == "X" and each["pid"] == 2)
    first, second = mindspore.recordings()
    for path in (first, second):  # its own profiler has none of a session that follows unasked
        spans = operators(mindspore, path)
        assert Counter(full_names(spans)) == times == drawn
        assert count(spans) == types


def test_times_and_shapes_are_those_of_the_files(mindspore: Program) -> None:
    run(
        mindspore,
        """
from pathlib import Path
from strobe.record import recorder
from strobe.record.source import Wants
from strobe.sources.mindspore.session import CpuSession

ms.set_context(mode=ms.GRAPH_MODE)
step = trainer()
step()
session = CpuSession(Path(OUT))
session.start(Wants())
between = []
for _ in range(5):
    before_ns = recorder.core.clock_ns()
    step()
    between.append((before_ns, recorder.core.clock_ns()))
anchors = session.stop()
import json
print(json.dumps([between, anchors.marks_ns, anchors.between_ns]))
""",
    )
    events = importer.read(mindspore.output)
    between, marks_ns, anchors = json.loads(mindspore.printed)

    details = (mindspore.output / "cpu_op_detail_info_0.csv").read_text().splitlines()
    names = [json.loads(events.texts[place])["full_name"] for place in events.attributes]
    frame = pl.DataFrame({"name": names, "dur_ns": events.dur_ns})
    total_ns = dict(frame.group_by("name").agg(pl.sum("dur_ns")).iter_rows())
    for row in csv.DictReader(details):
        told_ms = float(row["op_total_time(ms)"])
        assert total_ns[row["full_op_name"]] / 1e6 == pytest.approx(told_ms, rel=1e-4)

    line = align(np.array(marks_ns), anchors)
    starts, slack = line.apply(events.start_ns), line.residual_ns
    per_step = len(starts) // 5
    for number, (before_ns, after_ns) in enumerate(between):
        mine = starts[number * per_step : (number + 1) * per_step]
        assert before_ns - slack <= mine.min() <= mine.max() <= after_ns + slack

    shapes = {
        names[row]: json.loads(events.texts[place])["shapes"]
        for row, place in enumerate(events.attributes)
    }
    scope = "Default/network-WithLossCell/_backbone-Perceptron/layers-SequentialCell"
    assert shapes[f"{scope}/0-Dense/MatMul-op0"] == [[3, 6], [5, 6], None, None]
    assert shapes[f"{scope}/2-Dense/MatMul-op0"] == [[3, 5], [2, 5], None, None]
    assert shapes["Default/optimizer-SGD/SGD-op0"][0] in ([2], [5], [2, 5], [5, 6])


def test_a_training_has_phases_layers_memory_and_steps(mindspore: Program) -> None:
    run(
        mindspore,
        """
ms.set_context(mode=ms.GRAPH_MODE)
step = trainer()
step()
for _ in range(2):
    with strobe.Profiler(output=OUT, profile_memory=True, with_modules=True):
        for _ in range(3):
            step()
assert "__call__" not in vars(nn.TrainOneStepCell) and "__call__" not in vars(nn.Optimizer)
""",
    )
    for path in mindspore.recordings():
        recording = mindspore.open(path)
        spans = operators(mindspore, path)
        phases = {name: set(part["phase"]) for (name,), part in spans.group_by("name")}
        assert phases["SGD"] == {"optimizer"}
        assert phases["ReluGrad"] == {"backward"}
        assert phases["ReLU"] == {"forward"}
        assert phases["MatMul"] == {"forward", "backward"}
        layers = set(spans.filter(pl.col("name") == "ReLU")["module"])
        assert layers == {
            "Default/network-WithLossCell/_backbone-Perceptron/layers-SequentialCell/1-ReLU"
        }
        steps = recording.steps().collect()
        assert steps["kind"].to_list() == ["optimizer"] * 3
        memory = recording.allocations().collect()
        assert memory["allocated_bytes"].min() > 0
        assert memory["allocated_bytes"].to_list() == memory["bytes"].cum_sum().to_list()
        assert memory["start_ns"].is_sorted()
        facts = dict(recording.metadata().collect().iter_rows())
        assert facts["mindspore_mode"] == "graph"
        assert facts["mindspore_version"] == "2.10.0"


def test_model_train_is_recorded_between_callbacks(mindspore: Program) -> None:
    run(
        mindspore,
        """
ms.set_context(mode=ms.GRAPH_MODE)
model = Perceptron()
optimizer = nn.SGD(model.trainable_params(), 0.1)
train = ms.train.Model(model, nn.MSELoss(), optimizer)

class Steps(ms.train.Callback):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last
        self.profiler = strobe.Profiler(output=OUT, name="steps")
    def on_train_step_begin(self, context):
        if context.original_args().cur_step_num == self.first:
            self.profiler.start()
    def on_train_step_end(self, context):
        if context.original_args().cur_step_num == self.last:
            self.profiler.stop()

class Epochs(ms.train.Callback):
    def __init__(self):
        super().__init__()
        self.profiler = strobe.Profiler(output=OUT, name="epochs")
    def on_train_epoch_begin(self, context):
        if context.original_args().cur_epoch_num == 2:
            self.profiler.start()
    def on_train_epoch_end(self, context):
        if context.original_args().cur_epoch_num == 2:
            self.profiler.stop()

train.train(2, dataset(), callbacks=[Steps(3, 5)], dataset_sink_mode=False)
train.train(3, dataset(), callbacks=[Epochs()], dataset_sink_mode=False)
with strobe.Profiler(output=OUT, name="whole", data_process=True):
    train.train(1, dataset(), dataset_sink_mode=True)
with strobe.Profiler(output=OUT, name="again", data_process=True):
    train.train(1, dataset(), dataset_sink_mode=False)
""",
    )
    found = {path.name.partition("-")[0]: path for path in mindspore.recordings()}
    updates = {name: count(operators(mindspore, path))["AssignAdd"] for name, path in found.items()}
    assert updates == {"steps": 3, "epochs": 6, "whole": 6, "again": 6}
    steps = {name: mindspore.open(path).steps().collect().height for name, path in found.items()}
    assert steps == {"steps": 3, "epochs": 6, "whole": 6, "again": 6}
    waits = mindspore.spans(found["whole"]).filter(pl.col("phase") == "data_loading")
    assert set(waits["name"]) == {"enumerate(Dataset)#TupleIterator"}
    notes = {
        name: dict(mindspore.open(path).completeness().select("source", "note").iter_rows())
        for name, path in found.items()
    }
    assert "which MindSpore ignores on a CPU" in notes["whole"]["mindspore"]
    assert "sink" not in notes["again"]["mindspore"]
    counters = mindspore.open(found["whole"]).counters().collect()
    assert {name for name in counters["name"] if "queue" in name} == {
        "MindData queue Batch(id=0)",
        "MindData queue Map(id=1)",
        "MindData queue Generator(id=2)",
    }
    assert counters["value"].min() >= 0
    assert "started twice" in notes["again"]["data_process"]


def test_a_loop_by_hand_has_steps(mindspore: Program) -> None:
    run(
        mindspore,
        """
ms.set_context(mode=ms.PYNATIVE_MODE)
model, loss = Perceptron(), nn.MSELoss()
optimizer = nn.Momentum(model.trainable_params(), 0.1, 0.9)
gradients = ms.value_and_grad(lambda x, y: loss(model(x), y), None, optimizer.parameters)
with strobe.Profiler(output=OUT, record_shapes=True):
    for x, y in dataset().create_tuple_iterator(num_epochs=1):
        _, changes = gradients(x, y)
        optimizer(changes)
""",
    )
    recording = mindspore.open()
    steps = recording.steps().collect()
    assert steps["kind"].to_list() == ["optimizer"] * 6
    spans = mindspore.spans()
    assert count(spans)["Optimizer.step#Momentum"] == 6
    assert count(spans)["enumerate(Dataset)#TupleIterator"] == 7  # the last finds the end
    notes = dict(recording.completeness().select("source", "note").iter_rows())
    assert "PyNative" in notes["record_shapes"]


def test_steps_are_counted_without_a_change(mindspore: Program) -> None:
    script = mindspore.write(MODELS + "step = trainer()\nfor _ in range(8):\n    step()\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "strobe", "run", "--steps", "3:6"),
            *("--output", mindspore.output, script, "unused"),
        ],
        env=os.environ | QUIET,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert count(operators(mindspore))["AssignAdd"] == 3


def test_the_users_own_profiler_is_respected(mindspore: Program) -> None:
    run(
        mindspore,
        """
ms.set_context(mode=ms.GRAPH_MODE)
step = trainer()
step()

def theirs():
    return ms.profiler.profile(
        activities=[ms.profiler.ProfilerActivity.CPU],
        start_profile=False,
        on_trace_ready=ms.profiler.tensorboard_trace_handler(OUT + "-theirs", analyse_flag=False),
    )

one = theirs()
one.start()
with strobe.Profiler(output=OUT, name="second"):
    step()
one.stop()
with strobe.Profiler(output=OUT, name="first"):
    step()
    another = theirs()
    another.start()
    step()
    step()
    another.stop()
with strobe.Profiler(output=OUT, name="alone"):
    step()
""",
    )
    assert "is active in this process; stop it first" in mindspore.said
    assert "strobe records no operators from here on" in mindspore.said
    found = {path.name.partition("-")[0]: path for path in mindspore.recordings()}
    assert operators(mindspore, found["second"]).is_empty()
    assert count(operators(mindspore, found["first"]))["AssignAdd"] == 1
    notes = mindspore.open(found["first"]).completeness()["note"]
    assert any("only until then" in note for note in notes.drop_nulls())
    assert count(operators(mindspore, found["alone"]))["AssignAdd"] == 1
    times = [
        next(row for row in csv.DictReader(file.read_text().splitlines()))["op_occurrences"]
        for file in sorted(Path(f"{mindspore.output}-theirs").rglob("cpu_op_detail_info_0.csv"))
    ]
    assert times == ["1", "2"]  # nothing of ours is in theirs


def test_what_runs_on_a_device_is_kept(mindspore: Program) -> None:
    """All but the device: MindSpore's Profiler is driven here on the CPU."""
    run(
        mindspore,
        """
from strobe.sources.mindspore import source

ms.set_context(mode=ms.GRAPH_MODE)
step = trainer()
source._device = lambda: "Ascend"
for _ in range(2):
    with strobe.Profiler(output=OUT):
        step()
""",
    )
    for path in mindspore.recordings():
        recording = strobe.open(path)
        (kept,) = path.glob("mindspore-*/**/cpu_op_execute_timestamp_0.txt")
        assert "SGD-op0" in kept.read_text()
        assert "kept in the recording" in "".join(recording.completeness()["note"].drop_nulls())


def test_collectives_of_two_ranks(mindspore: Program) -> None:
    script = mindspore.write(
        MODELS
        + """
from mindspore.communication import init
ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL)

class Sum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(6, 5)
        self.sum = ops.AllReduce()
        self.gather = ops.AllGather()

    def construct(self, x):
        return self.gather(self.sum(self.layer(x)))

model = Sum()
x = Tensor(np.ones((3, 6), np.float32))
model(x).asnumpy()
with strobe.Profiler(output=OUT, record_shapes=True):
    for _ in range(2):
        model(x).asnumpy()
"""
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(sys.executable).parent
    done = subprocess.run(
        [
            *(folder / "msrun", "--worker_num=2", "--local_worker_num=2", f"--master_port={port}"),
            *(f"--log_dir={mindspore.folder / 'log'}", "--join=True", script, mindspore.output),
        ],
        env=os.environ | QUIET | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    paths = find_recordings(mindspore.output)
    assert len(paths) == 2
    for path in paths:
        recording = mindspore.open(path)
        found = recording.collectives().collect()
        assert found["name"].to_list() == ["all_reduce", "all_gather"] * 2
        assert (found["dur_ns"] > 0).all()
        spans = operators(mindspore, path)
        exchanged = spans.filter(pl.col("category") == "communication")
        assert json.loads(exchanged["attributes"][0])["shapes"] == [[3, 5]]
        facts = dict(recording.metadata().collect().iter_rows())
        assert facts["mindspore_parallel_mode"] == "data_parallel"
        assert facts["mindspore_world_size"] == "2"
