# SPDX-License-Identifier: Apache-2.0
"""What operators are given in PyNative mode, told by MindSpore's dispatch to those who ask.

Its profiler has no inputs of most of them. A dispatch mode sees each call, those of the backward
too, in the thread that it was entered in. It passes every call on, and keeps no tensor.
"""

from __future__ import annotations

import json
import threading
from array import array
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.sources.mindspore import hooks

CALLS, INPUTS = "dispatch_calls.bin", "dispatch_inputs.json"
# Whoever leaves one takes away the last that was entered, which would be ours.
_ENTERED = "inputs in PyNative mode cannot be had in a MsDispatchMode that the program has entered"


class Dispatch:
    """The calls of one window, in order."""

    def __init__(self) -> None:
        self._mode: Any = None
        self._stack: Any = None
        self._tensor: Any = None
        self._thread = 0
        self._depth = 0
        self._codes: dict[Any, int] = {}
        self._calls = array("i")

    def start(self) -> str:
        """Watch this thread from now on; return why it cannot be done, or nothing."""
        try:
            mindspore = import_module("mindspore")
            base, self._tensor = mindspore.MsDispatchMode, mindspore.Tensor
            self._stack = import_module("mindspore._c_expression")._DispatchGuardStack
            if self._stack.depth():
                return _ENTERED
            self._mode = _mode_class(base)(self)
            self._stack.push(self._mode)
            self._depth = self._stack.depth()
        except (ImportError, AttributeError, TypeError, RuntimeError) as error:
            self._mode = None
            return f"this version of MindSpore does not tell inputs in PyNative mode ({error})"
        self._thread = threading.get_ident()
        return ""

    def pause(self) -> None:
        """Note no more, from any thread; the mode leaves by itself, in its own."""
        if self._mode is not None:
            self._mode.is_on = False

    def stop(self, folder: Path) -> None:
        """Leave, and write what was called."""
        mode, self._mode = self._mode, None
        if mode is None:
            return
        mode.is_on = False
        if threading.get_ident() == self._thread:
            self.leave(mode)
        (folder / INPUTS).write_text(json.dumps([list(key) for key in self._codes]))
        with (folder / CALLS).open("wb") as file:
            self._calls.tofile(file)
        self._codes, self._calls = {}, array("i")  # a mode that could not leave keeps us

    def leave(self, mode: Any) -> None:
        """In the mode's thread: take it away, unless another one has been entered in it."""
        if mode.is_entered and self._stack.depth() == self._depth:
            mode.is_entered = False
            self._stack.pop()

    def note(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Keep one call, each kind once: what it is given, group, phase, and if by a primitive.

        To ask for a shape is to wait for what the tensor comes from. If that has failed, the error
        is the program's, and told once: it is let through.
        """
        primitive = None
        if len(arguments) == 3 and isinstance(arguments[2], tuple) and name == arguments[1]:
            primitive, _, arguments = arguments
        described = tuple(self._describe(each) for each in arguments)
        group = getattr(primitive, "group", None)
        group = group if isinstance(group, str) else None
        key = (name, described, group, hooks.phase(), primitive is not None)
        self._calls.append(self._codes.setdefault(key, len(self._codes)))

    def _describe(self, value: Any) -> Any:
        """Return (shape, dtype) of a tensor, of several in a tuple, None for anything else."""
        if isinstance(value, self._tensor):
            return (tuple(value.shape), str(value.dtype).lower())
        if not isinstance(value, (tuple, list)):
            return None
        parts = tuple(self._describe(each) for each in value)
        return ("several", parts) if any(part is not None for part in parts) else None


def _mode_class(base: Any) -> Any:
    class Watch(base):  # type: ignore[misc]
        is_on = True
        is_entered = True

        def __init__(self, dispatch: Dispatch) -> None:
            self._dispatch = dispatch

        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            if self.is_on:
                self._dispatch.note(func.name, args)
            else:
                self._dispatch.leave(self)
            return func(*args, **kwargs) if kwargs else func(*args)

    return Watch
