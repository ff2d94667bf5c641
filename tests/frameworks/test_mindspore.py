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
from flat_trace import read_flat
from programs import Program, count
from strobe.importers import mindspore as importer
from strobe.model.clocks import align
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


def spans_of(recording: strobe.Recording, rows: pl.Series) -> pl.DataFrame:
    return recording.spans().collect()[rows.drop_nulls().to_list()]


def full_names(spans: pl.DataFrame) -> list[str]:
    return spans["full_name"].to_list()


BOTH = """
ms.set_context(mode=ms.GRAPH_MODE if sys.argv[2] == "graph" else ms.PYNATIVE_MODE)
for model in (trainer, classifier):
    step = model()
    step()
    theirs = ms.profiler.profile(
        activities=[ms.profiler.ProfilerActivity.CPU],
        start_profile=False,
        on_trace_ready=ms.profiler.tensorboard_trace_handler(OUT + model.__name__),
    )
    theirs.start()
    for _ in range(4):
        step()
    theirs.stop()
    for _ in range(2):
        with strobe.Profiler(output=OUT, name=model.__name__, record_shapes=True):
            for _ in range(4):
                step()
"""


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_the_operators_are_those_of_mindspore_profiler(mindspore: Program, mode: str) -> None:
    """Of a training and of an inference."""
    run(mindspore, BOTH, mode)

    recordings = mindspore.recordings()
    for model in ("trainer", "classifier"):
        (output,) = Path(f"{mindspore.output}{model}").glob("*_ascend_ms")
        details = (output / "FRAMEWORK/cpu_op_detail_info_0.csv").read_text().splitlines()
        expected = {row["full_op_name"]: row for row in csv.DictReader(details)}
        times = {name: int(row["op_occurrences"]) for name, row in expected.items()}
        types: Counter[str] = Counter()
        for row in expected.values():
            types[row["op_type"]] += int(row["op_occurrences"])
        trace = json.loads((output / "ASCEND_PROFILER_OUTPUT/trace_view.json").read_text())
        drawn = Counter(
            each["name"] for each in trace if each.get("ph") == "X" and each["pid"] == 2
        )
        first, second = [path for path in recordings if path.name.startswith(model)]
        for path in (first, second):  # its own profiler has none of a session that follows unasked
            spans = operators(mindspore, path)
            assert Counter(full_names(spans)) == times == drawn
            assert count(spans) == types


def test_times_are_those_of_mindspore_for_the_same_window(mindspore: Program) -> None:
    """MindSpore's own table of a window beside ours: it writes six digits."""
    run(
        mindspore,
        """
import json
from pathlib import Path
from strobe.record import recorder
from strobe.record.source import Wants
from strobe.sources.mindspore.session import CpuSession

told = {}
for mode in ("GRAPH_MODE", "PYNATIVE_MODE"):
    ms.set_context(mode=getattr(ms, mode))
    step = trainer()
    step()
    session = CpuSession(Path(OUT + mode))
    session.start(Wants())
    between = []
    for _ in range(5):
        before_ns = recorder.core.clock_ns()
        step()
        between.append((before_ns, recorder.core.clock_ns()))
    anchors = session.stop()
    told[mode] = [between, anchors.marks_ns, anchors.between_ns]
print(json.dumps(told))
""",
    )
    for mode, (between, marks_ns, anchors) in json.loads(mindspore.printed).items():
        folder = Path(f"{mindspore.output}{mode}")
        events = read_flat(importer, folder)
        names = [told["full_name"] for told in events.told()]
        frame = pl.DataFrame({"name": names, "dur_ns": events.dur_ns})
        total_ns = dict(frame.group_by("name").agg(pl.sum("dur_ns")).iter_rows())
        details = (folder / "cpu_op_detail_info_0.csv").read_text().splitlines()
        told_ms = {
            row["full_op_name"]: float(row["op_total_time(ms)"]) for row in csv.DictReader(details)
        }
        assert total_ns.keys() == told_ms.keys()
        for name, spent_ms in told_ms.items():
            assert total_ns[name] / 1e6 == pytest.approx(spent_ms, rel=1e-4)

        line = align(np.array(marks_ns), anchors)
        starts, slack = line.apply(events.start_ns), line.residual_ns
        per_step = len(starts) // 5
        for number, (before_ns, after_ns) in enumerate(between):
            mine = starts[number * per_step : (number + 1) * per_step]
            assert before_ns - slack <= mine.min() <= mine.max() <= after_ns + slack


def test_a_training_has_phases_layers_memory_and_steps(mindspore: Program) -> None:
    run(
        mindspore,
        """
ms.set_context(mode=ms.GRAPH_MODE)
step = trainer()
step()
for _ in range(2):
    with strobe.Profiler(
        output=OUT, profile_memory=True, with_modules=True, record_shapes=True
    ):
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
        owners = spans_of(recording, memory["span"])
        assert "MatMul" in set(owners["name"])
        assert set(owners["category"]) == {"operator"}
        scope = "Default/network-WithLossCell/_backbone-Perceptron/layers-SequentialCell"
        given = {
            name: json.loads(text or "{}")
            for name, text in zip(full_names(spans), spans["attributes"], strict=True)
        }
        product = given[f"{scope}/0-Dense/MatMul-op0"]
        assert product["shapes"] == [[3, 6], [5, 6], None, None]
        assert product["dtypes"] == ["float32", "float32", None, None]
        assert given["Default/optimizer-SGD/AssignAdd-op0"]["dtypes"] == ["int32", "int32", None]
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
    assert set(waits["name"]) == {"enumerate(Dataset)#TupleIterator", "end of data"}
    notes = {
        name: dict(mindspore.open(path).completeness().select("source", "note").iter_rows())
        for name, path in found.items()
    }
    assert "which MindSpore ignores on a CPU" in notes["whole"]["mindspore"]
    assert "sink" not in notes["again"]["mindspore"]
    assert "data_process" not in {**notes["whole"], **notes["again"]}


QUEUES = {
    "MindData queue Batch(id=0)",
    "MindData queue Map(id=1)",
    "MindData queue Generator(id=2)",
}


def test_each_pipeline_is_profiled_in_the_window_that_it_is_made_in(mindspore: Program) -> None:
    """MindSpore itself crashes if it is started again in these cases, or has nothing."""
    run(
        mindspore,
        """
import gc

def batches():
    def slow():
        while True:
            time.sleep(0.002)
            yield np.zeros((6,), np.float32), np.ones((2,), np.float32)
    pipeline = ds.GeneratorDataset(slow, ["x", "y"], shuffle=False, num_parallel_workers=1)
    pipeline = pipeline.map(lambda x: x * 2, ["x"], num_parallel_workers=1).batch(4)
    return pipeline.create_tuple_iterator(num_epochs=1, output_numpy=True)

def take(rows):
    for _ in range(100):  # of 8 ms or more: some samples
        next(rows)

with strobe.Profiler(output=OUT, name="made", data_process=True):
    rows = batches()
    take(rows)
with strobe.Profiler(output=OUT, name="same", data_process=True):
    next(rows)
rows = None
gc.collect()
with strobe.Profiler(output=OUT, name="epochs", data_process=True):
    for _ in range(2):
        rows = batches()
        take(rows)
        rows = None
        gc.collect()
assert ds.config.get_monitor_sampling_interval() == 1000
""",
    )
    found = {path.name.partition("-")[0]: path for path in mindspore.recordings()}
    for name in ("made", "epochs"):
        recording = mindspore.open(found[name])
        counters = recording.counters().collect()
        assert {each for each in counters["name"] if "queue" in each} == QUEUES
        assert counters["value"].min() >= 0
        queue = counters.filter(pl.col("name") == "MindData queue Batch(id=0)")["start_ns"]
        assert queue.n_unique() == len(queue)
        assert "data_process" not in recording.completeness()["source"]
    notes = mindspore.open(found["same"]).completeness().select("source", "note")
    assert "one window only" in dict(notes.iter_rows())["data_process"]


def test_a_loop_by_hand_has_steps_phases_and_inputs(mindspore: Program) -> None:
    """PyNative mode, whose operators MindSpore's profiler tells no inputs of."""
    run(
        mindspore,
        """
from contextlib import nullcontext
from mindspore._c_expression import _DispatchGuardStack as modes
ms.set_context(mode=ms.PYNATIVE_MODE)

def train(context):
    ms.set_seed(1)
    np.random.seed(1)
    model, loss = Perceptron(), nn.MSELoss()
    optimizer = nn.Momentum(model.trainable_params(), 0.1, 0.9)
    gradients = ms.value_and_grad(lambda x, y: loss(model(x), y), None, optimizer.parameters)
    values = []
    with context:
        for x, y in dataset().create_tuple_iterator(num_epochs=1):
            value, changes = gradients(x, y)
            clipped = ops.clip_by_global_norm(changes, 1.0)
            optimizer(clipped)
            values.append(value)
    assert modes.depth() == 0
    return [value.asnumpy().tolist() for value in values]

plain = train(nullcontext())
assert train(strobe.Profiler(output=OUT, record_shapes=True)) == plain

class Theirs(ms.MsDispatchMode):
    pass

profiler = strobe.Profiler(output=OUT + "-theirs", record_shapes=True)
profiler.start()
ones = ops.relu(Tensor(np.ones((2, 2), np.float32)))
with Theirs():
    profiler.stop()  # ours lies below, and leaves when it is called
    ops.relu(ones)
    assert modes.depth() == 2
assert modes.depth() == 1
ops.relu(ones)
assert modes.depth() == 0
with Theirs():
    profiler.start()  # theirs would stay if ours lay above it
    ops.relu(ones)
assert modes.depth() == 0
profiler.stop()

try:
    with strobe.Profiler(output=OUT + "-error"):
        ops.relu(ones)
        ops.index_select(Tensor(np.ones((3, 6), np.float32)), 0, Tensor([7], ms.int32))
    print("lost")
except (RuntimeError, ValueError, IndexError) as error:
    print("the program's own error" if "Gather" in str(error) else error)
""",
    )
    assert mindspore.printed.strip() == "the program's own error"
    assert "that the program has entered" in mindspore.said
    recording = mindspore.open()
    steps = recording.steps().collect()
    assert steps["kind"].to_list() == ["optimizer"] * 6
    spans = mindspore.spans()
    assert count(spans)["Optimizer.step#Momentum"] == 6
    assert count(spans)["grad"] == 6
    assert count(spans)["enumerate(Dataset)#TupleIterator"] == 7  # the last finds the end
    batches = recording.batches().collect()
    assert batches["number"].to_list() == list(range(6))
    assert set(batches["loader"]) == {"Dataset(BatchDataset)"}
    waits = spans[batches["span"].to_list()]
    assert (waits["dur_ns"] >= batches["wait_ns"]).all()
    completeness = {row["source"]: row for row in recording.completeness().to_dicts()}
    assert "record_shapes" not in completeness
    assert completeness["mindspore"]["own_ns"] > 0
    assert "own time is estimated" in completeness["mindspore"]["note"]
    found = operators(mindspore)
    told = [json.loads(text or "{}") for text in found["attributes"]]
    products = [
        (phase, each["shapes"][:2], each["dtypes"][:2])
        for name, phase, each in zip(found["name"], found["phase"], told, strict=True)
        if name == "MatMul"
    ]
    single = ["float32", "float32"]
    # Of x (4, 6) and weights (5, 6) and (2, 5): what the chain rule asks for.
    assert products == 6 * [
        ("forward", [[4, 6], [5, 6]], single),
        ("forward", [[4, 5], [2, 5]], single),
        ("backward", [[4, 2], [2, 5]], single),
        ("backward", [[4, 2], [4, 5]], single),
        ("backward", [[4, 5], [4, 6]], single),
    ]
    phases = {name: set(part["phase"]) for (name,), part in found.group_by("name")}
    assert phases["ReLU"] == {"forward"}
    assert phases["ReluGrad"] == phases["BiasAddGrad"] == {"backward"}
    assert phases["ApplyMomentum"] == {"optimizer"}


def test_a_window_has_what_was_asked_for_in_it(mindspore: Program) -> None:
    """In PyNative mode operators run when they may, and nobody here waits for them."""
    run(
        mindspore,
        """
ms.set_context(mode=ms.PYNATIVE_MODE)
x = Tensor(np.ones((800, 800), np.float32))
ops.matmul(x, x).asnumpy()
plan = strobe.schedule(wait=0, warmup=0, active=1, repeat=3)
with strobe.Profiler(output=OUT, schedule=plan) as profiler:
    for calls in (2, 3, 4, 5):
        for _ in range(calls):
            ops.matmul(x, x)  # takes longer than to ask for it
        profiler.step()

ops.matmul(x, x)
ops.gather_nd(x, Tensor(np.array([[900, 900]], np.int32)))  # fails when its turn comes
late = strobe.Profiler(output=OUT + "-late")
try:
    late.start()
except RuntimeError as error:
    print(late.is_started, str(error).split()[1])
""",
    )
    assert mindspore.printed == "False 'GatherNd',\n"  # told by the one who waited for it
    found = [count(operators(mindspore, path))["MatMul"] for path in mindspore.recordings()]
    assert sorted(found) == [2, 3, 4]


def test_a_window_is_bounded(mindspore: Program) -> None:
    """Even where the program calls nothing: what MindSpore holds must not grow for ever."""
    run(
        mindspore,
        """
from strobe.sources.mindspore.source import source
ms.set_context(mode=ms.GRAPH_MODE)
step = trainer()
step()
with strobe.Profiler(output=OUT, profile_memory=True, record_shapes=True):
    step()
    while not source._session.is_paused:
        time.sleep(0.01)
    ended_ns = time.monotonic_ns()
    step()
    step()
with strobe.Profiler(output=OUT, name="again"):
    step()
print(ended_ns)
""",
        env={"STROBE_MINDSPORE_SECONDS": "6"},
    )
    assert "6 s of a window at most" in mindspore.said
    first, again = sorted(mindspore.recordings(), key=lambda path: path.name.startswith("again"))
    assert count(operators(mindspore, first))["AssignAdd"] == 1
    assert count(operators(mindspore, again))["AssignAdd"] == 1
    memory = mindspore.open(first).allocations().collect()
    assert 0 < memory["start_ns"].max() <= int(mindspore.printed)
    notes = {
        path: " ".join(mindspore.open(path).completeness()["note"].drop_nulls())
        for path in (first, again)
    }
    assert "STROBE_MINDSPORE_SECONDS" in notes[first]
    assert "STROBE_MINDSPORE_SECONDS" not in notes[again]


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
    with strobe.Profiler(output=OUT, data_process=True, record_shapes=True):
        step()
""",
    )
    for path in mindspore.recordings():
        recording = strobe.open(path)
        assert "data_process" not in recording.completeness()["source"]
        (kept,) = path.glob("mindspore-*/**/cpu_op_execute_timestamp_0.txt")
        assert "SGD-op0" in kept.read_text()
        assert "kept in the recording" in "".join(recording.completeness()["note"].drop_nulls())


def test_collectives_of_two_ranks(mindspore: Program) -> None:
    script = mindspore.write(
        MODELS
        + """
from mindspore.communication import create_group, init
init()
create_group("pair", [0, 1])
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL)

class Sum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(6, 5)
        self.sum = ops.AllReduce(group="pair")
        self.clip = ops.ReLU().shard(((1, 1),))
        self.gather = ops.AllGather()

    def construct(self, x):
        return self.gather(self.sum(self.clip(self.layer(x))))

x = Tensor(np.ones((3, 6), np.float32))
for mode in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
    ms.set_context(mode=mode)
    model = Sum()
    model(x).asnumpy()
    with strobe.Profiler(output=OUT, record_shapes=True, name=f"mode{mode}"):
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
    assert len(paths) == 4
    for path in paths:
        recording = mindspore.open(path)
        found = recording.collectives().collect()
        assert found["name"].to_list() == ["all_reduce", "all_gather"] * 2
        assert (found["dur_ns"] > 0).all()
        assert found["group"].to_list() == ["pair", "mccl_world_group"] * 2
        assert found["ranks"].to_list() == ["[0, 1]"] * 4
        assert found["bytes"].to_list() == [3 * 5 * 4] * 4
        assert found["dtype"].to_list() == ["float32"] * 4
        assert found["backend"].to_list() == ["mccl"] * 4
        facts = dict(recording.metadata().collect().iter_rows())
        assert facts["mindspore_parallel_mode"] == "data_parallel"
        assert facts["mindspore_world_size"] == "2"
        if facts["mindspore_mode"] == "graph":
            spans = operators(mindspore, path).filter(pl.col("name") == "ReLU")
            assert json.loads(spans["attributes"][0])["strategy"] == [[1, 1]]
