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
from strobe.mindspore._settings import PROFILER, Settings, settle, suggest
from strobe.record.messages import show
from strobe.session import mindspore_tree
from strobe.session.hook import MINDSPORE_VARIABLE

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
# Defaults of the later generation where they are not Profiler's.
_DEFAULTS = {"data_process": False, "parallel_strategy": False, "aicore_metrics": -1}
_UNPROFILED = "this program is not profiled"


class EnvProfiler:
    """What MS_PROFILER_OPTIONS asks for."""

    profiler: Lifecycle | None = None

    @classmethod
    def init_profiler(cls) -> None:
        """Do what the variable says, once; nothing that is wrong with it stops the program."""
        moved = os.environ.pop(MINDSPORE_VARIABLE, None)  # by `strobe run`
        text = moved or os.environ.get(VARIABLE)
        if not text or cls.profiler is not None:
            return
        is_theirs = "mindspore" in sys.modules and not moved
        if not is_theirs:  # neither MindSpore nor child processes are to start another one
            os.environ.pop(VARIABLE, None)
        try:
            found = read(text, quietly=is_theirs)
            if found is not None and is_theirs:
                show(
                    f"{VARIABLE} is obeyed by MindSpore, which was imported first; import "
                    "strobe.mindspore before it to have it obeyed by strobe"
                )
            elif found is not None:
                cls.profiler = Lifecycle(*found, caller=VARIABLE, analyses=True)
        except (StrobeError, OSError) as error:
            show(f"{VARIABLE}: {error}; {_UNPROFILED}")

    @classmethod
    def analyse(cls) -> None:
        """MindSpore calls this when the program ends: stop, if it still records."""
        if cls.profiler is not None:
            cls.profiler.__exit__(None, None, None)


def read(text: str, *, quietly: bool = False) -> tuple[Settings, mindspore_tree.Kind] | None:
    """Return what a profiler is to be told and which tree it writes; None for no start.

    What is wrong is said, a line per key, unless `quietly`; the key is left out.
    """
    say: Callable[[str], None] = (lambda _: None) if quietly else show
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        say(f"{VARIABLE} is not JSON ({error}); {_UNPROFILED}")
        return None
    if not isinstance(given, dict):
        say(f'{VARIABLE} must be a JSON object, as in {{"start": true}}; {_UNPROFILED}')
        return None
    start = given.pop("start", False)
    if not isinstance(start, bool):
        say(f"{VARIABLE}: start={start!r} must be true or false; {_UNPROFILED}")
    return _settings(given, say) if start is True else None


def _settings(
    given: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[Settings, mindspore_tree.Kind]:
    is_older = not _OLDER.isdisjoint(given)
    defaults = {} if is_older else _DEFAULTS
    arguments: dict[str, Any] = {}
    # What the others need is among the activities.
    for key in sorted(given, key=lambda key: key != "activities"):
        if key not in KEYS:
            say(f"{VARIABLE}: unknown key {key!r} is left out; {suggest(key, KEYS)}")
            continue
        name = _FIRST.get(key, key)
        try:
            settle(VARIABLE, {**arguments, name: given[key]}, PROFILER)
        except (TypeError, ValueError) as error:
            say(f"{error}; {key!r} is left out")
            continue
        arguments[name] = given[key]
    values = {**settle(VARIABLE, {**defaults, **arguments}, PROFILER).values, "start_profile": True}
    if not is_older:
        values["on_trace_ready"] = tensorboard_trace_handler(arguments.get("output_path"))
    kind: mindspore_tree.Kind = "profiler" if is_older else "profile"
    named = frozenset(name for name, value in arguments.items() if value is not None)
    return Settings(values, named), kind
