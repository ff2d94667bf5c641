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
from types import CodeType, FrameType
from typing import Any

from strobe.model.tables import record_code
from strobe.record import recorder
from strobe.sources.patches import Patches

_ANNOTATION, _MODULE = record_code("annotation", "paddle"), record_code("module", "paddle")
_UTILS = "paddle.profiler.utils"
_ITERATORS = "paddle.io.dataloader.dataloader_iter"
_TENSORS = "paddle.base.dygraph.tensor_patch_methods"
_LAYERS = "paddle.nn.layer.layers"
_OPTIMIZER = "paddle.optimizer.optimizer"
_PHASES = {
    "Dataloader": {"phase": "data_loading"},
    "Forward": {"phase": "forward"},
    "Backward": {"phase": "backward"},
    "Optimization": {"phase": "optimizer"},
}
_STEP = "Optimization Step"  # as Paddle calls it
_RATE = "learning_rate"
_FORWARD = _PHASES["Forward"]
_ZERO_GRAD = {"phase": "zero_grad"}

# What Paddle's flag is while only we record: true, as its layers want it, but not the True that
# paddle.profiler puts there.
_OURS: Any = 1
_OPEN = "_strobe_open"
_MOST_SPANS = 10_000

_Function = Callable[..., Any]


class Annotations:
    """The hooks of one process, and whether they record."""

    def __init__(
        self,
        *,
        on_step: Callable[[Any], None],
        on_late: Callable[[], None],
        on_problem: Callable[[str], None],
    ) -> None:
        """Call `on_step` after a step of training, `on_late` at an event when limit() is over.

        `on_problem` gets a sentence on what could not be recorded, perhaps again and again.
        """
        self.native_is_ours = False
        """Whether Paddle's native profiler, of which there is one, records for us."""
        self._on_step = on_step
        self._on_late = on_late
        self._on_problem = on_problem
        self._patches = Patches("Paddle")
        self._recording = False
        self._modules = self._shapes = False
        self._paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._training: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        # A span that is left before the one around it can be made once and entered again and again.
        self._spans: dict[Any, Any] = {}
        self._types: dict[int, tuple[Any, dict[str, str]]] = {}
        self._utils: Any = None
        self._layer_codes: dict[int, CodeType] = {}
        self._late_s = float("inf")
        self._stepping = threading.local()

    def attach(self) -> list[str]:
        """Put the hooks in place and return why those that could not be were not."""
        if self._patches:
            return []
        self._utils = import_module(_UTILS)
        self._layer_codes = _codes_of_layers()
        waits = ("_DataLoaderIterSingleProcess", "_DataLoaderIterMultiProcess")
        parts: list[tuple[str, str, Callable[[Any], Any]]] = [
            (_UTILS, "RecordEvent.begin", self._begin),
            (_UTILS, "RecordEvent.end", self._end),
            # These ask it twice, and would fail if the answer changed in between.
            (_ITERATORS, "in_profiler_mode", lambda _: self._theirs_is_active),
            (_TENSORS, "in_profiler_mode", lambda _: self._theirs_is_active),
            *((_ITERATORS, f"{name}.__next__", self._around(name, "Dataloader")) for name in waits),
            ("paddle", "Tensor.backward", self._around("Gradient Backward", "Backward")),
            (_OPTIMIZER, "Optimizer.clear_grad", self._clear_grad),
            (_OPTIMIZER, "Optimizer.minimize", self._minimize),
            *(("paddle.optimizer", f"{name}.step", self._step) for name in _optimizers()),
            ("paddle.static", "Executor.run", self._run),
        ]
        return self._patches.put_all(parts)

    def detach(self) -> None:
        """Undo it."""
        self.pause()
        self._patches.undo()
        self._spans.clear()
        self._paths.clear()
        self._training.clear()

    def resume(self, *, modules: bool, shapes: bool) -> None:
        """Record; with `modules`, name layers by their paths; with `shapes`, say what they got."""
        utils: Any = import_module(_UTILS)
        self._recording = True
        self._spans.clear()
        self._modules, self._shapes = modules, shapes
        if not utils._is_profiler_used:
            utils._is_profiler_used = _OURS

    def pause(self) -> None:
        """Stop to record."""
        utils: Any = import_module(_UTILS)
        self._recording = False
        self.forget_limit()
        if utils._is_profiler_used is _OURS:
            utils._is_profiler_used = False

    def forget_limit(self) -> None:
        """Never call `on_late`."""
        self._late_s = float("inf")

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
            if self._theirs_is_active() and not self.native_is_ours:
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
        """Return what records an event; called by begin(), which its `with` or the program calls.

        Events of the program's own may overlap others of their name, so that each has its own span.
        """
        caller = sys._getframe(1).f_back
        around = caller.f_back if caller is not None else None
        if around is not None and id(around.f_code) in self._layer_codes:
            return self._span_of_layer(around, str(event.name))
        kind = event.event_type
        _, attributes = self._types.get(id(kind), (None, None))
        if attributes is None:
            attributes = _PHASES.get(getattr(kind, "name", ""), {})
            self._types[id(kind)] = kind, attributes
        return recorder.core.source_span(str(event.name), _ANNOTATION, attributes)

    def _span_of_layer(self, frame: FrameType, name: str) -> Any:
        """Return what records the call of a layer, whose frame this is."""
        if not (self._modules or self._shapes):
            return self._kept(name, _ANNOTATION, _FORWARD, name)
        try:
            layer, inputs = frame.f_locals["self"], frame.f_locals.get("inputs") or ()
            path = self._path(layer, name) if self._modules else name
            category = _MODULE if self._modules else _ANNOTATION
            if not self._shapes:
                return self._kept(path, category, _FORWARD, path)
            told = _describe(inputs)
            attributes = {**_FORWARD, "shapes": told[0], "dtypes": told[1]}
            return self._kept(path, category, attributes, (path, told))
        except Exception as error:  # of a class of the program's; the name and no more, then
            self._on_problem(f"layers of class {name} are recorded by that name alone: {error}")
            return self._kept(name, _ANNOTATION, _FORWARD, name)

    def _kept(self, name: str, category: int, attributes: dict[str, Any], key: Any) -> Any:
        span = self._spans.get(key)
        if span is None:
            if len(self._spans) >= _MOST_SPANS:  # of shapes that are new each time
                self._spans.clear()
            span = self._spans[key] = recorder.core.source_span(name, category, attributes)
        return span

    def _theirs_is_active(self) -> bool:
        """Say whether a profiler of the user's is."""
        return self._utils._is_profiler_used is True

    def _path(self, layer: Any, name: str) -> str:
        """Return the path of a layer in the model that was called first."""
        if layer not in self._paths:
            for path, inner in layer.named_sublayers(include_self=True):
                self._paths.setdefault(inner, f"{name}.{path}" if path else name)
        return self._paths.get(layer, name)

    def _around(self, name: str, kind: str) -> Callable[[_Function], _Function]:
        def wrap(original: _Function) -> _Function:
            span = recorder.core.source_span(name, _ANNOTATION, _PHASES[kind])

            @wraps(original)
            def call(*arguments: Any, **keywords: Any) -> Any:
                if not self._recording or self._theirs_is_active():  # who makes an event of it
                    return original(*arguments, **keywords)
                self._look_at_clock()
                with span:
                    return original(*arguments, **keywords)

            return call

        return wrap

    def _clear_grad(self, original: _Function) -> _Function:
        span = recorder.core.source_span("Optimizer.clear_grad", _ANNOTATION, _ZERO_GRAD)

        @wraps(original)
        def clear_grad(*arguments: Any, **keywords: Any) -> Any:
            if not self._recording:
                return original(*arguments, **keywords)
            with span:
                return original(*arguments, **keywords)

        return clear_grad

    def _step(self, original: _Function, name: str = _STEP) -> _Function:
        span = recorder.core.source_span(name, _ANNOTATION, _PHASES["Optimization"])

        @wraps(original)
        def step(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            # One inside another is part of it: Paddle may have wrapped what we had wrapped.
            if not self._patches or getattr(self._stepping, "now", False):
                return original(optimizer, *arguments, **keywords)
            self._stepping.now = True
            try:
                # Once paddle.profiler has been used, Paddle itself has wrapped them all, for good.
                theirs = name == _STEP and self._utils._has_optimizer_wrapped
                if theirs or not self._recording:
                    result = original(optimizer, *arguments, **keywords)
                else:
                    with span:
                        result = original(optimizer, *arguments, **keywords)
            finally:
                self._stepping.now = False
            self._on_step(optimizer)
            return result

        return step

    def _minimize(self, original: _Function) -> _Function:
        """Take it for a step, as Model.fit does; in static mode it makes a program only."""
        step = self._step(original, "Optimizer.minimize")

        @wraps(original)
        def minimize(optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
            dynamic = import_module("paddle").in_dynamic_mode()
            return (step if dynamic else original)(optimizer, *arguments, **keywords)

        return minimize

    def _run(self, original: _Function) -> _Function:
        @wraps(original)
        def run(executor: Any, program: Any = None, *arguments: Any, **keywords: Any) -> Any:
            result = original(executor, program, *arguments, **keywords)
            if self._patches:
                if program is None:
                    program = import_module("paddle.static").default_main_program()
                if self._is_training(program):
                    self._on_step(program)
            return result

        return run

    def _is_training(self, program: Any) -> bool:
        try:
            if program not in self._training:
                self._training[program] = _trains(program)
            return self._training[program]
        except (AttributeError, TypeError):  # run() takes other objects than programs too
            return False
        except Exception as error:  # the program has run already, and must go on
            self._on_problem(f"steps of a static program are not marked: {error}")
            return False


def _trains(program: Any) -> bool:
    """Say whether a static program updates its parameters: an operator takes a learning rate."""
    for operator in program.global_block().ops:
        try:
            if _RATE in operator.get_input_names():
                return True
        except ValueError:  # an operator of Paddle's own, which has no names for its inputs
            continue
    return False


def _codes_of_layers() -> dict[int, CodeType]:
    """Return the code that makes the event of a layer's call, with functions in it, by identity."""
    call = vars(import_module(_LAYERS).Layer).get("_dygraph_call_func")
    outer = getattr(call, "__code__", None)
    inner = [each for each in getattr(outer, "co_consts", ()) if isinstance(each, CodeType)]
    return {id(each): each for each in (outer, *inner) if each is not None}


def _describe(inputs: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return shapes and types of the tensors that a layer was called with."""
    tensors = [each for each in inputs if hasattr(each, "stop_gradient")]
    dtypes = [str(each.dtype).removeprefix("paddle.") for each in tensors]
    return tuple(tuple(each.shape) for each in tensors), tuple(dtypes)


def _optimizers() -> list[str]:
    """Return the classes that have a step() of their own."""
    optimizer = import_module("paddle.optimizer")
    steps = {name: vars(getattr(optimizer, name)).get("step") for name in optimizer.__all__}
    return [name for name, step in steps.items() if _is_of(step, name)]


def _is_of(step: Any, name: str) -> bool:
    return getattr(step, "__qualname__", "") == f"{name}.step"
