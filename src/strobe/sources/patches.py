# SPDX-License-Identifier: Apache-2.0
"""Functions of a framework that ours stand in for while a profiler is there."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

Wrap = Callable[[Any], Any]

_INHERITED = object()


class Patches:
    """What was put in the place of what, and how to undo it.

    What stands in calls what was there, as it was called, and lets its errors through.
    """

    def __init__(self, framework: str) -> None:
        self._framework = framework
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
            original = getattr(owner, attribute)
        except (ImportError, AttributeError):
            return f"{module}.{name} is not in this version of {self._framework}"
        before = vars(owner).get(attribute, _INHERITED)
        ours = wrap(original)
        if isinstance(before, (classmethod, staticmethod)):
            ours = staticmethod(ours)  # the original is bound already
        setattr(owner, attribute, ours)
        self._done.append((owner, attribute, before, ours))
        return ""

    def put_all(self, parts: list[tuple[str, str, Wrap]]) -> list[str]:
        """Replace each `module.name`; return why those that could not be were not."""
        reasons = [self.put(*part) for part in parts]
        return [reason for reason in reasons if reason]

    def undo(self) -> None:
        """Put back what was there; what someone else has patched since stays theirs."""
        while self._done:
            owner, attribute, before, ours = self._done.pop()
            if vars(owner).get(attribute) is not ours:
                continue
            if before is _INHERITED:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, before)
