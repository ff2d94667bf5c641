# SPDX-License-Identifier: Apache-2.0
"""A profiler in the hands of a trainer, which must go on whatever becomes of the profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strobe.errors import StateError, StrobeError
from strobe.record import recorder
from strobe.record.messages import show
from strobe.session.profiler import Profiler


class Run:
    """Starts, steps and stops a profiler. What goes wrong is shown and ends it; nothing raises."""

    def __init__(self, profiler: Profiler) -> None:
        self.profiler = profiler
        self.is_running = False

    def start(self) -> None:
        """Start; a run that nobody ended is ended first."""
        self.stop()
        try:
            self.profiler.start()
        except StrobeError as error:
            show(f"{error}; the trainer runs without a profile")
            return
        self.is_running = True

    def step(self, num_samples: int | None = None) -> None:
        """End a step and begin the next."""
        self._ask(self.profiler.step, num_samples)

    def begin_step(self) -> None:
        """Leave what came since the last step out of the next one."""
        self._ask(self.profiler.begin_step)

    def stop(self) -> None:
        """Stop, unless it has."""
        self._ask(self.profiler.stop)
        self.is_running = False

    def _ask(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self.is_running:
            return
        try:
            call(*arguments)
        except StateError:
            self.is_running = False  # somebody else has stopped it
        except StrobeError as error:
            show(f"{error}; the recording ends here")
            self.stop()


class OpenSpans:
    """Spans that are begun and ended by name, as trainers announce them."""

    def __init__(self) -> None:
        self._spans: list[Any] = []

    def __len__(self) -> int:
        return len(self._spans)

    def begin(self, name: str) -> None:
        """Begin a span."""
        self._spans.append(recorder.span(name).begin())

    def end(self, name: str) -> None:
        """End the span of this name that was begun last; one that was not begun is no matter."""
        for place in reversed(range(len(self._spans))):
            if self._spans[place].name == name:
                self._spans.pop(place).end()
                return

    def end_all(self) -> None:
        """End what is still open, the innermost first."""
        while self._spans:
            self._spans.pop().end()
