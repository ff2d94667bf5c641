# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of training steps share: CPU time of interleaved rounds, and ratios of them."""

import contextlib
import gc
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import strobe

WARM_UP, STEPS = 20, 60
READ, READ_STEPS = 3, 1000  # recordings whose own time is read, and their steps

Spent = dict[str, list[float]]


def interleave(
    train: Callable[[int], None], ways: Mapping[str, Any], rounds: int, steps: int = STEPS
) -> Spent:
    """Return microseconds per step of each way, round by round, in a new order each time."""
    spent: Spent = {name: [] for name in ways}
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            spent[name].append(measure(train, ways[name], steps))
    return spent


def measure(train: Callable[[int], None], way: Any, steps: int) -> float:
    """Return the microseconds of CPU time of one step, of the whole process."""
    gc.collect()
    with paused_gc(), way():
        train(WARM_UP)
        began = time.process_time()
        train(steps)
        return (time.process_time() - began) / steps * 1e6


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Kept:
    """Makes profilers of strobe, and reads afterwards what their recordings say they cost."""

    def __init__(self, folder: str, options: Mapping[str, Any]) -> None:
        self._folder = folder
        self._options = options
        self._made: list[strobe.Profiler] = []

    def __call__(self) -> strobe.Profiler:
        self._made.append(strobe.Profiler(output=self._folder, **self._options))
        return self._made[-1]

    def own_us(self, train: Callable[[int], None]) -> float | None:
        """Return the own time of a step, beside the program's threads included; None if unknown.

        The median of some recordings, so long that what happens once hardly counts.
        """
        for _ in range(READ):
            with self():
                train(READ_STEPS)
        found = [own_ns(profiler) for profiler in self._made[-READ:]]
        known = [each for each in found if each is not None]
        return statistics.median(known) / READ_STEPS / 1e3 if known else None


def own_ns(profiler: strobe.Profiler) -> int | None:
    """Return what its recording says it cost, its start and stop apart; None if unknown."""
    figures = profiler.recording.completeness()
    if figures["own_ns"].null_count():
        return None
    return int(figures["own_ns"].sum() + figures["drain_ns"].sum())


def compare_own(program: Callable[[], None], rounds: int = 9, **options: Any) -> dict[str, Any]:
    """Return what recordings of a program say they cost, beside the CPU time that they added."""
    owns, addeds = [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for _ in range(rounds):
            bare = cpu_us(program)
            with strobe.Profiler(output=folder, **options) as profiler:
                program()  # to warm up
                addeds.append(cpu_us(program) - bare)
            owns.append((own_ns(profiler) or 0) / 2e3)  # it ran twice
    return {"own_us": statistics.median(owns), "added_us": statistics.median(addeds)}


def cpu_us(program: Callable[[], None]) -> float:
    began = time.process_time()
    program()
    return (time.process_time() - began) * 1e6


def own_times(
    kept: Mapping[str, Kept], spent: Spent, train: Callable[[int], None]
) -> dict[str, Any]:
    """Return what recordings say they cost a step beside what was measured, in microseconds."""
    measured = medians(spent)
    return {
        name: {"own_us": made.own_us(train), "added_us": measured[name]}
        for name, made in kept.items()
    }


def added(spent: Spent, name: str) -> list[float]:
    return [on - off for on, off in zip(spent[name], spent["bare"], strict=True)]


def medians(spent: Spent) -> dict[str, float]:
    """Return what each way adds."""
    return {name: statistics.median(added(spent, name)) for name in spent if name != "bare"}


def compare(spent: Spent, ours: str, theirs: str) -> dict[str, float]:
    """Return ours / theirs of the medians of what is added, and where 95 % of resamples lie."""
    pairs = list(zip(added(spent, ours), added(spent, theirs), strict=True))
    drawn = sorted(ratio(random.choices(pairs, k=len(pairs))) for _ in range(4000))
    return {"ratio": ratio(pairs), "low": drawn[100], "high": drawn[-101]}


def ratio(pairs: list[tuple[float, float]]) -> float:
    ours, theirs = zip(*pairs, strict=True)
    return statistics.median(ours) / statistics.median(theirs)
