# SPDX-License-Identifier: Apache-2.0
"""Python's garbage collections as spans, in the threads that they hold up."""

from __future__ import annotations

import gc
from typing import Any

from strobe.model.tables import record_code
from strobe.record import recorder

_GC = record_code("gc", "host")


class Collections:
    """Has a span for each generation; no two collections run at once."""

    def __init__(self) -> None:
        self._spans = [
            recorder.core.source_span(f"gc generation {number}", _GC, {"generation": number})
            for number in range(3)
        ]

    def attach(self) -> None:
        """Be told of each."""
        if self._seen not in gc.callbacks:
            gc.callbacks.append(self._seen)

    def detach(self) -> None:
        """Be told no more."""
        if self._seen in gc.callbacks:
            gc.callbacks.remove(self._seen)

    def _seen(self, phase: str, info: dict[str, Any]) -> None:
        span = self._spans[info["generation"]]
        if phase == "start":
            span.begin()
        else:
            span.end()
