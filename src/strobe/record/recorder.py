# SPDX-License-Identifier: Apache-2.0
"""The recorder of this process: the C core, or its Python twin where there is none.

STROBE_RECORDER=c or =python chooses; by default the C core is taken where it was built.
"""

from __future__ import annotations

import os
import sys

from strobe.errors import CaptureError, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

CONTROL_VARIABLE = "STROBE_CONTROL"
STACKS_VARIABLE = "STROBE_STACKS"
CHOICE_VARIABLE = "STROBE_RECORDER"
USAGE_VARIABLE = "STROBE_USAGE"


def _choose() -> tuple[ModuleType, str, str]:
    """Return the module, its name, and why it is that one."""
    wanted = os.environ.get(CHOICE_VARIABLE, "")
    if wanted not in ("", "c", "python"):
        message = f"{CHOICE_VARIABLE}={wanted!r}: must be 'c' or 'python', or not be set"
        raise UsageError(message)
    reason = f"{CHOICE_VARIABLE}=python"
    if wanted != "python":
        try:
            from strobe.record import _core

            return _core, "C", "built with this installation"
        except ImportError as error:
            if wanted == "c":
                message = f"{CHOICE_VARIABLE}=c: the C recorder cannot be loaded ({error})"
                raise CaptureError(message) from None
            gil = getattr(sys, "_is_gil_enabled", lambda: True)()
            reason = "no C core in this installation" if gil else "free-threaded Python"
    from strobe.record import _python

    return _python, "Python", reason


core, KIND, REASON = _choose()

span = core.span
instant = core.instant
counter = core.counter


def watch_usage() -> None:
    """Record the process's memory and threads from the next start on, unless told not to."""
    if os.environ.get(USAGE_VARIABLE) != "0":
        core.watch_usage()


def follow_parent() -> None:
    """Record with the process that started this one, if it says so in the environment."""
    path = os.environ.get(CONTROL_VARIABLE)
    if not path:
        return
    try:
        core.use_control(path, False)
        watch_usage()
    except OSError:
        # The parent is gone or speaks another version: nothing to follow, and no reason to fail.
        return


follow_parent()
