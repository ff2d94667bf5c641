# SPDX-License-Identifier: Apache-2.0
"""Processes and lanes with numbers and names that viewers can tell apart.

A viewer knows a track by its pid and tid alone, while ours may be unknown, used twice, or the same
for all contexts of a thread: the first one keeps its number, the others get numbers of their own.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from strobe.exporters._rows import numbers
from strobe.model.arrays import Int32
from strobe.store.tables import Tables

_LARGEST_REAL = 1 << 22  # Linux gives no larger pid or tid


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process, `pid` being its number in the file."""

    pid: int
    label: str
    """Which one it is, beyond its pid."""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One lane, `tid` being its number in the file; `thread` is the lane of its thread."""

    process: int
    tid: int
    name: str
    thread: int


class Numbers:
    """Hands out each number once."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._more = itertools.count(_LARGEST_REAL + 1)

    def take(self, wanted: int | None = None) -> int:
        """Return `wanted`, or another number if it is no number of a thread or taken."""
        if wanted is None or not 0 < wanted < 1 << 31 or wanted in self._taken:
            wanted = next(number for number in self._more if number not in self._taken)
        self._taken.add(wanted)
        return wanted


@dataclass(kw_only=True)
class Lanes:
    """All of a recording, then one lane for its steps, then one for rows that have none."""

    processes: list[Process] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    tids: Numbers = field(default_factory=Numbers)

    @property
    def steps(self) -> int:
        """The lane of the steps, which belong to no thread."""
        return len(self.lanes) - 2

    @property
    def unknown(self) -> int:
        """The lane of rows that have none."""
        return len(self.lanes) - 1

    def number(self, column: pl.Series) -> Int32:
        """Return each row's lane as a place in `lanes`."""
        lane = numbers(column.fill_null(-1) if column.null_count() else column).astype(
            np.int32, copy=False
        )
        if len(lane) and (lane.min() < 0 or lane.max() >= self.unknown):
            lane = np.where((lane < 0) | (lane >= self.unknown), np.int32(self.unknown), lane)
        return np.ascontiguousarray(lane)

    def track_name(self, lane: int, number: int) -> str:
        """Return the name of a lane's first track (0), or of one for spans that cross."""
        name = self.lanes[lane].name
        return f"{name} (overlap {number})" if number else name


def read_lanes(tables: Tables) -> Lanes:
    """Return the lanes of the threads table, in its order, and two more."""
    found, pids = Lanes(), Numbers()
    columns = ("process", "pid", "tid", "thread", "context")
    rows = tables.threads().sort("lane").select(columns).collect().rows()
    processes: dict[object, int] = {}
    for label, pid, *_ in rows:
        if (label, pid) not in processes:
            processes[label, pid] = len(found.processes)
            found.processes.append(Process(pid=pids.take(pid), label=label or ""))
    owners = _thread_lanes(rows)
    for lane, (label, pid, tid, thread, context) in enumerate(rows):
        owner = owners[label, pid, tid]
        is_thread = lane == owner or not context
        name = thread or (f"thread {tid}" if tid is not None else "unnamed thread")
        found.lanes.append(
            Lane(
                process=processes[label, pid],
                tid=found.tids.take(tid if lane == owner else None),
                name=f"{name} context {context}" if context else name,
                thread=lane if is_thread else owner,
            )
        )
    if not found.processes:
        found.processes.append(Process(pid=pids.take(), label=""))
    for name in ("steps", "unknown thread"):
        lane = len(found.lanes)
        found.lanes.append(Lane(process=0, tid=found.tids.take(), name=name, thread=lane))
    return found


def _thread_lanes(rows: list[tuple[Any, ...]]) -> dict[object, int]:
    """Return the lane that stands for each thread: its own context, else the first one."""
    owners: dict[object, int] = {}
    for wanted in (True, False):
        for lane, (label, pid, tid, _, context) in enumerate(rows):
            if wanted is not bool(context):
                owners.setdefault((label, pid, tid), lane)
    return owners
