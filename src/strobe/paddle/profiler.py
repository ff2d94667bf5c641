# SPDX-License-Identifier: Apache-2.0
"""Paddle's Profiler over strobe's."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from strobe.errors import StateError, UsageError
from strobe.model.paddle import PROCESS_USE, SYSTEM_USE, SortedKeys, SummaryView
from strobe.paddle.schedule import (
    ProfilerState,
    ProfilerTarget,
    States,
    as_scheduler,
    as_targets,
)
from strobe.paddle.summary import Shown
from strobe.paddle.timer import Timing, benchmark
from strobe.paddle.trace_files import default_handler, folder_of_rounds, write_trace
from strobe.session.handlers import Export
from strobe.session.paddle import show
from strobe.session.profiler import Profiler as Session
from strobe.session.utilization import Moment, utilization

if TYPE_CHECKING:
    from strobe.paddle.result import ProfilerResult
    from strobe.session.paddle import PaddleTables
    from strobe.session.recording import Recording


class _Session(Session):
    """strobe's profiler, whose rounds keep what Paddle's do: their number, how busy we were."""

    _began: Moment

    def _open_round(self) -> None:
        self._began = Moment.now()
        super()._open_round()

    def _close_round(self, *, with_step: bool) -> None:
        self.add_metadata("span_index", str(len(self.recordings)))
        shares = utilization(self._began, Moment.now())
        for name, share in zip((PROCESS_USE, SYSTEM_USE), shares, strict=True):
            if share is not None:
                self.add_metadata(name, f"{share:.6f}")
        super()._close_round(with_step=with_step)


class Profiler:
    """Records the program between start() and stop(), in the steps that a scheduler says.

    Arguments:
        targets: kinds of devices, ProfilerTarget or Paddle's own; all that there are if None. One
            that this machine lacks is left out, with a warning.
        scheduler: make_scheduler(...), a pair (start, end), or a callable that turns a step into a
            ProfilerState; None records from start() to stop().
        on_trace_ready: called with this profiler when a round is over; None writes Chrome traces
            into ./profiler_log. What it raises is shown.
        record_shapes, profile_memory, with_flops: shapes of operators' inputs, allocations,
            floating-point operations, where the framework has them.
        timer_only: record nothing, only time the steps: step_info(), and a summary at stop().
        emit_nvtx, custom_device_types: accepted; what they ask for is not done here, and said.

    Raises UsageError for an argument that cannot be right.
    """

    def __init__(
        self,
        *,
        targets: Iterable[ProfilerTarget] | None = None,
        scheduler: Callable[[int], Any] | Sequence[int] | None = None,
        on_trace_ready: Callable[[Profiler], object] | None = None,
        record_shapes: bool = False,
        profile_memory: bool = False,
        timer_only: bool = False,
        emit_nvtx: bool = False,
        custom_device_types: Sequence[str] | None = (),
        with_flops: bool = False,
    ) -> None:
        self.targets = as_targets(targets)
        self.scheduler = as_scheduler(scheduler)
        self.on_trace_ready = default_handler() if on_trace_ready is None else on_trace_ready
        self.record_shapes = _switch("record_shapes", record_shapes)
        self.profile_memory = _switch("profile_memory", profile_memory)
        self.timer_only = _switch("timer_only", timer_only)
        self.emit_nvtx = _switch("emit_nvtx", emit_nvtx)
        self.with_flops = _switch("with_flops", with_flops)
        self.custom_device_types = _names(custom_device_types)
        self._states = States(self.scheduler)
        self.step_num = 0
        self.previous_state = ProfilerState.CLOSED
        self.current_state = self._states(0)
        self.record_event = None
        self.profiler = _Session(
            schedule=None if scheduler is None else self._states,
            on_trace_ready=self._handler(),
            output=self._folder(),
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_flops=self.with_flops,
        )
        self._was_started = False
        self._is_told = False
        """Whether it was said that steps after stop() are not counted."""
        self._task: Timing | None = None
        """What is timed, from start() to stop()."""
        self._result: ProfilerResult | None = None

    def start(self) -> None:
        """Start with step 0; raises StateError (a RuntimeError) if it has been started."""
        if self.profiler.is_started:
            self.profiler.start()  # which says what is wrong
        if self.timer_only and self._task is not None:
            message = "start() while steps are timed; call stop() first, or make a second Profiler"
            raise StateError(message)
        if self._was_started:
            self._states.forget()
        self.step_num, self.previous_state = 0, ProfilerState.CLOSED
        self.current_state = self._states(0)
        if self.emit_nvtx:
            show("emit_nvtx is not done here: ranges for NVIDIA's tools are made by Paddle alone")
        if not self.timer_only:
            self._result = None
            self.profiler.start()
        self._was_started, self._is_told = True, False
        self._task = benchmark().begin()

    def stop(self) -> None:
        """Stop, and hand over what was recorded; raises StateError if it has not been started."""
        if self.timer_only:
            if self._task is None:
                message = "stop() while no steps are timed; call start() first"
                raise StateError(message)
            self._end_task()
            return
        if not self.profiler.is_started:
            self.profiler.stop()  # which says so; in a forked child it is the parent's to stop
            return
        self._end_task()
        if self.current_state is ProfilerState.READY:
            show("stop() while READY: the round that was to begin is not recorded")
        self.profiler.stop()
        if not self.profiler.is_started:  # on_trace_ready may have started it again
            self.previous_state, self.current_state = self.current_state, ProfilerState.CLOSED

    def step(self, num_samples: int | None = None) -> None:
        """End a step, of `num_samples` samples, and begin the next, as the scheduler says.

        A handler that is called for it sees the step and the states that begin. After stop() no
        step is counted. Raises StateError before start(), UsageError for what is no number.
        """
        if self._task is None:
            self._step_outside()
            return
        self._task.step(num_samples)
        if self.timer_only:
            return
        if self.profiler.is_started:  # in a forked child steps are the parent's
            self.step_num += 1
            self.previous_state = self.current_state
            self.current_state = self._states(self.step_num)
        self.profiler.step(num_samples)

    def step_info(self, unit: str | None = None) -> str:
        """Return reader_cost, batch_cost and ips, averages since the last call.

        `unit` is what samples are called. Raises StateError unless steps are being timed.
        """
        if self._task is None:
            message = "step_info() while no steps are timed; call start() first"
            raise StateError(message)
        return self._task.info(unit)

    def export(self, path: str | os.PathLike[str] = "", format: str = "json") -> None:
        """Write the last round: "json" for Chrome and VisualDL, "pb" for load_profiler_result.

        Raises UsageError for another format or an empty path, StateError if there are no data,
        CaptureError where the path cannot be written.
        """
        write_trace("export", lambda: self._require_data("export()"), path, format)

    def summary(
        self,
        sorted_by: SortedKeys = SortedKeys.CPUTotal,
        op_detail: bool = True,
        thread_sep: bool = False,
        time_unit: str = "ms",
        views: SummaryView | Collection[SummaryView] | None = None,
        row_limit: int = 100,
    ) -> PaddleTables | None:
        """Print the tables of the last round and return all of them as frames.

        Arguments:
            sorted_by: order of the operator, kernel and userdefined tables.
            op_detail: show what is inside operators.
            thread_sep: operators and userdefined events by thread.
            time_unit: "s", "ms", "us" or "ns".
            views: which tables to print, all if None.
            row_limit: how many rows of each; the others are counted.

        Raises StateError before start() and while the first round is recorded. A schedule that
        never recorded prints one line that says so, and returns None.
        """
        how = Shown.of(sorted_by, op_detail, thread_sep, time_unit, views, row_limit)
        why = self._why_nothing()
        if why:
            print(why)
            return None
        return how.show(self._require_data("summary()"), flops=self.with_flops)

    @property
    def profiler_result(self) -> ProfilerResult | None:
        """The last round as load_profiler_result gives it; None until one has ended."""
        if not self.profiler.recordings:
            return None
        path = self.profiler.recording.path
        if self._result is None or self._result.recording.path != path:
            from strobe.paddle.result import ProfilerResult

            self._result = ProfilerResult.of_recording(self.profiler.recording)
        return self._result

    @property
    def recording(self) -> Recording:
        """The last round as a strobe.Recording; raises StateError when none has ended."""
        return self._require_data("recording")

    def __enter__(self) -> Profiler:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop, unless the block did."""
        if self.profiler.is_started:
            self.profiler.tell_error(error)
        if self.profiler.is_started or (self.timer_only and self._task is not None):
            self.stop()

    def _end_task(self) -> None:
        """Steps are timed no more; prints how long they took."""
        task, self._task = self._task, None
        benchmark().end(task)

    def _step_outside(self) -> None:
        """A step that nobody records: a slip before start(), and said once after stop()."""
        if not self._was_started:
            message = "step() while not recording; call start() first"
            raise StateError(message)
        if not self._is_told:
            show("step() after stop(): it is not counted, and nothing is recorded")
        self._is_told = True

    def _handler(self) -> Any:
        """Return what strobe's profiler calls: a declaration as it is, a callable with us."""
        if isinstance(self.on_trace_ready, Export):
            return self.on_trace_ready
        if not callable(self.on_trace_ready):
            message = (
                f"Profiler(on_trace_ready={self.on_trace_ready!r}): must be a callable that takes "
                "the profiler, or None"
            )
            raise UsageError(message)
        return lambda _session: self.on_trace_ready(self)

    def _folder(self) -> Path:
        handler = self.on_trace_ready
        return handler.directory if isinstance(handler, Export) else folder_of_rounds()

    def _require_data(self, call: str) -> Recording:
        if not self._was_started:
            message = f"{call} before start(); record something first"
            raise StateError(message)
        if not self.profiler.recordings:
            why = (
                self._why_nothing() or "the first round is still being recorded; call stop() first"
            )
            message = f"{call} without data: {why}"
            raise StateError(message)
        return self.profiler.recording

    def _why_nothing(self) -> str | None:
        """After stop(): say why nothing was recorded; None if something was, or may yet be."""
        if not self._was_started or self.profiler.recordings:
            return None
        if self.timer_only:
            return "timer_only=True: steps were timed, no events were recorded"
        return None if self.profiler.is_started else self.profiler.explain_schedule()


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        message = f"Profiler({name}={value!r}): {name} must be True or False"
        raise UsageError(message)
    return value


def _names(value: object) -> list[str]:
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        message = f"Profiler(custom_device_types={value!r}): must be a list of str"
        raise UsageError(message)
    return [str(each) for each in value]
