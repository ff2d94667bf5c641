# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own profiler (Kineto), driven below torch.profiler: its raw trace, nothing else.

It is what sees devices. Its events stay in torch's memory until stop() writes them to a file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.errors import CaptureError, StateError
from strobe.record import recorder
from strobe.record.source import Wants

ANCHOR = "strobe anchor"
_ANCHORS = 8  # at each end; the first ones are slow, so that they say less
_DEVICES = ("CUDA", "XPU", "MTIA", "HPU")
_LOG_LEVEL = "KINETO_LOG_LEVEL"
_SILENT = "6"

# What torch's flag is while the session is ours: true, as torch wants it, but not the True that
# another profiler of this process would put there.
_OURS: Any = 1


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What has to be known to read the file."""

    anchor_name: str
    """Name of the marks that lay torch's clock beside ours."""
    anchors: list[tuple[int, int]]
    """For each mark, in order, a time of our clock before and after it began."""
    activities: list[str]
    """What torch watched: CPU, CUDA, ..."""
    all_threads: bool
    """Whether threads are in it that neither the starting one nor autograd made use of."""


class KinetoSession:
    """One recording of torch's profiler, from start() to stop()."""

    def __init__(self) -> None:
        self._anchors: list[tuple[int, int]] = []
        self._activities: dict[str, Any] = {}
        self._all_threads = False
        self._thread = 0

    def start(self, wants: Wants) -> None:
        """Start torch's profiler, quietly.

        With memory only the calling thread and those of autograd are seen, and stop() must be
        called in the same thread: torch tells allocations only to a profiler of the thread.
        Raises StateError while another one is active, CaptureError where torch has none.
        """
        if _another_is_active():
            message = "torch's profiler is already active in this process; stop it first"
            raise StateError(message)
        try:
            autograd = import_module("torch._C._autograd")
            self._activities = _activities()
            config, self._all_threads = _config(wants)
            watched = set(self._activities.values())
            with _quiet():
                autograd._prepare_profiler(config, watched)
                autograd._enable_profiler(config, watched)
        except (ImportError, AttributeError, TypeError, RuntimeError) as error:
            message = f"torch's profiler cannot be started: {error}"
            raise CaptureError(message) from error
        self._thread = threading.get_ident()
        _profiler()._is_profiler_enabled = _OURS
        self._anchors = _mark()

    def stop(self, path: Path) -> Facts:
        """Stop, write torch's trace to `path` and let go of it.

        Raises CaptureError where there is nothing to write: another profiler has taken over since.
        """
        if _profiler()._is_profiler_enabled is not _OURS:
            message = "another profiler of torch was started meanwhile, which ended this one"
            raise CaptureError(message)
        if not self._all_threads and threading.get_ident() != self._thread:
            message = "with memory, torch's profiler stops only in the thread it started in"
            raise CaptureError(message)
        self._anchors += _mark()
        for name in self._activities.keys() & set(_DEVICES):
            getattr(import_module("torch"), name.lower()).synchronize()
        _profiler()._is_profiler_enabled = False
        try:
            import_module("torch._C._autograd")._disable_profiler().save(str(path))
        except RuntimeError as error:
            message = f"torch's profiler could not write {str(path)!r}: {error}"
            raise CaptureError(message) from error
        if not path.exists():
            message = f"torch's profiler did not write {str(path)!r}"
            raise CaptureError(message)
        return Facts(
            anchor_name=ANCHOR,
            anchors=self._anchors,
            activities=sorted(self._activities),
            all_threads=self._all_threads,
        )


def _profiler() -> Any:
    return import_module("torch.autograd.profiler")


def _another_is_active() -> bool:
    """Whether a profiler was started in this thread, or by torch.profiler in any."""
    enabled = getattr(import_module("torch._C._autograd"), "_profiler_enabled", lambda: False)
    return bool(getattr(_profiler(), "_is_profiler_enabled", False) or enabled())


def _activities() -> dict[str, Any]:
    """The host and the devices that are there, by name."""
    torch = import_module("torch")
    kinds = import_module("torch._C._profiler").ProfilerActivity
    supported = import_module("torch._C._autograd")._supported_activities()
    found = {"CPU": kinds.CPU}
    for name in _DEVICES:
        device = getattr(torch, name.lower(), None)
        if getattr(kinds, name, None) in supported and device is not None and device.is_available():
            found[name] = getattr(kinds, name)
    return found


def _config(wants: Wants) -> tuple[Any, bool]:
    """What torch is asked for, and whether that includes all threads."""
    profiler = import_module("torch._C._profiler")
    # trace_only leaves out torch's own list of events, a third of the time that its stop takes.
    choices: list[dict[str, bool]] = [{"trace_only": True}, {}]
    if not wants.memory:
        choices = [{"profile_all_threads": True, **options} for options in choices] + choices
    for options in choices:
        try:
            experimental = profiler._ExperimentalConfig(**options)
        except TypeError:  # this version of torch has no such option
            continue
        state = profiler.ProfilerState.KINETO
        shapes = wants.shapes or wants.strides or wants.flops
        flags = (shapes, wants.memory, False, False, False)
        config = profiler.ProfilerConfig(state, *flags, experimental)
        return config, "profile_all_threads" in options
    message = "no known configuration"
    raise AttributeError(message)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from printing a line per start and stop, if it has not looked yet whether to."""
    if _LOG_LEVEL in os.environ:
        yield
        return
    os.environ[_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        os.environ.pop(_LOG_LEVEL, None)


def _mark() -> list[tuple[int, int]]:
    """Put marks into the trace and return between which times of our clock each began."""
    slow = _profiler().record_function
    mark = getattr(import_module("torch._C._profiler"), "_RecordFunctionFast", slow)
    clock_ns = recorder.core.clock_ns
    times = []
    for _ in range(_ANCHORS):
        one = mark(ANCHOR)
        before_ns = clock_ns()
        one.__enter__()
        times.append((before_ns, clock_ns()))
        one.__exit__(None, None, None)
    return times
