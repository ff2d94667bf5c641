# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them."""

from __future__ import annotations

_TIME_UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000))
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def format_ns(value: float | None) -> str:
    """Return a time with three digits and its unit; a dash for one that is not known."""
    if value is None:
        return "-"
    for unit, size in _TIME_UNITS:
        if abs(value) >= size * 0.9995:
            return f"{_three_digits(value / size)} {unit}"
    return f"{value:.0f} ns"


def format_bytes(value: int) -> str:
    """Return a size in powers of 1000 with its unit."""
    size = float(value)
    for unit in _BYTE_UNITS:
        if size < 999.5 or unit == _BYTE_UNITS[-1]:
            return f"{value} B" if unit == "B" else f"{_three_digits(size)} {unit}"
        size /= 1000
    raise AssertionError


def format_count(value: int) -> str:
    """Return a count with its thousands apart."""
    return f"{value:,}".replace(",", " ")


def format_share(value: float | None) -> str:
    """Return a share as per cent; a dash where there is nothing to be a share of."""
    return "-" if value is None else f"{value * 100:.1f} %"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"
