# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of training steps share: CPU time of interleaved rounds, and ratios of them."""

import contextlib
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

WARM_UP, STEPS = 20, 60

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
