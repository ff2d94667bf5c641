# SPDX-License-Identifier: Apache-2.0
"""Which part of a training step a span belongs to, derived from the framework's events alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from strobe.model.ancestors import innermost, is_inside
from strobe.model.arrays import Bool, Int8, Int64
from strobe.model.coded import Coded
from strobe.model.phases import (
    BACKWARD,
    FORWARD,
    LOADER_PREFIX,
    LOADING,
    NONE,
    OPTIMIZER,
    OPTIMIZER_PREFIX,
    OTHER,
    ZERO_GRAD,
    ZERO_GRAD_PREFIX,
)
from strobe.model.tables import PHASES

_IN_RUNS = ("operator", "communication", "runtime")
_LAUNCHED = ("kernel", "copy", "communication")


def phases(spans: pl.DataFrame, links: pl.DataFrame, unknown: Bool | None = None) -> pl.Series:
    """Return the phase of each span, null where it has none.

    Some spans say it themselves: those with an attribute `phase` (column `stated`), a loader's wait
    and what has the category data_loading, Optimizer.step#..., Optimizer.zero_grad#..., and what
    has the category backward. What is inside has the phase of the innermost of these around it, so
    an optimizer's closure keeps its backward and a recomputed forward is part of the backward; but
    inside data loading all is data loading.

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

    What is `unknown`, as operators compiled into a program of several phases, has none.

    Reads name, category, lane, pid, start_ns, dur_ns, parent and, if it is there, stated of a whole
    table of spans, sorted, and kind, source and target of `links`.
    """
    columns = _Columns.of(spans)
    phase = _of_blocks(columns)
    backward = _pairs(links, "backward")
    members = columns.category.is_one_of(*_IN_RUNS) & (
        (phase == NONE) | ((phase == OPTIMIZER) & columns.category.is_one_of("operator"))
    )
    if unknown is None:
        unknown = np.zeros(len(phase), bool)
    members &= ~unknown
    if members.any():
        rows, found = _of_runs(columns, phase, np.flatnonzero(members), backward)
        phase[rows] = found
    source, target = _pairs(links, "launch")
    follows = columns.category.is_one_of(*_LAUNCHED)[target] & (phase[source] != NONE)
    phase[target[follows]] = phase[source[follows]]
    _fill_containers(columns, phase, ~unknown)
    texts = pl.Series("phase", [*PHASES, None], dtype=pl.Enum(PHASES))
    return texts.gather(np.where(phase == NONE, len(PHASES), phase))


@dataclass(frozen=True)
class _Columns:
    name: Coded
    category: Coded
    lane: Int64
    pid: Int64
    start_ns: Int64
    end_ns: Int64
    parent: Int64
    stated: Int8

    @staticmethod
    def of(spans: pl.DataFrame) -> _Columns:
        return _Columns(
            name=Coded.of(spans["name"]),
            category=Coded.of(spans["category"]),
            lane=spans["lane"].cast(pl.Int64).to_numpy(),
            pid=spans["pid"].cast(pl.Int64).to_numpy(),
            start_ns=spans["start_ns"].to_numpy(),
            end_ns=(spans["start_ns"] + spans["dur_ns"]).to_numpy(),
            parent=spans["parent"].fill_null(-1).to_numpy(),
            stated=stated_codes(spans),
        )


def stated_codes(spans: pl.DataFrame) -> Int8:
    """Return the phases that the producer stated, as numbers."""
    if "stated" not in spans.columns:
        return np.full(len(spans), NONE, np.int8)
    stated = spans["stated"].cast(pl.Enum(PHASES)).to_physical().cast(pl.Int8)
    codes: Int8 = stated.fill_null(NONE).to_numpy()
    return codes


def _pairs(links: pl.DataFrame, kind: str) -> tuple[Int64, Int64]:
    chosen = links.filter(pl.col("kind").cast(pl.String) == kind)
    return chosen["source"].to_numpy(), chosen["target"].to_numpy()


def _of_blocks(columns: _Columns) -> Int8:
    """Return the phase of what says its phase itself, and of what is inside; NONE for the rest."""
    own = np.full(len(columns.lane), NONE, np.int8)
    own[columns.category.is_one_of("backward")] = BACKWARD
    own[columns.name.begins(OPTIMIZER_PREFIX)] = OPTIMIZER
    own[columns.name.begins(ZERO_GRAD_PREFIX)] = ZERO_GRAD
    own[columns.name.begins(LOADER_PREFIX)] = LOADING
    own[columns.category.is_one_of("data_loading")] = LOADING
    own = np.where(columns.stated != NONE, columns.stated, own)
    own[is_inside(own == LOADING, columns.parent)] = LOADING
    around = innermost(own != NONE, columns.parent)
    return np.append(own, np.int8(NONE))[around]


def _of_runs(
    columns: _Columns,
    phase: Int8,
    members: Int64,
    backward: tuple[Int64, Int64],
) -> tuple[Int64, Int8]:
    """Return the rows of all runs and their phases.

    A run begins after a mark: the begin of a block, or of a backward elsewhere that belongs to the
    lane. Rows are sorted by start, so a row's number serves as its time.
    """
    source, target = backward
    begins = np.flatnonzero((phase != NONE) & (phase != np.append(phase, NONE)[columns.parent]))
    away = columns.lane[source] != columns.lane[target]
    lanes = [columns.lane[begins], columns.lane[source[away]], columns.lane[members]]
    times = [begins, target[away], members]
    marks = [phase[begins], np.full(away.sum(), BACKWARD, np.int8), np.full(len(members), NONE)]
    lane, time, mark = (np.concatenate(parts) for parts in (lanes, times, marks))
    order = np.argsort(lane * (len(phase) + 1) + time, kind="stable")
    lane, time, mark = lane[order], time[order], mark[order]
    is_first = np.append(True, lane[1:] != lane[:-1])
    begins_run = is_first | (mark != NONE)
    number = np.cumsum(begins_run) - 1
    after = mark[begins_run]
    before = np.append(np.where(is_first[begins_run], NONE, after)[1:], NONE)

    is_member = order >= len(begins) + int(away.sum())
    rows, lane, number = time[is_member], lane[is_member], number[is_member]
    in_step = phase[rows] == OPTIMIZER
    key = number * 2 + in_step  # an operator in a step and one after it may have the same number
    has_backward = _any_of(_forwards(columns, phase, source, target)[rows], key)
    has_operator = _any_of(columns.category.is_one_of("operator")[rows], key)
    trains = _lanes_with_backward(columns, phase, source, target)[lane]
    begins_anew = np.isin(after, (NONE, LOADING, ZERO_GRAD)) & (before != OPTIMIZER)
    leads_on = np.isin(before, (BACKWARD, FORWARD)) & (len(source) == 0)
    anew = (begins_anew | leads_on)[number] | ~trains
    forward = has_backward | (~in_step & anew & has_operator)
    found = np.where(forward, FORWARD, np.where(in_step, OPTIMIZER, OTHER)).astype(np.int8)
    runtime = columns.category.is_one_of("runtime")[rows]
    found[~in_step & ~_any_of(~runtime, key)] = NONE
    workers = _workers(columns, phase)
    if len(workers):
        found[np.isin(columns.pid[rows], workers)] = LOADING
    return rows, found


def _any_of(holds: Bool, key: Int64) -> Bool:
    """Return, for each row, whether it holds for any row with the same key."""
    found = np.zeros(int(key.max(initial=0)) + 1, bool)
    found[key[holds]] = True
    return found[key]


def _forwards(
    columns: _Columns,
    phase: Int8,
    source: Int64,
    target: Int64,
) -> Bool:
    """Return which rows have a backward; of those in an optimizer's step, if that has it too."""
    holds = np.zeros(len(phase), bool)
    in_step = phase[source] == OPTIMIZER
    holds[source[~in_step]] = True
    if in_step.any():
        is_step = columns.name.begins(OPTIMIZER_PREFIX) | (columns.stated == OPTIMIZER)
        steps = innermost(is_step, columns.parent)
        source, target = source[in_step], target[in_step]
        holds[source[columns.start_ns[target] < columns.end_ns[steps[source]]]] = True
    return holds


def _lanes_with_backward(
    columns: _Columns,
    phase: Int8,
    source: Int64,
    target: Int64,
) -> Bool:
    """Return whether each lane has a backward, its own or one elsewhere that belongs to it."""
    found = np.zeros(int(columns.lane.max()) + 1, bool)
    found[columns.lane[phase == BACKWARD]] = True
    found[columns.lane[source[phase[target] == BACKWARD]]] = True
    return found


def _workers(columns: _Columns, phase: Int8) -> Int64:
    """Return the processes that load data for others: they fetch, and do not wait for a loader."""
    fetching = columns.pid[columns.category.is_one_of("data_loading")]
    if not len(fetching):
        return fetching
    waiting = columns.pid[columns.name.begins(LOADER_PREFIX) | (columns.stated == LOADING)]
    training = columns.pid[np.isin(phase, (BACKWARD, OPTIMIZER, ZERO_GRAD))]
    return np.setdiff1d(fetching, np.concatenate([waiting, training]))


def _fill_containers(columns: _Columns, phase: Int8, may_have_one: Bool) -> None:
    """Give spans without a phase the one that all spans share that begin in them."""
    by_lane = _rows_by_lane(columns.lane)
    found = phase[by_lane]
    places = np.flatnonzero((found == NONE) & may_have_one[by_lane])
    containers = by_lane[places]
    kinds = np.zeros(len(containers), np.int8)
    only = np.full(len(containers), NONE, np.int8)
    for code in range(len(PHASES)):
        having = found == code
        if not having.any():
            continue
        # The next row of the lane that has it begins before the container ends, or none does.
        rows = np.append(by_lane[having], containers[:1])
        following = rows[np.cumsum(having)[places]]
        has = (following > containers) & (columns.lane[following] == columns.lane[containers])
        has &= columns.start_ns[following] < columns.end_ns[containers]
        kinds += has
        only[has] = code
    phase[containers] = np.where(kinds == 1, only, NONE)


def _rows_by_lane(lane: Int64) -> Int64:
    """Return the rows lane by lane, in a lane as they are."""
    if len(lane) == 0 or (lane == lane[0]).all():
        return np.arange(len(lane))
    return np.argsort(lane, kind="stable")
