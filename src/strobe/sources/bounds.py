# SPDX-License-Identifier: Apache-2.0
"""For how long a framework that keeps its events to itself is recorded at most."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from strobe.errors import UsageError
from strobe.model.threads import TIMER

_SECONDS = 60.0


def most_seconds(variable: str) -> float:
    """Return the seconds that this environment variable sets, else 60; raises UsageError."""
    text = os.environ.get(variable, "")
    try:
        seconds = float(text) if text else _SECONDS
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX:
        message = f"{variable}={text!r}: must be a number of seconds above 0, or not be set"
        raise UsageError(message)
    return seconds


def start_timer(
    seconds: float, function: Callable[..., None], arguments: Sequence[Any]
) -> threading.Timer:
    """Call a function in a thread of ours when the seconds are over, unless it is cancelled."""
    timer = threading.Timer(seconds, function, list(arguments))
    timer.name, timer.daemon = TIMER, True
    timer.start()
    return timer
