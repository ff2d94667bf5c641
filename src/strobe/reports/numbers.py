# SPDX-License-Identifier: Apache-2.0
"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Sequence

_TIME_UNITS = (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000))
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")
_FLOP_UNITS = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP")


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
    return _in_thousands(value, _BYTE_UNITS)


def format_flops(value: float) -> str:
    """Return a number of floating-point operations in powers of 1000 with its unit."""
    return _in_thousands(value, _FLOP_UNITS)


def format_count(value: int) -> str:
    """Return a count with its thousands apart."""
    return f"{value:,}".replace(",", " ")


def format_counter(name: str, value: float) -> str:
    """Return the value of a counter; its name tells if they are bytes."""
    if name.endswith(("bytes", "bytes/s")):
        return _in_thousands(value, _BYTE_UNITS)
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 1000 else f"{value:.3g}"


def format_share(value: float | None) -> str:
    """Return a share as per cent; a dash where there is nothing to be a share of."""
    return "-" if value is None else f"{value * 100:.1f} %"


def _in_thousands(value: float, units: Sequence[str]) -> str:
    size, power = float(value), 0
    while size >= 999.5 and power < len(units) - 1:
        size, power = size / 1000, power + 1
    digits = _three_digits(size) if power else f"{value:.0f}"
    return f"{digits} {units[power]}"


def _three_digits(value: float) -> str:
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"
