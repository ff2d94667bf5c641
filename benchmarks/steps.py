# SPDX-License-Identifier: Apache-2.0
"""What step() costs in each state of a schedule, in microseconds, and what ending a round costs.

Prints one JSON object: for each, the median and the 90th percentile.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import strobe

PATTERN = {
    "closed": strobe.schedule(wait=10**9, warmup=0, active=1),
    "ready": strobe.schedule(wait=0, warmup=10**9, active=1),
    "record": strobe.schedule(wait=0, warmup=0, active=10**9),
}


def time_steps(profiler: strobe.Profiler, count: int) -> list[float]:
    spent = []
    for _ in range(count):
        began = time.perf_counter_ns()
        profiler.step()
        spent.append((time.perf_counter_ns() - began) / 1e3)
    return spent


def describe(spent: list[float]) -> dict[str, float]:
    return {"median_us": statistics.median(spent), "p90_us": sorted(spent)[len(spent) * 9 // 10]}


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, schedule in PATTERN.items():
            with strobe.Profiler(output=folder, schedule=schedule) as profiler:
                results[name] = describe(time_steps(profiler, 20_000))
            while any(Path(folder).glob("*/log")):
                time.sleep(0.05)
        # Every other step ends a round of 1000 spans.
        rounds = strobe.schedule(wait=1, warmup=0, active=1)
        ends = []
        with strobe.Profiler(output=folder, schedule=rounds) as profiler:
            for _ in range(20):
                time_steps(profiler, 1)
                for _ in range(1000):
                    with strobe.span("work"):
                        pass
                ends += time_steps(profiler, 1)
        results["end of a round"] = describe(ends)
        for recording in profiler.recordings:  # the finalizer is still at work in the folder
            while (recording.path / "log").exists():
                time.sleep(0.05)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
