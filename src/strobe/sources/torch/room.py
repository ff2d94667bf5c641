# SPDX-License-Identifier: Apache-2.0
"""Room for torch's own profiler: it refuses to start in a thread whose memory we watch."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

_NAME = "_enable_profiler"

_patched: list[tuple[Any, Any, Any]] = []
"""The module, what was there, what we put there."""

_Pending = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_pending: list[Any] = []
"""What the main thread is asked to do, kept until the interpreter ends: it may be late."""


def attach(make_room: Callable[[], object]) -> None:
    """Call `make_room` before torch's own profiler starts; again is the same as once."""
    module = import_module("torch.autograd.profiler")
    original = vars(module).get(_NAME)
    if original is None or _patched:
        return

    @wraps(original)
    def start(*arguments: Any, **keywords: Any) -> Any:
        make_room()
        return original(*arguments, **keywords)

    setattr(module, _NAME, start)
    _patched.append((module, original, start))


def detach() -> None:
    """Undo it; what someone else has put there since stays theirs."""
    while _patched:
        module, original, ours = _patched.pop()
        if vars(module).get(_NAME) is ours:
            setattr(module, _NAME, original)


def ask(thread: int | None, action: Callable[[], object]) -> None:
    """Have the main thread do something as soon as it runs Python; no other can be asked to."""
    if thread != threading.main_thread().ident:
        return

    @_Pending
    def run(_argument: object) -> int:
        action()
        return 0

    _pending.append(run)
    ctypes.pythonapi.Py_AddPendingCall(run, None)
