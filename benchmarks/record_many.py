# SPDX-License-Identifier: Apache-2.0
"""Record N spans, one in another, and stop: how long stop() takes, and how memory grows meanwhile.

With --no-finalizer the recording is left without its tables, so that the cold operator table can be
measured from it. Prints one JSON object.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import strobe

NAMES = [f"operator {number}" for number in range(200)]


def resident_kb() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def record(count: int) -> list[int]:
    """Make `count` spans; resident memory at ten points on the way."""
    seen = []
    for _ in range(10):
        for number in range(count // 20):
            with strobe.span(NAMES[number % 200]), strobe.span("inner"):
                pass
        seen.append(resident_kb())
    return seen


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("output")
    parser.add_argument("--no-finalizer", action="store_true")
    arguments = parser.parse_args()

    if arguments.no_finalizer:
        sys.executable = ""  # as where no process can be made
    profiler = strobe.Profiler(output=arguments.output)
    bare_kb = resident_kb()
    profiler.start()
    began = time.perf_counter_ns()
    seen_kb = record(arguments.count)
    recorded = time.perf_counter_ns()
    profiler.stop()
    stopped = time.perf_counter_ns()
    result = {
        "spans": arguments.count,
        "ns_per_span": (recorded - began) / arguments.count,
        "stop_ms": (stopped - recorded) / 1e6,
        "memory_above_bare_mb": (max(seen_kb) - bare_kb) / 1024,
        "memory_growth_mb": (seen_kb[-1] - seen_kb[0]) / 1024,
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
