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

from strobe.assemble.lanes import known, lane_ids, number_threads
from strobe.assemble.owners import innermost_open
from strobe.model.arrays import Bool, Int32, Int64
from strobe.model.nesting import nest, number_paths
from strobe.model.tables import CATEGORIES
from strobe.model.threads import OURS
from strobe.model.trace import UNFINISHED, Frame, Samples, Spans, Thread, Trace, Wanted
from strobe.store.parquet import Column

_PYTHON = CATEGORIES.index("python")
_OPERATORS = [CATEGORIES.index(name) for name in ("operator", "backward", "communication")]
_LANE_ENDING = " (Python)"
_OF_FRAMEWORKS = tuple(
    each.name for each in fields(Spans) if each.default is None and each.name != "frame"
)
"""Columns that calls of Python functions have nothing in."""


@dataclass(frozen=True)
class Calls:
    """Calls that ran in the window, by start; each has a parent among them, and a stack."""

    spans: Spans
    unfinished: Bool
    parent: Int64
    self_ns: Int64
    stack: Int64
    lane_of: Int32
    """The lane of the calls of a lane's thread, -1 for none."""
    threads: Sequence[Thread]
    """All lanes, those of calls and samples with names that say so."""

    def stacks_at(self, spans: Spans) -> Int64:
        """Return the stack that each of these spans was begun in, -1 where it is unknown."""
        lane = self.lane_of[spans.lane]
        found = np.full(len(spans), -1, np.int64)
        rows = np.flatnonzero((lane >= 0) & _on_host(spans))
        inside = innermost_open(spans.start_ns[rows], lane[rows], self.spans)
        found[rows] = np.append(self.stack, -1)[inside]
        return found


@dataclass(frozen=True)
class Stacks:
    """The tables `stacks`, `frames` and `samples`."""

    stacks: dict[str, Column]
    frames: dict[str, Column]
    samples: dict[str, Column]


def split_calls(spans: Spans, threads: Sequence[Thread]) -> tuple[Spans, Spans]:
    """Part Python's calls from the other spans; those of our own threads are nobody's."""
    is_call = spans.category == _PYTHON
    if not is_call.any():
        return spans, spans.take(is_call)
    nothing: dict[str, Any] = dict.fromkeys(_OF_FRAMEWORKS)
    calls = replace(spans, **nothing)
    others = replace(spans, frame=None)
    return others.take(~is_call), calls.take(is_call & ~_are_ours(threads)[spans.lane])


def gather_calls(calls: Spans, samples: Samples, trace: Trace) -> tuple[Calls, Stacks]:
    """Return the calls of a trace's window with all that follows from them, and stacks' tables.

    A call that began before the window begins with it.
    """
    wanted = trace.wanted
    if not wanted.traced:
        calls = calls.take(np.zeros(len(calls), bool))
    calls, unfinished = _cut(calls, trace.start_ns, trace.end_ns)
    chosen = _wanted(calls, unfinished, trace.frames, wanted)
    calls, unfinished = calls.take(chosen), unfinished[chosen]
    threads, lane_of = _give_lanes(calls, trace.threads)
    calls = replace(calls, lane=lane_of[calls.lane])
    parent, self_ns = nest(calls.lane, calls.start_ns, calls.start_ns + calls.dur_ns)
    stacks = trace.stacks if wanted.traced or wanted.sampled else []
    above = np.array([above for above, _ in stacks], np.int64)
    function = np.array([frame for _, frame in stacks], np.int32)
    called = np.zeros(0, np.int32) if calls.frame is None else calls.frame.astype(np.int32)
    path, outer, last = number_paths(
        np.concatenate([above, np.where(parent < 0, -1, parent + len(stacks))]),
        np.concatenate([function, called]),
    )
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
    of_calls = path[len(stacks) :]
    calls = replace(calls, frame=None)  # its stack has it
    return Calls(calls, unfinished, parent, self_ns, of_calls, lane_of, threads), tables


def _used(frames: Sequence[Frame], numbers: Int32) -> tuple[list[Frame], Int32]:
    """Return those of the functions that are in stacks, in the order in which they come."""
    used, first, places = np.unique(numbers, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int32)
    rank[order] = np.arange(len(order))
    return [frames[number] for number in used[order].tolist()], rank[places.reshape(-1)]


def sampled_stacks(
    stacks: Stacks, spans: Spans, parent: Int64, threads: Sequence[Thread]
) -> Int64 | None:
    """Return the stack that each operator was called from, -1 if no sample shows it.

    A sample shows it for the operators that were open in its thread and for all inside them: Python
    does not go on before they end. None if there are no samples.
    """
    time_ns, lane, stack = (
        np.asarray(stacks.samples[key]) for key in ("start_ns", "lane", "stack")
    )
    if len(time_ns) == 0:
        return None
    is_operator = np.isin(spans.category, _OPERATORS) & _on_host(spans)
    is_inner = is_operator & (parent >= 0) & is_operator[parent]
    outermost = np.where(is_inner, parent, np.arange(len(spans)))
    while not np.array_equal(outermost, further := outermost[outermost]):
        outermost = further
    thread_of = number_threads(threads).astype(np.int32)
    rows = np.flatnonzero(is_operator & np.isin(thread_of[spans.lane], thread_of[lane]))
    operators = spans.take(rows)
    operators = replace(operators, lane=thread_of[operators.lane])
    inside = innermost_open(time_ns, thread_of[lane], operators)
    seen = inside >= 0
    found = np.full(len(spans), -1, np.int64)
    found[outermost[rows[inside[seen]]]] = stack[seen]
    return np.where(is_operator, found[outermost], -1)


def _are_ours(threads: Sequence[Thread]) -> Bool:
    """Return which lanes are of threads of strobe's own."""
    return np.array([(thread.name or "").startswith(OURS) for thread in threads], bool)


def _cut(calls: Spans, start_ns: int, end_ns: int) -> tuple[Spans, Bool]:
    is_open = calls.dur_ns == UNFINISHED
    stop_ns = np.where(is_open, end_ns + 1, calls.start_ns + calls.dur_ns)
    begun_ns = np.maximum(calls.start_ns, start_ns)
    inside = (calls.start_ns <= end_ns) & ((calls.start_ns >= start_ns) | (stop_ns > start_ns))
    calls = replace(calls, start_ns=begun_ns, dur_ns=np.minimum(stop_ns, end_ns) - begun_ns)
    calls, unfinished = calls.take(inside), (stop_ns > end_ns)[inside]
    order = np.lexsort((-calls.dur_ns, calls.start_ns))
    return calls.take(order), unfinished[order]


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


def _on_host(spans: Spans) -> Bool:
    return np.ones(len(spans), bool) if spans.device is None else spans.device < 0


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
) -> tuple[list[Thread], dict[str, Column]]:
    """Return the lanes, those of samples named as such, and the table `samples`."""
    inside = (samples.start_ns >= start_ns) & (samples.start_ns <= end_ns) & (samples.stack >= 0)
    rows = np.flatnonzero(inside & ~_are_ours(threads)[samples.lane])
    rows = rows[np.argsort(samples.start_ns[rows], kind="stable")]
    lane = samples.lane[rows]
    named = list(threads)
    for number in np.unique(lane).tolist():
        name = (threads[number].name or "").removesuffix(_LANE_ENDING) + _LANE_ENDING
        named[number] = threads[number]._replace(name=name)
    pids, tids = lane_ids(threads)
    since_ns = np.minimum(samples.interval_ns[rows], samples.start_ns[rows] - start_ns)
    return named, {
        "start_ns": samples.start_ns[rows],
        "interval_ns": since_ns,
        "pid": pids.gather(lane),
        "tid": tids.gather(lane),
        "lane": lane,
        "stack": path[samples.stack[rows]] if len(rows) else np.zeros(0, np.int64),
    }
