# SPDX-License-Identifier: Apache-2.0
"""Functions of Paddle's that ours stand in for while a profiler is there."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

Wrap = Callable[[Any], Any]


class Patches:
    """What was put in the place of what, and how to undo it."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any, Any]] = []

    def __bool__(self) -> bool:
        """Say whether there are any."""
        return bool(self._done)

    def put(self, module: str, name: str, wrap: Wrap) -> str:
        """Replace `module.name` by wrap(it); return why it could not be done, or nothing."""
        holder, _, attribute = name.rpartition(".")
        try:
            owner: Any = import_module(module)
            owner = getattr(owner, holder) if holder else owner
            before = vars(owner)[attribute]
        except (ImportError, AttributeError, KeyError):
            return f"{module}.{name} is not in this version of Paddle"
        ours = wrap(before)
        setattr(owner, attribute, ours)
        self._done.append((owner, attribute, before, ours))
        return ""

    def undo(self) -> None:
        """Put back what was there; what someone else has patched since stays theirs."""
        while self._done:
            owner, attribute, before, ours = self._done.pop()
            if vars(owner).get(attribute) is ours:
                setattr(owner, attribute, before)
