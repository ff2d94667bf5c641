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


class Dispatch:
    """The calls of one window, in order."""

    def __init__(self) -> None:
        self._mode: Any = None
        self._stack: Any = None
        self._thread = 0
        self._depth = 0
        self._codes: dict[Any, int] = {}
        self._calls = array("i")

    def start(self) -> str:
        """Watch this thread from now on; return why it cannot be done, or nothing."""
        try:
            base = import_module("mindspore").MsDispatchMode
            self._stack = import_module("mindspore._c_expression")._DispatchGuardStack
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

    def leave(self, mode: Any) -> None:
        """In the mode's thread: take it away, unless another one has been entered in it."""
        if mode.is_entered and self._stack.depth() == self._depth:
            mode.is_entered = False
            self._stack.pop()

    def note(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Keep one call: name, shapes, dtypes, group and phase, each as often as it differs."""
        group = None
        if len(arguments) == 3 and isinstance(arguments[2], tuple) and name == arguments[1]:
            group = getattr(arguments[0], "group", None)  # (primitive, its name, what it is given)
            arguments = arguments[2]
        described = tuple(_describe(each) for each in arguments)
        key = (name, described, group if isinstance(group, str) else None, hooks.phase())
        self._calls.append(self._codes.setdefault(key, len(self._codes)))


def _mode_class(base: Any) -> Any:
    class Watch(base):  # type: ignore[misc]
        is_on = True
        is_entered = True

        def __init__(self, dispatch: Dispatch) -> None:
            self._dispatch = dispatch

        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            try:
                if self.is_on:
                    self._dispatch.note(func.name, args)
                else:
                    self._dispatch.leave(self)
            except Exception:  # the operator has to run, whatever it is given
                self.is_on = False
            return func(*args, **kwargs) if kwargs else func(*args)

    return Watch


def _describe(value: Any) -> Any:
    """Return (shape, dtype) of a tensor, a tuple of them for several, None for anything else."""
    if isinstance(value, (tuple, list)):
        parts = tuple(_describe(each) for each in value)
        return ("several", parts) if any(part is not None for part in parts) else None
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return None
    return (tuple(shape), str(dtype).lower())
