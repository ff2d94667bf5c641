# SPDX-License-Identifier: Apache-2.0
"""MindSpore as a source: its profiler is driven, its files are converted by the finalizer."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from strobe.record.messages import show
from strobe.record.source import Report, Wants, announce_held, announce_trace
from strobe.sources.bounds import most_seconds, start_timer
from strobe.sources.mindspore import graphs, hooks, pipeline
from strobe.sources.mindspore.dispatch import Dispatch
from strobe.sources.mindspore.session import CpuSession, DeviceSession, wait_for_operators

SECONDS_VARIABLE = "STROBE_MINDSPORE_SECONDS"
"""MindSpore keeps all that it records of a window in memory."""

_CPU = "CPU"
_INTERRUPTED = "MindSpore's own profiler was started meanwhile: operators only until then"
_SET = "the system's clock was set meanwhile: times of operators are uncertain"
_NO_SINK = "dataset_sink_mode was asked for, which MindSpore ignores on a CPU: steps are single"
_NO_LAYERS = "in PyNative mode MindSpore tells no layers"
_NO_DEVICE = "MindSpore runs on the CPU here"
_NO_THREADS = "MindSpore does not tell the threads of operators"
_SPANS_PER_OPERATOR = 95.0
"""What its profiler costs: see strobe.record.source.Report."""


class MindSporeSource:
    """Operators and memory by MindSpore's profiler (class B), steps and waits for data by hooks."""

    name = "mindspore"
    framework = "mindspore"
    answers = frozenset(
        {"record_shapes", "profile_memory", "with_modules", "data_process", "activities"}
    )

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the bound and the user's profiler come in any thread
        self._session: CpuSession | DeviceSession | None = None
        self._dispatch: Dispatch | None = None
        self._timer: threading.Timer | None = None
        self._graphs = graphs.Graphs()
        self._pipeline = pipeline.Pipeline()
        self._wants: Wants | None = None
        self._pid = 0
        self._missing: dict[str, str] = {}
        self._notes: list[str] = []
        self._problems: list[str] = []
        self._sessions = 0
        self._last: Report | None = None

    def examine(self) -> dict[str, Any]:
        """Return which way would be taken; MindSpore need not be imported for it."""
        path = _path(_device() if "mindspore" in sys.modules else _CPU)
        return {"path": path, "reason": _reason(path), "version": version("mindspore")}

    def attach(self) -> None:
        """Watch steps, waits for data, and the start of MindSpore's own profiler."""
        self._problems = hooks.attach(
            make_room=self._make_room,
            sinks=self._sinks,
            pipeline=self._pipeline,
            graphs=self._graphs,
        )
        self._graphs.look()
        atexit.register(self._end)

    def detach(self) -> None:
        """Undo it."""
        atexit.unregister(self._end)
        hooks.detach()
        self._notes.clear()

    def open(self, wants: Wants, log: Path) -> None:
        """Record with what is wanted."""
        with self._lock:
            if self._wants == wants:
                return
            self._pause()
            self._resume(wants, log)

    def settle(self) -> None:
        """A window is to end: in PyNative mode what was asked for in it may still wait."""
        with self._lock:
            if isinstance(self._session, CpuSession):
                wait_for_operators()

    def close(self, log: Path, remaining: Wants | None) -> Report:
        """Stop, and go on for the windows that are still open."""
        with self._lock:
            if self._last is not None:
                return self._last
            wants = self._wants
            self._pause()
            report = self._report()
            if remaining is not None and wants is not None:
                self._resume(remaining, log)
        return report

    def forget(self) -> None:
        """After a fork: what was started is the parent's, and not for us to stop."""
        self._lock = threading.RLock()
        self._session = self._dispatch = self._timer = self._wants = None
        self._pipeline = pipeline.Pipeline()

    def _end(self) -> None:
        """The program ends, and MindSpore clears its profiler away: earlier than ours may stop."""
        with self._lock:
            if self._wants is None:
                return
            try:
                self._pause()
                self._last = self._report()
            except Exception as error:  # at exit nobody else would say it in a line
                show(f"what was recorded of MindSpore is lost: {error}")

    def _report(self) -> Report:
        path = _path(_device())
        return Report(
            source_class="B",
            path=path,
            reason="; ".join([_reason(path), *self._problems]),
            missing=self._missing | _untold(),
            facts=_describe(),
            own_ns=0,
            costs_in_spans={"operator": _SPANS_PER_OPERATOR},
        )

    def _resume(self, wants: Wants, log: Path) -> None:
        self._missing = {}
        self._sessions += 1
        self._pid = os.getpid()
        if _device() == _CPU:
            self._resume_on_cpu(wants, log)
        else:
            session = DeviceSession(log.parent / self._place())
            session.start(wants)
            self._session = session
        self._wants = wants

    def _resume_on_cpu(self, wants: Wants, log: Path) -> None:
        seconds = most_seconds(SECONDS_VARIABLE)
        session = CpuSession(log / self._place())
        session.start(wants)
        self._session = session
        announce_held(log, self.name)
        if wants.shapes:
            self._dispatch = Dispatch()
            problem = self._dispatch.start()
            if problem:
                self._missing["record_shapes"] = problem
        if wants.loading:
            folder = log / self._place().replace("mindspore", "minddata")
            problem = self._pipeline.start(folder)
            if problem:
                self._missing["data_process"] = problem
        self._timer = start_timer(seconds, self._end_early, [session, seconds])

    def _pause(self) -> None:
        if self._wants is None:
            return
        wants, self._wants = self._wants, None
        if wants.loading and not isinstance(self._session, DeviceSession):
            self._stop_pipeline()
        self._stop_session()

    def _stop_session(self, *notes: str) -> None:
        """Stop MindSpore's profiler, if it is still ours, and tell the finalizer of its files."""
        session, self._session = self._session, None
        dispatch, self._dispatch = self._dispatch, None
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if isinstance(session, DeviceSession):
            session.stop()
        elif session is not None:
            if dispatch is not None:
                dispatch.pause()
            anchors = session.stop()
            if dispatch is not None:
                dispatch.stop(session.folder)
            notes += (*session.notes, *self._graphs.save(session.folder))
            announce_trace(
                session.folder,
                source=self.name,
                reader="mindspore",
                anchor_name="",
                anchors=anchors.between_ns,
                marks_ns=anchors.marks_ns,
                notes=[*notes, *self._notes, *([_SET] if anchors.was_set() else [])],
            )

    def _end_early(self, session: CpuSession, seconds: float) -> None:
        """The bound is reached, in a thread of its own: what MindSpore holds must not grow on."""
        with self._lock:
            if self._session is not session or self._pid != os.getpid():
                return
            session.pause()
            if self._dispatch is not None:
                self._dispatch.pause()
            limit = (
                f"operators are recorded for {seconds:g} s of a window at most; make it shorter, or"
                f" set {SECONDS_VARIABLE}"
            )
            session.notes.append(limit)
            show(f"mindspore: {limit}")

    def _stop_pipeline(self) -> None:
        folders, anchors = self._pipeline.stop()
        if anchors is None or not folders:
            self._missing.setdefault("data_process", pipeline.NOT_SEEN)
            return
        for folder in folders:
            announce_trace(
                folder,
                source=self.name,
                reader="minddata",
                anchor_name="",
                anchors=anchors.between_ns,
                marks_ns=anchors.marks_ns,
                notes=[],
            )

    def _place(self) -> str:
        return f"mindspore-{os.getpid()}-{self._sessions}"

    def _make_room(self) -> None:
        """MindSpore has one profiler per process: give it to the user, who asks for it now."""
        with self._lock:
            if not isinstance(self._session, CpuSession):
                return
            try:
                self._stop_session(_INTERRUPTED)
            except Exception as error:  # the user's profiler has to start
                show(f"what was recorded of MindSpore is lost: {error}")
                return
        show("MindSpore's own profiler was started: strobe records no operators from here on")

    def _sinks(self) -> None:
        if _device() == _CPU and _NO_SINK not in self._notes:
            self._notes.append(_NO_SINK)


def _context() -> Any:
    return import_module("mindspore.context")


def _device() -> str:
    return str(_context().get_context("device_target"))


def _mode() -> str:
    context = _context()
    return "graph" if context.get_context("mode") == context.GRAPH_MODE else "pynative"


def _path(device: str) -> str:
    return "profiler of the CPU" if device == _CPU else "mindspore.Profiler"


def _reason(path: str) -> str:
    if path == "mindspore.Profiler":
        return "MindSpore runs on a device; its output is kept in the recording, not converted"
    return f"its files are converted; {_NO_THREADS}"


def _untold() -> dict[str, str]:
    """Return what MindSpore does not tell on this device and in this mode: option to reason."""
    if _device() != _CPU:
        return {}
    missing = {"activities": _NO_DEVICE}
    if _mode() == "pynative":
        missing["with_modules"] = _NO_LAYERS
    return missing


def _describe() -> dict[str, Any]:
    """Return what the finalizer needs: version, mode, and how the work is shared out."""
    facts: dict[str, Any] = {"device_target": _device(), "mode": _mode()}
    facts |= graphs.parallel_facts()
    known = import_module("mindspore").__version__
    described: dict[str, Any] = {"version": known, "metadata": facts}
    management = import_module("mindspore.communication.management")
    if management.GlobalComm.INITED:
        described["groups"] = _groups(management)
        facts["world_size"] = management.get_group_size()
        facts["rank"] = management.get_rank()
    return described


def _groups(management: Any) -> dict[str, Any]:
    """Return ranks and backend of the groups that were made here, by name."""
    backend = str(management.GlobalComm.BACKEND)
    world = list(range(management.get_group_size()))
    ranks = {management.GlobalComm.WORLD_COMM_GROUP: world}
    helper = import_module("mindspore.communication._comm_helper")
    ranks |= getattr(getattr(helper, "_ExistingGroup", None), "ITEMS", {})
    return {name: {"ranks": sorted(each), "backend": backend} for name, each in ranks.items()}


source = MindSporeSource()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=source.forget)
