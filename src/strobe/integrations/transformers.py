# SPDX-License-Identifier: Apache-2.0
"""A callback for the Trainer of Transformers."""

from __future__ import annotations

import importlib
from typing import Any, Literal

from strobe.integrations._run import OpenSpans, Run
from strobe.session.profiler import Profiler
from strobe.session.recording import Recording

Phase = Literal["data loading", "training step", "log", "evaluate", "save"]


def _find_base() -> Any:
    try:
        return importlib.import_module("transformers").TrainerCallback
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise  # it is there, but something that it needs is not
    message = "strobe.integrations.transformers needs Transformers: pip install transformers"
    raise ModuleNotFoundError(message)


_Base: Any = _find_base()


class StrobeCallback(_Base):  # type: ignore[misc]
    """Trainer(callbacks=[StrobeCallback(output="out")]): each train() becomes a recording.

    Its steps are the Trainer's: one update of the weights, data loading included; logging,
    evaluation and saving belong to no step. All of them are spans. evaluate() and predict() outside
    train() become recordings whose steps are batches, from the second batch on, since the Trainer
    does not announce the first. What goes wrong with the profiler itself is shown on standard
    error; the Trainer goes on. The options are those of strobe.Profiler.
    """

    def __init__(self, **options: Any) -> None:
        self._run = Run(Profiler(**options))
        self._spans = OpenSpans()
        self._phase: Phase | None = None
        self._is_training = False
        self._logged_step = 0
        self._batches = 0
        self._sizes: tuple[int, int] | None = None

    @property
    def profiler(self) -> Profiler:
        """The strobe.Profiler that records."""
        return self._run.profiler

    @property
    def recording(self) -> Recording:
        """The last recording; raises StateError when there is none yet."""
        return self._run.profiler.recording

    def on_train_begin(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Start recording."""
        self._end()  # a train() that failed did not say so
        self._is_training = True
        self._logged_step = state.global_step
        self._batches = 0
        self._run.start()

    def on_epoch_begin(self, args: Any, state: Any, _control: Any, **kwargs: Any) -> None:
        """Begin the epoch's span; its first step begins with loading data."""
        self._sizes = _batch_sizes(args, state, kwargs.get("train_dataloader"))
        self._spans.begin("epoch")
        self._run.begin_step()
        self._enter("data loading")

    def on_step_begin(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """The step's data are there."""
        self._enter("training step")

    def on_pre_optimizer_step(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """Begin the optimizer's span."""
        self._spans.begin("optimizer")

    def on_optimizer_step(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """End the optimizer's span."""
        self._spans.end("optimizer")

    def on_substep_end(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """Count a batch whose gradients are kept for the step to come."""
        self._batches += 1

    def on_step_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """End the step."""
        self._batches += 1
        self._enter(None)
        self._run.step(self._count_samples(state))
        self._batches = 0
        self._enter(self._next_phase(state, control))

    def on_epoch_end(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """End the epoch's span; logging, evaluation and saving may follow."""
        self._enter(None)
        self._spans.end("epoch")
        self._enter(self._next_phase(state, control))

    def on_log(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """The values are logged; inside an evaluation that is a part of it."""
        self._logged_step = state.global_step
        if self._phase == "log":
            self._leave(state, control)

    def on_prediction_step(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """One batch of an evaluation or a prediction is done."""
        if self._is_training:
            if self._phase != "evaluate":
                self._enter("evaluate")  # another callback asked for it
        elif self._run.is_running:
            self._run.step()
        else:
            self._run.start()
            self._spans.begin("prediction")

    def on_evaluate(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """The evaluation is over."""
        self._after_prediction(state, control)

    def on_predict(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """The prediction is over."""
        self._after_prediction(state, control)

    def on_save(self, _args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """The checkpoint is written."""
        if self._is_training:
            self._leave(state, control)

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_kwargs: Any) -> None:
        """Stop recording."""
        self._end()

    def _after_prediction(self, state: Any, control: Any) -> None:
        if self._is_training:
            self._leave(state, control)
        else:
            self._end()

    def _end(self) -> None:
        self._phase = None
        self._is_training = False
        self._spans.end_all()
        self._run.stop()

    def _enter(self, phase: Phase | None) -> None:
        if self._phase is not None:
            self._spans.end(self._phase)
        self._phase = phase
        if phase is not None:
            self._spans.begin(phase)

    def _leave(self, state: Any, control: Any) -> None:
        """Go on from logging, evaluation or saving; the step that follows does not contain it."""
        self._enter(None)
        self._run.begin_step()
        self._enter(self._next_phase(state, control))

    def _next_phase(self, state: Any, control: Any) -> Phase | None:
        """Return what the Trainer does between steps, in its order."""
        if control.should_log and state.global_step > self._logged_step:
            return "log"
        if control.should_evaluate:
            return "evaluate"
        if control.should_save:
            return "save"
        is_over = control.should_training_stop or control.should_epoch_stop
        return None if is_over or _ends_epoch(state) else "data loading"

    def _count_samples(self, state: Any) -> int | None:
        """Return how many samples the step had, as far as the Trainer's settings tell."""
        if self._sizes is None:
            return None
        size, last_size = self._sizes
        return size * (self._batches - 1) + (last_size if _ends_epoch(state) else size)


def _ends_epoch(state: Any) -> bool:
    """Say whether the step that has ended was the last of its epoch."""
    return float(state.epoch).is_integer()


def _batch_sizes(args: Any, state: Any, loader: Any) -> tuple[int, int] | None:
    """Return the sizes of an epoch's batches and of its last one.

    None where the data have no length, several processes share them, or the loader is not the one
    that the settings describe.
    """
    size = state.train_batch_size or args.train_batch_size
    try:
        batches, samples = len(loader), len(loader.dataset)
    except (AttributeError, TypeError):
        return None
    expected, rest = divmod(samples, size)
    if rest and not args.dataloader_drop_last:
        expected += 1
    if args.world_size > 1 or batches != expected or not batches:
        return None
    return size, rest if rest and not args.dataloader_drop_last else size
