# SPDX-License-Identifier: Apache-2.0
"""Waits of training loops for their data loaders, told to whoever asks while they happen.

For timers: nothing is recorded here. Only frameworks that are imported already are watched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

_TORCH = ("torch.utils.data.dataloader", "_BaseDataLoaderIter", "__next__")
_PADDLE = "paddle.profiler.timer"

Watcher = Callable[[Any], Callable[[], None]]


class Waits:
    """Tells of waits until undo()."""

    def __init__(self, watcher: Watcher) -> None:
        """Call `watcher` with the iterator when a wait begins, and what it returned at its end."""
        self._watcher: Watcher | None = watcher
        self._undo: list[Callable[[], None]] = []
        self._watch_torch()
        self._watch_paddle()

    def undo(self) -> None:
        """Put back what was there; what someone else has patched since stays, and tells nothing."""
        self._watcher = None
        while self._undo:
            self._undo.pop()()

    def _watch_torch(self) -> None:
        module, name, method = _TORCH
        kind = getattr(sys.modules.get(module), name, None)
        before = vars(kind).get(method) if kind is not None else None
        if before is None:
            return

        @wraps(before)
        def ours(iterator: Any) -> Any:
            watcher = self._watcher
            if watcher is None:
                return before(iterator)
            ended = watcher(iterator)
            try:
                return before(iterator)
            finally:
                ended()

        def undo() -> None:
            if vars(kind).get(method) is ours:
                setattr(kind, method, before)

        setattr(kind, method, ours)
        self._undo.append(undo)

    def _watch_paddle(self) -> None:
        """Its loaders tell a timer of Paddle's own, of which there is one: we listen there."""
        timer = getattr(sys.modules.get(_PADDLE), "benchmark", lambda: None)()
        if timer is None or vars(timer).keys() & _Listener.METHODS:
            return  # or somebody else does
        listener = _Listener(timer, lambda reader: self._watcher and self._watcher(reader))
        for name in _Listener.METHODS:
            setattr(timer, name, getattr(listener, name))
            self._undo.append(partial(delattr, timer, name))


class _Listener:
    """Stands before the methods of Paddle's timer that its loaders call."""

    METHODS = frozenset({"check_if_need_record", "before_reader", "after_reader"})

    def __init__(self, timer: Any, watcher: Callable[[Any], Any]) -> None:
        self._timer = timer
        self._watcher = watcher
        self._reader: Any = None
        self._ended: Callable[[], None] | None = None

    def check_if_need_record(self, reader: Any) -> None:
        self._reader = reader
        type(self._timer).check_if_need_record(self._timer, reader)

    def before_reader(self) -> None:
        self._ended = self._watcher(self._reader)
        self._reader = None
        type(self._timer).before_reader(self._timer)

    def after_reader(self) -> None:
        if self._ended is not None:
            self._ended()
        self._ended = None
        type(self._timer).after_reader(self._timer)
