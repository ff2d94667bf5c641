# SPDX-License-Identifier: Apache-2.0
"""The steps of a program that marks none, found by its annotations, optimizers and loaders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from strobe.assemble.cut import Rows
from strobe.model.arrays import Bool, Int8, Int64
from strobe.model.attributes import ENDINGS
from strobe.model.phases import (
    BACKWARD,
    FORWARD,
    LOADER_PREFIX,
    LOADING,
    NONE,
    OPTIMIZER,
    OPTIMIZER_PREFIX,
)
from strobe.model.tables import CATEGORIES
from strobe.model.trace import Trace
from strobe.store.spill import Spill

_ANNOTATION, _DATA_LOADING = CATEGORIES.index("annotation"), CATEGORIES.index("data_loading")


def derived_steps(
    spans: Rows, parent: Int64, phase: Int8, trace: Trace, spill: Spill
) -> pl.DataFrame:
    """Return the steps of a program that marks none, by its annotations, optimizers and loaders.

    A step of kind `annotation` is a span of that category with a number of a step. The steps have
    these numbers if they rise, else they are counted.
    Without such, a step of kind `optimizer` ends with an Optimizer.step#..., an annotation whose
    stated phase is the optimizer's, or a span that is stated to end a step. It begins with the end
    of the last one, the first with the first wait for a loader, or else the first span of the lane.
    Several optimizers are one step if no data is loaded between them; in a program whose loop loads
    none, if no forward is between them; and where no forward is known, if no backward is.
    Without an optimizer, a step of kind `batch` begins with a wait for the loader, unless nothing
    follows before the next wait, and ends with the next one, the last with the lane's last span. A
    wait that is stated to have reached the end of the data does not count.
    With neither, operators that are known to be an optimizer's end a step of kind `optimizer`;
    without these there are none.

    The lane is that with the most such spans. `phase` is derived. Columns: those of the table
    `steps`.
    """
    rows = _Rows(spans, parent, phase, trace, spill)
    annotated = rows.outermost(rows.where(rows.are_numbered))
    if len(annotated):
        return _by_annotation(rows, annotated)
    optimizer = rows.outermost(rows.where(rows.end_steps))
    idle = rows.idle()
    loader = np.setdiff1d(rows.outermost(rows.where(rows.are_waits)), idle)
    if not len(optimizer) and not len(loader):
        optimizer = rows.where(lambda part: phase[part] == OPTIMIZER)
    marked = optimizer if len(optimizer) else loader
    if not len(marked):
        return _steps("batch", -1, marked, marked, marked.astype(bool))
    lane = rows.busiest_lane(marked)
    if len(optimizer):
        return _by_optimizer(rows, lane, rows.of_lane(optimizer, lane), rows.of_lane(loader, lane))
    return _by_loader(rows, lane, rows.of_lane(loader, lane), idle)


class _Rows:
    """The spans, and the questions that are put to them."""

    def __init__(self, spans: Rows, parent: Int64, phase: Int8, trace: Trace, spill: Spill) -> None:
        self.spans = spans
        self._parent = parent
        self._phase = phase
        self.parts = spill.parts(len(spans))
        self._are_optimizers, self._are_loaders = (
            np.array([name.startswith(prefix) for name in trace.names] or [False])
            for prefix in (OPTIMIZER_PREFIX, LOADER_PREFIX)
        )

    def where(self, holds: Callable[[slice], Bool]) -> Int64:
        """Return the rows of which something holds."""
        found = [np.flatnonzero(holds(part)) + part.start for part in self.parts]
        return np.concatenate([np.zeros(0, np.int64), *found])

    def outermost(self, rows: Int64) -> Int64:
        """Return those of the rows that are not inside another of them."""
        kept = np.ones(len(rows), bool)
        above, left = self._parent[rows], np.arange(len(rows))
        while len(left := left[above >= 0]):
            above = above[above >= 0]
            inside = np.isin(above, rows)
            kept[left[inside]] = False
            left, above = left[~inside], self._parent[above[~inside]]
        return rows[kept]

    def are_numbered(self, part: slice) -> Bool:
        if self.spans.step is None:
            return np.zeros(part.stop - part.start, bool)
        are: Bool = (self.spans.category[part] == _ANNOTATION) & (self.spans.step[part] >= 0)
        return are

    def end_steps(self, part: slice) -> Bool:
        named = self._are_optimizers[self.spans.name[part]] & (self._phase[part] == OPTIMIZER)
        annotated = self.spans.category[part] == _ANNOTATION
        stated: Bool = annotated & (self._stated(part) == OPTIMIZER)
        ends: Bool = stated | named | self._ends(part, "step")
        return ends

    def are_waits(self, part: slice) -> Bool:
        named = self._are_loaders[self.spans.name[part]] & (self._phase[part] == LOADING)
        may_wait = np.isin(self.spans.category[part], (_ANNOTATION, _DATA_LOADING))
        stated: Bool = may_wait & (self._stated(part) == LOADING)
        waits: Bool = stated | named
        return waits

    def idle(self) -> Int64:
        """Return the waits that found no more data, and what is directly around them."""
        rows = self.where(lambda part: self._ends(part, "data"))
        around = self._parent[rows]
        return np.union1d(rows, around[around >= 0])

    def _stated(self, part: slice) -> Int8:
        stated = self.spans.phase
        return np.full(part.stop - part.start, NONE, np.int8) if stated is None else stated[part]

    def _ends(self, part: slice, what: str) -> Bool:
        if self.spans.ends is None:
            return np.zeros(part.stop - part.start, bool)
        ends: Bool = self.spans.ends[part] == ENDINGS.index(what)
        return ends

    def busiest_lane(self, rows: Int64) -> int:
        """Return the lane that has most of these rows."""
        return int(np.bincount(self.spans.lane[rows]).argmax())

    def of_lane(self, rows: Int64, lane: int) -> Int64:
        chosen: Int64 = rows[self.spans.lane[rows] == lane]
        return chosen

    def count_before(self, places: Int64, lane: int, phase: int) -> Int64:
        """Return how many rows of a lane and phase are before each of these places."""
        counts, total = np.zeros(len(places), np.int64), 0
        for part in self.parts:
            holds = (self.spans.lane[part] == lane) & (self._phase[part] == phase)
            seen = np.append(0, np.cumsum(holds)) + total
            here = (places >= part.start) & (places < part.stop)
            counts[here] = seen[places[here] - part.start]
            total = int(seen[-1])
        return counts

    def ends_ns(self, rows: Int64) -> Int64:
        ends: Int64 = self.spans.start_ns[rows] + self.spans.dur_ns[rows]
        return ends


def _by_annotation(rows: _Rows, annotated: Int64) -> pl.DataFrame:
    lane = rows.busiest_lane(annotated)
    chosen = rows.of_lane(annotated, lane)
    spans = rows.spans.take(chosen)
    end_ns = spans.start_ns + spans.dur_ns
    steps = _steps("annotation", lane, spans.start_ns, end_ns, spans.unfinished)
    number = spans.step
    if number is None or not (np.diff(number) > 0).all():
        return steps
    return steps.with_columns(step=pl.Series(number))


def _by_optimizer(rows: _Rows, lane: int, chosen: Int64, loader: Int64) -> pl.DataFrame:
    """Return the steps by optimizers, which are apart by a loader, a forward or a backward."""
    before = np.searchsorted(loader, chosen)
    for phase in (FORWARD, BACKWARD):
        if before[0] < before[-1]:
            break
        before = rows.count_before(chosen, lane, phase)
    if before[0] == before[-1]:
        before = np.arange(len(chosen))
    last = chosen[np.append(before[1:] > before[:-1], True)]
    end_ns = rows.ends_ns(last)
    waits = loader[loader <= chosen[0]]
    first = int(waits[0]) if len(waits) else _first_of(rows, lane)
    start_ns = np.append(rows.spans.start_ns[first], end_ns[:-1])
    return _steps("optimizer", lane, start_ns, end_ns, rows.spans.unfinished[last])


def _first_of(rows: _Rows, lane: int) -> int:
    """Return the first row of a lane."""
    for part in rows.parts:
        found = np.flatnonzero(rows.spans.lane[part] == lane)
        if len(found):
            return int(found[0] + part.start)
    return 0


def _by_loader(rows: _Rows, lane: int, chosen: Int64, idle: Int64) -> pl.DataFrame:
    """Return the steps by a loader; what begins before a wait ends is the loader's own."""
    # The last row before each next wait that is not idle: it is the one to begin last.
    busy = np.full(len(chosen), -1, np.int64)
    last_end_ns, last_unfinished = int(rows.ends_ns(chosen).max()), -1
    following = np.append(chosen[1:], len(rows.spans))
    for part in rows.parts:
        mine = np.flatnonzero(rows.spans.lane[part] == lane) + part.start
        if not len(mine):
            continue
        last_end_ns = max(last_end_ns, int(rows.ends_ns(mine).max()))
        last_unfinished = int(mine[rows.spans.unfinished[mine]].max(initial=last_unfinished))
        working = np.setdiff1d(mine, idle)
        place = np.searchsorted(working, following)
        busy = np.where(place > 0, np.append(working, -1)[place - 1], busy)
    used = rows.spans.start_ns[busy] >= rows.ends_ns(chosen)
    first = chosen[used] if used.any() else chosen
    start_ns = rows.spans.start_ns[first]
    unfinished = np.zeros(len(first), bool)
    unfinished[-1] = last_unfinished >= first[-1]
    return _steps("batch", lane, start_ns, np.append(start_ns[1:], last_end_ns), unfinished)


def _steps(
    kind: str,
    lane: int,
    start_ns: Int64,
    end_ns: Int64,
    unfinished: Bool,
) -> pl.DataFrame:
    rows = len(start_ns)
    return pl.DataFrame(
        {
            "step": np.arange(rows, dtype=np.int64),
            "kind": pl.repeat(kind, rows, dtype=pl.String, eager=True),
            "start_ns": start_ns,
            "dur_ns": end_ns - start_ns,
            "samples": pl.repeat(None, rows, dtype=pl.Int64, eager=True),
            "lane": pl.repeat(lane, rows, dtype=pl.Int32, eager=True),
            "unfinished": unfinished,
        }
    )
