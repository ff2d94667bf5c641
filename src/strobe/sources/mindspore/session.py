# SPDX-License-Identifier: Apache-2.0
"""MindSpore's own profiler: on a CPU below mindspore.profiler, on a device through it.

What it records stays in MindSpore's memory until stop() has it written as files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.errors import CaptureError, StateError
from strobe.record import recorder
from strobe.record.source import Wants
from strobe.sources import active

_ANCHORS = 8  # at each end, of which the best counts
# The system corrects its wall clock by less than this share; more means that somebody set it.
_MOST_DRIFT = 0.001


@dataclass
class Anchors:
    """Times of a clock that somebody else records by, each between two of ours."""

    clock: Callable[[], int]
    marks_ns: list[int]
    between_ns: list[tuple[int, int]]

    @staticmethod
    def of(clock: Callable[[], int]) -> Anchors:
        """Read the clock for the first time."""
        anchors = Anchors(clock, [], [])
        anchors.add()
        return anchors

    def add(self) -> None:
        """Read both clocks a few times."""
        clock_ns = recorder.core.clock_ns
        for _ in range(_ANCHORS):
            before_ns = clock_ns()
            self.marks_ns.append(self.clock())
            self.between_ns.append((before_ns, clock_ns()))

    def was_set(self) -> bool:
        """Say whether the clock was set between its first and its last reading."""
        theirs = self.marks_ns[-1] - self.marks_ns[0]
        ours = self.between_ns[-1][1] - self.between_ns[0][0]
        return abs(theirs - ours) > _MOST_DRIFT * ours + 1_000_000


class CpuSession:
    """One recording of MindSpore's profiler for CPUs, from start() to stop()."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.anchors: Anchors | None = None
        self.is_paused = False
        self.notes: list[str] = []

    def start(self, wants: Wants) -> None:
        """Start it. Raises StateError while the user's own is active, CaptureError without one."""
        refuse_if_active()
        self.folder.mkdir()
        wait_for_operators()  # what the program asked for before is not of this window
        try:
            profiler = _cpu_profiler()
            profiler.init(str(self.folder))
            profiler.step_profiling_enable(True)
            profiler.enable_op_time()
            if wants.memory:
                profiler.enable_profile_memory()
        except (ImportError, AttributeError, TypeError, RuntimeError) as error:
            message = f"MindSpore's profiler cannot be started: {error}"
            raise CaptureError(message) from error
        self.anchors = Anchors.of(time.time_ns)

    def pause(self) -> None:
        """Record no more, from any thread: this lowers a flag, and touches nothing else.

        Operators may run meanwhile, so that what was recorded must not be written yet.
        """
        assert self.anchors is not None
        _cpu_profiler().step_profiling_enable(False)
        self.anchors.add()
        self.is_paused = True

    def stop(self) -> Anchors:
        """Have the files written, which are none if nothing ran; return what sets their clock."""
        assert self.anchors is not None
        wait_for_operators()
        if not self.is_paused:
            self.anchors.add()
        try:
            _cpu_profiler().stop()
        except RuntimeError as error:
            message = f"MindSpore's profiler could not be stopped: {error}"
            raise CaptureError(message) from error
        return self.anchors


class DeviceSession:
    """One recording of mindspore.Profiler on a device; what it writes is kept as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._profiler: Any = None

    def start(self, wants: Wants) -> None:
        """Start it. Raises StateError while the user's own is active."""
        refuse_if_active()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._profiler = import_module("mindspore.profiler.profiler").Profiler(
            output_path=str(self.folder),
            profile_memory=wants.memory,
            record_shapes=wants.shapes,
            data_process=wants.loading,
            start_profile=False,
        )
        self._profiler.start()

    def stop(self) -> None:
        """Have it written; nothing is analysed here, so what MindSpore's analyse() undoes is."""
        profiler, self._profiler = self._profiler, None
        profiler.stop()
        _interface().finalize()
        _interface().clear()


def refuse_if_active() -> None:
    """Raise StateError while a profiler of the user's is active: MindSpore has one per process."""
    if _interface().is_initialized:
        message = "MindSpore's own profiler is active in this process; stop it first"
        raise StateError(message)


def _interface() -> Any:
    return import_module("mindspore.profiler.profiler_interface").ProfilerInterface


def wait_for_operators() -> None:
    """In PyNative mode operators may still wait to be run.

    MindSpore tells of one that failed whoever waits first, and nobody else: the error is kept for
    the program, whose it is.
    """
    try:
        compiler()._pynative_executor.sync()
    except Exception as error:
        active.keep_error(error)


def compiler() -> Any:
    """Return the module that compiles and runs."""
    try:
        return import_module("mindspore.graph.api")
    except ImportError:  # before 2.9
        return import_module("mindspore.common.api")


def _cpu_profiler() -> Any:
    return import_module("mindspore._c_expression").Profiler.get_instance("CPU")
