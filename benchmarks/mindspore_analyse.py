# SPDX-License-Identifier: Apache-2.0
"""Runs of MindSpore's own profiler and of strobe.mindspore: the last step, stop, and the files.

An MLP of nine layers in graph mode; N steps make about 147 N events in MindSpore's timeline. Both
are measured in turn, and the least of some times counts, since what else the machine does only
adds; the first of ours in the process is told besides. Prints one JSON object.
"""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

import strobe.mindspore

TIMES = 9


def trainer() -> nn.TrainOneStepCell:
    layers = [layer for _ in range(9) for layer in (nn.Dense(16, 16), nn.ReLU())]
    model = nn.SequentialCell(layers)
    optimizer = nn.SGD(model.trainable_params(), 0.1)
    return nn.TrainOneStepCell(nn.WithLossCell(model, nn.MSELoss()), optimizer).set_train()


def run(step: nn.TrainOneStepCell, count: int) -> None:
    data = ms.Tensor(np.ones((8, 16), np.float32))
    for _ in range(count):
        step(data, data)
    data.asnumpy()


def spent(action: Callable[[], object]) -> tuple[float, float]:
    """Return seconds, and those of processors, of children that it waited for too."""
    began, before = time.perf_counter(), os.times()
    action()
    after, ended = os.times(), time.perf_counter()
    return ended - began, sum(after[:4]) - sum(before[:4])


def pause(profiler: Any, step: nn.TrainOneStepCell, count: int) -> float:
    """Return the seconds of the step() that ends a round of as many training steps."""
    run(step, 2)
    profiler.step()
    run(step, count)
    seconds, _ = spent(profiler.step)
    profiler.stop()
    return seconds


def pauses(step: nn.TrainOneStepCell, count: int, folder: Path) -> dict[str, float]:
    """Let both end a round: MindSpore without analysing, strobe with the files made outside."""
    found = {}
    for name, module, analyses in (
        ("own_pause_s", ms.profiler, False),
        ("pause_s", strobe.mindspore, True),
    ):
        handler = module.tensorboard_trace_handler(str(folder / name), analyse_flag=analyses)
        profiler = module.profile(
            activities=[module.ProfilerActivity.CPU],
            schedule=module.schedule(wait=1, warmup=0, active=1, repeat=1),
            on_trace_ready=handler,
        )
        found[name] = pause(profiler, step, count)
    return found


def theirs(step: nn.TrainOneStepCell, count: int, folder: Path) -> dict[str, float]:
    """On a CPU it parses in stop(), and nowhere else."""
    profiler = ms.profiler.profile(
        activities=[ms.profiler.ProfilerActivity.CPU],
        start_profile=False,
        on_trace_ready=ms.profiler.tensorboard_trace_handler(str(folder)),
    )
    profiler.start()
    run(step, count)
    seconds, cpu = spent(profiler.stop)
    return {"own_s": seconds, "own_cpu_s": cpu, "own_events": count_events(folder)}


def ours(step: nn.TrainOneStepCell, count: int, folder: Path) -> dict[str, float]:
    began = time.perf_counter()
    profiler = strobe.mindspore.Profiler(start_profile=False, output_path=folder)
    made = time.perf_counter() - began
    profiler.start()
    run(step, count)
    stopped, _ = spent(profiler.stop)
    seconds, cpu = spent(profiler.analyse)
    return {
        "made_s": made,
        "stop_s": stopped,
        "analyse_s": seconds,
        "analyse_cpu_s": cpu,
        "events": count_events(folder),
    }


def count_events(folder: Path) -> int:
    trace = json.loads(next(folder.rglob("trace_view.json")).read_text())
    return sum(each["ph"] == "X" for each in trace)


def ranks(step: nn.TrainOneStepCell, count: int, folder: Path) -> dict[str, float]:
    """Return the seconds of analyse() of so many ranks, in one process."""
    profiler = strobe.mindspore.Profiler(start_profile=False, output_path=folder / "one")
    profiler.start()
    run(step, count)
    profiler.stop()
    found = {}
    for size in (1, 2, 4):
        for rank in range(size):
            shutil.copytree(folder / "one", folder / str(size) / f"rank_{rank}")
        path = folder / str(size)
        seconds, _ = spent(lambda path=path: strobe.mindspore.analyse(path, max_process_number=1))
        found[str(size)] = seconds
    return found


def measure_idle(folder: Path) -> float:
    """Nanoseconds of a step of a DynamicProfilerMonitor without news."""
    monitor = strobe.mindspore.DynamicProfilerMonitor(folder, folder)
    monitor.step()
    count = 200_000
    began = time.perf_counter_ns()
    for _ in range(count):
        monitor.step()
    spent_ns = (time.perf_counter_ns() - began) / count
    monitor.close()
    return spent_ns


def main() -> None:
    count = int(sys.argv[1])
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    step = trainer()
    run(step, 3)
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for number in range(TIMES):
            each = folder / str(number)
            rounds.append(
                {
                    **theirs(step, count, each / "theirs"),
                    **ours(step, count, each / "ours"),
                    **pauses(step, count, each),
                }
            )
        found = {
            "mindspore": ms.__version__,
            **{name: min(each[name] for each in rounds) for name in rounds[0]},
            **{f"first_{name}": rounds[0][name] for name in ("made_s", "analyse_s")},
            "ranks_s": ranks(step, count, folder / "ranks"),
            "idle_step_ns": measure_idle(folder),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
