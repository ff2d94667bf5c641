# SPDX-License-Identifier: Apache-2.0
"""Which span led to which: forward to backward, a launch to what ran, a layer to its operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl

from strobe.assemble.around import innermost_of
from strobe.assemble.sorting import Sorter
from strobe.model.arrays import Bool, Int64
from strobe.model.coded import Coded
from strobe.model.tables import CATEGORIES
from strobe.model.trace import Columns, Spans
from strobe.store.parquet import Column
from strobe.store.spill import Spill

_Spans = TypeVar("_Spans", bound=Spans)
_BACKWARD, _MODULE = CATEGORIES.index("backward"), CATEGORIES.index("module")


class Pairs(NamedTuple):
    """Rows of which one led to the other, in the order of the latter."""

    source: Int64
    target: Int64


NO_PAIRS = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, kw_only=True)
class _Keyed(Columns):
    """Rows that share a number with others. Sorted, they come by this number."""

    start_ns: Int64
    """The number."""
    row: Int64
    process: Int64
    thread: Int64
    """Who counted, 0 if all share one count."""
    leads: Bool
    """Whether it may be a source, or else a target."""
    parent: Int64


@dataclass(frozen=True, kw_only=True)
class _Found(Columns):
    """Pairs to be sorted."""

    start_ns: Int64
    """The target."""
    leader: Int64
    """The source of the link."""


def number_engine(spans: _Spans, parent: Int64, spill: Spill) -> _Spans:
    """Give the engine's span around a backward, which has no number, that of the backward."""
    if spans.sequence is None or spans.numbered_by is None:
        return spans
    sequence, numbered_by = (_copy(each, spill) for each in (spans.sequence, spans.numbered_by))
    for part in spill.parts(len(spans)):
        inner = np.flatnonzero((spans.category[part] == _BACKWARD) & (spans.sequence[part] >= 0))
        inner = inner[parent[part][inner] >= 0] + part.start
        around = parent[inner]
        unnumbered = (spans.category[around] == _BACKWARD) & (sequence[around] < 0)
        inner = inner[unnumbered][::-1]  # the first one stays
        sequence[parent[inner]] = spans.sequence[inner]
        numbered_by[parent[inner]] = spans.numbered_by[inner]
    return replace(spans, sequence=sequence, numbered_by=numbered_by)


def _copy(column: Int64, spill: Spill) -> Int64:
    copied: Int64 = spill.empty(len(column), column.dtype)
    copied[:] = column
    return copied


def link_backward(spans: Spans, parent: Int64, process: Int64, spill: Spill) -> Pairs:
    """Return which operator each backward computes the gradients of; `process` is that of a lane.

    The framework numbers operators thread by thread. Several share a number, one inside the other
    or one after the other: the last to begin is the one that made the node of the graph. Of the
    backward spans with one number the outermost counts.
    """
    sequence, numbered_by = spans.sequence, spans.numbered_by
    if sequence is None or numbered_by is None or not (spans.category == _BACKWARD).any():
        return NO_PAIRS

    def keyed(part: slice) -> _Keyed:
        rows = np.flatnonzero(sequence[part] >= 0) + part.start
        return _Keyed(
            start_ns=sequence[rows],
            row=rows,
            process=process[spans.lane[rows]],
            thread=numbered_by[rows],
            leads=spans.category[rows] != _BACKWARD,
            parent=parent[rows],
        )

    number = ["process", "thread", "start_ns"]

    def linked(rows: pl.DataFrame) -> pl.DataFrame:
        forward = rows.filter("leads").group_by(number).agg(source=pl.max("row"))
        backward = rows.filter(~pl.col("leads"))
        outer = backward.select(*number, pl.col("row").alias("parent"))
        pairs = backward.join(outer, on=[*number, "parent"], how="anti").join(forward, on=number)
        return pairs.filter(pl.col("source") < pl.col("row"))

    return _link(len(spans), keyed, linked, spill)


def link_launches(spans: Spans, process: Int64, spill: Spill) -> Pairs:
    """Return which call of the runtime started each kernel and copy."""
    correlation = spans.correlation
    if correlation is None:
        return NO_PAIRS

    def keyed(part: slice) -> _Keyed:
        rows = np.flatnonzero(correlation[part] > 0) + part.start
        return _Keyed(
            start_ns=correlation[rows],
            row=rows,
            process=process[spans.lane[rows]],
            thread=np.zeros(len(rows), np.int64),
            leads=spans.category[rows] == CATEGORIES.index("runtime"),
            parent=rows,
        )

    key = ["process", "start_ns"]

    def linked(rows: pl.DataFrame) -> pl.DataFrame:
        calls = rows.filter("leads").group_by(key).agg(source=pl.min("row"))
        return rows.filter(~pl.col("leads")).join(calls, on=key)

    return _link(len(spans), keyed, linked, spill)


def _link(
    count: int,
    keyed: Callable[[slice], _Keyed],
    linked: Callable[[pl.DataFrame], pl.DataFrame],
    spill: Spill,
) -> Pairs:
    """Return the pairs among rows that share a number, which are looked at together."""
    by_number, pairs = Sorter(spill, _Keyed), Sorter(spill, _Found)
    for part in spill.parts(count):
        by_number.add(keyed(part))
    rows = by_number.rows()
    first = 0
    for part in spill.parts(len(rows)):
        last = int(np.searchsorted(rows.start_ns, rows.start_ns[part.stop - 1], side="right"))
        if last > first:
            found = linked(pl.DataFrame(vars(rows.take(slice(first, last)))))
            pairs.add(_Found(start_ns=found["row"].to_numpy(), leader=found["source"].to_numpy()))
        first = max(first, last)
    sorted_pairs = pairs.rows()
    return Pairs(sorted_pairs.leader, sorted_pairs.start_ns)


def links_table(kinds: Sequence[tuple[str, Pairs]], spill: Spill) -> dict[str, Column]:
    """Return the rows of `links`."""
    total = sum(len(pairs.source) for _, pairs in kinds)
    codes = spill.empty(total, np.int32)
    source, target = spill.empty(total, np.int64), spill.empty(total, np.int64)
    first = 0
    for code, (_, pairs) in enumerate(kinds):
        rows = slice(first, first + len(pairs.source))
        codes[rows], source[rows], target[rows] = code, *pairs
        first = rows.stop
    return {"kind": Coded(codes, [kind for kind, _ in kinds]), "source": source, "target": target}


def layers(spans: Spans, parent: Int64, backward: Pairs, spill: Spill) -> Int64 | None:
    """Return the row of the layer each span was called in, -1 for none; None where there are none.

    A backward belongs to the layer of its forward, and so does what is inside it.
    """
    if not (spans.category == _MODULE).any():
        return None
    layer = innermost_of(lambda part: spans.category[part] == _MODULE, parent, spill)

    def is_linked(part: slice) -> Bool:
        first, last = np.searchsorted(backward.target, [part.start, part.stop])
        linked = np.zeros(part.stop - part.start, bool)
        linked[backward.target[first:last] - part.start] = True
        return linked

    inside = innermost_of(is_linked, parent, spill)
    found: Int64 = spill.empty(len(spans), np.int64)
    for part in spill.parts(len(spans)):
        found[part] = layer[part]
        rows = np.flatnonzero(inside[part] >= 0) + part.start
        forward = backward.source[np.searchsorted(backward.target, inside[rows])]
        found[rows] = layer[forward]
    return found
