# SPDX-License-Identifier: Apache-2.0
"""Sums of what tracemalloc traces, as traced.c."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any


def traced_sums(
    get_traces: Callable[[], list[tuple[Any, ...]]], /
) -> list[tuple[tuple[tuple[str, int], ...], int, int]]:
    """Return (traceback, bytes, blocks) for each traceback.

    `get_traces` is tracemalloc's function that lists all blocks: (domain, bytes, traceback, ...).
    """
    collecting = gc.isenabled()
    gc.disable()  # the tuples would set off one collection after the other, all in vain
    try:
        blocks = get_traces()
    finally:
        if collecting:
            gc.enable()
    # Blocks of one place share one object, and to hash a tuple takes ten times as long as its id.
    tracebacks: dict[int, Any] = {}
    sizes: dict[int, int] = {}
    counts: dict[int, int] = {}
    for block in blocks:
        traceback = block[2]
        key = id(traceback)
        if key in sizes:
            sizes[key] += block[1]
            counts[key] += 1
        else:
            tracebacks[key], sizes[key], counts[key] = traceback, block[1], 1
    return [(tracebacks[key], sizes[key], counts[key]) for key in sizes]
