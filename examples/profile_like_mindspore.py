# SPDX-License-Identifier: Apache-2.0
"""Profile a loop with the interface of MindSpore's profiler; no framework is needed.

python examples/profile_like_mindspore.py [--steps 12] [--output data]
"""

from __future__ import annotations

import argparse
import time

import strobe.mindspore
from strobe.mindspore import mstx, profile, schedule, tensorboard_trace_handler


def work(seconds: float) -> None:
    forward = mstx.range_start("forward")
    time.sleep(seconds)
    mstx.range_end(forward)
    backward = mstx.range_start("backward")
    time.sleep(2 * seconds)
    mstx.range_end(backward)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--output", default="data")
    arguments = parser.parse_args()
    with profile(
        schedule=schedule(wait=1, warmup=1, active=3, repeat=2),
        on_trace_ready=tensorboard_trace_handler(arguments.output, analyse_flag=False),
    ) as profiler:
        profiler.add_metadata("example", "loop")
        for _ in range(arguments.steps):
            work(0.002)
            profiler.step()
    strobe.mindspore.analyse(arguments.output)
    print(f"trace_view.json of each round is in {arguments.output}/*_ascend_ms")


if __name__ == "__main__":
    main()
