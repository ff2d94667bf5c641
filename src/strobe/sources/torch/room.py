# SPDX-License-Identifier: Apache-2.0
"""Room for torch's own profiler: it refuses to start in a thread whose memory we watch."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

_NAME = "_enable_profiler"

_patched: list[tuple[Any, Any, Any]] = []
"""The module, what was there, what we put there."""


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
