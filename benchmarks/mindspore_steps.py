# SPDX-License-Identifier: Apache-2.0
"""What profiling a training step of MindSpore costs: strobe beside mindspore.profiler.

One process, one thread, an MLP in graph mode on the CPU. Both record the same number of steps, in
turn: how long stop() takes, and how long it is from there to a table: strobe's operators,
MindSpore's analyse(); the least of some times counts, since what else the machine does only adds.
Then all ways of profiling are measured in every round, in a new order each time, after some steps
to warm up; what a way adds is its CPU time less that of the round's bare steps. Prints one JSON
object.
"""

import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
from mindspore import nn
from mindspore.profiler import ProfilerActivity, profile, tensorboard_trace_handler

import strobe
from rounds import Kept, compare, interleave, medians, own_times

LAYERS = 8

STEPS = 240  # of a round: MindSpore's threads make a shorter one too uncertain

# what is asked of both: (strobe's options, mindspore.profiler's). Memory last: once it was asked
# for, MindSpore records it in this process for ever, whoever asks for what.
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "memory": ({"profile_memory": True}, {"profile_memory": True}),
}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 500
    mindspore.set_device("CPU")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    train = make_program()
    train(1)
    with tempfile.TemporaryDirectory() as folder:
        ends = [measure_ends(train, folder, steps) for _ in range(7)]
        sys.executable = ""  # no finalizer beside the measurement, as where no process can be made
        kept = {f"strobe, {asked}": Kept(folder, ours) for asked, (ours, _) in ASKED.items()}
        spent = {
            asked: interleave(train, ways(folder, asked, kept), rounds, STEPS) for asked in ASKED
        }
        own: dict[str, Any] = {}
        for asked, each in spent.items():
            name = f"strobe, {asked}"
            own |= own_times({name: kept[name]}, each, train)
    json.dump(
        {
            "mindspore": mindspore.__version__,
            "rounds": rounds,
            "steps": steps,
            "bare_us": statistics.median(spent["plain"]["bare"]),
            "own": own,
            "added_us": {name: us for each in spent.values() for name, us in medians(each).items()},
            "ratios": {
                asked: compare(spent[asked], f"strobe, {asked}", f"mindspore, {asked}")
                for asked in ASKED
            },
            "first_table_ms": ends[0]["table_ms"],
            **{name: min(end[name] for end in ends) for name in ends[0]},
        },
        sys.stdout,
    )


def ways(folder: str, asked: str, kept: dict[str, Kept]) -> dict[str, Any]:
    _, theirs = ASKED[asked]
    never = strobe.schedule(wait=10**9, warmup=0, active=1)
    closed = {"strobe, closed": with_strobe(folder, {"schedule": never})}
    return {
        "bare": contextlib.nullcontext,
        **(closed if asked == "plain" else {}),
        f"strobe, {asked}": kept[f"strobe, {asked}"],
        f"mindspore, {asked}": with_mindspore(folder, theirs),
    }


def make_program() -> Any:
    layers: list[nn.Cell] = []
    for _ in range(LAYERS):
        layers += [nn.Dense(64, 64), nn.ReLU()]
    model = nn.SequentialCell(*layers, nn.Dense(64, 10))
    optimizer = nn.SGD(model.trainable_params(), 0.01)
    loss = nn.WithLossCell(model, nn.MSELoss())
    step = nn.TrainOneStepCell(loss, optimizer)
    step.set_train()
    inputs = mindspore.Tensor(np.random.randn(32, 64).astype(np.float32))
    targets = mindspore.Tensor(np.random.randn(32, 10).astype(np.float32))

    def train(steps: int) -> None:
        for _ in range(steps):
            step(inputs, targets).asnumpy()

    return train


def with_strobe(folder: str, options: dict[str, Any]) -> Any:
    return lambda: strobe.Profiler(output=folder, **options)


def with_mindspore(folder: str, options: dict[str, Any]) -> Any:
    def make() -> Any:
        return profile(
            activities=[ProfilerActivity.CPU],
            start_profile=False,
            on_trace_ready=tensorboard_trace_handler(f"{folder}/theirs", analyse_flag=False),
            **options,
        )

    return make


def measure_ends(train: Any, folder: str, steps: int) -> dict[str, float]:
    """Return the milliseconds of both stop(), and from there to a table, of the same steps."""
    ours = strobe.Profiler(output=folder)
    ours.start()
    train(steps)
    began = time.perf_counter()
    ours.stop()
    stopped = time.perf_counter()
    table = ours.recording.operators()
    read = time.perf_counter()
    theirs = with_mindspore(folder, {})()
    theirs.start()
    train(steps)
    before = time.perf_counter()
    theirs.stop()
    after = time.perf_counter()
    analysed_ms = analyse(train, folder, steps)
    own_stop_ms = (after - before) * 1e3
    return {
        "events": int(table["calls"].sum()),
        "stop_ms": (stopped - began) * 1e3,
        "own_stop_ms": own_stop_ms,
        "table_ms": (read - stopped) * 1e3,
        "analyse_ms": analysed_ms - own_stop_ms,
    }


def analyse(train: Any, folder: str, steps: int) -> float:
    """Return the milliseconds of mindspore.profiler's stop() with its analyse()."""
    output = Path(folder) / f"analysed{time.monotonic_ns()}"
    theirs = profile(
        activities=[ProfilerActivity.CPU],
        start_profile=False,
        on_trace_ready=tensorboard_trace_handler(str(output)),
    )
    theirs.start()
    train(steps)
    began = time.perf_counter()
    theirs.stop()
    return (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    main()
