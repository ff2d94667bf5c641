# SPDX-License-Identifier: Apache-2.0
"""What tracing adds to a call, beside others.

Tracers take turns in one process, and the least of many short batches counts.
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
from rounds import compare_own
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


def run_often(program: Callable[[], None]) -> None:
    for _ in range(20):
        program()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder, strobe.Profiler(output=folder):
        calls = measure_calls(arguments.rounds)
    own = {
        name: compare_own(lambda program=program: run_often(program), with_stack=True)
        for name, (program, _) in PROGRAMS.items()
    }
    json.dump({"python": sys.version.split()[0], "calls": calls, "own": own}, sys.stdout)


if __name__ == "__main__":
    main()
