# SPDX-License-Identifier: Apache-2.0
"""Whether the stack sampler keeps its rate, what that takes, and how true its shares are.

The truth is what each program itself measures around its functions. Shares have an error by chance
alone, which shrinks with the root of the number of samples: run it long enough. Prints JSON.
"""

import argparse
import contextlib
import hashlib
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import strobe

RATES_HZ = (100, 500)
IDLE_THREADS = 50

spent: dict[str, float] = {}


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    spent[name] = spent.get(name, 0.0) + time.perf_counter() - began


def loop(count: int) -> int:
    total = 0
    for number in range(count):
        total += number
    return total


def many_small() -> None:
    for _ in range(300):
        loop(100)


def few_large() -> None:
    loop(90_000)


def sort() -> None:
    sorted(range(20_000), key=lambda number: -number)


def join() -> None:
    ",".join(map(str, range(20_000)))


def release() -> None:
    hashlib.sha256(bytes(2_000_000))


def wait() -> None:
    time.sleep(0.01)


def wait_long() -> None:
    time.sleep(0.1)


@contextlib.contextmanager
def idle_threads() -> Iterator[None]:
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(IDLE_THREADS)]
    for thread in threads:
        thread.start()
    yield
    end.set()
    for thread in threads:
        thread.join()


Program = tuple[
    tuple[Callable[[], None], ...], Callable[[], contextlib.AbstractContextManager[None]]
]

PROGRAMS: dict[str, Program] = {
    "calls": ((many_small, few_large), contextlib.nullcontext),
    "C functions": ((sort, join), contextlib.nullcontext),
    "waiting": ((wait, few_large), contextlib.nullcontext),
    "mostly waiting": ((wait_long, few_large), contextlib.nullcontext),
    "a C function without the lock": ((release, few_large), contextlib.nullcontext),
    f"{IDLE_THREADS} idle threads": ((many_small, few_large), idle_threads),
    f"{IDLE_THREADS} idle threads, waiting": ((wait, few_large), idle_threads),
}


def run_program(functions: tuple[Callable[[], None], ...], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for function in functions:
            with timed(function.__name__):
                function()


def measure(program: Program, rate_hz: int, seconds: float) -> dict[str, float | str]:
    functions, surroundings = program
    spent.clear()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with surroundings():
            profiler = strobe.Profiler(output=folder, with_stack="sample", stack_rate_hz=rate_hz)
            with profiler:
                run_program(functions, seconds)
        recording = profiler.recording
        facts = dict(recording.metadata().collect().iter_rows())
        rows = recording.functions().select("name", "total_ns").iter_rows()
        sampled = {name: total_ns for name, total_ns in rows if name in spent}
        (note,) = [
            row["note"]
            for row in recording.completeness().to_dicts()
            if row["source"] == "python_calls"
        ]
    whole, whole_sampled = sum(spent.values()), sum(sampled.values())
    shares = {name: took / whole for name, took in spent.items()}
    kept_hz = json.loads(facts["python_calls_achieved_hz"])
    own_ns, wall_ns = (int(facts[f"python_calls_sampler_{key}_ns"]) for key in ("own", "wall"))
    return {
        "asked_hz": rate_hz,
        "kept_hz": kept_hz,
        "own_share_of_wall": own_ns / wall_ns,
        "own_us_per_sample": own_ns / (kept_hz * wall_ns / 1e9) / 1e3,
        "largest_error": max(
            abs(sampled.get(name, 0) / whole_sampled - share) for name, share in shares.items()
        ),
        "error_by_chance": max(
            math.sqrt(share * (1 - share) / (kept_hz * seconds)) for share in shares.values()
        ),
        "note": note,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--only", help="a part of the programs' names", default="")
    arguments = parser.parse_args()

    found = {
        name: [measure(program, rate_hz, arguments.seconds) for rate_hz in RATES_HZ]
        for name, program in PROGRAMS.items()
        if arguments.only in name
    }
    json.dump({"python": sys.version.split()[0], "programs": found}, sys.stdout)


if __name__ == "__main__":
    main()
