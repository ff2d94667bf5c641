# SPDX-License-Identifier: Apache-2.0
"""Counters of the host as they are recorded: values as they are, sums as what they rose by."""

from __future__ import annotations

from strobe.model.tables import record_code
from strobe.record import recorder

_POINT = record_code("user", "host")


class Counters:
    """Records counters."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[int, int]] = {}

    def value(self, name: str, value: float) -> None:
        """Record a value as it is now."""
        recorder.core.source_counter(name, value, _POINT)

    def rate(self, name: str, total: int, now_ns: int, unit: float = 1.0) -> None:
        """Record by how many `unit`s a sum has risen per second since it was last told."""
        total_before, before_ns = self._last.get(name, (0, 0))
        self._last[name] = total, now_ns
        if 0 < before_ns < now_ns:
            self.value(name, (total - total_before) * 1e9 / (now_ns - before_ns) / unit)

    def forget(self, prefix: str) -> None:
        """Begin anew with what has these names."""
        for name in [name for name in self._last if name.startswith(prefix)]:
            del self._last[name]
