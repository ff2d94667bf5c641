# SPDX-License-Identifier: Apache-2.0
"""The benchmark timer: how long steps take, how much of it is waiting for data, and samples/s."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from strobe.errors import StateError, UsageError
from strobe.session.paddle import Waits, as_int

_SKIPPED = 10
"""Iterations that the summary leaves out, as the first ones are slower."""
_WIDTH = 15
_RULE = 100


@dataclass
class _Figures:
    """What was measured of some iterations."""

    count: int = 0
    total: float = 0.0
    most: float = 0.0
    least: float = float("inf")

    def add(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.most = max(self.most, value)
        self.least = min(self.least, value)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0


@dataclass
class _Measures:
    """Of several iterations: seconds each waited for data and took, and what was done a second."""

    reader: _Figures = field(default_factory=_Figures)
    batch: _Figures = field(default_factory=_Figures)
    speed: _Figures = field(default_factory=_Figures)
    samples: int = 0
    counted: bool = True
    """Whether each iteration told how many samples it had."""

    def add(self, reader_s: float, batch_s: float, samples: int | None) -> None:
        self.reader.add(reader_s)
        self.batch.add(batch_s)
        self.counted &= samples is not None
        self.samples += samples or 0
        if batch_s > 0:
            self.speed.add((samples if samples is not None else 1) / batch_s)

    @property
    def per_second(self) -> float:
        """Samples, or steps where nobody told of samples, a second."""
        done = self.samples if self.counted else self.batch.count
        return done / self.batch.total if self.batch.total else 0.0


class Timing:
    """One task, from begin() to end(); a task inside another, as evaluation, has its own."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start_s = clock()
        self._waited_s = 0.0
        self._dataset: Any = None
        self.need_record = True
        """False while somebody else's data are read."""
        self.total_iters = 0
        self.unit = "samples"
        self._recent = _Measures()
        self._summed = _Measures()

    def restart(self) -> None:
        """Begin the current iteration anew."""
        self._start_s, self._waited_s = self._clock(), 0.0

    def read_by(self, reader: Any) -> None:
        """Pause while a reader of other data than the first one's is used."""
        dataset = getattr(reader, "_dataset", None)
        if self._dataset is None:
            self._dataset = dataset
        same = dataset is self._dataset
        if same and not self.need_record:
            self.restart()
        self.need_record = same

    def waited(self, seconds: float) -> None:
        """A wait for data is over."""
        if self.need_record:
            self._waited_s += seconds

    def step(self, num_samples: int | None) -> None:
        """An iteration is over; raises UsageError for what is no number of samples."""
        samples = _count(num_samples)
        if not self.need_record:
            return
        batch_s = self._clock() - self._start_s
        self.total_iters += 1
        self._recent.add(self._waited_s, batch_s, samples)
        if self.total_iters > _SKIPPED:
            self._summed.add(self._waited_s, batch_s, samples)
        self.restart()

    def info(self, unit: str | None) -> str:
        """Return the averages since the last call; what is 0 is left out."""
        if unit is not None and not isinstance(unit, str):
            message = f"step_info(unit={unit!r}): unit must be a str, or None"
            raise UsageError(message)
        recent, self._recent = self._recent, _Measures()
        self.unit = unit or "samples"
        parts = []
        if recent.reader.total:
            parts.append(f" reader_cost: {recent.reader.mean:.5f} s")
        if recent.batch.total:
            parts.append(f" batch_cost: {recent.batch.mean:.5f} s")
            parts.append(f" ips: {recent.per_second:.3f} {self._speed_unit(recent)}")
        return "".join(parts)

    def summary(self) -> str | None:
        """Return a table of all iterations but the first ten; None if there are no others."""
        found = self._summed
        if not found.batch.count:
            return None
        lines = ["Perf Summary".center(_RULE, "=")]
        if found.reader.total:
            lines.append(f"Reader Ratio: {found.reader.total / found.batch.total * 100:.3f}%")
        lines.append(f"Time Unit: s, IPS Unit: {self._speed_unit(found)}")
        lines.append(_cells("", "avg", "max", "min"))
        if found.reader.total:
            lines.append(_row("reader_cost", found.reader.mean, found.reader))
        lines.append(_row("batch_cost", found.batch.mean, found.batch))
        lines.append(_row("ips", found.per_second, found.speed))
        return "\n".join(lines)

    def _speed_unit(self, measures: _Measures) -> str:
        return f"{self.unit}/s" if measures.counted else "steps/s"


def _count(num_samples: object) -> int | None:
    count = as_int(num_samples)
    if num_samples is not None and (count is None or count < 0):
        message = f"step(num_samples={num_samples!r}): must be an int of 0 or more, or None"
        raise UsageError(message)
    return count


def _row(name: str, mean: float, figures: _Figures) -> str:
    return _cells(name, *(f"{value:.5f}" for value in (mean, figures.most, figures.least)))


def _cells(*texts: str) -> str:
    return "| " + " | ".join(text.center(_WIDTH) for text in texts) + " |"


class Benchmark:
    """The process's timer: begin() and end() of tasks, one inside another, and their steps."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._tasks: list[Timing] = []
        self._waits: Waits | None = None
        self._wait_began_s = 0.0

    @property
    def current_event(self) -> Timing | None:
        """The task that is timed now."""
        return self._tasks[-1] if self._tasks else None

    def begin(self) -> Timing:
        """Begin a task; the data loaders of frameworks that are imported tell of their waits."""
        if self._waits is None:
            self._waits = Waits(self._wait_begins)
        self._tasks.append(Timing(self._clock))
        return self._tasks[-1]

    def end(self, task: Timing | None = None) -> None:
        """End a task, that which began last if None; print its summary, if it did enough."""
        task = task or self.current_event
        if task not in self._tasks or task is None:
            return
        inside_another = task is self._tasks[-1] and len(self._tasks) > 1
        self._tasks.remove(task)
        if inside_another:
            self._tasks[-1].restart()
        if not self._tasks and self._waits is not None:
            self._waits.undo()
            self._waits = None
        summary = task.summary()
        if summary is not None:
            print(summary)

    def step(self, num_samples: int | None = None) -> None:
        """End an iteration, of `num_samples` samples. Raises UsageError for what is no number."""
        if self._tasks:
            self._tasks[-1].step(num_samples)

    def step_info(self, unit: str | None = None) -> str:
        """Return reader_cost, batch_cost and ips, averages since the last call.

        `unit` is what samples are called. Raises StateError before begin().
        """
        if not self._tasks:
            message = "step_info() while nothing is timed; call begin() first"
            raise StateError(message)
        return self._tasks[-1].info(unit)

    def check_if_need_record(self, reader: Any) -> None:
        """Say which reader is about to be used: that of other data pauses the timer."""
        if self._tasks:
            self._tasks[-1].read_by(reader)

    def before_reader(self) -> None:
        """A wait for data begins."""
        self._wait_began_s = self._clock()

    def after_reader(self) -> None:
        """A wait for data is over."""
        if self._tasks:
            self._tasks[-1].waited(self._clock() - self._wait_began_s)

    def _wait_begins(self, reader: Any) -> Callable[[], None]:
        self.check_if_need_record(reader)
        self.before_reader()
        return self.after_reader


_benchmark = Benchmark()


def benchmark() -> Benchmark:
    """Return the process's timer."""
    return _benchmark
