# SPDX-License-Identifier: Apache-2.0
"""How much of each step a phase took."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from strobe.analysis.functions import is_known, read_other_spans
from strobe.model.ancestors import innermost
from strobe.model.arrays import Bool, Int8, Int64
from strobe.model.phases import BACKWARD, LOADING, NONE, OPTIMIZER, OTHER
from strobe.model.tables import PHASES
from strobe.store.tables import Tables

TIMES = pl.Schema({"step": pl.Int64, "kind": pl.String, "phase": pl.String, "total_ns": pl.Int64})
SUMMARY = pl.Schema(
    {"phase": pl.String, "total_ns": pl.Int64, "per_step_ns": pl.Float64, "share": pl.Float64}
)


class _Line(NamedTuple):
    """What a lane does: from time_ns[i] on, up to the next, it is in the phase code[i]."""

    time_ns: Int64
    code: Int8


def phases(tables: Tables) -> pl.DataFrame:
    """Where the steps go: data loading, forward, backward, optimizer, zero_grad and other.

    The phases of a step sum to the step; steps that have not ended are left out. No rows where
    no phases are known. Columns: phase, total_ns, per_step_ns, share (of the time of the
    steps).
    """
    if not is_known(tables, "phase"):
        return pl.DataFrame(schema=SUMMARY)
    columns = ("category", "phase", "lane", "pid", "tid", "start_ns", "dur_ns", "parent")
    spans = read_other_spans(tables, *columns)
    return phase_summary(phase_times(spans, tables.steps().collect()))


def phase_times(spans: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Split the time of each step among the phases: one row per step and phase, all of PHASES.

    A step is laid over its lane; only steps that have ended, and whose lane is known, take part.
    An instant belongs to the phase of the innermost span open then that has one. If there is none,
    it belongs to the phase around the gap if that is the same before and after, unless that is data
    loading, whose waits tell their own ends; or else to `other`.
    While the lane waits for a backward on a thread that does nothing else, that is backward; and
    operators whose thread the framework does not tell, which is 0, are the lane's where it has no
    phase of its own. So the times of a step sum exactly to its duration.

    Reads category, phase, lane, pid, tid, start_ns, dur_ns and parent of a whole table of spans,
    sorted. There are no rows if no span has a phase.

    Columns: step and kind, as in `steps`; phase; total_ns.
    """
    laid = steps.filter(~pl.col("unfinished") & pl.col("lane").is_not_null())
    code = _codes(spans["phase"])
    if laid.is_empty() or (code == NONE).all():
        return pl.DataFrame(schema=TIMES)
    blocks = _blocks(spans, code)
    found = []
    for (lane,), mine in laid.group_by("lane", maintain_order=True):
        line = _line(blocks, int(lane))
        found.append(_split(line, mine))
    return pl.concat(found)


def phase_summary(times: pl.DataFrame) -> pl.DataFrame:
    """Sum phase_times over the steps: one row per phase, in the order of PHASES.

    Columns:
        phase, total_ns: the phase and its time in all steps.
        per_step_ns: total_ns / number of steps.
        share: total_ns / the time of all steps, 0 to 1; null if that is 0.
    """
    if times.is_empty():
        return pl.DataFrame(schema=SUMMARY)
    steps = times.height // len(PHASES)
    whole_ns = int(times["total_ns"].sum())
    return (
        times.group_by("phase", maintain_order=True)
        .agg(pl.sum("total_ns"))
        .with_columns(
            per_step_ns=pl.col("total_ns") / steps, share=pl.col("total_ns") / (whole_ns or None)
        )
    )


def _codes(phase: pl.Series) -> Int8:
    numbers = phase.cast(pl.String).cast(pl.Enum(PHASES)).to_physical()
    codes: Int8 = numbers.cast(pl.Int8).fill_null(NONE).to_numpy()
    return codes


def _blocks(spans: pl.DataFrame, code: Int8) -> pl.DataFrame:
    """Return the spans with which a phase begins or interrupts another, and which one."""
    parent = spans["parent"].fill_null(-1).to_numpy()
    nearest = innermost(code != NONE, parent)
    own = np.where(nearest < 0, np.int8(NONE), code[nearest])
    around = np.append(own, np.int8(NONE))[parent]
    begins = (code != NONE) & (code != around) & (spans["dur_ns"] > 0).to_numpy()
    return spans.filter(begins).select(
        pl.col("category").cast(pl.String),
        "lane",
        "pid",
        "tid",
        "start_ns",
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        code=pl.Series(code[begins]),
        around=pl.Series(around[begins]),
    )


def _line(blocks: pl.DataFrame, lane: int) -> _Line:
    mine = blocks.filter(pl.col("lane") == lane)
    own = pl.col("pid").is_in(mine["pid"].unique().to_list())
    elsewhere = blocks.filter(pl.col("lane") != lane)
    line = _edges(mine)
    # Of a lane without a phase of its own it is not known which process it is of.
    for unplaced in elsewhere.filter(pl.col("tid") == 0, own | mine.is_empty()).partition_by(
        "lane"
    ):
        line = _fill(line, _edges(unplaced))
    placed = elsewhere.filter(pl.col("tid") != 0, own)
    return _without_gaps(_with_backward(line, _only_backward(placed)))


def _edges(mine: pl.DataFrame) -> _Line:
    """Return what a lane does by its own spans."""
    rows = np.arange(mine.height)
    time_ns = np.concatenate([mine["end_ns"].to_numpy(), mine["start_ns"].to_numpy()])
    code = np.concatenate([mine["around"].to_numpy(), mine["code"].to_numpy()])
    # At the same time: ends before begins, inner ends first, outer begins first.
    order = np.lexsort((np.concatenate([-rows, rows + 1]), time_ns))
    time_ns, code = time_ns[order], code[order]
    lasts = np.diff(time_ns, append=time_ns[-1:] + 1) > 0
    return _Line(time_ns[lasts], code[lasts])


def _fill(line: _Line, other: _Line) -> _Line:
    """Return the line with what the other does where it does nothing known itself."""
    time_ns = np.unique(np.concatenate([line.time_ns, other.time_ns]))
    code, more = (
        np.append(np.int8(NONE), each.code)[np.searchsorted(each.time_ns, time_ns, side="right")]
        for each in (line, other)
    )
    return _Line(time_ns, np.where(code == NONE, more, code))


def _only_backward(blocks: pl.DataFrame) -> pl.DataFrame:
    """Return start_ns and end_ns of the backward on lanes that do nothing else in a step."""
    other = blocks.filter(~pl.col("code").is_in([BACKWARD, OTHER]))["lane"].unique().to_list()
    return blocks.filter(
        pl.col("category") == "backward",
        pl.col("code") == BACKWARD,
        ~pl.col("lane").is_in(other),
    ).select("start_ns", "end_ns")


def _with_backward(line: _Line, backward: pl.DataFrame) -> _Line:
    """Return the line with backward where others compute it and the lane does nothing known."""
    if backward.is_empty():
        return line
    start_ns, end_ns = (
        np.sort(backward["start_ns"].to_numpy()),
        np.sort(backward["end_ns"].to_numpy()),
    )
    time_ns = np.unique(np.concatenate([line.time_ns, start_ns, end_ns]))
    now = np.searchsorted(line.time_ns, time_ns, side="right")
    code = np.append(np.int8(NONE), line.code)[now]
    begun, ended = (np.searchsorted(times, time_ns, side="right") for times in (start_ns, end_ns))
    waits = np.isin(code, (NONE, OPTIMIZER)) & (begun > ended)
    return _Line(time_ns, np.where(waits, np.int8(BACKWARD), code))


def _without_gaps(line: _Line) -> _Line:
    known = line.code != NONE
    rows = np.arange(len(known))
    before = np.maximum.accumulate(np.where(known, rows, -1))
    after = np.minimum.accumulate(np.where(known, rows, len(known))[::-1])[::-1]
    ends = np.append(line.code, np.int8(OTHER))  # for -1 and for len(known)
    same = ends[before] == ends[after]
    same &= known | (ends[before] != LOADING)
    return _Line(line.time_ns, np.where(same, ends[before], np.int8(OTHER)))


def _split(line: _Line, steps: pl.DataFrame) -> pl.DataFrame:
    start_ns = steps["start_ns"].to_numpy()
    end_ns = start_ns + steps["dur_ns"].to_numpy()
    begin_ns = min([int(start_ns.min()), *line.time_ns[:1].tolist()])
    line = _Line(np.append(begin_ns, line.time_ns), np.append(np.int8(OTHER), line.code))
    durations = np.append(np.diff(line.time_ns), 0)
    totals = []
    for code in range(len(PHASES)):
        mine = line.code == code
        past = np.append(0, np.cumsum(np.where(mine, durations, 0))[:-1])
        first, last = (_until(line.time_ns, mine, past, bound) for bound in (start_ns, end_ns))
        totals.append(last - first)
    return pl.DataFrame(
        {
            "step": steps["step"].to_numpy().repeat(len(PHASES)),
            "kind": steps["kind"]
            .cast(pl.String)
            .gather(np.arange(steps.height).repeat(len(PHASES))),
            "phase": pl.Series(list(PHASES) * steps.height, dtype=pl.String),
            "total_ns": np.stack(totals, axis=1).reshape(-1),
        },
        schema=TIMES,
    )


def _until(
    time_ns: Int64,
    mine: Bool,
    past_ns: Int64,
    bound_ns: Int64,
) -> Int64:
    """Return how long the phase has gone on in all, up to each bound."""
    now = np.searchsorted(time_ns, bound_ns, side="right") - 1
    total: Int64 = past_ns[now] + np.where(mine[now], bound_ns - time_ns[now], 0)
    return total
