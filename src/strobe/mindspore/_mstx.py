# SPDX-License-Identifier: Apache-2.0
"""mindspore.profiler.mstx: marks and ranges of the user's."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from strobe.record.recorder import instant, span

_numbers = itertools.count(1)
_open: dict[int, Any] = {}
_lock = threading.Lock()


class mstx:
    """Marks and ranges, recorded by every profiler that runs.

    Ranges may overlap and end in another thread. A stream is no matter: there is none on a host.
    """

    @staticmethod
    def mark(message: str, stream: Any = None, domain: str = "default") -> None:  # noqa: ARG004
        """Mark an instant; raises TypeError for a message or domain that is no str."""
        _check(message=message, domain=domain)
        instant(message, domain=domain)

    @staticmethod
    def range_start(message: str, stream: Any = None, domain: str = "default") -> int:  # noqa: ARG004
        """Begin a range and return its number, which is not 0."""
        _check(message=message, domain=domain)
        number = next(_numbers)
        begun = span(message, domain=domain).begin()
        with _lock:
            _open[number] = begun
        return number

    @staticmethod
    def range_end(range_id: int, domain: str = "default") -> None:  # noqa: ARG004
        """End a range; one that is not open is no matter."""
        if isinstance(range_id, bool) or not isinstance(range_id, int):
            message = f"range_end(range_id={range_id!r}): must be the int that range_start() gave"
            raise TypeError(message)
        with _lock:
            begun = _open.pop(range_id, None)
        if begun is not None:
            begun.end()


def _check(**texts: object) -> None:
    for name, value in texts.items():
        if not isinstance(value, str):
            message = f"mstx({name}={value!r}): must be a str"
            raise TypeError(message)
