# SPDX-License-Identifier: Apache-2.0
"""The sources of this process: they come with their frameworks and go with the last profiler.

Nothing that goes wrong in a source may reach the program: it is kept, and shown with the recording.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from strobe.errors import StrobeError
from strobe.record.messages import show
from strobe.record.source import Report, Source, Wants

# framework -> the module whose `source` is ours
SOURCES = {
    "torch": "strobe.sources.torch.source",
    "jax": "strobe.sources.jax.source",
    "paddle": "strobe.sources.paddle.source",
    "mindspore": "strobe.sources.mindspore.source",
}
_OF_HOST = ("memory", "memory_lines", "hardware", "hbm", "pcie", "sync")
# The same for what needs no framework, with what asks for it.
OWN_SOURCES: dict[str, tuple[str, Callable[[Wants], bool]]] = {
    "host": (
        "strobe.sources.host.source",
        lambda wants: any(getattr(wants, name) for name in _OF_HOST),
    ),
    "python_calls": ("strobe.sources.python_calls.source", lambda wants: bool(wants.stacks)),
}


@dataclass
class _Process:
    lock: threading.RLock = field(default_factory=threading.RLock)
    attached: dict[str, Source] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    profilers: int = 0
    windows: dict[str, Wants] = field(default_factory=dict)
    log: Path | None = None
    on_step: list[Callable[[], None]] = field(default_factory=list)
    once_ns: Counter[str] = field(default_factory=Counter)
    """What starting and stopping each source has taken since a window last ended."""
    error: Exception | None = None


_process = _Process()
_waiting: dict[str, list[Callable[[], None]]] = {}
"""What is to be done when a framework has been imported; it outlives profilers and forks."""


def _start_as_child() -> None:
    """After a fork: the profilers are the parent's; what it had patched stays and follows it."""
    global _process
    _process = _Process()
    if not _waiting:
        _watcher.uninstall()


def enter(on_step: Callable[[], None] | None = None) -> None:
    """A profiler has been started; `on_step` is called when a source sees a training step end."""
    with _process.lock:
        _process.profilers += 1
        if on_step is not None:
            _process.on_step.append(on_step)
        for framework in SOURCES:
            if _is_imported(framework):
                _attach(framework)
        _watcher.install()


def leave(on_step: Callable[[], None] | None = None) -> None:
    """A profiler has been stopped."""
    with _process.lock:
        _process.profilers -= 1
        if on_step in _process.on_step:
            _process.on_step.remove(on_step)
        if _process.profilers:
            return
        if not _waiting:
            _watcher.uninstall()
        for source in _process.attached.values():
            _try(source.name, source.detach)
        _process.attached.clear()
        _process.failed.clear()


def open_window(window: str, wants: Wants, log: Path) -> None:
    """Let the sources record into this log what all open windows want."""
    with _process.lock:
        _process.windows[window] = wants
        _process.log = log
        for name, (_, asks) in OWN_SOURCES.items():
            if asks(wants):
                _attach(name)
        for source in _process.attached.values():
            _open(source)


def close_window(window: str) -> dict[str, Report]:
    """End a window and return how each source recorded it."""
    with _process.lock:
        log = _process.log
        wants = _process.windows.pop(window, None)
        if wants is None or log is None:
            return {}
        remaining = _union() if _process.windows else None
        reports = {}
        for source in _process.attached.values():
            report = _timed(source.name, functools.partial(source.close, log, remaining))
            if report is not None:
                once_ns = _process.once_ns.pop(source.name)
                reports[source.name] = replace(report, once_ns=once_ns)
        for name, reason in _process.failed.items():
            failed = Report(source_class="A", path="none", reason=f"it failed: {reason}")
            report = reports.setdefault(name, failed)
            if report is not failed:
                reports[name] = replace(report, reason=f"{report.reason}; {failed.reason}")
        for name, (_, asks) in OWN_SOURCES.items():
            if not asks(wants):
                reports.pop(name, None)  # another window asked for it
        return reports


def examine() -> dict[str, dict[str, Any]]:
    """Return what each source has to say about this machine; nothing is imported or attached."""
    found = {}
    for framework, module in SOURCES.items():
        if find_spec(framework) is None:
            found[framework] = {"path": "none", "reason": "not installed"}
        else:
            found[framework] = importlib.import_module(module).source.examine()
    for name, (module, _) in OWN_SOURCES.items():
        found[name] = importlib.import_module(module).source.examine()
    return found


def answers() -> dict[str, frozenset[str]]:
    """Return the options that each source of this process does something for.

    What a framework answers, another source does not: it has less to say of it.
    """
    with _process.lock:
        frameworks = [source for name, source in _process.attached.items() if name in SOURCES]
        theirs: frozenset[str] = frozenset().union(*(source.answers for source in frameworks))
        return {
            source.name: source.answers if name in SOURCES else source.answers - theirs
            for name, source in _process.attached.items()
        }


def when_imported(framework: str, action: Callable[[], None]) -> None:
    """Do this when one of the frameworks has been imported, at once if it is there."""
    with _process.lock:
        if _is_imported(framework):
            action()
            return
        _waiting.setdefault(framework, []).append(action)
        _watcher.install()


def step_ended() -> None:
    """Tell the profilers that count steps by themselves: a source saw one end."""
    for on_step in tuple(_process.on_step):
        _try("steps", on_step)
    raise_kept()


def keep_error(error: Exception) -> None:
    """An operator of the program's failed, and a source, which waited for it, was told instead."""
    _process.error = _process.error or error


def raise_kept() -> None:
    """In the program's thread, when all is done: give it the error that is its own."""
    error, _process.error = _process.error, None
    if error is not None:
        raise error


def settle() -> None:
    """A window is to end: let the sources wait for what the program has asked for in it.

    Meanwhile others may start and stop profilers: the program's callbacks, which are waited for.
    """
    with _process.lock:
        attached = tuple(_process.attached.values()) if _process.windows else ()
    for source in attached:
        wait = getattr(source, "settle", None)
        if wait is not None:
            _try(source.name, wait)


def raised(error: BaseException | None) -> None:
    """An error leaves a profiler's block: tell the sources that look for some."""
    with _process.lock:
        for source in _process.attached.values() if error is not None else ():
            see = getattr(source, "raised", None)
            if see is not None:
                _try(source.name, functools.partial(see, error))


def _union() -> Wants:
    return functools.reduce(operator.or_, _process.windows.values())


def _is_imported(framework: str) -> bool:
    """Say whether it is there, whole: a module is in sys.modules before its code has run."""
    module = sys.modules.get(framework)
    spec = getattr(module, "__spec__", None)
    return module is not None and not getattr(spec, "_initializing", False)


def _attach(framework: str) -> None:
    if framework in _process.attached or framework in _process.failed:
        return
    module = SOURCES[framework] if framework in SOURCES else OWN_SOURCES[framework][0]
    source = _timed(framework, lambda: importlib.import_module(module).source)
    if source is None:
        return
    _timed(framework, source.attach)
    if framework in _process.failed:
        _try(framework, source.detach)  # what it had patched before it failed
        return
    _process.attached[framework] = source
    if _process.windows and framework in SOURCES:
        _open(source)


def _open(source: Source) -> None:
    log = _process.log
    if log is not None:
        _timed(source.name, functools.partial(source.open, _union(), log))


def _timed(name: str, action: Callable[[], Any]) -> Any:
    began_ns = time.perf_counter_ns()
    try:
        return _try(name, action)
    finally:
        _process.once_ns[name] += time.perf_counter_ns() - began_ns


def _try(name: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:  # the program is not ours: it must run, profiled or not
        ours = isinstance(error, StrobeError)
        reason = str(error) if ours else f"{type(error).__name__}: {error}"
        if _process.failed.setdefault(name, reason) is reason:
            show(f"{name} is not recorded ({reason})")
        return None


class _Watcher:
    """Sees a framework's import: a finder that finds nothing itself."""

    def install(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def uninstall(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in SOURCES:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                _call_after(spec, functools.partial(_imported, name))
                return spec
        return None


def _call_after(spec: ModuleSpec, action: Callable[[], None]) -> None:
    """Call the action once the module's code has run. The loader is of this one import."""
    loader: Any = spec.loader
    run = getattr(loader, "exec_module", None)
    if run is None:
        return

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        run(module)
        action()

    # A loader without attributes of its own is no framework's.
    with contextlib.suppress(AttributeError):
        loader.exec_module = exec_module


def _imported(framework: str) -> None:
    with _process.lock:
        for action in _waiting.pop(framework, []):
            _try(framework, action)
        if _process.profilers:
            _attach(framework)


_watcher = _Watcher()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_as_child)
