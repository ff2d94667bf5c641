# SPDX-License-Identifier: Apache-2.0
"""What tracing adds to a call, beside others; what sampling takes, and how true its shares are.

Tracers take turns in one process, and the least of many short batches counts. The truth for samples
is what the program itself measures around its functions.
"""

import argparse
import contextlib
import cProfile
import importlib.util
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import strobe
from strobe.record.source import Stacks, Wants
from strobe.sources.python_calls.source import source

Tracing = Callable[[], AbstractContextManager[object]]

CALLS = 20_000


def fibonacci(number: int) -> int:
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def call_python() -> None:
    fibonacci(20)  # 21,891 calls


def call_builtins() -> None:
    values, function = [1], len
    for _ in range(CALLS):
        function(values)


PROGRAMS = {"Python call": (call_python, 21_891), "C call": (call_builtins, CALLS)}


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """The hooks alone: a profiler that records spans is there for all contenders."""
    source.open(Wants(stacks=Stacks(traced=True)), Path())
    yield
    source.close(Path(), None)


@contextlib.contextmanager
def c_profile() -> Iterator[None]:
    profile = cProfile.Profile()
    profile.enable()
    yield
    profile.disable()


def contenders() -> dict[str, Tracing]:
    found: dict[str, Tracing] = {"bare": nullcontext, "strobe": ours, "cProfile": c_profile}
    if importlib.util.find_spec("viztracer"):
        from viztracer import VizTracer

        tracer = VizTracer(verbose=0, tracer_entries=1_000_000)

        @contextlib.contextmanager
        def viztracer() -> Iterator[None]:
            tracer.start()
            yield
            tracer.stop()
            tracer.clear()

        found["viztracer"] = viztracer
    if importlib.util.find_spec("torch"):
        from torch.profiler import ProfilerActivity, profile

        found["torch with_stack"] = lambda: profile(
            activities=[ProfilerActivity.CPU], with_stack=True
        )
    return found


def measure_calls(rounds: int) -> dict[str, dict[str, float]]:
    """Nanoseconds that each tracer adds to a call."""
    tracers = contenders()
    found = {}
    for name, (program, calls) in PROGRAMS.items():
        least = dict.fromkeys(tracers, float("inf"))
        for _ in range(rounds):
            for tracer in random.sample(list(tracers), len(tracers)):
                with tracers[tracer]():
                    began = time.perf_counter_ns()
                    program()
                    took = time.perf_counter_ns() - began
                least[tracer] = min(least[tracer], took / calls)
        bare = least.pop("bare")
        found[name] = {tracer: took - bare for tracer, took in least.items()}
    return found


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


def wait() -> None:
    time.sleep(0.01)


def wait_long() -> None:
    time.sleep(0.1)


MIXES = {
    "calls": (many_small, few_large),
    "C functions": (sort, join),
    "waiting": (wait, few_large),
    "mostly waiting": (wait_long, few_large),
}


def measure_samples(seconds: float) -> dict[str, dict[str, float]]:
    """CPU of the sampler over the program's, its rate, and how far shares are from the truth."""
    found = {}
    for name, functions in MIXES.items():
        spent.clear()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            profiler = strobe.Profiler(output=folder, with_stack="sample")
            with profiler:
                cpu = time.process_time()
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    for function in functions:
                        with timed(function.__name__):
                            function()
                cpu = time.process_time() - cpu
            recording = profiler.recording
            facts = dict(recording.metadata().collect().iter_rows())
            own = json.loads(facts["python_calls_sampler_own_ns"]) / 1e9
            rows = recording.functions().select("name", "total_ns").iter_rows()
            sampled = {key: value for key, value in rows if key in spent}
        whole, whole_sampled = sum(spent.values()), sum(sampled.values())
        found[name] = {
            "cpu_share": own / (cpu - own),
            "achieved_hz": json.loads(facts["python_calls_achieved_hz"]),
            "largest_error": max(
                abs(sampled.get(key, 0) / whole_sampled - took / whole)
                for key, took in spent.items()
            ),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder, strobe.Profiler(output=folder):
        calls = measure_calls(arguments.rounds)
    samples = measure_samples(arguments.seconds)
    json.dump({"python": sys.version.split()[0], "calls": calls, "samples": samples}, sys.stdout)


if __name__ == "__main__":
    main()
