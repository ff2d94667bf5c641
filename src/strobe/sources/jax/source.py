# SPDX-License-Identifier: Apache-2.0
"""JAX as a source: XLA's profiler runs while a window is open; step annotations end steps."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

from strobe.record.costs import in_spans
from strobe.record.messages import show
from strobe.record.source import Report, Wants, announce_held, announce_trace
from strobe.sources import active
from strobe.sources.bounds import most_seconds
from strobe.sources.jax.session import ANCHOR, XlaSession

SECONDS_VARIABLE = "STROBE_JAX_SECONDS"
_REASON = "XLA's profiler, as JAX has it"
# That a window's end waits for what still runs, and how often it looks.
_PATIENCE_S, _SOON_S = 10.0, 0.0005


class JaxSource:
    """Operators, calls and annotations from XLA's profiler (class B)."""

    name = "jax"
    framework = "jax"
    answers = frozenset({"record_shapes", "profile_memory", "activities"})

    def __init__(self) -> None:
        self._session: XlaSession | None = None
        self._wants: Wants | None = None
        self._shapes = False
        self._notes: list[str] = []
        self._sessions = 0

    def examine(self) -> dict[str, Any]:
        """Return the one way that there is."""
        return {
            "path": "xspace",
            "reason": _REASON,
            "version": version("jax"),
            "seconds": most_seconds(SECONDS_VARIABLE),
        }

    def attach(self) -> None:
        """See the program's steps end."""
        annotation = import_module("jax.profiler").StepTraceAnnotation
        leave = annotation.__exit__

        def end_step(self: Any, *error: Any) -> Any:
            try:
                return leave(self, *error)
            finally:
                active.step_ended()

        annotation.__exit__ = end_step

    def detach(self) -> None:
        """Undo it: what the annotation inherits is there again."""
        annotation = import_module("jax.profiler").StepTraceAnnotation
        if "__exit__" in vars(annotation):
            del annotation.__exit__

    def open(self, wants: Wants, log: Path) -> None:
        """Start XLA's profiler, or let it go on if it tells what is wanted."""
        self._wants = wants
        if self._session is None or self._session.ended_by is not None:
            self._stop()
            self._start(log)
        self._shapes |= wants.shapes

    def settle(self) -> None:
        """A window is to end: what the program has asked for in it may still run."""
        if self._session is None or not _has_devices():
            return
        until_s = time.monotonic() + _PATIENCE_S
        settled = False
        try:
            arrays = import_module("jax").live_arrays()
            settled = not _in_callback() and all(_wait_for(array, until_s) for array in arrays)
        finally:  # the wait may be interrupted
            if not settled:
                self._notes.append("what JAX still ran at the end is not known")

    def close(self, log: Path, remaining: Wants | None) -> Report:
        """Stop it, and go on for the windows that are still open."""
        wants = self._wants or Wants()
        self._wants = None
        try:
            self._stop()
        finally:
            if remaining is not None:
                self.open(remaining, log)
        memory = _memory()
        missing: dict[str, str] = {}
        if wants.memory and not memory:
            missing["profile_memory"] = (
                "JAX has no memory statistics of the devices of this process"
            )
        if all(device.startswith("cpu:") for device in _devices()):
            missing["activities"] = "JAX has no accelerator here"
        return Report(
            source_class="B",
            path="xspace",
            reason=_REASON,
            missing=missing,
            facts={"version": version("jax"), "devices": _devices(), "memory": memory},
            own_ns=0,
            costs_in_spans=in_spans(3.5),
        )

    def _start(self, log: Path) -> None:
        self._sessions += 1
        self._shapes = False
        session = XlaSession(log / f"jax-{os.getpid()}-{self._sessions}.xplane.pb")
        self._notes = []
        if not _has_devices():
            # To ask for them would make JAX choose them, which the program may not have prepared.
            self._notes.append("JAX had not yet chosen its devices: only the host was watched")
        session.start(most_seconds(SECONDS_VARIABLE))
        self._session = session
        announce_held(log, self.name)

    def _stop(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        facts = session.stop()
        if session.ended_by is not None:
            note = f"JAX was not recorded to the end: {session.ended_by}"
            self._notes.append(note)
            show(note)
        announce_trace(
            session.path,
            source=self.name,
            reader="xspace with shapes" if self._shapes else "xspace",
            anchor_name=ANCHOR,
            anchors=facts.anchors,
            notes=self._notes,
            threads=facts.threads,
        )


def _in_callback() -> bool:
    """Say whether XLA runs this thread: what it computes would wait for us, and we for it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__") != "jax._src.callback":
        frame = frame.f_back
    return frame is not None


def _wait_for(array: Any, until_s: float) -> bool:
    """Say whether an array is there, at last. If it failed, the program is told when it asks."""
    with contextlib.suppress(RuntimeError):  # it was deleted meanwhile
        while not array.is_ready():
            if time.monotonic() > until_s:
                return False
            time.sleep(_SOON_S)
    return True


def _has_devices() -> bool:
    """Say whether JAX has chosen its devices, which it does on first use."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bool(getattr(bridge, "backends_are_initialized", lambda: False)())


def _devices() -> list[str]:
    if not _has_devices():
        return []
    devices = import_module("jax").local_devices()
    return [f"{device.platform}:{device.id}" for device in devices]


def _memory() -> dict[str, dict[str, int]]:
    """Return the memory statistics of each device that keeps some."""
    if not _has_devices():
        return {}
    found: dict[str, dict[str, int]] = {}
    for device in import_module("jax").local_devices():
        with contextlib.suppress(RuntimeError, NotImplementedError):  # not of every kind of device
            found[f"{device.platform}:{device.id}"] = dict(device.memory_stats() or {})
    return {device: told for device, told in found.items() if told}


source = JaxSource()
