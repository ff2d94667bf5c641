# SPDX-License-Identifier: Apache-2.0
"""Where the time went, stack by stack: one tree of calls, samples or spans for each thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import polars as pl

from strobe.model.arrays import Int32, Int64
from strobe.model.interning import Interner
from strobe.model.nesting import nest, number_paths
from strobe.store.tables import Tables

MOST_DEPTH = 1000
DEEPER = "(deeper)"
"""Stands for all that is nested deeper than MOST_DEPTH."""

_APART = "\x1f"

SCHEMA = pl.Schema(
    {
        "parent": pl.Int64,
        "name": pl.String,
        "where": pl.String,
        "kind": pl.String,
        "self_ns": pl.Int64,
        "total_ns": pl.Int64,
        "calls": pl.Int64,
    }
)


@dataclass(frozen=True, kw_only=True)
class Flame:
    """A forest of threads; `nodes` has the columns of SCHEMA, a parent always above.

    parent: row of the caller, null for a thread.
    name, where: the function and its file and line, or the span; where is null if unknown.
    kind: `thread`, or the category of the spans; samples are of kind `python`.
    self_ns, total_ns: time in it alone, and with all below it.
    calls: how many calls, spans or samples it sums up.
    """

    nodes: pl.DataFrame
    source: str
    """`calls`, `samples` or `spans`: what the times come from."""

    @property
    def total_ns(self) -> int:
        """The time of all threads together."""
        return int(self.nodes["self_ns"].sum())


def flame(tables: Tables) -> Flame:
    """Return where the time went, stack by stack: what `strobe flame` draws.

    Of Python's calls and the spans among them; of samples; or of spans alone.
    """
    columns = ("name", "category", "device", "lane", "start_ns", "dur_ns", "stack")
    return make_flame(
        tables.spans().select(columns).collect(),
        tables.threads().collect(),
        tables.stacks().collect(),
        tables.frames().collect(),
        tables.samples().collect(),
    )


def make_flame(
    spans: pl.DataFrame,
    threads: pl.DataFrame,
    stacks: pl.DataFrame,
    frames: pl.DataFrame,
    samples: pl.DataFrame,
) -> Flame:
    """Return the flame graph of a recording's tables.

    Spans of the host nest by time in their thread and context, Python's calls among them: the total
    of a thread is the time in which at least one was open. Where there are samples and no calls, it
    is the time that the thread's samples stand for.
    """
    has_calls = bool((spans["category"].cast(pl.String) == "python").any())
    if samples.height and not has_calls:
        return Flame(nodes=_of_samples(samples, threads, stacks, frames), source="samples")
    nodes = _of_spans(spans, threads, stacks, frames)
    return Flame(nodes=nodes, source="calls" if has_calls else "spans")


def _of_spans(
    spans: pl.DataFrame, threads: pl.DataFrame, stacks: pl.DataFrame, frames: pl.DataFrame
) -> pl.DataFrame:
    host = spans.filter(pl.col("device").is_null())
    lane, owners = _merged_lanes(threads, host["lane"])
    start_ns = host["start_ns"].to_numpy()
    end_ns = start_ns + host["dur_ns"].to_numpy()
    order = np.lexsort((-end_ns, start_ns))
    host, lane = host[order], lane[order]
    parent, self_ns = nest(lane, start_ns[order], end_ns[order])
    labels = _Labels(frames)
    code = labels.of_spans(host, stacks)
    # A row for each thread comes first, and is around those that nothing else is around.
    thread = np.array([labels.add(name, None, "thread") for name in owners], np.int32)
    first = len(owners)
    path, above, last = number_paths(
        np.concatenate([np.full(first, -1, np.int64), np.where(parent < 0, lane, parent + first)]),
        np.concatenate([thread, code]),
    )
    weight = np.concatenate([np.zeros(first, np.int64), self_ns])
    return _nodes(path, above, last, weight, first, labels)


def _of_samples(
    samples: pl.DataFrame, threads: pl.DataFrame, stacks: pl.DataFrame, frames: pl.DataFrame
) -> pl.DataFrame:
    lane, owners = _merged_lanes(threads, samples["lane"])
    labels = _Labels(frames)
    thread = [labels.add(name, None, "thread") for name in owners]
    parents, frame_of = stacks["parent"].to_list(), stacks["frame"].to_list()
    codes, above = list(thread), [-1] * len(thread)
    rows: dict[tuple[int, int], int] = {}

    def row_of(lane: int, stack: int) -> int:
        """Return the row of a thread's stack, added with those above it if need be."""
        chain = []
        around: int | None = stack
        while around is not None and (lane, around) not in rows:
            chain.append(around)
            around = parents[around]
        row = lane if around is None else rows[lane, around]
        for each in reversed(chain):
            rows[lane, each] = len(codes)
            codes.append(labels.of_frame(frame_of[each]))
            above.append(row)
            row = rows[lane, each]
        return row

    seen = np.array(
        [row_of(*pair) for pair in zip(lane.tolist(), samples["stack"].to_list(), strict=True)],
        np.int64,
    )
    path, outer, last = number_paths(np.array(above, np.int64), np.array(codes, np.int32))
    weight = samples["interval_ns"].to_numpy()
    return _nodes(path[seen], outer, last, weight, 0, labels)


def _merged_lanes(threads: pl.DataFrame, lanes: pl.Series) -> tuple[Int32, list[str]]:
    """Return each row's thread and context as a number, and the threads' names by that number."""
    names: dict[tuple[Any, ...], int] = {}
    owners: list[str] = []
    number_of = np.zeros(threads.height + 1, np.int32)
    several = threads["process"].n_unique() > 1
    for row in threads.sort("lane").iter_rows(named=True):
        key = (row["process"], row["tid"] or -row["lane"], row["context"])
        if key not in names:
            names[key] = len(owners)
            name = (row["thread"] or f"thread {row['tid']}").removesuffix(" (Python)")
            name += f" context {row['context']}" if row["context"] else ""
            owners.append(f"{name} of {row['pid']}" if several else name)
        number_of[row["lane"]] = names[key]
    return number_of[lanes.fill_null(-1).to_numpy()], owners


class _Labels:
    """What nodes are called, by number."""

    def __init__(self, frames: pl.DataFrame) -> None:
        self._numbers = Interner[tuple[str, str | None, str]]()
        self._frames = [
            (row["name"], _where(row["file"], row["line"], row["module"]))
            for row in frames.iter_rows(named=True)
        ]

    def add(self, name: str, where: str | None, kind: str) -> int:
        return self._numbers[name, where, kind]

    def of_frame(self, frame: int) -> int:
        return self.add(*self._frames[frame], "python")

    def of_spans(self, spans: pl.DataFrame, stacks: pl.DataFrame) -> Int32:
        """Return the number of each span's label: a call is called by its frame."""
        is_call = (spans["category"].cast(pl.String) == "python").to_numpy()
        codes = np.zeros(spans.height, np.int32)
        called = stacks["frame"].gather(spans["stack"].filter(pl.Series(is_call))).to_numpy()
        used = np.unique(called)
        numbers = np.array([self.of_frame(frame) for frame in used.tolist()], np.int32)
        codes[is_call] = numbers[np.searchsorted(used, called)]
        others = spans.filter(~pl.Series(is_call))
        category = others["category"].cast(pl.String).fill_null("user")
        keys = category + _APART + others["name"].cast(pl.String).fill_null("")
        distinct = keys.unique(maintain_order=True)
        number_of = []
        for key in distinct:
            kind, _, name = key.partition(_APART)
            number_of.append(self.add(name, None, kind))
        places = keys.cast(pl.Enum(distinct)).to_physical().to_numpy()
        codes[~is_call] = np.array(number_of, np.int32)[places]
        return codes

    def columns(self, last: Int32) -> dict[str, pl.Series]:
        texts = list(self._numbers)
        return {
            name: pl.Series([text[place] for text in texts], dtype=pl.String).gather(last)
            for place, name in enumerate(("name", "where", "kind"))
        }


def _where(file: str | None, line: int | None, module: str | None) -> str | None:
    if file is None:
        return module
    return f"{PurePath(file).name}:{line}"


def _nodes(
    path: Int64, above: Int64, last: Int32, weight: Int64, first: int, labels: _Labels
) -> pl.DataFrame:
    """Sum up the rows of each path; those from `first` on are calls."""
    above, last, moved = _cut_deep(above, last, labels)
    path = moved[path]
    count = len(above)
    self_ns = np.zeros(count, np.int64)
    np.add.at(self_ns, path, weight)
    calls = np.bincount(path[first:], minlength=count).astype(np.int64)
    total_ns = self_ns.copy()
    for row in range(count - 1, -1, -1):
        if above[row] >= 0:
            total_ns[above[row]] += total_ns[row]
    # A thread in which nothing was recorded is no news.
    nodes = pl.DataFrame(
        {
            "parent": pl.Series(above).set(pl.Series(above < 0), None),
            **labels.columns(last),
            "self_ns": self_ns,
            "total_ns": total_ns,
            "calls": calls,
        },
        schema=SCHEMA,
    )
    empty = (above < 0) & (total_ns == 0) & ~np.isin(np.arange(count), above)
    if not empty.any():
        return nodes
    place = np.cumsum(~empty) - 1
    kept = nodes.filter(~pl.Series(empty))
    return kept.with_columns(parent=pl.Series(place).gather(kept["parent"]))


def _cut_deep(above: Int64, last: Int32, labels: _Labels) -> tuple[Int64, Int32, Int64]:
    """Return the paths without those that are too deep, and where each path is now."""
    depth: list[int] = []
    moved: list[int] = []
    outer: list[int] = []
    codes: list[int] = []
    deeper: dict[int, int] = {}
    for around, code in zip(above.tolist(), last.tolist(), strict=True):
        depth.append(depth[around] + 1 if around >= 0 else 0)
        if depth[-1] > MOST_DEPTH:
            moved.append(moved[around])
            continue
        parent = moved[around] if around >= 0 else -1
        if depth[-1] == MOST_DEPTH:
            if parent not in deeper:
                deeper[parent] = len(outer)
                outer.append(parent)
                codes.append(labels.add(DEEPER, None, "python"))
            moved.append(deeper[parent])
            continue
        moved.append(len(outer))
        outer.append(parent)
        codes.append(code)
    return np.array(outer, np.int64), np.array(codes, np.int32), np.array(moved, np.int64)
