# SPDX-License-Identifier: Apache-2.0
"""Data loading of PyTorch: fetch and collate, in the workers too, the queue, and each batch.

The names patched here are torch's own affair and may go; what is missing is left out and said.
The wait in next() is not recorded here: torch announces it to whoever watches its operators.
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

_DATA_LOADING, _POINT = record_code("data_loading", "torch"), record_code("user", "torch")
_FETCH = "torch.utils.data._utils.fetch"
_WORKER = "torch.utils.data._utils.worker"
_LOOP = "_worker_loop"
_LOADER = "torch.utils.data.dataloader"

_QUEUE_PLACE = 2
"""Of the queue of tasks among the arguments of a worker's loop."""

_Function = Callable[..., Any]

_patches = Patches("PyTorch")
_torch_loop: list[_Function] = []
"""The loop of a worker as it was, while ours is in its place."""
_names = Names("DataLoader")
_tasks: list[NotedQueue] = []
"""In a worker: where its tasks come from."""


def attach() -> list[str]:
    """Patch torch's DataLoader and return why the parts that could not be patched were not.

    Workers that are already there are not seen. It does nothing while it is attached.
    """
    if _patches:
        return []
    problems = _patches.put_all(
        [
            (_FETCH, "_MapDatasetFetcher.fetch", _recorded_map_fetch),
            (_FETCH, "_IterableDatasetFetcher.fetch", _recorded_iterable_fetch),
            (_LOADER, "_SingleProcessDataLoaderIter._next_data", _noted_next),
            (_LOADER, "_MultiProcessingDataLoaderIter._next_data", _counted_next),
        ]
    )
    loop = getattr(import_module(_WORKER), _LOOP, None)
    if loop is not None and getattr(loop, "__module__", None) != _WORKER:
        # A spawned worker would find torch's own loop by its name, not the one that took its place.
        return [*problems, f"{_WORKER}.{_LOOP} has been replaced by another library"]
    return [*problems, *_patches.put_all([(_WORKER, _LOOP, _recorded_loop)])]


def detach() -> None:
    """Undo it."""
    _patches.undo()
    _torch_loop.clear()
    _names.forget()


def _span(name: str, attributes: dict[str, Any]) -> Any:
    if not attributes:
        return recorder.core.source_span(name, _DATA_LOADING)
    return recorder.core.source_span(name, _DATA_LOADING, attributes)


def _recorded_map_fetch(original: _Function) -> _Function:
    @wraps(original)
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        attributes = _worker()
        if self.auto_collation and isinstance(possibly_batched_index, (list, tuple)):
            attributes["samples"] = len(possibly_batched_index)
        with _span("fetch", attributes):
            return _fetch(original, self, possibly_batched_index, attributes)

    return fetch


def _recorded_iterable_fetch(original: _Function) -> _Function:
    @wraps(original)
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        if self.ended:  # nothing will be fetched
            return original(self, possibly_batched_index)
        attributes = _worker()
        with _span("fetch", attributes):
            return _fetch(original, self, possibly_batched_index, attributes)

    return fetch


def _worker() -> dict[str, Any]:
    info = import_module(_WORKER).get_worker_info()
    return {} if info is None else {"worker": info.id}


def _fetch(original: _Function, fetcher: Any, index: Any, attributes: dict[str, Any]) -> Any:
    """Fetch with a span around the user's collate_fn, which is in its place again afterwards."""
    collate_fn = fetcher.collate_fn
    timed = Timed()

    def collate(data: Any) -> Any:
        samples = fetcher.auto_collation and isinstance(data, (list, tuple))
        with _span("collate", {"samples": len(data)} if samples else {}), timed:
            return collate_fn(data)

    since_ns, cpu_ns = recorder.core.clock_ns(), time.thread_time_ns()
    fetcher.collate_fn = collate
    try:
        data = original(fetcher, index)
    finally:
        fetcher.collate_fn = collate_fn
    batches.fetched(
        since_ns,
        code=_POINT,
        number=_tasks[0].number if _tasks else None,
        collate_ns=timed.total_ns,
        cpu_ns=time.thread_time_ns() - cpu_ns,
        **attributes,
    )
    return data


def _noted_next(original: _Function) -> _Function:
    @wraps(original)
    def _next_data(self: Any) -> Any:
        since_ns = recorder.core.clock_ns()
        data = original(self)
        number = getattr(self, "_num_yielded", None)
        batches.arrived(_name(self), since_ns, code=_POINT, number=number)
        return data

    return _next_data


def _counted_next(original: _Function) -> _Function:
    @wraps(original)
    def _next_data(self: Any) -> Any:
        ready = None
        try:
            ready = self._data_queue.qsize()
        except (AttributeError, NotImplementedError, OSError):
            pass  # macOS cannot count a queue
        else:
            recorder.core.source_counter(QUEUE_COUNTER, ready, _POINT)
        since_ns = recorder.core.clock_ns()
        workers = {number: task[0] for number, task in getattr(self, "_task_info", {}).items()}
        data = original(self)
        told = _producer(self, workers)
        batches.arrived(_name(self), since_ns, code=_POINT, queue=ready, **told)
        return data

    return _next_data


def _producer(iterator: Any, workers: dict[int, int]) -> dict[str, Any]:
    """Return which batch it was and who fetched it, nothing where that cannot be told."""
    if not getattr(iterator, "_in_order", True):
        return {}
    number = getattr(iterator, "_rcvd_idx", 0) - 1
    worker = workers.get(number)
    if worker is None:
        return {}
    pid = iterator._workers[worker].pid
    return {"number": number, "worker": worker, "producer": (pid, 0)}


def _name(iterator: Any) -> str:
    return _names.of(getattr(iterator, "_dataset", None))


def _recorded_loop(original: _Function) -> _Function:
    _torch_loop.append(original)
    return _WorkerLoop()


class _WorkerLoop:
    """What a worker process runs: torch's loop, recorded."""

    def __call__(self, *arguments: Any) -> Any:
        return run_worker(*arguments)

    def __reduce__(self) -> tuple[_Function, tuple[str | None]]:
        # A fork server may be older than the recording and not know of it from its environment.
        return _arrive, (os.environ.get(recorder.CONTROL_VARIABLE),)


def _arrive(control: str | None) -> _Function:
    """In a process that was not forked from the program: follow its recording."""
    if control and os.environ.get(recorder.CONTROL_VARIABLE) != control:
        os.environ[recorder.CONTROL_VARIABLE] = control
        recorder.follow_parent()
    return run_worker


def run_worker(*arguments: Any) -> Any:
    """Run torch's loop of a worker; a forked process has its parent's patches, others get them."""
    if len(arguments) > _QUEUE_PLACE and hasattr(arguments[_QUEUE_PLACE], "get"):
        _tasks[:] = [NotedQueue(arguments[_QUEUE_PLACE])]
        arguments = (*arguments[:_QUEUE_PLACE], _tasks[0], *arguments[_QUEUE_PLACE + 1 :])
    if _torch_loop:
        return _torch_loop[0](*arguments)
    loop = import_module(_WORKER)._worker_loop
    attach()
    try:
        return loop(*arguments)
    finally:
        detach()
