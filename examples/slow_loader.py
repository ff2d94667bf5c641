# SPDX-License-Identifier: Apache-2.0
"""A loop that starves: which of two loaders holds it up, what the machine does meanwhile, and who
holds the memory. Plain Python, a few seconds.

Run it with: python examples/slow_loader.py [--output strobe_data]
"""

from __future__ import annotations

import argparse
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import strobe

Batch = list[bytes]


def read(count: int) -> Iterator[Batch]:
    """Batches from a slow disk: mostly waiting."""
    for _ in range(count):
        time.sleep(0.02)
        yield [bytes(10_000) for _ in range(32)]


def read_ahead(batches: Iterator[Batch], depth: int = 4) -> Iterator[Batch]:
    """The same, fetched by a thread before they are asked for."""
    ready: queue.Queue[Batch | None] = queue.Queue(depth)

    def fetch() -> None:
        for batch in strobe.watch(batches, name="the thread"):
            ready.put(batch)
        ready.put(None)

    threading.Thread(target=fetch, daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch


def train(batch: Batch, seconds: float = 0.03) -> None:
    """Something that takes its time."""
    end = time.perf_counter() + seconds
    with strobe.span("train"):
        while time.perf_counter() < end:
            sum(map(len, batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("strobe_data"))
    arguments = parser.parse_args()
    kept = []
    with strobe.Profiler(
        output=arguments.output, hardware=True, profile_memory=True, memory_lines=True
    ) as profiler:
        for batch in strobe.watch(read(30), name="as it comes", samples=len):
            train(batch)
            kept.append(batch)  # a leak, as the lines of memory show
        for batch in strobe.watch(read_ahead(read(30)), name="ahead", samples=len):
            train(batch)
    recording = profiler.recording
    print(recording.summary(by="loader", width=110))
    print(recording.summary(by="counter", width=110))
    print(recording.memory_text(top=4, width=110))


if __name__ == "__main__":
    main()
