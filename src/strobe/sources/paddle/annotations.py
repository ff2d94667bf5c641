# SPDX-License-Identifier: Apache-2.0
"""What Paddle's Python tells a profiler: RecordEvent, layers, backward, optimizers, loaders.

It goes into our rings and not into Paddle's native profiler, which loses everything where two of
these overlap. They are recorded for the user's own paddle.profiler too, if one is active.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

from strobe.model.tables import CATEGORIES
from strobe.record import recorder
from strobe.sources.paddle.patches import Patches

_ANNOTATION, _MODULE = CATEGORIES.index("annotation"), CATEGORIES.index("module")
_UTILS = "paddle.profiler.utils"
_ITERATORS = "paddle.io.dataloader.dataloader_iter"
_TENSORS = "paddle.base.dygraph.tensor_patch_methods"
_OPTIMIZER = "paddle.optimizer.optimizer"
_PHASES = {
    "Dataloader": {"phase": "data_loading"},
    "Forward": {"phase": "forward"},
    "Backward": {"phase": "backward"},
    "Optimization": {"phase": "optimizer"},
}
_ZERO_GRAD = {"phase": "zero_grad"}

# What Paddle's flag is while only we record: true, as its layers want it, but not the True that
# paddle.profiler puts there.
_OURS: Any = 1
_OPEN = "_strobe_open"

_Function = Callable[..., Any]


class Annotations:
    """The hooks of one process, and whether they record."""

    def __init__(self, *, on_step: Callable[[Any], None], on_late: Callable[[], None]) -> None:
        """Call `on_step` after an optimizer's step, `on_late` at an event when limit() is over."""
        self.native_is_ours = False
        """Whether Paddle's native profiler, of which there is one, records for us."""
        self._on_step = on_step
        self._on_late = on_late
        self._patches = Patches()
        self._recording = False
        self._modules = False
        self._paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._types: dict[Any, tuple[int, dict[str, str]]] = {}
        self._late_s = float("inf")
        self._stepping = threading.local()

    def attach(self) -> list[str]:
        """Put the hooks in place and return why those that could not be were not."""
        if self._patches:
            return []
        waits = ("_DataLoaderIterSingleProcess", "_DataLoaderIterMultiProcess")
        parts: list[tuple[str, str, Callable[[Any], Any]]] = [
            (_UTILS, "RecordEvent.begin", self._begin),
            (_UTILS, "RecordEvent.end", self._end),
            # These ask it twice, and would fail if the answer changed in between.
            (_ITERATORS, "in_profiler_mode", lambda _: _theirs_is_active),
            (_TENSORS, "in_profiler_mode", lambda _: _theirs_is_active),
            *((_ITERATORS, f"{name}.__next__", self._around(name, "Dataloader")) for name in waits),
            ("paddle", "Tensor.backward", self._around("Gradient Backward", "Backward")),
            (_OPTIMIZER, "Optimizer.clear_grad", self._clear_grad),
            *(("paddle.optimizer", f"{name}.step", self._step) for name in _optimizers()),
        ]
        reasons = (self._patches.put(module, name, wrap) for module, name, wrap in parts)
        return [reason for reason in reasons if reason]

    def detach(self) -> None:
        """Undo it."""
        self.pause()
        self._patches.undo()
        self._paths.clear()

    def resume(self, *, modules: bool) -> None:
        """Record; with `modules`, name layers by their paths."""
        utils: Any = import_module(_UTILS)
        self._recording = True
        self._modules = modules
        if not utils._is_profiler_used:
            utils._is_profiler_used = _OURS

    def pause(self) -> None:
        """Stop to record."""
        utils: Any = import_module(_UTILS)
        self._recording = False
        self._late_s = float("inf")
        if utils._is_profiler_used is _OURS:
            utils._is_profiler_used = False

    def limit(self, seconds: float) -> None:
        """Have `on_late` called when this time is over."""
        self._late_s = time.monotonic() + seconds

    def _look_at_clock(self) -> None:
        if time.monotonic() > self._late_s:
            self._late_s = float("inf")
            self._on_late()

    def _begin(self, original: _Function) -> _Function:
        @wraps(original)
        def begin(event: Any) -> None:
            if self._recording:
                self._look_at_clock()
                span = self._span(event)
                # Any of them may be begun again before it ends: a decorated function that recurs.
                event.__dict__.setdefault(_OPEN, []).append(span)
                span.begin()
            if _theirs_is_active() and not self.native_is_ours:
                original(event)

        return begin

    def _end(self, original: _Function) -> _Function:
        @wraps(original)
        def end(event: Any) -> None:
            open_spans = event.__dict__.get(_OPEN)
            if open_spans:
                open_spans.pop().end()
            original(event)

        return end

    def _span(self, event: Any) -> Any:
        kind = event.event_type
        found = self._types.get(kind)
        if found is None:
            phase = _PHASES.get(getattr(kind, "name", ""), {})
            found = self._types[kind] = (_ANNOTATION, phase)
        category, attributes = found
        name = str(event.name)
        if self._modules and attributes is _PHASES["Forward"]:
            category, name = _MODULE, self._path(name)
        return recorder.core.source_span(name, category, attributes)

    def _path(self, name: str) -> str:
        """Return the path of the layer that is being called: the frame that made the event's."""
        try:
            layer = sys._getframe(4).f_locals.get("self")
            if layer is None or type(layer).__name__ != name:
                return name
            if layer not in self._paths:
                for path, inner in layer.named_sublayers(include_self=True):
                    self._paths.setdefault(inner, f"{name}.{path}" if path else name)
            return self._paths.get(layer, name)
        except (ValueError, AttributeError, TypeError):
            return name

    def _around(self, name: str, kind: str) -> Callable[[_Function], _Function]:
        def wrap(original: _Function) -> _Function:
            @wraps(original)
            def call(*arguments: Any, **keywords: Any) -> Any:
                if not self._recording or _theirs_is_active():  # who makes a RecordEvent of it
                    return original(*arguments, **keywords)
                self._look_at_clock()
                with recorder.core.source_span(name, _ANNOTATION, _PHASES[kind]):
                    return original(*arguments, **keywords)

            return call

        return wrap

    def _clear_grad(self, original: _Function) -> _Function:
        @wraps(original)
        def clear_grad(*arguments: Any, **keywords: Any) -> Any:
            if not self._recording:
                return original(*arguments, **keywords)
            with recorder.core.source_span("Optimizer.clear_grad", _ANNOTATION, _ZERO_GRAD):
                return original(*arguments, **keywords)

        return clear_grad

    def _step(self, original: _Function) -> _Function:
        @wraps(original)
        def step(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            # One inside another is part of it: Paddle may have wrapped what we had wrapped.
            if not self._patches or getattr(self._stepping, "now", False):
                return original(optimizer, *arguments, **keywords)
            self._stepping.now = True
            try:
                result = self._record_step(original, optimizer, *arguments, **keywords)
            finally:
                self._stepping.now = False
            self._on_step(optimizer)
            return result

        return step

    def _record_step(self, original: _Function, *arguments: Any, **keywords: Any) -> Any:
        # Once paddle.profiler has been used, Paddle itself has wrapped them all, for good.
        if not self._recording or import_module(_UTILS)._has_optimizer_wrapped:
            return original(*arguments, **keywords)
        name = "Optimization Step"
        with recorder.core.source_span(name, _ANNOTATION, _PHASES["Optimization"]):
            return original(*arguments, **keywords)


def _theirs_is_active() -> bool:
    """Say whether a profiler of the user's is."""
    return import_module(_UTILS)._is_profiler_used is True


def _optimizers() -> list[str]:
    """Return the classes that have a step() of their own."""
    optimizer = import_module("paddle.optimizer")
    steps = {name: vars(getattr(optimizer, name)).get("step") for name in optimizer.__all__}
    return [name for name, step in steps.items() if _is_of(step, name)]


def _is_of(step: Any, name: str) -> bool:
    return getattr(step, "__qualname__", "") == f"{name}.step"
