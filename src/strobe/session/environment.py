# SPDX-License-Identifier: Apache-2.0
"""STROBE_OPTIONS: the arguments of a Profiler as a JSON object in the environment."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NoReturn

from strobe.errors import UsageError
from strobe.record.schedule import schedule
from strobe.session.options import Options

VARIABLE = "STROBE_OPTIONS"

_NOT_IN_JSON = ("on_trace_ready", "activities")
KEYS = tuple(sorted(field.name for field in fields(Options) if field.name not in _NOT_IN_JSON))
_SCHEDULE_KEYS = ("wait", "warmup", "active", "repeat", "skip_first")

# Beyond what Options checks: what its annotations say, where JSON could say something else.
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "output": (lambda value: isinstance(value, str), "must be a string, the path of a folder"),
    "ranks": (
        lambda value: value is None or isinstance(value, list),
        "must be a list of integers, or null",
    ),
    "with_stack": (lambda value: isinstance(value, (bool, str)), "must be true, false or a string"),
    "stack_include": (lambda value: isinstance(value, list), "must be a list of strings"),
    "stack_exclude": (lambda value: isinstance(value, list), "must be a list of strings"),
    "sync_enable": (
        lambda value: value is None or isinstance(value, bool),
        "must be true, false or null",
    ),
}


def read_options(text: str) -> dict[str, Any]:
    """Return the arguments for a Profiler; raises UsageError for a text that is not right."""
    try:
        given = json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_refuse)
        if not isinstance(given, dict):
            message = f"{_short(given)} is not an object; known keys: {', '.join(KEYS)}"
            raise UsageError(message)
        return check_options(given)
    except UsageError as error:
        message = f"{VARIABLE}: {error}"
    except (ValueError, RecursionError) as error:
        message = f"{VARIABLE}={_short(text)}: not JSON ({error})"
    raise UsageError(message)


def check_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return what JSON said as arguments for a Profiler; raises UsageError."""
    for key, value in given.items():
        if key not in KEYS:
            message = f"unknown key {key!r}; known keys: {', '.join(KEYS)}"
            raise UsageError(message)
        allowed, rule = _RULES.get(key, (lambda _: True, ""))
        if not allowed(value):
            message = f"{key}={_short(value)}: {key} {rule}"
            raise UsageError(message)
    arguments = {**given}
    if "schedule" in given:
        arguments["schedule"] = _read_schedule(given["schedule"])
    Options(**arguments)
    return arguments


def _read_schedule(value: object) -> Any:
    if value is None or isinstance(value, list):
        return value
    if not isinstance(value, dict):
        message = (
            f"schedule={_short(value)}: schedule must be [start, end] or an object with the keys "
            + ", ".join(_SCHEDULE_KEYS)
        )
        raise UsageError(message)
    unknown = [key for key in value if key not in _SCHEDULE_KEYS]
    missing = [key for key in _SCHEDULE_KEYS[:3] if key not in value]
    if unknown or missing:
        problem = f"unknown key {unknown[0]!r}" if unknown else f"no {missing[0]!r}"
        message = f"schedule={_short(value)}: {problem}; its keys: {', '.join(_SCHEDULE_KEYS)}"
        raise UsageError(message)
    return schedule(**value)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        message = f"the key {double!r} is there twice"
        raise UsageError(message)
    return found


def _refuse(constant: str) -> NoReturn:
    message = f"{constant} is not a number that JSON has"
    raise UsageError(message)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
