# SPDX-License-Identifier: Apache-2.0
"""What each source was asked for, how much of it was collected, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from strobe.model.trace import Source, Trace
from strobe.store.frames import empty
from strobe.store.parquet import Column

_SHOWN = 5
"""Kinds of what was skipped; the others are counted together."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many rows the tables have."""

    every: int
    """But for Python's calls and samples."""
    framework: int
    calls: int
    unfinished: int
    unfinished_calls: int


def completeness_table(trace: Trace, counts: Counts) -> dict[str, Column]:
    """Return the rows of `completeness`, one for each source of the trace."""
    rows = [_row(source, counts) for source in trace.sources]
    return {
        name: pl.Series([row.get(name) for row in rows], dtype=dtype)
        for name, dtype in empty("completeness").schema.items()
    }


def _describe_skipped(skipped: Mapping[str, int]) -> Sequence[str]:
    """Return a sentence on what a producer left out, nothing if it left out nothing."""
    if not skipped:
        return ()
    most = sorted(skipped.items(), key=lambda pair: (-pair[1], pair[0]))
    named = most if len(most) == _SHOWN + 1 else most[:_SHOWN]
    shown = [f"{count} {kind or 'without a kind'}" for kind, count in named]
    if len(most) > len(named):
        shown.append(f"{sum(count for _, count in most[_SHOWN:])} of other kinds")
    return (
        f"{sum(skipped.values())} events have no place here and are left out: {', '.join(shown)}",
    )


def _row(source: Source, counts: Counts) -> dict[str, Any]:
    counted = {"all": counts.every, "framework": counts.framework, "calls": counts.calls}
    open_ones = {"all": counts.unfinished, "calls": counts.unfinished_calls}
    rows = source.rows or ""
    collected = source.collected if source.collected is not None else counted.get(rows)
    own_ns = source.own_ns
    if own_ns is not None and collected is not None:
        own_ns += round(source.own_ns_per_row * collected)
    asked = None
    if source.dropped is not None and collected is not None:
        asked = collected + source.dropped
    return {
        "source": source.name,
        "source_class": source.source_class,
        "asked": asked,
        "collected": collected,
        "dropped": source.dropped,
        "unfinished": open_ones.get(rows),
        "own_ns": own_ns,
        "drain_ns": source.drain_ns,
        "clock_residual_ns": source.clock_residual_ns,
        "note": "; ".join([*source.notes, *_describe_skipped(source.skipped)]) or None,
    }
