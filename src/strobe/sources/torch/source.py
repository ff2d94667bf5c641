# SPDX-License-Identifier: Apache-2.0
"""PyTorch as a source: which way it is recorded, and what is asked of that way."""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Literal, NamedTuple

from strobe.errors import CaptureError, UsageError
from strobe.record import recorder
from strobe.record.clocks import counter_problem
from strobe.record.costs import in_spans
from strobe.record.messages import show
from strobe.record.source import Report, Wants, announce_trace
from strobe.sources import active, building, held
from strobe.sources.torch import alive, build, communication, loading, modules, room
from strobe.sources.torch.kineto import KinetoSession

PATH_VARIABLE = "STROBE_TORCH"
_PATHS = ("", "callback", "kineto")
_BUILT = "built for the installed PyTorch"

_BY_CALLBACK = ("operator", "backward", "annotation", "communication")
"""Categories of what the callback records."""
# Bits of the callback's options.
_SHAPES, _STRIDES, _CONCRETE, _MEMORY, _COMMUNICATION = 1, 2, 4, 8, 16


class TorchSource:
    """Operators by the callback (class A) or Kineto (class B), layers and loading by hooks."""

    name = "torch"
    framework = "torch"
    answers = frozenset(
        {
            *("record_shapes", "with_flops", "profile_memory", "with_modules", "data_process"),
            "activities",
        }
    )

    def __init__(self) -> None:
        self._library: Any = None
        self._kineto: KinetoSession | None = None
        self._path: Literal["callback", "kineto"] | None = None
        self._reason = ""
        self._wants: Wants | None = None
        self._missing: dict[str, str] = {}
        self._step_hook: Any = None
        self._marker: weakref.ref[Any] | None = None
        self._watched_thread: int | None = None
        self._sessions = 0
        self._costs: _Costs | None = None

    def examine(self) -> dict[str, Any]:
        """Return which way would be taken, and why, without importing torch."""
        facts: dict[str, Any] = {}
        problem = _obstacle()
        try:
            facts["cache"] = str(building.cache_folder())
            plan = build.make_plan()
            facts["compiler"] = shlex.join(plan.compiler) or "none"
            facts["library"] = str(plan.library)
            facts["callback"] = build.foresee(plan, build=building.may_build())
        except (CaptureError, OSError) as error:
            facts["callback"] = f"not built: {error}"
            problem = problem or str(error)
        if problem:
            return {"path": "kineto", "reason": problem, **facts}
        reason = _BUILT if facts["callback"] == "built" else "it will be built on first use"
        if "torch" not in sys.modules:
            reason += "; kineto where an accelerator is active"
        return {"path": "callback", "reason": reason, **facts}

    def attach(self) -> None:
        """Choose the way, and watch data loading and the optimizer's steps."""
        if self._path is None:
            self._choose()
        communication.attach()
        if self._path != "kineto" or not _accelerator_is_active():
            self._missing["activities"] = "PyTorch has no accelerator here, or does not record it"
        problems = loading.attach()
        if problems:
            self._missing["data_process"] = "; ".join(problems)
        self._watch_steps()

    def detach(self) -> None:
        """Undo it."""
        loading.detach()
        communication.detach()
        if self._step_hook is not None:
            self._step_hook.remove()
            self._step_hook = None
        self._marker = None
        self._missing.clear()

    def open(self, wants: Wants, log: Path) -> None:
        """Record operators with what is wanted."""
        if self._wants == wants:
            return
        if self._wants is not None:
            self._pause(log)
        else:
            self._missing.pop("profile_memory", None)
        if wants.memory:
            alive.write(log)
        self._resume(wants)

    def close(self, log: Path, remaining: Wants | None) -> Report:
        """Stop, and go on for the windows that are still open."""
        wants = self._wants
        costs_ns = None
        if self._costs is not None:
            costs_ns = self._costs.in_program(self._library.strobe_torch_timed())
        self._pause(log)
        if remaining is not None and wants is not None:
            self._resume(remaining)
        elif self._path == "callback":
            recorder.core.owners_forget()
        by_kineto = self._path == "kineto"
        shapes = wants is not None and wants.shapes
        return Report(
            source_class="A" if self._path == "callback" else "B",
            path=self._path or "none",
            reason=self._reason,
            missing=dict(self._missing),
            facts=_describe(),
            own_ns=0 if by_kineto or costs_ns is not None else None,
            costs_ns=costs_ns or {},
            costs_in_spans=in_spans(4.5, attributes=2.5 * shapes) if by_kineto else {},
        )

    def _resume(self, wants: Wants) -> None:
        if self._path == "callback":
            bits = wants.shapes * _SHAPES | wants.strides * _STRIDES | wants.flops * _CONCRETE
            bits |= wants.memory * _MEMORY | communication.is_used() * _COMMUNICATION
            recorder.core.use_counter(_counter_is_good())
            if not self._library.strobe_torch_start(bits):
                self._missing["profile_memory"] = "torch's own profiler is active in this thread"
            elif wants.memory:
                room.attach(self._make_room)
                held.tellers[self.name] = alive.held
                self._watched_thread = threading.get_ident()
            self._costs = _Costs.measure(self._library)
        else:
            self._kineto = KinetoSession()
            self._kineto.start(wants)
        if wants.modules:
            modules.attach()
        self._wants = wants

    def _pause(self, log: Path) -> None:
        if self._wants is None:
            return
        modules.detach()
        held.tellers.pop(self.name, None)
        self._wants = None
        if self._path == "callback":
            self._library.strobe_torch_stop()
            self._leave_room()
        elif self._kineto is not None:
            session, self._kineto = self._kineto, None
            self._sessions += 1
            path = log / f"kineto-{os.getpid()}-{self._sessions}.json"
            facts = session.stop(path)
            partial = "only the thread that started it and those of autograd were seen"
            announce_trace(
                path,
                source=self.name,
                reader="kineto",
                anchor_name=facts.anchor_name,
                anchors=facts.anchors,
                notes=[] if facts.all_threads else [partial],
            )

    def _leave_room(self) -> None:
        """Undo it, unless another thread keeps what only it can take away."""
        thread = self._watched_thread
        if thread == threading.get_ident() or thread not in sys._current_frames():
            room.detach()
        else:
            room.ask(thread, self._clear_room)

    def _clear_room(self) -> None:
        """In the thread that keeps it, unless something is recorded again."""
        if self._wants is None:
            self._make_room()

    def _make_room(self) -> None:
        if not self._library.strobe_torch_make_room():
            return
        if self._wants is None:  # stopped by another thread, which could not do it
            room.detach()
            return
        reason = "torch's own profiler was started meanwhile; what happened beside it is not here"
        self._missing["profile_memory"] = reason

    def _choose(self) -> None:
        """Take the callback unless something forbids it, and remember why."""
        reason = _obstacle()
        if reason is None:
            try:
                self._library = build.load(build=building.may_build())
                self._path, self._reason = "callback", _BUILT
                return
            except CaptureError as error:
                reason = str(error)
                show(f"PyTorch is recorded by Kineto, not by the callback: {reason}")
        self._path, self._reason = "kineto", reason

    def _watch_steps(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._step_hook = register_optimizer_step_post_hook(self._optimizer_stepped)

    def _optimizer_stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """A step ends with that of the optimizer which was the first to make one."""
        marker = self._marker() if self._marker is not None else None
        if marker is None:
            self._marker = weakref.ref(optimizer)
        if marker is None or marker is optimizer:
            active.step_ended()


class _Costs(NamedTuple):
    """What records of the callback cost in nanoseconds; the last two where caches are cold."""

    operator_ns: float
    memory_ns: float
    cold_operator_ns: float
    cold_callback_ns: float
    """The part of it that is the callback's; the rest is torch's."""

    @classmethod
    def measure(cls, library: Any) -> _Costs | None:
        """Return them, None if they cannot be measured now."""
        found = (ctypes.c_double * len(cls._fields))()
        return cls(*found) if library.strobe_torch_calibrate(found) else None

    def in_program(self, timed_ns: float) -> dict[str, float]:
        """Return what a record cost in the program, by kind; `timed_ns` is the callback's part.

        torch's part cannot be timed there. It is taken to be that of the trial with cold caches:
        operators have data of their own.
        """
        callback_ns = timed_ns if timed_ns > 0 else self.cold_callback_ns
        operator_ns = callback_ns + max(0.0, self.cold_operator_ns - self.cold_callback_ns)
        slower = operator_ns / self.operator_ns if self.operator_ns > 0 else 1.0
        costs = dict.fromkeys(_BY_CALLBACK, operator_ns)
        return {**costs, "memory": self.memory_ns * max(1.0, slower)}


def _obstacle() -> str | None:
    """Say why the callback is not to be taken here; None if it is. Raises UsageError."""
    wanted = os.environ.get(PATH_VARIABLE, "")
    if wanted not in _PATHS:
        message = f"{PATH_VARIABLE}={wanted!r}: must be 'callback' or 'kineto', or not be set"
        raise UsageError(message)
    if wanted == "kineto":
        return f"{PATH_VARIABLE}=kineto"
    if recorder.KIND != "C":
        return build.NO_TABLE
    if wanted != "callback" and _accelerator_is_active():
        return "an accelerator is active, whose kernels only Kineto sees"
    return None


def _accelerator_is_active() -> bool:
    """Ask torch, if it has been imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    return bool(getattr(torch, "accelerator", torch.cuda).is_available())


def _describe() -> dict[str, Any]:
    """Return what the finalizer needs of torch: its version and its groups of processes."""
    import torch

    return {"version": torch.__version__, **communication.describe()}


source = TorchSource()


@functools.cache
def _counter_is_good() -> bool:
    return counter_problem() is None
