# SPDX-License-Identifier: Apache-2.0
"""What memory_lines=True costs beside tracemalloc alone, for programs that allocate a lot.

Each program runs bare, under tracemalloc and under strobe, in turn, each time in a new process; the
first argument is the number of rounds (5). Times are of the program with the profiler's start and
stop. The ratio is the median of the rounds'. Prints JSON.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable


def small() -> None:
    """Allocates and frees at once."""
    for number in range(3_000_000):
        _ = [number]


def growing() -> object:
    """Makes a new peak with each block: 4.5 million blocks in the end."""
    return [[number] for number in range(1_500_000)]


def held() -> object:
    """Works on with two million blocks."""
    kept = [str(number) for number in range(2_000_000)]
    for number in range(8_000_000):
        _ = [number]
    return kept


def deep() -> None:
    """Allocates at the end of deep stacks."""

    def descend(depth: int) -> list[object]:
        return [descend(depth - 1)] if depth else [object() for _ in range(100)]

    kept = []
    for number in range(8_000):
        kept.append(descend(80))
        if number % 500 == 0:
            kept.clear()


def lines() -> None:
    """Allocates in 5,000 different lines, and keeps what they have allocated."""
    body = "\n".join(f"def line_{number}(): return [{number}]" for number in range(5_000))
    found: dict[str, Callable[[], object]] = {}
    exec(compile(body, "many_lines.py", "exec"), found)
    functions = [function for name, function in found.items() if name.startswith("line_")]
    kept: list[object] = []
    for _ in range(100):
        kept += [function() for function in functions]


def threads() -> None:
    """Makes new peaks in four threads."""

    def fill() -> None:
        kept = [{"number": number} for number in range(300_000)]
        del kept

    workers = [threading.Thread(target=fill) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


PROGRAMS: dict[str, Callable[[], object]] = {
    program.__name__: program for program in (small, growing, held, deep, lines, threads)
}
WAYS = ("bare", "tracemalloc", "strobe")


def run(program: Callable[[], object], way: str) -> float:
    """Return how long one program takes, in seconds; what it returns is alive at the end."""
    import strobe

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        profiler = strobe.Profiler(output=folder, memory_lines=True) if way == "strobe" else None
        began = time.perf_counter()
        if profiler is not None:
            profiler.start()
        elif way == "tracemalloc":
            tracemalloc.start()
        kept = program()
        if profiler is not None:
            profiler.stop()
        elif way == "tracemalloc":
            tracemalloc.stop()
        spent = time.perf_counter() - began
        del kept
        if profiler is not None:
            _ = profiler.recording.directory
    return spent


def measure(program: str, rounds: int) -> dict[str, float]:
    spent: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            command = [sys.executable, __file__, "--run", program, way]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            spent[way].append(float(done.stdout))
    pairs = zip(spent["strobe"], spent["tracemalloc"], strict=True)
    times = {f"{way}_s": statistics.median(spent[way]) for way in WAYS}
    return {**times, "ratio": statistics.median(ours / theirs for ours, theirs in pairs)}


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        print(run(PROGRAMS[sys.argv[2]], sys.argv[3]))
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    json.dump({program: measure(program, rounds) for program in PROGRAMS}, sys.stdout)


if __name__ == "__main__":
    main()
