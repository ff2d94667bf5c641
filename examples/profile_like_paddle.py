# SPDX-License-Identifier: Apache-2.0
"""A program written for paddle.profiler, profiled by strobe: plain Python, a few seconds.

The one change is the import. Run it anywhere:
python examples/profile_like_paddle.py [--steps 10]
"""

from __future__ import annotations

import argparse
import random

import strobe.paddle as profiler  # was: import paddle.profiler as profiler

KINDS = profiler.TracerEventType
SIZE = 60

Matrix = list[list[float]]


@profiler.RecordEvent("multiply")
def multiply(left: Matrix, right: Matrix) -> Matrix:
    columns = list(zip(*right, strict=True))
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left
    ]


def load() -> Matrix:
    with profiler.RecordEvent("read a batch", KINDS.Dataloader):
        return [[random.random() for _ in range(SIZE)] for _ in range(SIZE)]


def train(weights: Matrix) -> Matrix:
    batch = load()
    with profiler.RecordEvent("forward", KINDS.Forward):
        out = multiply(batch, weights)
    with profiler.RecordEvent("backward", KINDS.Backward):
        gradient = multiply(list(map(list, zip(*batch, strict=True))), out)
    with profiler.RecordEvent("update", KINDS.Optimization):
        return [
            [weight - 1e-9 * change for weight, change in zip(*rows, strict=True)]
            for rows in zip(weights, gradient, strict=True)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    weights: Matrix = [[random.random() for _ in range(SIZE)] for _ in range(SIZE)]
    with profiler.Profiler(
        scheduler=profiler.make_scheduler(closed=1, ready=2, record=3, repeat=1),
        on_trace_ready=profiler.export_chrome_tracing("./profiler_demo"),
    ) as prof:
        for _ in range(arguments.steps):
            weights = train(weights)
            prof.step(num_samples=SIZE)
    prof.summary(sorted_by=profiler.SortedKeys.CPUMax, time_unit="us")


if __name__ == "__main__":
    main()
