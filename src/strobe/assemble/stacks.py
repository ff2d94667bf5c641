# SPDX-License-Identifier: Apache-2.0
"""Python's calls and samples: rows of `spans` in lanes of their own, `stacks`, `frames`, `samples`.

In the lanes of frameworks and users, calls would take their self time and their parents away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import polars as pl

from strobe.assemble.around import innermost_of
from strobe.assemble.cut import Rows, ends
from strobe.assemble.lanes import known, number_threads
from strobe.assemble.merge import Table
from strobe.assemble.owners import innermost_open
from strobe.model.arrays import Bool, Int32, Int64
from strobe.model.nesting import nest, number_paths
from strobe.model.tables import CATEGORIES
from strobe.model.threads import OURS
from strobe.model.trace import UNFINISHED, Frame, Samples, Spans, Thread, Trace, Wanted
from strobe.store.parquet import Column
from strobe.store.spill import Spill

_PYTHON = CATEGORIES.index("python")
_OPERATORS = [CATEGORIES.index(name) for name in ("operator", "backward", "communication")]
_LANE_ENDING = " (Python)"
_OF_FRAMEWORKS = tuple(
    each.name
    for each in fields(Spans)
    if each.default is None and each.name not in ("frame", "source")
)
"""Columns that calls of Python functions have nothing in."""


@dataclass(frozen=True)
class Calls:
    """Calls that ran in the window, by start; each has a parent among them, and a stack."""

    table: Table
    stack: Int64
    """Of each call, as the table has it."""
    lane_of: Int32
    """The lane of the calls of a lane's thread, -1 for none."""
    threads: Sequence[Thread]
    """All lanes, those of calls and samples with names that say so."""

    def stacks_at(self, spans: Spans, spill: Spill) -> Int64:
        """Return the stack that each of these spans was begun in, -1 where it is unknown."""
        lane: Int32 = spill.empty(len(spans), np.int32)
        for part in spill.parts(len(spans)):
            lane[part] = np.where(_on_host(spans, part), self.lane_of[spans.lane[part]], -1)
        found = innermost_open(spans.start_ns, lane, self.table, spill)
        for part in spill.parts(len(spans)):
            inside = found[part]
            found[part] = np.where(inside < 0, -1, self.stack[inside])
        return found


@dataclass(frozen=True)
class Stacks:
    """The tables `stacks` and `frames`, and the samples that are wanted, by time."""

    stacks: dict[str, Column]
    frames: dict[str, Column]
    samples: Samples
    """Their stacks are rows of the table."""


def split_calls(spans: Spans, trace: Trace) -> tuple[Spans, Rows]:
    """Part Python's calls from the other spans.

    Of the calls, those are returned that are wanted and that ran in the window; one that began
    before it begins with it. Those of our own threads are nobody's.
    """
    is_call = spans.category == _PYTHON
    if not is_call.any():
        return spans, _cut(spans.take(is_call), trace)
    nothing: dict[str, Any] = dict.fromkeys(_OF_FRAMEWORKS)
    calls = replace(spans, **nothing).take(is_call & ~_are_ours(trace.threads)[spans.lane])
    if not trace.wanted.traced:
        calls = calls.take(np.zeros(len(calls), bool))
    return replace(spans, frame=None).take(~is_call), _cut(calls, trace)


def gather_calls(calls: Rows, samples: Samples, trace: Trace, spill: Spill) -> tuple[Calls, Stacks]:
    """Return what follows from calls and samples, which both come by start."""
    wanted = trace.wanted
    threads, lane_of = _give_lanes(calls, trace.threads)
    lane: Int32 = spill.empty(len(calls), np.int32)
    np.take(lane_of, calls.lane, out=lane)
    calls = replace(calls, lane=lane)
    parent, self_ns = nest(lane, calls.start_ns, ends(calls, spill), spill.empty)
    stacks = trace.stacks if wanted.traced or wanted.sampled else []
    above: Int64 = spill.empty(len(stacks) + len(calls), np.int64)
    function: Int32 = spill.empty(len(stacks) + len(calls), np.int32)
    above[: len(stacks)] = [above for above, _ in stacks]
    function[: len(stacks)] = [frame for _, frame in stacks]
    if calls.frame is not None:
        function[len(stacks) :] = calls.frame
    for part in spill.parts(len(calls)):
        into = slice(part.start + len(stacks), part.stop + len(stacks))
        above[into] = np.where(parent[part] < 0, -1, parent[part] + len(stacks))
    path, outer, last = number_paths(above, function, spill.empty)
    # Where calls could not be traced, they were sampled.
    with_samples = wanted.sampled or (wanted.traced and not len(calls))
    end_ns = trace.end_ns if with_samples else -1
    threads, sampled = _samples(samples, threads, path[: len(stacks)], trace.start_ns, end_ns)
    frames, last = _used(trace.frames, last)
    tables = Stacks(
        stacks={"parent": known(outer), "frame": last.astype(np.int64), "depth": _depths(outer)},
        frames=_frame_columns(frames),
        samples=sampled,
    )
    stack = path[len(stacks) :]
    columns = {**vars(calls), "frame": None}  # its stack has it
    table = Table(**columns, parent=parent, self_ns=self_ns, stack=stack)
    return Calls(table, stack, lane_of, threads), tables


def _used(frames: Sequence[Frame], numbers: Int32) -> tuple[list[Frame], Int32]:
    """Return those of the functions that are in stacks, in the order in which they come."""
    used, first, places = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    return [frames[number] for number in used[order].tolist()], rank[places.reshape(-1)]


def sampled_stacks(
    stacks: Stacks, spans: Spans, parent: Int64, threads: Sequence[Thread], spill: Spill
) -> Int64 | None:
    """Return the stack that each operator was called from, -1 if no sample shows it.

    A sample shows it for the operators that were open in its thread and for all inside them: Python
    does not go on before they end. None if there are no samples.
    """
    samples = stacks.samples
    if not len(samples):
        return None
    thread_of = number_threads(threads).astype(np.int32)

    def are_operators(rows: slice | Int64) -> Bool:
        return np.isin(spans.category[rows], _OPERATORS) & _on_host(spans, rows)

    def are_outermost(part: slice) -> Bool:
        above = parent[part]
        return are_operators(part) & ~((above >= 0) & are_operators(above))

    def threads_of_operators(rows: Int64) -> Int32:
        return np.where(are_operators(rows), thread_of[spans.lane[rows]], np.int32(-1))

    outermost = innermost_of(are_outermost, parent, spill)
    thread = thread_of[samples.lane]
    inside = innermost_open(samples.start_ns, thread, spans, spill, threads_of_operators)
    seen = inside >= 0
    called_from = spill.full(len(spans), -1, np.int64)
    called_from[outermost[inside[seen]]] = samples.stack[seen]
    found: Int64 = spill.empty(len(spans), np.int64)
    for part in spill.parts(len(spans)):
        found[part] = np.where(are_operators(part), called_from[outermost[part]], -1)
    return found


def _are_ours(threads: Sequence[Thread]) -> Bool:
    """Return which lanes are of threads of strobe's own."""
    return np.array([(thread.name or "").startswith(OURS) for thread in threads], bool)


def _cut(calls: Spans, trace: Trace) -> Rows:
    start_ns, end_ns = trace.start_ns, trace.end_ns
    is_open = calls.dur_ns == UNFINISHED
    stop_ns = np.where(is_open, end_ns + 1, calls.start_ns + calls.dur_ns)
    begun_ns = np.maximum(calls.start_ns, start_ns)
    inside = (calls.start_ns <= end_ns) & ((calls.start_ns >= start_ns) | (stop_ns > start_ns))
    times = {"start_ns": begun_ns, "dur_ns": np.minimum(stop_ns, end_ns) - begun_ns}
    rows = Rows(**{**vars(calls), **times, "unfinished": stop_ns > end_ns}).take(inside)
    return rows.take(_wanted(rows, rows.unfinished, trace.frames, trace.wanted))


def _wanted(calls: Spans, unfinished: Bool, frames: Sequence[Frame], wanted: Wanted) -> Bool:
    # How long a call would have lasted that had not ended, nobody knows.
    chosen: Bool = (calls.dur_ns >= wanted.min_ns) | unfinished
    if calls.frame is None or not (wanted.include or wanted.exclude):
        return chosen
    passes = np.ones(len(frames), bool)
    for number in np.unique(calls.frame).tolist():
        frame = frames[number]
        module = frame.module or ""
        # A C function is chosen with the function that calls it.
        is_c = frame.file is None
        passes[number] = not wanted.include or is_c or _is_among(module, wanted.include)
        passes[number] &= not _is_among(module, wanted.exclude)
    return chosen & passes[calls.frame]


def _is_among(module: str, names: Sequence[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _give_lanes(calls: Spans, threads: Sequence[Thread]) -> tuple[list[Thread], Int32]:
    """Return the lanes with new ones for calls, and for each the one of its thread's calls."""
    every = list(threads)
    lane_of = np.full(len(threads), -1, np.int32)
    by_thread: dict[tuple[Any, ...], int] = {}
    for lane in np.unique(calls.lane).tolist():
        lane_of[lane] = len(every)
        thread = threads[lane]
        every.append(thread._replace(name=(thread.name or "") + _LANE_ENDING))
        by_thread.setdefault((thread.pid, thread.tid), lane_of[lane])
    # A framework's own profiler knows threads, not contexts.
    for lane in np.flatnonzero(lane_of < 0).tolist():
        lane_of[lane] = by_thread.get((threads[lane].pid, threads[lane].tid), -1)
    return every, lane_of


def _on_host(spans: Spans, rows: slice | Int64) -> Bool:
    if spans.device is None:
        return np.ones(len(spans.start_ns[rows]), bool)
    return spans.device[rows] < 0


def _frame_columns(frames: Sequence[Frame]) -> dict[str, Column]:
    kinds = {"name": pl.String, "file": pl.String, "line": pl.Int64, "module": pl.String}
    return {
        name: pl.Series([getattr(frame, name) for frame in frames], dtype=kind)
        for name, kind in kinds.items()
    }


def _depths(above: Int64) -> Int64:
    depths: list[int] = []
    for outer in above.tolist():
        depths.append(1 if outer < 0 else depths[outer] + 1)
    return np.array(depths, np.int64)


def _samples(
    samples: Samples, threads: Sequence[Thread], path: Int64, start_ns: int, end_ns: int
) -> tuple[list[Thread], Samples]:
    """Return the lanes, those of samples named as such, and the samples in the window."""
    inside = (samples.start_ns >= start_ns) & (samples.start_ns <= end_ns) & (samples.stack >= 0)
    chosen = samples.take(inside & ~_are_ours(threads)[samples.lane])
    named = list(threads)
    for number in np.flatnonzero(np.bincount(chosen.lane)).tolist():
        name = (threads[number].name or "").removesuffix(_LANE_ENDING) + _LANE_ENDING
        named[number] = threads[number]._replace(name=name)
    return named, replace(
        chosen,
        interval_ns=np.minimum(chosen.interval_ns, chosen.start_ns - start_ns),
        stack=path[chosen.stack] if len(chosen) else chosen.stack,
    )
