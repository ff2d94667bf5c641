# SPDX-License-Identifier: Apache-2.0
"""Room for torch's own profiler: it refuses to start in a thread whose memory we watch."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from strobe.sources.patches import Patches

_patches = Patches("PyTorch")
_Pending = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_pending: list[Any] = []
"""What the main thread is asked to do, kept until the interpreter ends: it may be late."""


def attach(make_room: Callable[[], object]) -> None:
    """Call `make_room` before torch's own profiler starts; again is the same as once."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def start(*arguments: Any, **keywords: Any) -> Any:
            make_room()
            return original(*arguments, **keywords)

        return start

    if not _patches:
        _patches.put("torch.autograd.profiler", "_enable_profiler", wrap)


def detach() -> None:
    """Undo it."""
    _patches.undo()


def ask(thread: int | None, action: Callable[[], object]) -> None:
    """Have the main thread do something as soon as it runs Python; no other can be asked to."""
    if thread != threading.main_thread().ident:
        return

    def run(_argument: object) -> int:
        action()
        return 0

    _pending.append(_Pending(run))
    ctypes.pythonapi.Py_AddPendingCall(_pending[-1], None)
