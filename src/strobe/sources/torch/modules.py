# SPDX-License-Identifier: Apache-2.0
"""Layers: a span around each forward, named by the layer's path in the model that was called."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from strobe.model.tables import record_code
from strobe.record import recorder

_MODULE = record_code("module", "torch")


class _Calls(threading.local):
    """The layers that are running in this thread, outermost first."""

    def __init__(self) -> None:
        self.open: list[tuple[Any, Any]] = []


_calls = _Calls()
_paths: dict[int, tuple[weakref.ref[Any], str]] = {}
"""By id: a layer may have an equality of its own, and no hash."""
_handles: list[Any] = []
_is_traced: Callable[[], bool] = bool
"""Whether torch.compile is reading the code that runs, which must not come upon our lists."""


def attach() -> None:
    """Put hooks on all layers; again is the same as once."""
    global _is_traced
    import torch
    from torch.nn.modules import module

    _is_traced = getattr(torch.compiler, "is_dynamo_compiling", bool)
    if not _handles:
        _handles.append(module.register_module_forward_pre_hook(_enter))
        _handles.append(module.register_module_forward_hook(_leave, always_call=True))


def detach() -> None:
    """Take them off."""
    while _handles:
        _handles.pop().remove()
    _paths.clear()


def _enter(layer: Any, _inputs: Any) -> None:
    if _is_traced():
        return
    span = recorder.core.source_span(_path(layer), _MODULE, {"type": type(layer).__name__})
    _calls.open.append((layer, span))
    span.begin()


def _leave(layer: Any, _inputs: Any, _output: Any) -> None:
    """End the layer's span, and those of layers inside it that were left without our knowledge."""
    if _is_traced() or not any(running is layer for running, _ in _calls.open):
        return
    while _calls.open:
        running, span = _calls.open.pop()
        span.end()
        if running is layer:
            return


def _path(layer: Any) -> str:
    known, path = _paths.get(id(layer), (None, ""))
    if known is None or known() is not layer:
        _name(layer)
        _, path = _paths[id(layer)]
    return path


def _name(root: Any) -> None:
    """Name the layers of a model that is called for the first time, by its class and their path."""
    for path, layer in _layers(root, type(root).__name__, set()):
        known = _paths.get(id(layer))
        if known is None or known[0]() is not layer:
            _paths[id(layer)] = weakref.ref(layer, partial(_forget, id(layer))), path


def _forget(number: int, gone: weakref.ref[Any]) -> None:
    """A layer is gone, and another one may have its id."""
    if _paths.get(number, (None, ""))[0] is gone:
        del _paths[number]


def _layers(root: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """As named_modules() of torch, which asks layers for their hash and may be the program's."""
    if id(root) in seen:
        return
    seen.add(id(root))
    yield path, root
    for name, layer in root._modules.items():
        if layer is not None:
            yield from _layers(layer, f"{path}.{name}", seen)
