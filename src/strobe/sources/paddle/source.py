# SPDX-License-Identifier: Apache-2.0
"""PaddlePaddle as a source: operators by its native profiler, the rest by hooks."""

from __future__ import annotations

import json
import os
import threading
import weakref
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from strobe.errors import CaptureError, StateError, UsageError
from strobe.record import recorder
from strobe.record.costs import in_spans
from strobe.record.messages import show
from strobe.record.source import Report, Wants, announce_held, announce_trace
from strobe.sources import active, building, held
from strobe.sources.bounds import most_seconds, start_timer
from strobe.sources.paddle import build, communication, loading
from strobe.sources.paddle.annotations import Annotations
from strobe.sources.paddle.session import ANCHOR, PaddleSession
from strobe.sources.patches import Patches

SECONDS_VARIABLE = "STROBE_PADDLE_SECONDS"
"""Paddle keeps all events of a window in memory, and 15 times as much while it stops."""

_DRIVEN = "its native profiler, driven directly"


class PaddleSource:
    """Operators by Paddle's native profiler (class B); layers, phases and loading by hooks (A)."""

    name = "paddle"
    framework = "paddle"
    answers = frozenset(
        {
            *("profile_memory", "with_modules", "data_process", "activities"),
            *("record_shapes", "with_flops"),
        }
    )

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the user's profiler may come in any thread
        self._annotations = Annotations(
            on_step=self._stepped, on_late=self._end_early, on_problem=self._limit
        )
        self._patches = Patches("Paddle")
        self._session: PaddleSession | None = None
        self._inherited: PaddleSession | None = None
        self._wants: Wants | None = None
        self._log: Path | None = None
        self._limits: list[str] = []
        self._recorded = False
        self._missing: dict[str, str] = {}
        self._marker: weakref.ref[Any] | None = None
        self._seconds = 0.0
        self._timer: threading.Timer | None = None
        self._sessions = 0

    def examine(self) -> dict[str, Any]:
        """Return which way would be taken, without importing Paddle."""
        try:
            found = version("paddlepaddle")
        except PackageNotFoundError:  # a build for a device has another name
            found = "unknown"
        facts = {"path": "native", "reason": _DRIVEN, "version": found}
        try:
            plan = build.make_plan()
            facts["shapes"] = building.foresee(plan, build=building.may_build())
        except (CaptureError, OSError) as error:
            facts["shapes"] = f"not built: {error}"
        return facts

    def attach(self) -> None:
        """Put the hooks in place."""
        problems = [*loading.attach(), *self._annotations.attach()]
        self._patches.put("paddle.profiler.profiler", "_Profiler", self._stand_in)
        communication.attach()
        self._missing = {}
        if problems:
            self._missing["data_process"] = "; ".join(problems)
        if not _has_device():
            self._missing["activities"] = "this build of Paddle has no accelerator"

    def detach(self) -> None:
        """Undo it."""
        self._patches.undo()
        self._annotations.detach()
        loading.detach()
        communication.detach()
        self._marker = None

    def open(self, wants: Wants, log: Path) -> None:
        """Record with what is wanted."""
        with self._lock:
            if self._wants == wants:
                return
            if self._wants is not None:
                self._pause(log)
            self._resume(wants, log)

    def close(self, log: Path, remaining: Wants | None) -> Report:
        """Stop, and go on for the windows that are still open."""
        with self._lock:
            shapes = self._wants is not None and self._wants.shapes
            self._pause(log)
            recorded, limits, missing = self._recorded, self._limits, dict(self._missing)
            if remaining is not None:
                self._resume(remaining, log)
        return Report(
            source_class="B",
            path="native" if recorded else "hooks",
            reason="; ".join([_DRIVEN, *limits] if recorded else limits),
            missing=missing,
            facts={"version": import_module("paddle").__version__, **communication.describe()},
            own_ns=0,
            costs_in_spans=in_spans(4.0, memory=5.0, attributes=7.0 * shapes) if recorded else {},
        )

    def _resume(self, wants: Wants, log: Path) -> None:
        self._seconds = most_seconds(SECONDS_VARIABLE)
        self._limits, self._recorded = [], False
        self._wants, self._log = wants, log
        session = PaddleSession()
        supplements = self._supplements(wants)
        # To ask each layer costs as much as all shapes of operators do.
        by_layer = wants.shapes and (wants.modules or supplements is None)
        self._annotations.resume(modules=wants.modules, shapes=by_layer)
        if wants.memory:
            _write_alive(log)
            held.tellers[self.name] = _held
        try:
            session.start(memory=wants.memory, supplements=supplements)
        except (CaptureError, StateError) as error:
            self._limit(f"operators are not recorded: {error}")
            return
        self._session, self._recorded = session, True
        announce_held(log, self.name)
        self._annotations.native_is_ours = True
        self._annotations.limit(self._seconds)
        self._timer = start_timer(self._seconds, self._hush, [session])

    def _supplements(self, wants: Wants) -> Any:
        """Return what takes the shapes of operators; None where none are wanted, or to be had."""
        asked = {"record_shapes": wants.shapes, "with_flops": wants.flops}
        for option in asked:
            self._missing.pop(option, None)
        if not any(asked.values()):
            return None
        try:
            return build.load(build=building.may_build())
        except (CaptureError, UsageError) as error:
            reason = f"Paddle keeps the shapes of operators to itself, and what takes them: {error}"
            self._missing |= {option: reason for option, wanted in asked.items() if wanted}
            return None

    def _pause(self, log: Path) -> None:
        self._wants = None
        held.tellers.pop(self.name, None)
        self._annotations.pause()
        self._stop(log)

    def _stop(self, log: Path) -> None:
        """Stop the native profiler, if it runs, and tell the finalizer of its file."""
        session, self._session = self._session, None
        if session is None:
            return
        self._annotations.native_is_ours = False
        if self._timer is not None:
            self._timer.cancel()
        self._sessions += 1
        path = log / f"paddle-{os.getpid()}-{self._sessions}.pb"
        try:
            session.stop(path)
            communication.write_buckets(path)
            announce_trace(
                path,
                source=self.name,
                reader="paddle",
                anchor_name=ANCHOR,
                anchors=session.anchors,
                notes=[],
            )
        except (CaptureError, OSError) as error:
            self._limit(f"operators are lost: {error}")

    def forget(self) -> None:
        """After a fork: what was started is the parent's, and not for us to stop."""
        self._lock = threading.RLock()
        self._inherited, self._session = self._session, None
        self._timer = None
        self._annotations.native_is_ours = False
        self._annotations.forget_limit()

    def _hush(self, session: PaddleSession) -> None:
        """The bound is reached: what Paddle holds must not grow, whatever the program does.

        It is let go where the program next calls a hook, or at the end: see PaddleSession.hush().
        """
        with self._lock:
            if self._session is session and session.hush():
                self._tell_bound()

    def _end_early(self) -> None:
        """The bound is over, in a thread of the program's between two operators."""
        with self._lock:
            if self._session is not None and self._log is not None:
                self._stop(self._log)
                self._tell_bound()

    def _tell_bound(self) -> None:
        text = (
            f"operators are recorded for {self._seconds:g} s of a window at most; "
            f"make it shorter, or set {SECONDS_VARIABLE}"
        )
        self._limit(text)

    def _limit(self, text: str) -> None:
        """Keep what limits the recording, and show it once."""
        if text not in self._limits:
            self._limits.append(text)
            show(f"paddle: {text}")

    def _stepped(self, trainer: Any) -> None:
        """A step ends with that of the optimizer, or program, which was the first to make one."""
        marker = self._marker() if self._marker is not None else None
        if marker is None:
            self._marker = weakref.ref(trainer)
        if marker is None or marker is trainer:
            active.step_ended()

    def _stand_in(self, native: Any) -> Any:
        return _Door(native, self._give_way)

    def _give_way(self) -> None:
        """The user's own profiler begins, and there can be one."""
        with self._lock:
            if self._session is not None and self._log is not None:
                self._stop(self._log)
                self._limit("operators are recorded up to the start of paddle.profiler only")


class _Door:
    """What paddle.profiler makes its native profilers by; there is none before it is needed."""

    def __init__(self, native: Any, give_way: Any) -> None:
        self._native = native
        self._give_way = give_way

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def create(self, *arguments: Any) -> _Later:
        return _Later(self._native, self._give_way, arguments)


class _Later:
    """A native profiler of the user's, from its first prepare() on."""

    def __init__(self, kind: Any, give_way: Any, arguments: tuple[Any, ...]) -> None:
        self._kind = kind
        self._give_way = give_way
        self._arguments = arguments
        self._native: Any = None

    def prepare(self) -> None:
        if self._native is None:
            self._give_way()
            self._native = self._kind.create(*self._arguments)
        self._native.prepare()

    def start(self) -> None:
        self._native.start()

    def stop(self) -> Any:
        return self._native.stop()


def _has_device() -> bool:
    paddle = import_module("paddle")
    if paddle.is_compiled_with_cuda() or paddle.is_compiled_with_xpu():
        return True
    return bool(paddle.device.get_all_custom_device_type())


def _bytes_in_use() -> int:
    core = import_module("paddle.base.core")
    return int(core.host_memory_stat_current_value("Allocated", 0))


def _held() -> list[held.Held]:
    """Return what Paddle has in use now: whose it is its profiler tells only when it stops."""
    return [held.Held("(all of Paddle)", None, None, _bytes_in_use())]


def _write_alive(log: Path) -> None:
    """Write what Paddle has in use into the log: one block for all, since it does not list them."""
    start_ns = recorder.core.clock_ns()
    content = {"pid": os.getpid(), "start_ns": start_ns, "storages": [(0, _bytes_in_use(), -1)]}
    (log / f"alive-{os.getpid()}-{start_ns}.json").write_text(json.dumps(content))


source = PaddleSource()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=source.forget)
