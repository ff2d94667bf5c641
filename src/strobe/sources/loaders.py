# SPDX-License-Identifier: Apache-2.0
"""What the sources need that watch a framework's data loaders."""

from __future__ import annotations

import weakref
from typing import Any

from strobe.record import recorder

QUEUE_COUNTER = "DataLoader queue"
"""Batches that were ready when one was asked for."""


class Names:
    """Names of loaders: their kind and the class of their dataset, numbered where it is not one."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._known: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._given: dict[str, int] = {}

    def of(self, dataset: Any) -> str:
        """Return the name of the loader of a dataset, the same as long as the dataset lives."""
        reference, name = self._known.get(id(dataset), (None, ""))
        if reference is not None and reference() is dataset:
            return name
        name = f"{self._kind}({type(dataset).__name__})"
        try:
            found = weakref.ref(dataset)
        except TypeError:  # a list, say: one name for all of them
            return name
        number = self._given[name] = self._given.get(name, 0) + 1
        name = name if number == 1 else f"{name} {number}"
        self._known[id(dataset)] = found, name
        return name

    def forget(self) -> None:
        """Begin anew."""
        self._known.clear()
        self._given.clear()


class NotedQueue:
    """A queue of tasks (number, what to fetch) that remembers the number of the last one."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.number: int | None = None

    def get(self, *arguments: Any, **keywords: Any) -> Any:
        """Take the next one."""
        task = self._queue.get(*arguments, **keywords)
        is_task = isinstance(task, tuple) and len(task) == 2 and type(task[0]) is int
        self.number = task[0] if is_task else None
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class Timed:
    """Adds up the time of blocks."""

    def __init__(self) -> None:
        self.total_ns = 0
        self._since_ns = 0

    def __enter__(self) -> None:
        self._since_ns = recorder.core.clock_ns()

    def __exit__(self, *_: object) -> None:
        self.total_ns += recorder.core.clock_ns() - self._since_ns
