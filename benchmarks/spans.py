# SPDX-License-Identifier: Apache-2.0
"""What one span costs, in nanoseconds, beside the floor and the peers that are installed.

All contenders run in this process, in batches, in an order shuffled anew for each round, so that
the machine's moods hit all of them alike. Prints one JSON object.
"""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import json
import random
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import strobe
from rounds import compare_own

Batch = Callable[[int], None]


@dataclass
class Contender:
    """A way to mark an interval; `switch` turns its recording on around a batch, untimed."""

    name: str
    batch: Batch
    spans: int = 3000
    switch: Callable[[], AbstractContextManager[Any]] = nullcontext


def manager(make: Callable[[], Any]) -> Batch:
    def batch(count: int) -> None:
        for _ in range(count):
            with make():
                pass

    return batch


def prebuilt(context: Any) -> Batch:
    def batch(count: int) -> None:
        for _ in range(count):
            with context:
                pass

    return batch


def new_span(count: int) -> None:
    span = strobe.span
    for _ in range(count):
        with span("span"):
            pass


def begin_end(count: int) -> None:
    span = strobe.span("span")
    begin, end = span.begin, span.end
    for _ in range(count):
        begin()
        end()


@strobe.span("span")
def decorated() -> None:
    pass


def call_decorated(count: int) -> None:
    for _ in range(count):
        decorated()


def span_with_int(count: int) -> None:
    span = strobe.span
    for number in range(count):
        with span("span", number=number):
            pass


def span_with_text(count: int) -> None:
    span = strobe.span
    for _ in range(count):
        with span("span", split="train"):
            pass


def span_with_three(count: int) -> None:
    span = strobe.span
    for number in range(count):
        with span("span", number=number, loss=0.5, split="train"):
            pass


# Whose own time, as recordings state it, is compared with what they add.
OWN = {
    "plain spans": new_span,
    "spans with an int": span_with_int,
    "spans with three attributes": span_with_three,
}


def counter(count: int) -> None:
    count_up = strobe.counter
    for _ in range(count):
        count_up("counter", 1.0)


def clock_pairs(count: int) -> None:
    now, kept = time.perf_counter_ns, []
    for _ in range(count):
        begin = now()
        kept.append((begin, now()))


def empty_loop(count: int) -> None:
    for _ in range(count):
        pass


def build_empty() -> Any:
    """Compile the empty context manager; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    source = Path(__file__).with_name("empty.c")
    include = sysconfig.get_path("include")
    command = [compiler, "-O2", "-shared", "-fPIC", f"-I{include}", str(source)]
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder) / f"empty{sysconfig.get_config_var('EXT_SUFFIX')}")
        subprocess.run([*command, "-o", library], check=True)
        loader = importlib.machinery.ExtensionFileLoader("empty", library)
        spec = importlib.util.spec_from_loader("empty", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    return module.Empty()


def ours() -> list[Contender]:
    return [
        Contender("strobe.span, made each time", new_span),
        Contender("strobe.span, made before", prebuilt(strobe.span("span"))),
        Contender("strobe.span, begin and end", begin_end),
        Contender("strobe.span, decorator", call_decorated),
        Contender("strobe.span, an int", span_with_int),
        Contender("strobe.span, a text", span_with_text),
        Contender("strobe.span, three attributes", span_with_three),
        Contender("strobe.counter", counter),
    ]


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def peers() -> list[Contender]:
    found = []
    if installed("viztracer"):
        from viztracer import VizTracer

        tracer = VizTracer(verbose=0, tracer_entries=200_000)

        @contextlib.contextmanager
        def tracing() -> Iterator[None]:
            tracer.start()
            yield
            tracer.stop()
            tracer.clear()

        log_event = manager(lambda: tracer.log_event("span"))
        found.append(Contender("viztracer log_event", log_event, 300, tracing))
    if installed("torch"):
        from torch.profiler import record_function

        found.append(
            Contender("torch record_function", manager(lambda: record_function("span")), 300)
        )
    if installed("paddle"):
        from paddle.profiler import RecordEvent

        found.append(Contender("paddle RecordEvent", manager(lambda: RecordEvent("span")), 300))
    if installed("jax"):
        from jax.profiler import TraceAnnotation

        found.append(
            Contender("jax TraceAnnotation", manager(lambda: TraceAnnotation("span")), 1000)
        )
    return found


@contextlib.contextmanager
def all_recording() -> Iterator[None]:
    """Everybody records (viztracer only during its own batches: it slows all Python down)."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(strobe.Profiler(output=folder))
        if installed("torch"):
            import torch

            cpu = [torch.profiler.ProfilerActivity.CPU]
            stack.enter_context(torch.profiler.profile(activities=cpu))
        if installed("paddle"):
            import paddle.profiler

            target = [paddle.profiler.ProfilerTarget.CPU]
            profiler = paddle.profiler.Profiler(targets=target, on_trace_ready=lambda _: None)
            profiler.start()
            stack.callback(profiler.stop)
        if installed("jax"):
            import jax

            jax.profiler.start_trace(folder)
            stack.callback(jax.profiler.stop_trace)
        yield


def measure(contenders: list[Contender], rounds: int, *, switch: bool) -> dict[str, list[float]]:
    """Nanoseconds per span for each round, the loop's own cost taken off."""
    spent: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    loops = []
    order = list(contenders)
    for _ in range(rounds):
        random.shuffle(order)
        for contender in order:
            with contender.switch() if switch else nullcontext():
                contender.batch(50)
                began = time.perf_counter_ns()
                contender.batch(contender.spans)
                took = time.perf_counter_ns() - began
            spent[contender.name].append(took / contender.spans)
        began = time.perf_counter_ns()
        empty_loop(3000)
        loops.append((time.perf_counter_ns() - began) / 3000)
    # The least, as one figure for all: a loop that was disturbed must not flatter anybody.
    loop = min(loops)
    return {name: [took - loop for took in values] for name, values in spent.items()}


def describe(spent: list[float]) -> dict[str, float]:
    ordered = sorted(spent)
    return {
        "min": ordered[0],
        "median": statistics.median(ordered),
        "p90": ordered[int(0.9 * (len(ordered) - 1))],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()

    empty = build_empty()
    floor = [Contender("empty C manager, made before", prebuilt(empty))] if empty else []
    floor.append(Contender("perf_counter_ns pairs", clock_pairs))
    others = peers()
    results: dict[str, dict[str, dict[str, float]]] = {}
    # The floor is there in both runs: each ratio is taken within one run.
    off = measure([*floor, *ours(), *others], arguments.rounds, switch=False)
    with all_recording():
        on = measure([*floor, *ours(), *others], arguments.rounds, switch=True)
    for state, spent in (("off", off), ("on", on)):
        results[state] = {name: describe(values) for name, values in spent.items()}
    own = {name: compare_own(lambda batch=batch: batch(100_000)) for name, batch in OWN.items()}
    found = {"python": sys.version.split()[0], "rounds": arguments.rounds, "own": own, **results}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
