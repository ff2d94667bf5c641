# SPDX-License-Identifier: Apache-2.0
"""A profiler for the Trainer of Lightning, of `lightning.pytorch` and `pytorch_lightning` alike."""

from __future__ import annotations

import importlib
import os
import re
import sys
from functools import lru_cache
from typing import Any

from strobe.errors import StrobeError
from strobe.integrations._run import OpenSpans, Run
from strobe.record.messages import show
from strobe.session.profiler import Profiler
from strobe.session.recording import Recording

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")

# Hooks of the LightningModule, which come after those of the callbacks. A step ends with the first
# of these; after the second, what went before belongs to no step.
_STEP_ENDS = {
    "fit": "on_train_batch_end",
    "validate": "on_validation_batch_end",
    "test": "on_test_batch_end",
    "predict": "on_predict_batch_end",
}
_STEP_BEGINS = {
    "fit": "on_validation_end",
    "validate": "on_validation_epoch_start",
    "test": "on_test_epoch_start",
    "predict": "on_predict_epoch_start",
}
_EPOCH = "run_training_epoch"


def _find_base() -> Any:
    """Return the Profiler of the package that the program uses: a Trainer takes either one."""
    loaded = [name for name in _PACKAGES if name in sys.modules]
    for name in loaded or _PACKAGES:
        try:
            return importlib.import_module(f"{name}.profilers").Profiler
        except ModuleNotFoundError as error:
            if error.name != name.partition(".")[0]:
                raise  # it is there, but something that it needs is not
    message = "strobe.integrations.lightning needs Lightning: pip install lightning"
    raise ModuleNotFoundError(message)


_Base: Any = _find_base()


class StrobeProfiler(_Base):  # type: ignore[misc]
    """Trainer(profiler=StrobeProfiler(output="out")): each run of the Trainer becomes a recording.

    A run is a fit, validate, test or predict. Lightning's actions become spans, and each batch a
    step: the training batches of fit, where setup and validation belong to no step. A run that
    fails leaves a complete recording. What goes wrong with the profiler itself is shown on standard
    error; the Trainer goes on.

    Arguments:
        dirpath, filename: with a filename, the summary is written to a file when a run ends, as
            other profilers of Lightning do. Without, a line says where the recording is.
        options: those of strobe.Profiler.
    """

    def __init__(
        self,
        dirpath: str | os.PathLike[str] | None = None,
        filename: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dirpath=dirpath, filename=filename)
        self._options = options
        self._start_anew()

    def _start_anew(self) -> None:
        self._actions = OpenSpans()
        self._handled: BaseException | None = None
        self._run = Run(Profiler(**self._options))

    @property
    def profiler(self) -> Profiler:
        """The strobe.Profiler that records."""
        return self._run.profiler

    @property
    def recording(self) -> Recording:
        """The last recording; raises StateError when there is none yet."""
        return self._run.profiler.recording

    def setup(self, stage: str, local_rank: int | None = None, log_dir: str | None = None) -> None:
        """Start recording: the Trainer begins to fit, validate, test or predict."""
        super().setup(stage, local_rank=local_rank, log_dir=log_dir)
        self._stage = str(getattr(stage, "value", stage))
        self._handled = sys.exc_info()[1]
        self._run.start()
        self._run.profiler.add_metadata("lightning_stage", self._stage)

    def start(self, action_name: str) -> None:
        """Begin an action's span."""
        self._actions.begin(_span_name(action_name))
        if action_name == _EPOCH:
            self._run.begin_step()

    def stop(self, action_name: str) -> None:
        """End an action's span, and the step or the run if they end with it."""
        self._actions.end(_span_name(action_name))
        if action_name.startswith("[LightningModule]"):
            hook = action_name.rpartition(".")[2]
            if hook == _STEP_ENDS.get(self._stage):
                self._run.step()
            elif hook == _STEP_BEGINS.get(self._stage):
                self._run.begin_step()
        if not self._actions and self._has_failed():
            self._end()  # the Trainer says nothing to its profiler when a run fails

    def summary(self) -> str:
        """Return the summary of the last recording, "" if there is none."""
        if self._run.is_running:
            return ""
        try:
            return self._run.profiler.summary()
        except Exception as error:  # the Trainer calls this, and must go on
            show(f"there is no summary ({error})")
            return ""

    def describe(self) -> None:
        """End the recording; write its summary if there is a filename, else say where it is."""
        self._end()
        if self.filename:
            super().describe()
            return
        try:
            path = self.recording.path
        except StrobeError:
            return
        self._rank_zero_info(f"strobe recorded {path}; look at it with: strobe summary {path}")

    def teardown(self, stage: str | None) -> None:
        """End the recording, if it has not ended."""
        if "_run" in vars(self):  # also called when an object goes that was never complete
            self._end()
        super().teardown(stage)

    def __getstate__(self) -> dict[str, Any]:
        own = ("_actions", "_handled", "_run", "_lightning_module")
        return {key: value for key, value in vars(self).items() if key not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # In a process that the Trainer has spawned.
        self.__dict__.update(state)
        self._start_anew()

    def _end(self) -> None:
        self._handled = None
        self._actions.end_all()
        self._run.stop()

    def _has_failed(self) -> bool:
        """Say whether the outermost action was left with an exception."""
        error = sys.exc_info()[1]
        if error is None or error is self._handled:
            return False
        return not isinstance(error, StopIteration)  # with which data end


@lru_cache(maxsize=1024)
def _span_name(action_name: str) -> str:
    """Return the action's name without the settings that some callbacks have in theirs."""
    return re.sub(r"\{.*\}", "", action_name)
