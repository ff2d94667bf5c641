# SPDX-License-Identifier: Apache-2.0
"""Data loading of Paddle: spans for fetch and collate, in the workers too.

Workers are forked, and have the hooks of their parent. The wait for a batch is an annotation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

from strobe.model.tables import CATEGORIES
from strobe.record import recorder
from strobe.sources.paddle.patches import Patches

_DATA_LOADING = CATEGORIES.index("data_loading")
_FETCH = "paddle.io.dataloader.fetcher"

_Function = Callable[..., Any]

_patches = Patches()


def attach() -> list[str]:
    """Patch Paddle's fetchers and return why those that could not be patched were not.

    Workers that are already there are not seen. It does nothing while it is attached.
    """
    if _patches:
        return []
    names = ("_MapDatasetFetcher.fetch", "_IterableDatasetFetcher.fetch")
    reasons = (_patches.put(_FETCH, name, _recorded) for name in names)
    return [reason for reason in reasons if reason]


def detach() -> None:
    """Undo it."""
    _patches.undo()


def _recorded(original: _Function) -> _Function:
    @wraps(original)
    def fetch(self: Any, batch_indices: Any, *arguments: Any, **keywords: Any) -> Any:
        with recorder.core.source_span("fetch", _DATA_LOADING, _describe(self, batch_indices)):
            collate_fn = self.collate_fn
            if collate_fn is not None:
                self.collate_fn = _collate(collate_fn)
            try:
                return original(self, batch_indices, *arguments, **keywords)
            finally:
                self.collate_fn = collate_fn

    return fetch


def _collate(collate_fn: _Function) -> _Function:
    def collate(data: Any) -> Any:
        with recorder.core.source_span("collate", _DATA_LOADING):
            return collate_fn(data)

    return collate


def _describe(fetcher: Any, batch_indices: Any) -> dict[str, Any]:
    info = import_module("paddle.io").get_worker_info()
    attributes = {} if info is None else {"worker": info.id}
    if fetcher.auto_collate_batch and isinstance(batch_indices, (list, tuple)):
        attributes["samples"] = len(batch_indices)
    return attributes
