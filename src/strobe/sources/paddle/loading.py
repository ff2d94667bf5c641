# SPDX-License-Identifier: Apache-2.0
"""Data loading of Paddle: fetch and collate, in the workers too, and each batch.

Workers are forked, and have the hooks of their parent. The wait for a batch is an annotation.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

from strobe.model.tables import record_code
from strobe.record import batches, recorder
from strobe.sources.loaders import QUEUE_COUNTER, Names, NotedQueue, Timed
from strobe.sources.patches import Patches

_DATA_LOADING, _POINT = record_code("data_loading", "paddle"), record_code("user", "paddle")
_FETCH = "paddle.io.dataloader.fetcher"
_ITERATORS = "paddle.io.dataloader.dataloader_iter"
_SINGLE, _SEVERAL = "_DataLoaderIterSingleProcess", "_DataLoaderIterMultiProcess"
_NUMBER = "_strobe_number"
"""Of the next batch: what iterators and fetchers have whose first one was seen."""
_QUEUE_PLACE = 2
"""Of the queue of tasks among the arguments of a worker's loop."""

_Function = Callable[..., Any]

_patches = Patches("Paddle")
_names = Names("DataLoader")
_tasks: list[NotedQueue] = []
"""In a worker: where its tasks come from."""


def attach() -> list[str]:
    """Patch Paddle's fetchers and return why those that could not be patched were not.

    Workers that are already there are not seen. It does nothing while it is attached.
    """
    if _patches:
        return []
    parts: list[tuple[str, str, Callable[[Any], Any]]] = [
        (_FETCH, "_MapDatasetFetcher.fetch", _recorded),
        (_FETCH, "_IterableDatasetFetcher.fetch", _recorded),
        (_ITERATORS, "_worker_loop", _noted_loop),
        (_ITERATORS, f"{_SINGLE}.__init__", _numbered),
        (_ITERATORS, f"{_SEVERAL}.__init__", _numbered),
        (_ITERATORS, f"{_SEVERAL}._reset", _numbered),
        (_ITERATORS, f"{_SINGLE}.__next__", _noted_next),
        (_ITERATORS, f"{_SEVERAL}.__next__", _noted_next),
    ]
    return _patches.put_all(parts)


def detach() -> None:
    """Undo it."""
    _patches.undo()
    _names.forget()


def _recorded(original: _Function) -> _Function:
    @wraps(original)
    def fetch(self: Any, batch_indices: Any, *arguments: Any, **keywords: Any) -> Any:
        told, timed = _describe(self, batch_indices), Timed()
        since_ns, cpu_ns = recorder.core.clock_ns(), time.thread_time_ns()
        with recorder.core.source_span("fetch", _DATA_LOADING, told):
            collate_fn = self.collate_fn
            if collate_fn is not None:
                self.collate_fn = _collate(collate_fn, timed)
            try:
                batch = original(self, batch_indices, *arguments, **keywords)
            finally:
                self.collate_fn = collate_fn
        number = _tasks[0].number if _tasks else vars(self).get(_NUMBER, 0)
        vars(self)[_NUMBER] = vars(self).get(_NUMBER, 0) + 1
        spent_ns = time.thread_time_ns() - cpu_ns
        told |= {"collate_ns": timed.total_ns, "cpu_ns": spent_ns}
        batches.fetched(since_ns, code=_POINT, key=0 if _tasks else id(self), number=number, **told)
        return batch

    return fetch


def _collate(collate_fn: _Function, timed: Timed) -> _Function:
    def collate(data: Any) -> Any:
        with recorder.core.source_span("collate", _DATA_LOADING), timed:
            return collate_fn(data)

    return collate


def _noted_loop(original: _Function) -> _Function:
    """In a worker, which is forked."""

    @wraps(original)
    def loop(*arguments: Any, **keywords: Any) -> Any:
        if len(arguments) > _QUEUE_PLACE:
            _tasks[:] = [NotedQueue(arguments[_QUEUE_PLACE])]
            arguments = (*arguments[:_QUEUE_PLACE], _tasks[0], *arguments[_QUEUE_PLACE + 1 :])
        return original(*arguments, **keywords)

    return loop


def _numbered(original: _Function) -> _Function:
    """A pass over the loader begins."""

    @wraps(original)
    def begin(self: Any, *arguments: Any, **keywords: Any) -> Any:
        vars(self)[_NUMBER] = 0
        return original(self, *arguments, **keywords)

    return begin


def _noted_next(original: _Function) -> _Function:
    @wraps(original)
    def __next__(self: Any) -> Any:
        ready = _ready(self)
        if ready is not None:
            recorder.core.source_counter(QUEUE_COUNTER, ready, _POINT)
        since_ns = recorder.core.clock_ns()
        batch = original(self)
        number = vars(self).get(_NUMBER)
        name = _names.of(getattr(self, "_dataset", None))
        producer = None if number is None else _producer(self, number)
        batches.arrived(name, since_ns, code=_POINT, number=number, producer=producer, queue=ready)
        if number is not None:
            vars(self)[_NUMBER] = number + 1
        return batch

    return __next__


def _ready(iterator: Any) -> int | None:
    """Return how many batches are there, None where there are no workers or it cannot be told.

    Each that has come from the workers has its structure in a list until it is handed out, however
    many queues of Paddle's it passes meanwhile.
    """
    try:
        if len(iterator._places) != 1:
            return None  # several batches at once
        return len(iterator._structure_infos) + int(iterator._data_queue.qsize())
    except (AttributeError, NotImplementedError, OSError, ValueError):
        return None  # no workers; macOS cannot count a queue; closed meanwhile


def _producer(iterator: Any, number: int) -> tuple[int, int] | None:
    """Return process and key of who fetched the batch, None where that cannot be told."""
    if len(iterator._places) != 1:
        return None  # several batches at once
    fetcher = getattr(iterator, "_dataset_fetcher", None)
    if fetcher is not None:
        return os.getpid(), id(fetcher)
    if iterator._dataset_kind != import_module(_ITERATORS)._DatasetKind.MAP:
        return None  # a worker whose part of the data has ended is passed over
    return iterator._workers[number % len(iterator._workers)].pid, 0


def _describe(fetcher: Any, batch_indices: Any) -> dict[str, Any]:
    info = import_module("paddle.io").get_worker_info()
    attributes = {} if info is None else {"worker": info.id}
    if fetcher.auto_collate_batch and isinstance(batch_indices, (list, tuple)):
        attributes["samples"] = len(batch_indices)
    return attributes
