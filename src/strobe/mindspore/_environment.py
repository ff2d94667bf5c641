# SPDX-License-Identifier: Apache-2.0
"""MS_PROFILER_OPTIONS: a profiler that the environment asks for, obeyed by one of us alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from strobe.errors import StrobeError
from strobe.mindspore._handler import tensorboard_trace_handler
from strobe.mindspore._profile import Lifecycle
from strobe.mindspore._settings import PROFILER, Settings, settle
from strobe.record.messages import show
from strobe.session import mindspore_tree

VARIABLE = "MS_PROFILER_OPTIONS"

# Names of the first generation -> those of Profiler's parameters.
_FIRST = {"memory": "profile_memory", "hccl": "profile_communication"}
# Keys that only older versions know: they ask for the older tree.
_OLDER = {
    *(*_FIRST, "aicore_metrics", "profile_communication", "timeline_limit", "op_time"),
    "profile_framework",
}
_NOT_KEYS = {"schedule", "on_trace_ready", "host_stack", "optypes_not_deal", "ascend_job_id"}
KEYS = ("start", *sorted({*PROFILER, *_FIRST} - _NOT_KEYS))
# Defaults of the variable where they are not Profiler's.
_DEFAULTS = {"data_process": False, "parallel_strategy": False, "aicore_metrics": -1}


class EnvProfiler:
    """What MS_PROFILER_OPTIONS asks for."""

    profiler: Lifecycle | None = None

    @classmethod
    def init_profiler(cls) -> None:
        """Do what the variable says, once; nothing that is wrong with it stops the program."""
        text = os.environ.get(VARIABLE)
        if text is None or cls.profiler is not None:
            return
        if "mindspore" in sys.modules:
            if read(text, quietly=True) is not None:
                show(
                    f"{VARIABLE} is obeyed by MindSpore, which was imported first; import "
                    "strobe.mindspore before it to have it obeyed by strobe"
                )
            return
        del os.environ[VARIABLE]  # neither MindSpore nor child processes start another one
        try:
            found = read(text)
            if found is not None:
                settings, kind = found
                cls.profiler = Lifecycle(settings, kind, caller=VARIABLE, analyses=True)
        except (StrobeError, OSError, TypeError) as error:
            show(f"{VARIABLE}: {error}; this program is not profiled")


def read(text: str, *, quietly: bool = False) -> tuple[Settings, mindspore_tree.Kind] | None:
    """Return what a profiler is to be told and which tree it writes; None for no start.

    What is wrong is said, a line per key, unless `quietly`; the key is left out.
    """
    say: Callable[[str], None] = (lambda _: None) if quietly else show
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        say(f"{VARIABLE} is not JSON ({error}); this program is not profiled")
        return None
    if not isinstance(given, dict):
        say(f'{VARIABLE} must be a JSON object, as in {{"start": true}}; not profiled')
        return None
    if given.get("start") is not True:
        if not isinstance(given.get("start", False), bool):
            start = given["start"]
            say(f"{VARIABLE}: start={start!r} must be true or false; this program is not profiled")
        return None
    return _settings(given, say)


def _settings(
    given: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[Settings, mindspore_tree.Kind]:
    arguments: dict[str, Any] = {}
    for key, value in given.items():
        if key == "start":
            continue
        if key not in KEYS:
            say(f"{VARIABLE}: unknown key {key!r} is left out; known keys: {', '.join(KEYS)}")
            continue
        name = _FIRST.get(key, key)
        try:
            settle(VARIABLE, {name: value}, PROFILER)
        except (TypeError, ValueError) as error:
            say(f"{error}; {key!r} is left out")
            continue
        arguments[name] = value
    is_older = bool(_OLDER & set(given))
    settings = settle(VARIABLE, {**_DEFAULTS, **arguments}, PROFILER)
    values = {**settings.values, "start_profile": True}
    if not is_older:
        values["on_trace_ready"] = tensorboard_trace_handler(arguments.get("output_path"))
    kind: mindspore_tree.Kind = "profiler" if is_older else "profile"
    return Settings(values, frozenset(arguments)), kind
