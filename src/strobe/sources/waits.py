# SPDX-License-Identifier: Apache-2.0
"""Waits of training loops for their data loaders, told to whoever asks while they happen.

For timers: nothing is recorded here. Only frameworks that are imported already are watched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

_ITERATORS = {
    "paddle.io.dataloader.dataloader_iter": (
        "_DataLoaderIterSingleProcess",
        "_DataLoaderIterMultiProcess",
    ),
    "torch.utils.data.dataloader": ("_BaseDataLoaderIter",),
}

_Watcher = Callable[[Any], Callable[[], None]]


class Waits:
    """Stands around the __next__ of iterators until undo()."""

    def __init__(self, watcher: _Watcher) -> None:
        """Call `watcher` with the iterator when a wait begins, and what it returned at its end."""
        self._watcher: _Watcher | None = watcher
        self._done: list[tuple[Any, Any, Any]] = []
        for module, names in _ITERATORS.items():
            for name in names:
                kind = getattr(sys.modules.get(module), name, None)
                if kind is not None and "__next__" in vars(kind):
                    self._put(kind)

    def undo(self) -> None:
        """Put back what was there; what someone else has patched since stays, and tells nothing."""
        self._watcher = None
        while self._done:
            kind, before, ours = self._done.pop()
            if vars(kind).get("__next__") is ours:
                kind.__next__ = before

    def _put(self, kind: Any) -> None:
        before = vars(kind)["__next__"]

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

        kind.__next__ = ours
        self._done.append((kind, before, ours))
