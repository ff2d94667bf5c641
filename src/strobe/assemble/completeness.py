# SPDX-License-Identifier: Apache-2.0
"""What each source was asked for, how much of it was collected, and what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from strobe.model.arrays import Bool
from strobe.model.tables import CATEGORIES, CATEGORY_BITS, SOURCES
from strobe.model.trace import (
    Allocations,
    Counters,
    Instants,
    Loads,
    Source,
    Spans,
    Steps,
    Trace,
)
from strobe.store.frames import empty
from strobe.store.parquet import Column

_Rows = Spans | Instants | Counters | Loads | Allocations | Steps
_HOST = "host"
_SHOWN = 5
"""Kinds of what was skipped; the others are counted together."""


class Tally:
    """Counts the rows of the tables by source and kind, batch by batch, once they are cut."""

    def __init__(self) -> None:
        self._rows: Counter[tuple[int, str]] = Counter()
        self._described: Counter[int] = Counter()
        self._unfinished: Counter[int] = Counter()

    def add_spans(self, spans: Spans, unfinished: Bool) -> None:
        """Count spans, of which these had not ended."""
        sources = _sources(spans)
        codes = np.bincount(sources.astype(np.int32) << CATEGORY_BITS | spans.category)
        for code in np.flatnonzero(codes).tolist():
            category = CATEGORIES[code & (1 << CATEGORY_BITS) - 1]
            self._rows[code >> CATEGORY_BITS, category] += int(codes[code])
        _count(sources[unfinished], self._unfinished)
        _count(sources[spans.attributes >= 0], self._described)

    def add(self, table: str, rows: _Rows) -> None:
        """Count rows of another table."""
        self.add_number(table, np.bincount(_sources(rows)).tolist())
        if isinstance(rows, Instants):
            _count(_sources(rows)[rows.attributes >= 0], self._described)

    def add_number(self, table: str, numbers: Sequence[int]) -> None:
        """Count so many rows of a table, by source."""
        for source, count in enumerate(numbers):
            self._rows[source, table] += count

    def of(self, source: Source) -> Counts:
        """Return how many of the rows are a source's."""
        if source.rows is None:
            return Counts(None, None, None)
        codes = [SOURCES.index(source.name)] if source.rows == "own" else range(len(SOURCES) + 1)
        rows = {key: count for key, count in self._rows.items() if key[0] in codes}
        costs = sum(source.costs_ns.get(kind, 0.0) * count for (_, kind), count in rows.items())
        described = sum(self._described[code] for code in codes)
        costs += source.costs_ns.get("attributes", 0.0) * described
        unfinished = sum(self._unfinished[code] for code in codes)
        return Counts(sum(rows.values()), unfinished, round(costs))


class Counts(NamedTuple):
    """How many rows a source has, and what recording each took; None if unknown."""

    collected: int | None
    unfinished: int | None
    costs_ns: int | None


def _sources(rows: _Rows) -> NDArray[np.uint8]:
    return np.zeros(len(rows), np.uint8) if rows.source is None else rows.source


def _count(sources: NDArray[np.uint8], into: Counter[int]) -> None:
    into.update(dict(enumerate(np.bincount(sources).tolist())))


def completeness_table(trace: Trace, tally: Tally) -> dict[str, Column]:
    """Return the rows of `completeness`, one for each source of the trace."""
    sources = [*trace.sources, *_unlisted(trace.sources, tally)]
    rows = [_row(source, tally.of(source)) for source in sources]
    return {
        name: pl.Series([row.get(name) for row in rows], dtype=dtype)
        for name, dtype in empty("completeness").schema.items()
    }


def _unlisted(sources: Sequence[Source], tally: Tally) -> list[Source]:
    """Return the sources that have rows and did not report.

    Of the host, the recorder's own thread records some in any case; `spans` has its time.
    """
    if any(source.rows == "all" for source in sources):
        return []
    listed = {source.name for source in sources}
    is_whole = any(source.source_class == "A" and source.dropped == 0 for source in sources)
    candidates = (
        Source(
            name=name,
            source_class="A",
            rows="own",
            dropped=0 if is_whole else None,
            own_ns=0 if name == _HOST else None,
        )
        for name in SOURCES
        if name not in listed
    )
    return [source for source in candidates if tally.of(source).collected]


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
    collected, own_ns = counts.collected, source.own_ns
    if own_ns is not None and counts.costs_ns is not None:
        own_ns += counts.costs_ns
    asked = None
    if source.dropped is not None and collected is not None:
        asked = collected + source.dropped
    if source.dropped and source.loss_is_shared:
        asked = None
    return {
        "source": source.name,
        "source_class": source.source_class,
        "asked": asked,
        "collected": collected,
        "dropped": source.dropped,
        "unfinished": counts.unfinished,
        "own_ns": own_ns,
        "once_ns": source.once_ns,
        "drain_ns": source.drain_ns,
        "clock_residual_ns": source.clock_residual_ns,
        "note": "; ".join([*source.notes, *_describe_skipped(source.skipped)]) or None,
    }
