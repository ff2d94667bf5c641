# SPDX-License-Identifier: Apache-2.0
"""A run of MindSpore's own profiler and one of strobe.mindspore: stop, and the files of it.

An MLP of nine layers in graph mode; N steps make about 147 N events in MindSpore's timeline. Prints
one JSON object.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

import strobe.mindspore


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


def measure_theirs(step: nn.TrainOneStepCell, count: int, folder: Path) -> dict[str, float]:
    """On a CPU it parses in stop(), and nowhere else."""
    profiler = ms.profiler.profile(
        activities=[ms.profiler.ProfilerActivity.CPU],
        start_profile=False,
        on_trace_ready=ms.profiler.tensorboard_trace_handler(str(folder)),
    )
    profiler.start()
    run(step, count)
    began = time.perf_counter()
    profiler.stop()
    spent = time.perf_counter() - began
    trace = json.loads(next(folder.rglob("trace_view.json")).read_text())
    return {"stop_and_files_s": spent, "events": sum(each["ph"] == "X" for each in trace)}


def measure_ours(step: nn.TrainOneStepCell, count: int, folder: Path) -> dict[str, float]:
    profiler = strobe.mindspore.Profiler(start_profile=False, output_path=folder)
    profiler.start()
    run(step, count)
    began = time.perf_counter()
    profiler.stop()
    stopped = time.perf_counter()
    profiler.analyse()
    done = time.perf_counter()
    trace = json.loads(next(folder.rglob("trace_view.json")).read_text())
    return {
        "stop_s": stopped - began,
        "analyse_s": done - stopped,
        "stop_and_files_s": done - began,
        "events": sum(each["ph"] == "X" for each in trace),
    }


def measure_idle(folder: Path) -> float:
    """Nanoseconds of a step of a DynamicProfilerMonitor without news."""
    monitor = strobe.mindspore.DynamicProfilerMonitor(folder, folder)
    monitor.step()
    count = 200_000
    began = time.perf_counter_ns()
    for _ in range(count):
        monitor.step()
    spent = (time.perf_counter_ns() - began) / count
    monitor.close()
    return spent


def main() -> None:
    count = int(sys.argv[1])
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    step = trainer()
    run(step, 3)
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "mindspore": ms.__version__,
            "theirs": measure_theirs(step, count, Path(folder) / "theirs"),
            "ours": measure_ours(step, count, Path(folder) / "ours"),
            "idle_step_ns": measure_idle(Path(folder)),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
