# SPDX-License-Identifier: Apache-2.0
"""Layers: a span around each forward, named by the layer's path in the model that was called."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from strobe.model.tables import CATEGORIES
from strobe.record import recorder

_MODULE = CATEGORIES.index("module")


class _Calls(threading.local):
    """The layers that are running in this thread, outermost first."""

    def __init__(self) -> None:
        self.open: list[tuple[Any, Any]] = []


_calls = _Calls()
_paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_handles: list[Any] = []


def attach() -> None:
    """Put hooks on all layers; again is the same as once."""
    from torch.nn.modules import module

    if not _handles:
        _handles.append(module.register_module_forward_pre_hook(_enter))
        _handles.append(module.register_module_forward_hook(_leave, always_call=True))


def detach() -> None:
    """Take them off."""
    while _handles:
        _handles.pop().remove()
    _paths.clear()


def _enter(layer: Any, _inputs: Any) -> None:
    if not _calls.open and layer not in _paths:
        _name(layer)
    path = _paths.get(layer) or type(layer).__name__
    span = recorder.core.source_span(path, _MODULE, {"type": type(layer).__name__})
    _calls.open.append((layer, span))
    span.begin()


def _leave(layer: Any, _inputs: Any, _output: Any) -> None:
    """End the layer's span, and those of layers inside it that were left without our knowledge."""
    if not any(running is layer for running, _ in _calls.open):
        return
    while _calls.open:
        running, span = _calls.open.pop()
        span.end()
        if running is layer:
            return


def _name(root: Any) -> None:
    """Name the layers of a model that is called for the first time, by its class and their path."""
    model = type(root).__name__
    for path, layer in root.named_modules():
        _paths.setdefault(layer, f"{model}.{path}" if path else model)
