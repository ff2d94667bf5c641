# SPDX-License-Identifier: Apache-2.0
"""The Profiler: a schedule of rounds, each of which becomes a recording."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from strobe.errors import CaptureError, FormatError, StateError, UsageError
from strobe.record import clocks, recorder
from strobe.record.messages import show
from strobe.record.schedule import CHANGES, State, as_int
from strobe.record.turns import short_turns
from strobe.session import ending
from strobe.session.handlers import Export
from strobe.session.options import (
    MAX_BYTES,
    MAX_MEMORY_BYTES,
    MAX_TOTAL_BYTES,
    STACK_RATE_HZ,
    Options,
)
from strobe.session.place import find_place
from strobe.session.round import Destination, Round, open_round
from strobe.sources import active as sources

if TYPE_CHECKING:
    from strobe.session.recording import Recording

_UNKNOWN_SAMPLES = 0xFFFFFFFF
# What torch.profiler's schedules return, where it has names of its own.
_NAMES_OF_TORCH = {
    "NONE": State.CLOSED,
    "WARMUP": State.READY,
    "RECORD_AND_SAVE": State.RECORD_AND_RETURN,
}
_RECORDING = (State.RECORD, State.RECORD_AND_RETURN)


class Profiler:
    """Records the spans of this process and of its children between start() and stop().

    Without a schedule there is one round, from start() to stop(). With one, `schedule(step)` says
    what each step does (strobe.schedule, a pair (start, end), or any callable that returns a
    strobe.State), and each round becomes a recording of its own. stop() and the step() that ends a
    round return at once: another process writes the tables. Several profilers may record at the
    same time. A program that ends without stop(), in whatever way, leaves a recording that open()
    completes.

    Arguments:
        on_trace_ready: called with the profiler when a round is over; strobe.export_chrome and
            strobe.export_perfetto are carried out by the finalizer. What it raises is shown.
        output, name: the folder of recordings, and what this one's name begins with (the script's).
        max_seconds: a round ends after this time even if nobody calls step().
        max_bytes: of one process's log (4 GiB); what comes after is dropped and counted.
        max_total_bytes: of all rounds of this process (16 GiB), None for no bound. The finalizer
            deletes the oldest, never an export or MindSpore's files; completeness says how many.
        max_memory_bytes: of one process's rings (256 MiB, about 240 threads).
        ranks: record only in processes of these ranks.
        clock: "tsc" takes times from the processor's counter, which makes a span cheaper; where it
            is not proven constant the monotonic clock is used, with a line that says so.
        record_shapes: shapes and dtypes of operators' inputs; "strides": these too.
        with_flops, with_modules, profile_memory, data_process: floating-point operations, the
            layer of each operator, allocations, data loading, where the framework has them.
        memory_lines: what lines of Python hold, at the start, the peak and the end (tracemalloc,
            which makes every allocation of Python's slower).
        hardware: processor, memory, disk and network of the process, its children and the system,
            garbage collections, NVIDIA's devices. hbm_ddr, pcie: memory and bus of these alone.
        sync_enable: let the host wait for each operator on a device.
        with_stack: True for every call of a Python or C function, "sample" for stacks of all
            threads at stack_rate_hz (100) instead; each operator then has the stack that called it.
        stack_include, stack_exclude, stack_min_us, stack_max_depth: of these modules only, not of
            these; calls of at least this time, and nested no deeper than this.
        activities and the rest: what is asked for and cannot be had here is answered with a line
            and in the recording's completeness.
    """

    def __init__(
        self,
        *,
        schedule: Any = None,
        on_trace_ready: Callable[[Profiler], object] | None = None,
        output: str | os.PathLike[str] = "./strobe_data",
        name: str | None = None,
        activities: Any = None,
        max_seconds: float | None = None,
        max_bytes: int = MAX_BYTES,
        max_total_bytes: int | None = MAX_TOTAL_BYTES,
        max_memory_bytes: int = MAX_MEMORY_BYTES,
        ranks: Sequence[int] | None = None,
        clock: clocks.Clock = "monotonic",
        record_shapes: bool | Literal["strides"] = False,
        with_flops: bool = False,
        with_modules: bool = False,
        profile_memory: bool = False,
        memory_lines: bool = False,
        with_stack: bool | Literal["sample"] = False,
        stack_rate_hz: float = STACK_RATE_HZ,
        stack_include: Sequence[str] = (),
        stack_exclude: Sequence[str] = (),
        stack_min_us: float = 0,
        stack_max_depth: int | None = None,
        data_process: bool = False,
        hardware: bool = False,
        hbm_ddr: bool = False,
        pcie: bool = False,
        sync_enable: bool | None = None,
    ) -> None:
        given = {key: value for key, value in locals().items() if key != "self"}
        self._options = Options(**given)
        self._states = self._options.states
        self._clock_problem = clocks.counter_problem() if clock == "tsc" else None
        self._lock = threading.RLock()
        self._metadata: dict[str, Any] = {}
        self._finished: list[Path] = []
        self._lost: str | None = None
        """Why a round that the schedule asked for could not be recorded."""
        self._round: Round | None = None
        self._started = False
        self._was_started = False
        self._step = 0
        self._step_start_ns = 0
        self._state = State.CLOSED
        self._warned: set[str] = set()
        self._is_silent = False
        self._on_step: Callable[[], None] | None = None

    def __repr__(self) -> str:
        """Say where it records to, and what it does."""
        state = self._state.name.lower() if self._is_started() else "stopped"
        return f"strobe.Profiler(output={str(self._options.output)!r})  # {state}"

    def start(self) -> None:
        """Start with step 0.

        Raises StateError when it has been started and not stopped, and CaptureError when the output
        folder cannot be written. An operator of the program's that failed, and whose end is waited
        for here, is the program's own error.
        """
        with self._lock:
            if self._is_started():
                where = f" into {str(self._round.path)!r}" if self._round else ""
                message = (
                    f"start() while recording{where}, at step {self._step}; call stop() first, or "
                    "make a second Profiler"
                )
                raise StateError(message)
            self._place = find_place()
            ranks, rank = self._options.ranks, self._place.rank
            self._is_silent = ranks is not None and (rank or 0) not in ranks
            self._finished = []
            self._lost = None
            self._step = 0
            self._state = State.CLOSED
            self._report_clock()
            state = self._state_of(0)
            sources.enter(self._on_step)
            with contextlib.ExitStack() as undo:
                undo.callback(sources.leave, self._on_step)
                if CHANGES[State.CLOSED, state].open:
                    self._open_round()
                undo.pop_all()
            self._state = state
            self._started = self._was_started = True
            self._step_start_ns = recorder.core.clock_ns()
            ending.add(self)
        with contextlib.ExitStack() as undo:
            undo.callback(self.stop)
            sources.raise_kept()
            undo.pop_all()

    def step(self, num_samples: int | None = None) -> None:
        """End a step, of `num_samples` samples, and begin the next.

        Raises StateError before start(), and UsageError for a number that cannot be one.
        """
        samples = _as_samples("step", num_samples)
        if self._is_inherited():
            return
        self._end_step(samples)
        sources.raise_kept()

    def begin_step(self) -> None:
        """Begin the current step anew: what came since the last one ended belongs to no step.

        For what goes on between two steps, such as validation. Raises StateError before start().
        """
        if self._is_inherited():
            return
        with self._lock:
            self._require_started("begin_step()")
            self._step_start_ns = recorder.core.clock_ns()

    def request(self, num_samples: int | None = None) -> _Request:
        """Return a context manager for a server's request: a step that may overlap others.

        Raises StateError before start(), and UsageError for a number that cannot be one.
        """
        samples = _as_samples("request", num_samples)
        if not self._is_inherited():
            self._require_started("request()")
        return _Request(self, samples)

    def stop(self) -> None:
        """Stop, and return at once; the tables are written by another process.

        Raises StateError when it has not been started. What goes wrong while stopping is shown, not
        raised; but an operator of the program's that fails late, while its end is waited for, is
        the program's own error.
        """
        if self._is_inherited():
            return
        self._require_started("stop()")
        try:
            # Without the lock: what is waited for may be a callback of the program's that needs it.
            sources.settle()
        finally:  # who interrupts the wait has stopped all the same
            self._stop()
        sources.raise_kept()

    def count_steps(self) -> None:
        """Before start(): let a schedule count the program's own steps, as sources see them.

        Without a schedule there is nothing to count them for: the finalizer finds them again.
        """
        if self._options.schedule is not None:
            self._on_step = self._step_by_itself

    def tell_error(self, error: BaseException | None) -> None:
        """An error leaves the block: let the sources look at it that look for some."""
        sources.raised(error)

    def explain_schedule(self) -> str | None:
        """After stop(): say why a schedule recorded nothing, or everything; None if it did well."""
        if self._options.schedule is None or self._is_silent:
            return None
        if not self._finished and self._lost:
            return f"nothing was recorded: {self._lost}"
        if not self._finished:
            return (
                f"nothing was recorded: the program ended at step {self._step}, before the schedule"
                " came to record; without calls of step() it stays at step 0"
            )
        if self._step == 0:
            return "step() was never called: step 0, all that was recorded, is the whole program"
        return None

    def add_metadata(self, key: str, value: str) -> None:
        """Keep a fact with the recordings that end from now on; raises UsageError if no str."""
        for name, text in (("key", key), ("value", value)):
            if not isinstance(text, str):
                message = f"add_metadata({name}={text!r}): {name} must be a str"
                raise UsageError(message)
        self._metadata[key] = value

    def add_metadata_json(self, key: str, value: str) -> None:
        """Keep a fact that is JSON text; raises UsageError if it is not."""
        if isinstance(value, str):
            read_json(key, value)
        self.add_metadata(key, value)

    @property
    def is_started(self) -> bool:
        """Whether it has been started and not stopped, by this process."""
        return self._is_started()

    @property
    def recordings(self) -> list[Recording]:
        """The recordings of the rounds that have ended since start(), their data read when used."""
        from strobe.session.recording import Recording

        return [Recording(path) for path in self._finished]

    @property
    def recording(self) -> Recording:
        """The recording of the last round that ended; its tables are written when first used.

        Raises StateError when none has ended, and FormatError when it is gone.
        """
        if self._finished:
            if not self._finished[-1].is_dir():
                reason = "there is nothing at this path any more"
                raise FormatError(self._finished[-1], "recording", reason)
            return self.recordings[-1]
        if self._is_silent:
            message = f"recording: rank {self._place.rank} is not among ranks={self._options.ranks}"
        elif self._is_started():
            message = "recording while still recording; call stop() first"
        elif self._was_started and not self._is_inherited():
            message = f"recording: {self.explain_schedule()}"
        else:
            message = "recording before start(); record something first"
        raise StateError(message)

    def summary(
        self,
        *,
        by: Literal["name", "thread", "step", "module", "loader", "counter"] = "name",
        sort: str = "self",
        top: int = 20,
        width: int | None = None,
    ) -> str:
        """Return the summary of the last recording: see Recording.summary."""
        last = self.recording
        text = last.summary(by=by, sort=sort, top=top, width=width)
        rounds = len(self._finished)
        if rounds > 1 and last.step_statistics().is_empty():
            text += (
                f"No step ended in this round, the last of {rounds}: recordings[-2].summary() "
                "shows the one before.\n"
            )
        return text

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
        """Stop, unless the block did, or this is a forked child of the one that started."""
        if self._is_started():
            self.tell_error(error)
            self.stop()

    def _stop(self) -> None:
        with self._lock:
            self._require_started("stop()")
            self._started = False
            ending.remove(self)
            self._state = State.CLOSED
            if self._round is not None:
                self._close_round(with_step=False)
            sources.leave(self._on_step)

    def _end_step(self, num_samples: int | None) -> None:
        with self._lock:
            self._require_started("step()")
            self._mark(self._step_start_ns, num_samples, request=False)
            self._advance()
            self._step_start_ns = recorder.core.clock_ns()

    def _step_by_itself(self) -> None:
        if self._is_started():
            self._end_step(None)

    def _find_destination(self) -> Destination | None:
        """Return where the round that begins goes; None for a recording in the output folder."""
        return None

    def _is_started(self) -> bool:
        return self._started and ending.is_running(self)

    def _is_inherited(self) -> bool:
        """In a forked child: the parent's steps and stop are not ours, and no reason to fail."""
        return self._started and not ending.is_running(self)

    def _require_started(self, call: str) -> None:
        if not self._is_started():
            message = f"{call} while not recording; call start() first"
            raise StateError(message)

    def _state_of(self, step: int) -> State:
        state = self._states(step)
        name = getattr(state, "name", "")
        named = State.__members__.get(name) or _NAMES_OF_TORCH.get(name)
        if named is None:
            message = (
                f"Profiler(schedule=...): schedule({step}) returned {state!r}; it must return a "
                "strobe.State"
            )
            raise UsageError(message)
        return named

    def _advance(self) -> None:
        """Go on to the next step and do what the change of state asks for."""
        self._step += 1
        state = self._state_of(self._step)
        change = CHANGES[self._state, state]
        if change.warning and not self._is_silent:
            self._warn_once(change.warning)
        limit = self._options.max_seconds
        too_long = self._round is not None and limit is not None
        too_long = too_long and self._round.age_seconds() >= limit  # type: ignore[union-attr,operator]
        self._state = state
        ends = self._round is not None and (change.save or too_long)
        try:
            if ends:
                sources.settle()
        finally:  # who interrupts the wait has ended the step all the same
            if ends:
                self._close_round(with_step=True)
            if change.open and self._is_to_record():
                self._open_round()

    def _is_to_record(self) -> bool:
        """Say whether a round is wanted: on_trace_ready may have stopped it, or gone on itself."""
        return self._started and self._round is None and self._state in _RECORDING

    def _mark(self, start_ns: int, samples: int | None, *, request: bool) -> None:
        if self._round is None:
            return
        count = _UNKNOWN_SAMPLES if samples is None else min(samples, _UNKNOWN_SAMPLES - 1)
        recorder.core.step(self._round.window, self._step, start_ns, count, request)

    def _open_round(self) -> None:
        if self._is_silent:
            return
        try:
            with short_turns():
                self._round = open_round(
                    self._options,
                    place=self._place,
                    clock_problem=self._clock_problem,
                    first_step=self._step,
                    destination=self._find_destination(),
                )
        except CaptureError as error:
            if not self._started:
                raise
            # In the middle of the program: it goes on without this round.
            self._lost = str(error)
            show(self._lost)

    def _close_round(self, *, with_step: bool) -> None:
        assert self._round is not None
        ended, self._round = self._round, None
        with short_turns():
            missing = ended.close(with_step=with_step, metadata=self._metadata)
        self._report(missing)
        self._finished.append(ended.path)
        handler = self._options.on_trace_ready
        if handler is None or isinstance(handler, Export):
            return
        try:
            handler(self)
        except Exception:  # the handler's, and the program must go on
            show(f"on_trace_ready failed, the recording is kept:\n{traceback.format_exc()}")

    def _report_clock(self) -> None:
        if self._clock_problem:
            self._warn_once(f"clock='tsc' cannot be had ({self._clock_problem}): monotonic it is")

    def _report(self, missing: Mapping[str, str]) -> None:
        for option, reason in missing.items():
            self._warn_once(f"{option} is not collected: {reason}")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            show(text)


def read_json(key: object, value: str) -> Any:
    """Return what the JSON text of add_metadata_json() says; raises UsageError if it is none."""
    try:
        content = json.loads(value)
        json.dumps(content, allow_nan=False)  # loads() takes NaN and infinities, which are no JSON
    except (ValueError, RecursionError) as error:
        message = f"add_metadata_json({key!r}, value={value[:80]!r}): value is no JSON ({error})"
        raise UsageError(message) from None
    return content


def _as_samples(call: str, number: object) -> int | None:
    """Return how many samples a step has, None if nobody said; raises UsageError."""
    samples = as_int(number)
    if number is not None and (samples is None or samples < 0):
        message = f"{call}(num_samples={number!r}): must be an int of 0 or more, or None"
        raise UsageError(message)
    return samples


class _Request:
    """One request of a server, from __enter__ to __exit__."""

    def __init__(self, profiler: Profiler, samples: int | None) -> None:
        self._profiler = profiler
        self._samples = samples
        self._start_ns = 0

    def __enter__(self) -> _Request:
        self._start_ns = recorder.core.clock_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        profiler = self._profiler
        with profiler._lock:
            if profiler._is_started():
                sources.raised(error)
                profiler._mark(self._start_ns, self._samples, request=True)
                profiler._advance()
