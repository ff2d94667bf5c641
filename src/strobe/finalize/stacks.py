# SPDX-License-Identifier: Apache-2.0
"""Python's calls and samples: rows of `spans` in lanes of their own, `stacks`, `frames`, `samples`.

In the lanes of frameworks and users, calls would take their self time and their parents away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from strobe.finalize.gather import Gathered, Log, concatenate
from strobe.finalize.relations import innermost_open, known, lane_ids
from strobe.model.arrays import Bool, Int32, Int64
from strobe.model.nesting import nest, number_paths
from strobe.model.tables import CATEGORIES
from strobe.model.threads import OURS
from strobe.store.parquet import Column

_PYTHON = CATEGORIES.index("python")
_OPERATORS = [CATEGORIES.index(name) for name in ("operator", "backward", "communication")]
_LANE_ENDING = " (Python)"


@dataclass(frozen=True)
class Calls:
    """Calls that ran in the window, by start; each has a parent among them, and a stack."""

    spans: Gathered
    unfinished: Bool
    parent: Int64
    self_ns: Int64
    stack: Int64
    lane_of: Int32
    """The lane of the calls of a lane's thread, -1 for none."""

    def stacks_at(self, spans: Gathered) -> Int64:
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


def split_calls(log: Log) -> Gathered:
    """Take the calls out of the log's spans and return them; those that never ended last -1.

    Those of our own threads are nobody's.
    """
    parts = []
    is_ours = _are_ours(log)
    for name in ("spans", "unfinished"):
        part: Gathered = getattr(log, name)
        is_call = part.category == _PYTHON
        if is_call.any():
            setattr(log, name, part.take(~is_call))
            part = part.take(is_call & ~is_ours[part.lane])
            if name == "unfinished":
                part.dur_ns = np.full(len(part), -1, np.int64)
            parts.append(part)
    return concatenate(parts)


def gather_calls(
    calls: Gathered, log: Log, wants: Mapping[str, Any], start_ns: int, end_ns: int
) -> tuple[Calls, Stacks]:
    """Return the calls of a window with all that follows from them, and the stacks' tables.

    `wants` is what the recording asked for: another one may have asked for more. A call that began
    before the window begins with it.
    """
    if not wants.get("traced"):
        calls = calls.take(np.zeros(len(calls), bool))
    calls, unfinished = _cut(calls, start_ns, end_ns)
    chosen = _wanted(calls, log, wants) | unfinished
    calls, unfinished = calls.take(chosen), unfinished[chosen]
    lane_of = _give_lanes(calls, log)
    parent, self_ns = nest(calls.lane, calls.start_ns, calls.start_ns + calls.dur_ns)
    frames = _Frames(log)
    sampled = log.samples.stacks if wants else []
    codes = [frames.number(name, text) for _, name, text in sampled]
    first = len(sampled)
    above = np.array([place for place, _, _ in sampled], np.int64)
    path, outer, last = number_paths(
        np.concatenate([above, np.where(parent < 0, -1, parent + first)]),
        np.concatenate([np.array(codes, np.int32), frames.numbers(calls)]),
    )
    # Where calls could not be traced, they were sampled.
    with_samples = wants.get("rate_hz") or (wants.get("traced") and not len(calls))
    tables = Stacks(
        stacks={"parent": known(outer), "frame": last.astype(np.int64), "depth": _depths(outer)},
        frames=frames.columns(),
        samples=_samples(log, path[:first], start_ns, end_ns if with_samples else -1),
    )
    return Calls(calls, unfinished, parent, self_ns, path[first:], lane_of), tables


def sampled_stacks(stacks: Stacks, spans: Gathered, parent: Int64, log: Log) -> Int64 | None:
    """Return the stack that each operator was called from, -1 where no sample tells; None for none.

    A sample tells it of the operators that were open in its thread and of all inside them: Python
    does not go on before they end.
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
    thread_of = _threads(log)
    rows = np.flatnonzero(is_operator & np.isin(thread_of[spans.lane], thread_of[lane]))
    operators = spans.take(rows)
    operators.lane = thread_of[operators.lane]
    inside = innermost_open(time_ns, thread_of[lane], operators)
    seen = inside >= 0
    found = np.full(len(spans), -1, np.int64)
    found[outermost[rows[inside[seen]]]] = stack[seen]
    return np.where(is_operator, found[outermost], -1)


def _are_ours(log: Log) -> Bool:
    """Return which lanes are of threads of strobe's own."""
    return np.array([(lane["thread"] or "").startswith(OURS) for lane in log.lanes], bool)


def _threads(log: Log) -> Int32:
    """Return a number of the thread of each lane; a thread that nobody knows is one of its own."""
    numbers: dict[Any, int] = {}
    keys = [
        (lane["pid"], place if lane["tid"] is None else lane["tid"], lane["tid"] is None)
        for place, lane in enumerate(log.lanes)
    ]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int32)


def _cut(calls: Gathered, start_ns: int, end_ns: int) -> tuple[Gathered, Bool]:
    stop_ns = np.where(calls.dur_ns < 0, end_ns + 1, calls.start_ns + calls.dur_ns)
    begun_ns = np.maximum(calls.start_ns, start_ns)
    inside = (calls.start_ns <= end_ns) & ((calls.start_ns >= start_ns) | (stop_ns > start_ns))
    calls.start_ns = begun_ns
    calls.dur_ns = np.minimum(stop_ns, end_ns) - begun_ns
    calls, unfinished = calls.take(inside), (stop_ns > end_ns)[inside]
    order = np.lexsort((-calls.dur_ns, calls.start_ns))
    return calls.take(order), unfinished[order]


def _wanted(calls: Gathered, log: Log, wants: Mapping[str, Any]) -> Bool:
    include, exclude = wants.get("include", ()), wants.get("exclude", ())
    passes = np.ones(len(log.attributes) + 1, bool)
    for number in np.unique(calls.attributes).tolist() if include or exclude else ():
        told = json.loads(log.attributes[number]) if number >= 0 else {}
        module = told.get("module", "")
        # A C function is chosen with the function that calls it.
        passes[number] = not include or "file" not in told or _is_among(module, include)
        passes[number] &= not _is_among(module, exclude)
    chosen: Bool = passes[calls.attributes] & (calls.dur_ns >= wants.get("min_ns", 0))
    return chosen


def _is_among(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in names)


def _give_lanes(calls: Gathered, log: Log) -> Int32:
    """Move the calls to new lanes, and find for each lane the one of its thread's calls."""
    lanes = len(log.lanes)
    lane_of = np.full(lanes, -1, np.int32)
    by_thread: dict[tuple[Any, ...], int] = {}
    for lane in np.unique(calls.lane).tolist():
        lane_of[lane] = len(log.lanes)
        of_thread = log.lanes[lane]
        log.lanes.append({**of_thread, "thread": (of_thread["thread"] or "") + _LANE_ENDING})
        by_thread.setdefault((of_thread["pid"], of_thread["tid"]), lane_of[lane])
    calls.lane = lane_of[calls.lane]
    # A framework's own profiler knows threads, not contexts.
    for lane in np.flatnonzero(lane_of < 0).tolist():
        of_thread = log.lanes[lane]
        lane_of[lane] = by_thread.get((of_thread["pid"], of_thread["tid"]), -1)
    return lane_of


def _on_host(spans: Gathered) -> Bool:
    return np.ones(len(spans), bool) if spans.device is None else spans.device < 0


class _Frames:
    """Functions by name, file, line and module; a call that ran before has no other function."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[tuple[str, str | None, int | None, str | None], int] = {}

    def number(self, name: int, attributes: int) -> int:
        told = json.loads(self._log.attributes[attributes]) if attributes >= 0 else {}
        key = (self._log.names[name], told.get("file"), told.get("line"), told.get("module"))
        return self._known.setdefault(key, len(self._known))

    def numbers(self, calls: Gathered) -> Int32:
        pairs = calls.name.astype(np.int64) << 32 | (calls.attributes.astype(np.int64) + 1)
        used, places = np.unique(pairs, return_inverse=True)
        codes = [self.number(pair >> 32, (pair & 0xFFFFFFFF) - 1) for pair in used.tolist()]
        return np.array(codes, np.int32)[places]

    def columns(self) -> dict[str, Column]:
        kinds = {"name": pl.String, "file": pl.String, "line": pl.Int64, "module": pl.String}
        rows = list(self._known)
        return {
            name: pl.Series([row[place] for row in rows], dtype=kind)
            for place, (name, kind) in enumerate(kinds.items())
        }


def _depths(above: Int64) -> Int64:
    depths: list[int] = []
    for outer in above.tolist():
        depths.append(1 if outer < 0 else depths[outer] + 1)
    return np.array(depths, np.int64)


def _samples(log: Log, path: Int64, start_ns: int, end_ns: int) -> dict[str, Column]:
    samples = log.samples
    inside = (samples.start_ns >= start_ns) & (samples.start_ns <= end_ns) & (samples.stack >= 0)
    rows = np.flatnonzero(inside & ~_are_ours(log)[samples.lane])
    rows = rows[np.argsort(samples.start_ns[rows], kind="stable")]
    lane = samples.lane[rows]
    for number in np.unique(lane).tolist():
        thread = log.lanes[number]["thread"] or ""
        log.lanes[number]["thread"] = thread.removesuffix(_LANE_ENDING) + _LANE_ENDING
    pids, tids = lane_ids(log)
    since_ns = np.minimum(samples.interval_ns[rows], samples.start_ns[rows] - start_ns)
    return {
        "start_ns": samples.start_ns[rows],
        "interval_ns": since_ns,
        "pid": pids.gather(lane),
        "tid": tids.gather(lane),
        "lane": lane,
        "stack": path[samples.stack[rows]] if len(rows) else np.zeros(0, np.int64),
    }
