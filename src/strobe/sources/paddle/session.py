# SPDX-License-Identifier: Apache-2.0
"""Paddle's native profiler, driven below paddle.profiler: its protobuf, and shapes beside it.

There can be one in a process. Its events stay in Paddle's memory until stop() writes them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.errors import CaptureError, StateError
from strobe.record import recorder

ANCHOR = "strobe anchor"
SHAPES = ".shapes"
"""Ending of the file beside the protobuf; strobe.importers.paddle looks for it."""
_ANCHORS = 8  # at each end; the first ones are slow, so that they say less
_CPU, _GPU, _XPU, _CUSTOM = 1, 2, 4, 8  # bits of ProfilerOptions.trace_switch
_WARNING = 1
_LOG_LEVEL = "_ZN3fLI17FLAGS_minloglevelE"  # glog's fLI::FLAGS_minloglevel
_TRACE_LEVEL = "_ZZN3phi14HostTraceLevel11GetInstanceEvE8instance"  # an int, -1 for no events
_NOTHING = -1


class PaddleSession:
    """One recording of the native profiler, from start() to stop()."""

    def __init__(self) -> None:
        self._native: Any = None
        self._memory = False
        self._supplements: Any = None
        self._level: int | None = None
        self.anchors: list[tuple[int, int]] = []
        """For each mark, in order, a time of our clock before and after it began."""

    def start(self, *, memory: bool, supplements: Any = None) -> None:
        """Start it, with memory or not, and with shapes where there is what takes them (build.py).

        Raises StateError where another one exists, CaptureError where it cannot be had.
        """
        try:
            native = create()
            if native is None:
                message = "a paddle.profiler.Profiler exists in this process; delete it first"
                raise StateError(message)
            if memory:
                _core().enable_memory_recorder()
            self._memory = memory
            if supplements is not None:
                supplements.strobe_paddle_forget()  # of a profiler that never took them
                _core().enable_op_info_recorder()
            self._supplements = supplements
            native.prepare()
            native.start()
        except (AttributeError, TypeError, RuntimeError, SystemError) as error:
            if isinstance(error, StateError):
                raise
            self._turn_off()
            message = f"Paddle's profiler cannot be started: {error}"
            raise CaptureError(message) from error
        self._native = native
        self.anchors = _mark()

    def hush(self) -> bool:
        """Have nothing recorded from now on, and say whether that could be done.

        It can be called in any thread at any time, as stop() cannot: while an operator runs in
        another one, what it writes to must stay.
        """
        level = _number("libphi_core.so", _TRACE_LEVEL)
        if level is None or self._native is None:
            return False
        self._level, level.value = level.value, _NOTHING
        self._turn_off()
        return True

    def stop(self, path: Path) -> None:
        """Stop, write the events to `path` and let go of them; shapes are beside it (SHAPES).

        Raises CaptureError where Paddle cannot.
        """
        native, self._native = self._native, None
        self._turn_off()
        level = _number("libphi_core.so", _TRACE_LEVEL)
        if level is not None and self._level is not None:
            level.value = self._level  # for the marks
        self.anchors += _mark()
        try:
            result = native.stop()
            with _quiet():
                result.save(str(path), "pb")
            self._take_supplements(path)
        except (AttributeError, RuntimeError, SystemError) as error:
            message = f"Paddle's profiler gave nothing: {str(error).strip()[-200:]}"
            raise CaptureError(message) from error
        if not path.exists():
            message = f"Paddle's profiler did not write {str(path)!r}"
            raise CaptureError(message)

    def _take_supplements(self, path: Path) -> None:
        if self._supplements is None:
            return
        beside = path.with_name(path.name + SHAPES)
        if self._supplements.strobe_paddle_take(os.fsencode(beside)) < 0:
            beside.unlink(missing_ok=True)

    def _turn_off(self) -> None:
        if self._memory:
            _core().disable_memory_recorder()
        if self._supplements is not None:
            _core().disable_op_info_recorder()
        self._memory = False


def create() -> Any:
    """Return a native profiler of all that this build can see; None while there is another."""
    kind = _core()._Profiler
    options = _core().ProfilerOptions()
    options.trace_switch |= _CPU
    if kind.is_cupti_supported():
        options.trace_switch |= _GPU
    if kind.is_xpti_supported():
        options.trace_switch |= _XPU
    devices = import_module("paddle").device.get_all_custom_device_type()
    if devices:
        options.trace_switch |= _CUSTOM
    return kind.create(options, devices)


def _core() -> Any:
    return import_module("paddle.base.core")


def _mark() -> list[tuple[int, int]]:
    """Put marks into the trace and return between which times of our clock each began."""
    mark = _core()._RecordEvent
    kind = _core().TracerEventType.PythonUserDefined
    clock_ns = recorder.core.clock_ns
    times = []
    for _ in range(_ANCHORS):
        before_ns = clock_ns()
        one = mark(ANCHOR, kind)
        times.append((before_ns, clock_ns()))
        one.end()
    return times


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Paddle from printing a line about the file, where its log can be reached."""
    level = _number("libpaddle.so", _LOG_LEVEL)
    if level is None:
        yield
        return
    before = level.value
    level.value = max(before, _WARNING)
    try:
        yield
    finally:
        level.value = before


def _number(library: str, name: str) -> Any:
    """Return an int of one of Paddle's libraries; None where it is not in this version."""
    core = import_module("paddle.base.libpaddle")
    folder = Path(str(core.__file__)).parent
    path = folder / library if library == "libpaddle.so" else folder.parent / "libs" / library
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(path)), name)
    except (OSError, ValueError):
        return None
