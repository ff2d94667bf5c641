# SPDX-License-Identifier: Apache-2.0
"""Hooks on MindSpore: its training steps, optimizers and waits for data; undone by detach().

Each patch calls what was there before, as it was called, and lets its errors through.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from strobe.model.tables import record_code
from strobe.record import batches, recorder
from strobe.record.messages import show
from strobe.sources import active
from strobe.sources.loaders import Names
from strobe.sources.mindspore.graphs import Graphs
from strobe.sources.mindspore.pipeline import Pipeline
from strobe.sources.mindspore.session import compiler
from strobe.sources.patches import Patches

_ANNOTATION = record_code("annotation", "mindspore")
_DATA_LOADING = record_code("data_loading", "mindspore")
_POINT = record_code("user", "mindspore")
# What a training step tells of itself: it ends one, and holds all phases.
_STEP: dict[str, Any] = {"ends": "step", "phase": None}
_END: dict[str, Any] = {"ends": "data", "phase": "data_loading"}

_Function = Callable[..., Any]

_patches = Patches("MindSpore")


class _Steps(threading.local):
    """Which step is open in this thread, and which phase of it."""

    depth = 0
    model: Any = None
    phase: str | None = None


_steps = _Steps()
_names = Names("Dataset")
_marker: list[weakref.ref[Any]] = []
"""What made the first step: of several optimizers, the one that ends them."""


def attach(
    *,
    make_room: Callable[[], object],
    sinks: Callable[[], object],
    pipeline: Pipeline,
    graphs: Graphs,
) -> list[str]:
    """Patch MindSpore and return what could not be patched.

    `make_room` is called before MindSpore's own profiler starts, `sinks` when a Model is to train
    with its data sunk into the device; `pipeline` is told of each iterator over a dataset, `graphs`
    of each graph that is to run.
    """
    if _patches:
        return []
    api = compiler().__name__
    parts: list[tuple[str, str, Callable[[Any], Any]]] = [
        ("mindspore.profiler.profiler_interface", "ProfilerInterface.start", _room(make_room)),
        ("mindspore.train.model", "Model.train", _train(sinks)),
        ("mindspore.train.callback._callback", "CallbackManager.on_train_step_begin", _begin),
        ("mindspore.train.callback._callback", "CallbackManager.on_train_step_end", _end),
        ("mindspore.nn.wrap.cell_wrapper", "TrainOneStepCell.__call__", _cell("", _STEP)),
        ("mindspore.nn.optim.optimizer", "Optimizer.__call__", _optimizer),
        ("mindspore.experimental.optim.optimizer", "Optimizer.__call__", _optimizer),
        (api, "_PyNativeExecutor.grad", _gradients),
        (api, "_CellGraphExecutor.compile", _compiled(graphs)),
        (api, "_JitExecutor.compile", _compiled(graphs)),
        ("mindspore.dataset.engine.iterators", "Iterator.__init__", _made(pipeline)),
        ("mindspore.dataset.engine.iterators", "Iterator.__next__", _waited),
    ]
    return _patches.put_all(parts)


def detach() -> None:
    """Undo it."""
    _patches.undo()
    _marker.clear()
    _names.forget()


def _room(make_room: Callable[[], object]) -> Callable[[_Function], _Function]:
    def wrap(original: _Function) -> _Function:
        @wraps(original)
        def start(*arguments: Any, **keywords: Any) -> Any:
            make_room()
            return original(*arguments, **keywords)

        return start

    return wrap


def _train(sinks: Callable[[], object]) -> Callable[[_Function], _Function]:
    def wrap(original: _Function) -> _Function:
        @wraps(original)
        def train(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if keywords.get("dataset_sink_mode", len(arguments) > 3 and arguments[3]):
                sinks()
            try:
                return original(self, *arguments, **keywords)
            finally:
                _close_step()  # one that has failed

        return train

    return wrap


def _begin(original: _Function) -> _Function:
    """A step of Model.train begins after the callbacks that are told of it."""

    @wraps(original)
    def on_train_step_begin(self: Any, run_context: Any) -> Any:
        result = original(self, run_context)
        _steps.model = recorder.core.source_span("Model.train step", _ANNOTATION, _STEP)
        _steps.model.begin()
        _steps.depth = 1
        return result

    return on_train_step_begin


def _end(original: _Function) -> _Function:
    """It ends before those that are told of that."""

    @wraps(original)
    def on_train_step_end(self: Any, run_context: Any) -> Any:
        _close_step()
        try:
            return original(self, run_context)
        finally:
            active.step_ended()

    return on_train_step_end


def _close_step() -> None:
    if _steps.model is not None:
        _steps.model.end()
        _steps.model = None
        _steps.depth = 0


def _cell(prefix: str, *told: dict[str, Any]) -> Callable[[_Function], _Function]:
    def wrap(original: _Function) -> _Function:
        @wraps(original)
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            _steps.depth += 1
            try:
                with recorder.core.source_span(prefix + type(self).__name__, _ANNOTATION, *told):
                    result = original(self, *arguments, **keywords)
            finally:
                _steps.depth = max(0, _steps.depth - 1)
            if _steps.depth == 0 and _ends_steps(self):
                active.step_ended()
            return result

        return call

    return wrap


def phase() -> str | None:
    """Return the phase that this thread is in, as far as it is one of a call; None if not."""
    return _steps.phase


def _optimizer(original: _Function) -> _Function:
    return _in_phase("optimizer", _cell("Optimizer.step#")(original))


def _gradients(original: _Function) -> _Function:
    """The backward of PyNative mode, which MindSpore runs after the forward in one call."""

    @wraps(original)
    def grad(*arguments: Any, **keywords: Any) -> Any:
        with recorder.core.source_span("grad", _ANNOTATION, {"phase": "backward"}):
            return original(*arguments, **keywords)

    return _in_phase("backward", grad)


def _in_phase(phase: str, original: _Function) -> _Function:
    @wraps(original)
    def call(*arguments: Any, **keywords: Any) -> Any:
        before, _steps.phase = _steps.phase, phase
        try:
            return original(*arguments, **keywords)
        finally:
            _steps.phase = before

    return call


def _compiled(graphs: Graphs) -> Callable[[_Function], _Function]:
    def wrap(original: _Function) -> _Function:
        @wraps(original)
        def compile(*arguments: Any, **keywords: Any) -> Any:
            told = original(*arguments, **keywords)
            phase = told[0] if isinstance(told, tuple) else told
            if isinstance(phase, str):
                graphs.compiled(phase)
            return told

        return compile

    return wrap


def _made(pipeline: Pipeline) -> Callable[[_Function], _Function]:
    def wrap(original: _Function) -> _Function:
        @wraps(original)
        def __init__(self: Any, *arguments: Any, **keywords: Any) -> None:
            _safely(pipeline.making)
            original(self, *arguments, **keywords)
            _safely(pipeline.made, self)

        return __init__

    return wrap


def _safely(action: Callable[..., object], *arguments: Any) -> None:
    try:
        action(*arguments)
    except Exception as error:  # the program's iterator has to be made
        show(f"mindspore: its pipeline is not recorded ({error})")


def _ends_steps(cell: Any) -> bool:
    """Say whether it is the one that was the first to make a step."""
    first = _marker[0]() if _marker else None
    if first is None:
        _marker[:] = [weakref.ref(cell)]
    return first is None or first is cell


def _waited(original: _Function) -> _Function:
    @wraps(original)
    def __next__(self: Any) -> Any:
        with recorder.core.source_span(f"enumerate(Dataset)#{type(self).__name__}", _DATA_LOADING):
            since_ns = recorder.core.clock_ns()
            number = getattr(self, "_Iterator__index", None)
            try:
                batch = original(self)
            except StopIteration:  # its operators are in other lanes: nothing else says it
                with recorder.core.source_span("end of data", _ANNOTATION, _END):
                    raise
            name = _names.of(getattr(self, "_Iterator__ori_dataset", None))
            batches.arrived(name, since_ns, code=_POINT, number=number)
            return batch

    return __next__
