# SPDX-License-Identifier: Apache-2.0
"""MindSpore as a source: its profiler is driven, its files are converted by the finalizer."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from strobe.record.messages import show
from strobe.record.source import Report, Wants, announce_trace
from strobe.sources.mindspore import hooks, pipeline
from strobe.sources.mindspore.session import CpuSession, DeviceSession

_CPU = "CPU"
_INTERRUPTED = "MindSpore's own profiler was started meanwhile: operators only until then"
_SET = "the system's clock was set meanwhile: times of operators are uncertain"
_NO_SINK = "dataset_sink_mode was asked for, which MindSpore ignores on a CPU: steps are single"
_NO_SHAPES = "in PyNative mode MindSpore tells no shapes of most operators"
_NO_LAYERS = "in PyNative mode MindSpore tells no layers"
_NO_DEVICE = "MindSpore runs on the CPU here"


class MindSporeSource:
    """Operators and memory by MindSpore's profiler (class B), steps and waits for data by hooks."""

    name = "mindspore"
    framework = "mindspore"
    answers = frozenset(
        {"record_shapes", "profile_memory", "with_modules", "data_process", "activities"}
    )

    def __init__(self) -> None:
        self._session: CpuSession | DeviceSession | None = None
        self._pipeline = pipeline.Pipeline()
        self._wants: Wants | None = None
        self._pid = 0
        self._missing: dict[str, str] = {}
        self._notes: list[str] = []
        self._problems: list[str] = []
        self._sessions = 0

    def examine(self) -> dict[str, Any]:
        """Return which way would be taken; MindSpore need not be imported for it."""
        path = _path(_device() if "mindspore" in sys.modules else _CPU)
        return {"path": path, "reason": _reason(path), "version": version("mindspore")}

    def attach(self) -> None:
        """Watch steps, waits for data, and the start of MindSpore's own profiler."""
        self._problems = hooks.attach(make_room=self._make_room, sinks=self._sinks)

    def detach(self) -> None:
        """Undo it."""
        hooks.detach()
        self._notes.clear()

    def open(self, wants: Wants, log: Path) -> None:
        """Record with what is wanted."""
        if self._wants == wants:
            return
        self._pause(log)
        self._resume(wants, log)

    def close(self, log: Path, remaining: Wants | None) -> Report:
        """Stop, and go on for the windows that are still open."""
        wants = self._wants
        self._pause(log)
        if remaining is not None and wants is not None:
            self._resume(remaining, log)
        path = _path(_device())
        return Report(
            source_class="B",
            path=path,
            reason="; ".join([_reason(path), *self._problems]),
            missing=self._missing | _untold(),
            facts=_describe(),
        )

    def _resume(self, wants: Wants, log: Path) -> None:
        self._missing.pop("data_process", None)
        self._sessions += 1
        self._pid = os.getpid()
        if _device() == _CPU:
            session: CpuSession | DeviceSession = CpuSession(log / self._place())
        else:
            session = DeviceSession(log.parent / self._place())
        session.start(wants)
        self._session = session
        self._wants = wants
        if wants.loading and _device() == _CPU and not self._pipeline.start():
            self._missing["data_process"] = pipeline.AGAIN

    def _pause(self, log: Path) -> None:
        if self._wants is None:
            return
        wants, self._wants = self._wants, None
        if wants.loading:
            self._stop_pipeline(log)
        self._stop_session()

    def _stop_session(self, *notes: str) -> None:
        """Stop MindSpore's profiler, if it is still ours, and tell the finalizer of its files."""
        session, self._session = self._session, None
        if isinstance(session, DeviceSession):
            session.stop()
        elif session is not None:
            anchors = session.stop()
            announce_trace(
                session.folder,
                source=self.name,
                reader="mindspore",
                anchor_name="",
                anchors=anchors.between_ns,
                marks_ns=anchors.marks_ns,
                notes=[*notes, *self._notes, *([_SET] if anchors.was_set() else [])],
            )

    def _stop_pipeline(self, log: Path) -> None:
        folder = log / self._place().replace("mindspore", "minddata")
        anchors = self._pipeline.stop(folder)
        if anchors is None:
            self._missing.setdefault("data_process", pipeline.NOT_SEEN)
            return
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
        if not isinstance(self._session, CpuSession) or self._pid != os.getpid():
            return  # a forked process has what was its parent's
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
    return "its files are converted"


def _untold() -> dict[str, str]:
    """Return what MindSpore does not tell on this device and in this mode: option to reason."""
    if _device() != _CPU:
        return {}
    missing = {"activities": _NO_DEVICE}
    if _mode() == "pynative":
        missing |= {"record_shapes": _NO_SHAPES, "with_modules": _NO_LAYERS}
    return missing


def _describe() -> dict[str, Any]:
    """Return what the finalizer needs: version, mode, and how the work is shared out."""
    facts: dict[str, Any] = {"device_target": _device(), "mode": _mode()}
    parallel = import_module("mindspore").get_auto_parallel_context("parallel_mode")
    if parallel != "stand_alone":
        facts["parallel_mode"] = parallel
    described: dict[str, Any] = {"version": version("mindspore"), "metadata": facts}
    management = import_module("mindspore.communication.management")
    if management.GlobalComm.INITED:
        group = management.GlobalComm.WORLD_COMM_GROUP
        ranks = list(range(management.get_group_size()))
        backend = str(management.GlobalComm.BACKEND)
        described["groups"] = {group: {"ranks": ranks, "backend": backend}}
        facts["world_size"] = len(ranks)
    return described


source = MindSporeSource()
