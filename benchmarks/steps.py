# SPDX-License-Identifier: Apache-2.0
"""What step() costs in each state of a schedule, in microseconds, and what ending a round costs.

Prints one JSON object: for each, the median, the 90th and the 99th percentile. Beside three threads
that compute in Python, the 99th percentile of a round's end must be at most 50 ms.
"""

import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import strobe

PATTERN = {
    "closed": strobe.schedule(wait=10**9, warmup=0, active=1),
    "ready": strobe.schedule(wait=0, warmup=10**9, active=1),
    "record": strobe.schedule(wait=0, warmup=0, active=10**9),
}
BUSY_THREADS = 3


def time_steps(profiler: strobe.Profiler, count: int) -> list[float]:
    spent = []
    for _ in range(count):
        began = time.perf_counter_ns()
        profiler.step()
        spent.append((time.perf_counter_ns() - began) / 1e3)
    return spent


def describe(spent: list[float]) -> dict[str, float]:
    ordered = sorted(spent)
    return {
        "median_us": statistics.median(spent),
        "p90_us": ordered[len(spent) * 9 // 10],
        "p99_us": ordered[len(spent) * 99 // 100],
    }


def end_rounds_beside_threads(folder: str, count: int) -> list[float]:
    """Return what the steps take that end a round of 5 steps, while others compute in Python."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(100))

    threads = [threading.Thread(target=compute) for _ in range(BUSY_THREADS)]
    for thread in threads:
        thread.start()
    ends = []
    rounds = strobe.schedule(wait=0, warmup=0, active=5)
    with strobe.Profiler(output=folder, schedule=rounds) as profiler:
        for _ in range(count):
            for _ in range(4):
                with strobe.span("work"):
                    profiler.step()
            ends += time_steps(profiler, 1)
    over.set()
    for thread in threads:
        thread.join()
    wait_for_tables(profiler)
    return ends


def wait_for_tables(profiler: strobe.Profiler) -> None:
    """Wait until the finalizer, which works in the same folder, is done."""
    for recording in profiler.recordings:
        while (recording.path / "log").exists():
            time.sleep(0.05)


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
        wait_for_tables(profiler)
        beside = end_rounds_beside_threads(folder, 300)
        results["end of a round, beside three busy threads"] = describe(beside)
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
