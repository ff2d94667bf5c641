# SPDX-License-Identifier: Apache-2.0
"""A profiler as a JSON file describes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.errors import FormatError
from strobe.paddle.profiler import Profiler
from strobe.paddle.schedule import ProfilerTarget

_KEYS = ("targets", "scheduler", "on_trace_ready", "timer_only")


def get_profiler(config_path: str | os.PathLike[str]) -> Profiler:
    """Return a profiler made as a JSON file says.

        {"targets": ["cpu"], "scheduler": [2, 5], "timer_only": false,
         "on_trace_ready": {"export_chrome_tracing": {"module": "strobe.paddle",
             "use_direct": false, "args": ["./profiler_log"], "kwargs": {}}}}

    A scheduler is a pair, or a function that is named as that of on_trace_ready; with `use_direct`
    the function itself is taken, and else what it returns. null is as good as nothing.

    Raises FormatError where the file cannot be read or is not of this form. Paddle prints a line
    and uses defaults.
    """
    path = Path(config_path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(path, "configuration", f"cannot be read ({error})") from None
    if not isinstance(content, dict) or set(content) - set(_KEYS):
        raise FormatError(path, "configuration", f"must be an object with keys of {_KEYS}")
    readers: dict[str, Callable[[Any], Any]] = {
        "targets": lambda names: [ProfilerTarget[name.upper()] for name in names],
        "scheduler": lambda value: _called(value) if isinstance(value, dict) else value,
        "on_trace_ready": _called,
        "timer_only": lambda value: value,
    }
    arguments = {}
    for key, value in content.items():
        if value is None:
            continue
        try:
            arguments[key] = readers[key](value)
        except Exception as error:  # of whatever the file names
            raise FormatError(path, key, f"{type(error).__name__}: {error}") from error
    return Profiler(**arguments)


def _called(value: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return the function that is named, or what it returns."""
    [(name, about)] = value.items()
    function = getattr(import_module(about["module"]), name)
    if about.get("use_direct"):
        return function
    return function(*about.get("args", ()), **about.get("kwargs", {}))
