# SPDX-License-Identifier: Apache-2.0
"""What hardware=True costs: the sampler's processor time beside that of the program it looks at.

The program computes for a number of seconds of processor time (the first argument, 20), with four
child processes that sleep. Also what strobe.watch adds to a batch, in nanoseconds. Prints JSON.
"""

import json
import subprocess
import sys
import tempfile
import time

import strobe


def compute(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(number * number for number in range(10_000))


def measure_sampler(seconds: float) -> dict[str, float]:
    asleep = [sys.executable, "-c", "input()"]
    children = [subprocess.Popen(asleep, stdin=subprocess.PIPE) for _ in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        with strobe.Profiler(output=folder, hardware=True) as profiler:
            compute(seconds)
        for child in children:
            child.communicate(b"\n")
        recording = profiler.recording
        (row,) = [row for row in recording.completeness().to_dicts() if row["source"] == "host"]
        program_ns = int(dict(recording.metadata().collect().iter_rows())["host_program_cpu_ns"])
        return {
            "own_s": row["drain_ns"] / 1e9,
            "program_s": program_ns / 1e9,
            "share": row["drain_ns"] / program_ns,
            "counters": row["collected"],
        }


def time_batches(count: int, *, watched: bool) -> float:
    batches = [None] * count
    began = time.perf_counter_ns()
    for _ in strobe.watch(batches, name="bench") if watched else batches:
        pass
    return (time.perf_counter_ns() - began) / count


def measure_watch() -> dict[str, float]:
    count, rounds = 20_000, 9

    def added() -> float:
        spent = [
            time_batches(count, watched=True) - time_batches(count, watched=False)
            for _ in range(rounds)
        ]
        return sorted(spent)[rounds // 2]

    off_ns = added()
    with tempfile.TemporaryDirectory() as folder:
        with strobe.Profiler(output=folder) as profiler:
            on_ns = added()
        _ = profiler.recording.directory
    return {"on_ns": on_ns, "off_ns": off_ns}


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    json.dump({"sampler": measure_sampler(seconds), "watch": measure_watch()}, sys.stdout)


if __name__ == "__main__":
    main()
