# SPDX-License-Identifier: Apache-2.0
"""strobe.watch: what a loop waits for its data, for anything that can be iterated over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from strobe.errors import UsageError
from strobe.model.marks import BATCH
from strobe.model.tables import record_code
from strobe.record import recorder
from strobe.record.messages import show

_Batch = TypeVar("_Batch")
Samples = int | Callable[[Any], int] | None

_DATA_LOADING = record_code("data_loading", "spans")
_PHASE = {"phase": "data_loading"}
_MOST_MARKS = 1000


def watch(
    iterable: Iterable[_Batch],
    name: str | None = None,
    samples: int | Callable[[_Batch], int] | None = None,
) -> Watched[_Batch] | WatchedIterator[_Batch]:
    """Return the same iterable, whose every wait for the next batch is recorded.

        for batch in strobe.watch(loader, name="train"):

    It yields what the iterable yields, raises what it raises, and has its length and attributes; an
    iterator stays one. While nothing records it only passes the batches on. The waits are spans of
    the category data_loading, and rows of the table `batches`; `strobe summary --by loader` sums
    them up.

    Arguments:
        name: of the loader, by default that of its function or class.
        samples: how many samples are in a batch: an int, or a function of the batch.

    Raises UsageError for what cannot be iterated over.
    """
    if not hasattr(type(iterable), "__iter__") and not hasattr(type(iterable), "__getitem__"):
        hint = "; it is an asynchronous one" if hasattr(iterable, "__aiter__") else ""
        message = f"watch({type(iterable).__name__} object): must be an iterable{hint}"
        raise UsageError(message)
    if name is not None and (not isinstance(name, str) or not name):
        message = f"watch(name={name!r}): name must be a str that is not empty, or None"
        raise UsageError(message)
    known = samples is None or callable(samples) or (type(samples) is int and samples >= 0)
    if not known:
        message = f"watch(samples={samples!r}): must be an int of 0 or more, or a function"
        raise UsageError(message)
    shown = name or getattr(iterable, "__name__", None) or type(iterable).__name__
    if hasattr(type(iterable), "__next__"):
        return WatchedIterator(iterable, str(shown), samples)  # type: ignore[arg-type]
    return Watched(iterable, str(shown), samples)


class _Same(Generic[_Batch]):
    """Has the length, the truth and the attributes of what is watched."""

    def __init__(self, iterable: Iterable[_Batch], name: str, samples: Samples) -> None:
        self._iterable = iterable
        self._name = name
        self._samples = samples

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._iterable)

    def __getattr__(self, name: str) -> Any:
        if name == "_iterable":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._iterable, name)

    def __repr__(self) -> str:
        return f"strobe.watch({self._iterable!r}, name={self._name!r})"


class Watched(_Same[_Batch]):
    """An iterable whose iterators are watched."""

    def __iter__(self) -> WatchedIterator[_Batch]:
        return WatchedIterator(iter(self._iterable), self._name, self._samples)


class WatchedIterator(_Same[_Batch]):
    """An iterator that records how long each batch was waited for."""

    _iterable: Iterator[_Batch]

    def __init__(self, iterator: Iterator[_Batch], name: str, samples: Samples) -> None:
        super().__init__(iterator, name, samples)
        self._number = 0
        self._wait = f"enumerate({name})"
        self._span = recorder.core.source_span(self._wait, _DATA_LOADING, _PHASE)
        self._marks: dict[int | None, str] = {}

    def __iter__(self) -> WatchedIterator[_Batch]:
        return self

    def __next__(self) -> _Batch:
        number = self._number
        if recorder.core.directory() is None:
            batch = next(self._iterable)
        else:
            with self._span:
                batch = next(self._iterable)
            samples = self._count(batch) if callable(self._samples) else self._samples
            recorder.core.counter(self._marks.get(samples) or self._mark(samples), number)
        self._number = number + 1
        return batch

    def _mark(self, samples: int | None) -> str:
        """Return the name of the counter that tells the finalizer of a batch: see model.marks."""
        told: dict[str, Any] = {"loader": self._name, "wait": self._wait}
        if samples is not None:
            told["samples"] = samples
        if len(self._marks) > _MOST_MARKS:
            self._marks.clear()
        self._marks[samples] = BATCH + json.dumps(told)
        return self._marks[samples]

    def _count(self, batch: _Batch) -> int | None:
        """Ask the user's function; its failure is not the loop's."""
        try:
            return int(self._samples(batch))  # type: ignore[operator, misc]
        except Exception as error:
            show(f"watch({self._name!r}): samples() failed ({type(error).__name__}: {error})")
            self._samples = None
            return None
