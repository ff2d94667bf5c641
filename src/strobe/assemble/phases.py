# SPDX-License-Identifier: Apache-2.0
"""Which part of a training step a span belongs to, derived from the framework's events alone.

The rows are looked at part by part. Only what a column of bytes holds is kept of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from strobe.assemble.around import split_parents
from strobe.assemble.links import Pairs
from strobe.model.ancestors import innermost
from strobe.model.arrays import Bool, Int8, Int32, Int64, Places, UInt8
from strobe.model.phases import (
    BACKWARD,
    FORWARD,
    LOADER_PREFIX,
    LOADING,
    NONE,
    OPTIMIZER,
    OPTIMIZER_PREFIX,
    OTHER,
    UNKNOWN,
    ZERO_GRAD,
    ZERO_GRAD_PREFIX,
)
from strobe.model.tables import CATEGORIES, PHASES
from strobe.model.trace import Spans, Trace
from strobe.store.spill import Spill


def _categories(*names: str) -> Bool:
    """Return which categories are among these, by number."""
    return np.isin(CATEGORIES, names)


_IN_RUNS = _categories("operator", "communication", "runtime")
_LAUNCHED = _categories("kernel", "copy", "communication")
_OPERATOR, _RUNTIME = CATEGORIES.index("operator"), CATEGORIES.index("runtime")
_BACKWARD, _DATA_LOADING = CATEGORIES.index("backward"), CATEGORIES.index("data_loading")
_PREFIXES = {
    OPTIMIZER_PREFIX: OPTIMIZER,
    ZERO_GRAD_PREFIX: ZERO_GRAD,
    LOADER_PREFIX: LOADING,
}
_HAS_BACKWARD, _HAS_OPERATOR, _HAS_MORE_THAN_CALLS = 1, 2, 4
"""What a run has: one that has an operator has more than calls of a runtime, too."""


def phases(
    spans: Spans,
    parent: Int64,
    trace: Trace,
    backward: Pairs,
    launches: Sequence[Pairs],
    spill: Spill,
) -> Int8:
    """Return the phase of each span, NONE where it has none.

    Some spans say it themselves: those with an attribute `phase`, a loader's wait and what has the
    category data_loading, Optimizer.step#..., Optimizer.zero_grad#..., and what has the category
    backward. What is inside has the phase of the innermost of these around it, so an optimizer's
    closure keeps its backward and a recomputed forward is part of the backward; but inside data
    loading all is data loading.

    Between these, the operators of a lane form runs. A run is
        forward, if one of its operators has a backward, or data loading, zero_grad or the beginning
            of the lane comes before it and no optimizer's step after it, or its lane has no
            backward at all (as in inference); or, where the framework does not link each backward
            to its forward, if a backward or a stated forward comes after it;
        other, if not: metrics, clipped gradients. So is one of nothing but communication; one of
            nothing but calls of a runtime has no phase.
    Inside an optimizer's step, a run whose backward is inside too is forward.
    A backward on a thread of its own parts the runs of the lane that its forward was on. In a
    loader's worker process every run is data loading.

    What was launched (a kernel, a copy, a backend's part of a collective) has the phase of its
    launch. All other spans, as those of the user, modules and annotations, have the phase of the
    spans that begin in them if it is the same for all that have one, or else none.

    What is stated to be unknown, as operators compiled into a program of several phases, has none.
    """
    rows = _Rows(spans, parent, trace, spill)
    phase = _of_blocks(rows)
    _fill_runs(rows, phase, backward)
    launched = [phase[pairs.source] for pairs in launches]
    for (_, target), found in zip(launches, launched, strict=True):
        follows = _LAUNCHED[spans.category[target]] & (found != NONE)
        phase[target[follows]] = found[follows]
    _fill_containers(rows, phase)
    return phase


class _Rows:
    """The spans, and what their names and lanes say."""

    def __init__(self, spans: Spans, parent: Int64, trace: Trace, spill: Spill) -> None:
        self.spans = spans
        self.parent = parent
        self.spill = spill
        self.parts = spill.parts(len(spans))
        self.lanes = len(trace.threads)
        self.pids = [thread.pid for thread in trace.threads]
        self._of_name = np.full(len(trace.names) or 1, NONE, np.int8)
        for prefix, phase in _PREFIXES.items():
            self._of_name[[name.startswith(prefix) for name in trace.names]] = phase

    def named(self, rows: slice | Places) -> Int8:
        """Return the phases that the names of these rows imply."""
        return self._of_name[self.spans.name[rows]]

    def stated(self, rows: slice | Places) -> Int8:
        """Return the phases that the producer states of these rows."""
        if self.spans.phase is None:
            return np.full(len(self.spans.start_ns[rows]), NONE, np.int8)
        stated = self.spans.phase[rows]
        return np.where(stated < 0, np.int8(NONE), stated.astype(np.int8))

    def are_unknown(self, rows: slice) -> Bool:
        if self.spans.phase is None:
            return np.zeros(rows.stop - rows.start, bool)
        are: Bool = self.spans.phase[rows] == UNKNOWN
        return are

    def own(self, rows: slice) -> Int8:
        """Return the phases that these rows say of themselves."""
        category, named, stated = self.spans.category[rows], self.named(rows), self.stated(rows)
        own = np.where(category == _BACKWARD, np.int8(BACKWARD), np.int8(NONE))
        own = np.where(named != NONE, named, own)
        own[category == _DATA_LOADING] = LOADING
        return np.where(stated != NONE, stated, own)

    def around(self, phase: Int8, rows: slice) -> Int8:
        """Return the phases of the parents of these rows."""
        parent = self.parent[rows]
        return np.where(parent < 0, np.int8(NONE), phase[parent])


def _of_blocks(rows: _Rows) -> Int8:
    """Return the phase of what says its phase itself, and of what is inside; NONE for the rest."""
    phase: Int8 = rows.spill.empty(len(rows.spans), np.int8)
    for part in rows.parts:
        own = rows.own(part)
        inside, before = split_parents(phase, rows.parent, part, NONE)
        own[innermost((own == LOADING) | (before == LOADING), inside) >= 0] = LOADING
        own = np.where(own == NONE, before, own)
        phase[part] = np.append(own, np.int8(NONE))[innermost(own != NONE, inside)]
    return phase


def _fill_runs(rows: _Rows, phase: Int8, backward: Pairs) -> None:
    """Give the operators between blocks their phases."""
    runs = _Runs(rows, backward)
    trains, workers = _lanes_with_backward(rows, phase, backward), _workers(rows, phase)
    forwards = _forwards(rows, phase, backward)
    run_of: Int32 = rows.spill.full(len(rows.spans), -1, np.int32)
    for part in rows.parts:
        runs.add(part, phase, forwards, run_of)
    for part in rows.parts:
        members = np.flatnonzero(run_of[part] >= 0) + part.start
        if len(members):
            lane, in_step = rows.spans.lane[members], phase[members] == OPTIMIZER
            found = runs.phases(run_of[members], in_step, trains[lane])
            phase[members] = np.where(workers[lane], np.int8(LOADING), found)


class _Runs:
    """The runs of all lanes. A run begins with a lane, or after a mark.

    A mark is the begin of a block, or of a backward elsewhere that belongs to the lane. Rows are
    sorted by start, so a row's number serves as its time.
    """

    def __init__(self, rows: _Rows, backward: Pairs) -> None:
        self._rows = rows
        self._backward = backward
        self._count = 0
        self._last = np.full(rows.lanes, -1, np.int32)
        self._after = np.zeros(0, np.int8)
        self._before = np.zeros(0, np.int8)
        self._has = np.zeros(0, np.uint8)

    def add(self, part: slice, phase: Int8, forwards: Bool, run_of: Int32) -> None:
        """Number the runs of some rows, the next ones."""
        spans, found = self._rows.spans, phase[part]
        category = spans.category[part]
        begins = np.flatnonzero((found != NONE) & (found != self._rows.around(phase, part)))
        is_member = _IN_RUNS[category] & ~self._rows.are_unknown(part)
        is_member &= (found == NONE) | ((found == OPTIMIZER) & (category == _OPERATOR))
        members = np.flatnonzero(is_member)
        elsewhere, lanes_of = self._elsewhere(part)
        marks = [found[begins], np.full(len(elsewhere), BACKWARD), np.full(len(members), NONE)]
        lanes = [spans.lane[part][begins], lanes_of, spans.lane[part][members]]
        times = [begins + part.start, elsewhere, members + part.start]
        lane, time, mark = (np.concatenate(each) for each in (lanes, times, marks))
        order = np.lexsort((time, lane))
        run = np.empty(len(order), np.int32)
        run[order] = self._number(lane[order], mark[order].astype(np.int8))
        run = run[len(run) - len(members) :]
        run_of[members + part.start] = run
        self._note(run, found[members], category[members], forwards[part][members])

    def _elsewhere(self, part: slice) -> tuple[Int64, Int32]:
        """Return the backwards that begin here in other lanes than their forwards, and these."""
        source, target = self._backward
        first, last = np.searchsorted(target, [part.start, part.stop])
        source, target = source[first:last], target[first:last]
        lane = self._rows.spans.lane
        away = lane[source] != lane[target]
        return target[away], lane[source[away]]

    def _number(self, lane: Int32, mark: Int8) -> Int32:
        """Return the run of each event; they come lane by lane."""
        if not len(lane):
            return np.zeros(0, np.int32)
        is_first = np.append(True, lane[1:] != lane[:-1])
        going_on = self._last[lane]
        begins = (mark != NONE) | (is_first & (going_on < 0))
        numbers = np.where(begins, self._count - 1 + np.cumsum(begins), going_on)
        run: Int32 = numbers[
            np.maximum.accumulate(np.where(begins | is_first, np.arange(len(lane)), 0))
        ]
        run = run.astype(np.int32)
        previous = np.where(is_first, going_on, np.append(np.int32(-1), run[:-1]))[begins]
        self._count += int(np.count_nonzero(begins))
        self._grow()
        self._after[run[begins]] = mark[begins]
        self._before[previous[previous >= 0]] = mark[begins][previous >= 0]
        self._last[lane] = run  # the last one of each lane stays
        return run

    def _grow(self) -> None:
        missing = self._count - len(self._after)
        if missing > 0:
            more = max(missing, len(self._after))
            self._after = np.append(self._after, np.full(more, NONE, np.int8))
            self._before = np.append(self._before, np.full(more, NONE, np.int8))
            self._has = np.append(self._has, np.zeros(2 * more, np.uint8))

    def _note(self, run: Int32, phase: Int8, category: UInt8, forward: Bool) -> None:
        """Note what the runs have; what is in an optimizer's step has a place of its own."""
        key = _keys(run, phase == OPTIMIZER)
        for holds, bit in (
            (forward, _HAS_BACKWARD),
            (category == _OPERATOR, _HAS_OPERATOR),
            (category != _RUNTIME, _HAS_MORE_THAN_CALLS),
        ):
            self._has[key[holds]] |= bit

    def phases(self, run: Int32, in_step: Bool, trains: Bool) -> Int8:
        """Return the phases of members, whose lanes may train, given the numbers of their runs."""
        has = self._has[_keys(run, in_step)]
        after, before = self._after[run], self._before[run]
        begins_anew = np.isin(after, (NONE, LOADING, ZERO_GRAD)) & (before != OPTIMIZER)
        if len(self._backward.source) == 0:
            begins_anew |= np.isin(before, (BACKWARD, FORWARD))
        anew = (begins_anew | ~trains) & (has & _HAS_OPERATOR > 0)
        forward = (has & _HAS_BACKWARD > 0) | (~in_step & anew)
        found = np.where(forward, FORWARD, np.where(in_step, OPTIMIZER, OTHER)).astype(np.int8)
        found[~in_step & (has & _HAS_MORE_THAN_CALLS == 0)] = NONE
        return found


def _keys(run: Int32, in_step: Bool) -> Int64:
    keys: Int64 = run.astype(np.int64) * 2 + in_step
    return keys


def _forwards(rows: _Rows, phase: Int8, backward: Pairs) -> Bool:
    """Return which rows have a backward; of those in an optimizer's step, if that has it too."""
    holds: Bool = rows.spill.full(len(rows.spans), 0, bool)
    for part in rows.spill.parts(len(backward.source)):
        source, target = backward.source[part], backward.target[part]
        in_step = phase[source] == OPTIMIZER
        holds[source[~in_step]] = True
        source, target = source[in_step], target[in_step]
        if len(source):
            step = _step_around(rows, source)
            end_ns = rows.spans.start_ns[step] + rows.spans.dur_ns[step]
            holds[source[(step >= 0) & (rows.spans.start_ns[target] < end_ns)]] = True
    return holds


def _step_around(rows: _Rows, places: Int64) -> Int64:
    """Return the innermost optimizer's step around each of these rows, -1 for none."""
    step: Int64 = places.copy()
    while True:
        is_step = (rows.named(step) == OPTIMIZER) | (rows.stated(step) == OPTIMIZER)
        further = (step >= 0) & ~is_step
        if not further.any():
            return step
        step[further] = rows.parent[step[further]]


def _lanes_with_backward(rows: _Rows, phase: Int8, backward: Pairs) -> Bool:
    """Return whether each lane has a backward, its own or one elsewhere that belongs to it."""
    found = np.zeros(rows.lanes, bool)
    for part in rows.parts:
        found[rows.spans.lane[part][phase[part] == BACKWARD]] = True
    for part in rows.spill.parts(len(backward.source)):
        belongs = phase[backward.target[part]] == BACKWARD
        found[rows.spans.lane[backward.source[part][belongs]]] = True
    return found


def _workers(rows: _Rows, phase: Int8) -> Bool:
    """Return the lanes of processes that load data for others: they fetch, and wait for nobody."""
    fetching, busy = np.zeros(rows.lanes, bool), np.zeros(rows.lanes, bool)
    for part in rows.parts:
        lane = rows.spans.lane[part]
        fetching[lane[rows.spans.category[part] == _DATA_LOADING]] = True
        busy[lane[(rows.named(part) == LOADING) | (rows.stated(part) == LOADING)]] = True
        busy[lane[np.isin(phase[part], (BACKWARD, OPTIMIZER, ZERO_GRAD))]] = True
    workers = _pids(rows, fetching) - _pids(rows, busy)
    return np.array([pid in workers for pid in rows.pids], bool)


def _pids(rows: _Rows, lanes: Bool) -> set[int]:
    return {pid for pid, chosen in zip(rows.pids, lanes, strict=True) if chosen and pid is not None}


def _fill_containers(rows: _Rows, phase: Int8) -> None:
    """Give spans without a phase the one that all spans share that begin in them."""
    never = np.iinfo(np.int64).max
    next_ns = np.full((len(PHASES), rows.lanes), never)  # after the part at hand
    for part in reversed(rows.parts):
        by_lane = np.argsort(rows.spans.lane[part], kind="stable") + part.start
        found, lane = phase[by_lane], rows.spans.lane[by_lane]
        places = np.flatnonzero((found == NONE) & ~rows.are_unknown(part)[by_lane - part.start])
        containers = by_lane[places]
        end_ns = rows.spans.start_ns[containers] + rows.spans.dur_ns[containers]
        kinds = np.zeros(len(containers), np.int8)
        only = np.full(len(containers), NONE, np.int8)
        for code in range(len(PHASES)):
            having = np.flatnonzero(found == code)
            if not len(having) and (next_ns[code] == never).all():
                continue
            # The next row of the lane that has it begins before the container ends, or none does.
            following = np.append(having, -1)[np.searchsorted(having, places)]
            here = (following >= 0) & (lane[following] == lane[places])
            begin_ns = np.where(
                here, rows.spans.start_ns[by_lane[following]], next_ns[code][lane[places]]
            )
            has = begin_ns < end_ns
            kinds += has
            only[has] = code
            next_ns[code][lane[having][::-1]] = rows.spans.start_ns[by_lane[having]][::-1]
        phase[containers] = np.where(kinds == 1, only, NONE)
