# SPDX-License-Identifier: Apache-2.0
"""Paddle's native profiler, driven below paddle.profiler: its protobuf, nothing else.

There can be one in a process. Its events stay in Paddle's memory until stop() writes them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.errors import CaptureError, StateError
from strobe.record import recorder

ANCHOR = "strobe anchor"
_ANCHORS = 8  # at each end; the first ones are slow, so that they say less
_CPU, _GPU, _XPU, _CUSTOM = 1, 2, 4, 8  # bits of ProfilerOptions.trace_switch
_WARNING = 1
_LOG_LEVEL = "_ZN3fLI17FLAGS_minloglevelE"  # glog's fLI::FLAGS_minloglevel


class PaddleSession:
    """One recording of the native profiler, from start() to stop()."""

    def __init__(self) -> None:
        self._native: Any = None
        self._memory = False
        self.anchors: list[tuple[int, int]] = []
        """For each mark, in order, a time of our clock before and after it began."""

    def start(self, *, memory: bool) -> None:
        """Start it.

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
            native.prepare()
            native.start()
        except (AttributeError, TypeError, RuntimeError, SystemError) as error:
            if isinstance(error, StateError):
                raise
            self._forget_memory()
            message = f"Paddle's profiler cannot be started: {error}"
            raise CaptureError(message) from error
        self._native = native
        self.anchors = _mark()

    def stop(self, path: Path) -> None:
        """Stop, write the events to `path` and let go of them.

        Raises CaptureError where Paddle cannot.
        """
        native, self._native = self._native, None
        self.anchors += _mark()
        try:
            result = native.stop()
            self._forget_memory()
            with _quiet():
                result.save(str(path), "pb")
        except (AttributeError, RuntimeError, SystemError) as error:
            self._forget_memory()
            message = f"Paddle's profiler gave nothing: {str(error).strip()[-200:]}"
            raise CaptureError(message) from error
        if not path.exists():
            message = f"Paddle's profiler did not write {str(path)!r}"
            raise CaptureError(message)

    def _forget_memory(self) -> None:
        if self._memory:
            _core().disable_memory_recorder()
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
    try:
        library = ctypes.CDLL(import_module("paddle.base.libpaddle").__file__)
        level = ctypes.c_int.in_dll(library, _LOG_LEVEL)
    except (ImportError, OSError, ValueError):
        yield
        return
    before = level.value
    level.value = max(before, _WARNING)
    try:
        yield
    finally:
        level.value = before
