# SPDX-License-Identifier: Apache-2.0
"""The batches of a recording: what loaders told when they fetched them and handed them out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from strobe.finalize.gather import Gathered, Log
from strobe.finalize.relations import known, lane_ids
from strobe.model.arrays import Bool, Int32, Int64
from strobe.model.marks import BATCH, FETCH
from strobe.model.nesting import nest
from strobe.store.parquet import Column
from strobe.store.tables import empty

_WAITS = ("enumerate(", "_DataLoaderIter")
"""What the names of waits begin with: ours, torch's and MindSpore's; Paddle's."""
_TOLD = ("number", "samples", "queue", "worker", "producer", "key", "automatic")
_OF_FETCH = ("number", "key", "samples", "worker", "collate_ns", "cpu_ns")


@dataclass
class Marks:
    """What loaders have told: when it began, how long it took, and facts."""

    start_ns: Int64
    dur_ns: Int64
    lane: Int32
    is_batch: Bool
    facts: list[dict[str, Any]]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.start_ns)

    def between(self, start_ns: int, end_ns: int) -> Marks:
        """Return those that began between two times."""
        rows = np.flatnonzero((self.start_ns >= start_ns) & (self.start_ns <= end_ns))
        return Marks(
            start_ns=self.start_ns[rows],
            dur_ns=self.dur_ns[rows],
            lane=self.lane[rows],
            is_batch=self.is_batch[rows],
            facts=[self.facts[row] for row in rows.tolist()],
        )


def take_marks(log: Log) -> Marks:
    """Take what is no user's out of the instants and counters; times are of the records' clock."""
    by_instant, by_counter = _marks_of_instants(log), _marks_of_watch(log)
    return Marks(
        start_ns=np.concatenate([by_instant.start_ns, by_counter.start_ns]),
        dur_ns=np.concatenate([by_instant.dur_ns, by_counter.dur_ns]),
        lane=np.concatenate([by_instant.lane, by_counter.lane]),
        is_batch=np.concatenate([by_instant.is_batch, by_counter.is_batch]),
        facts=[*by_instant.facts, *by_counter.facts],
    )


def _marks_of_instants(log: Log) -> Marks:
    """Return those of frameworks' loaders, which last from their attribute since_ns."""
    codes = [code for code, name in enumerate(log.names) if name in (BATCH, FETCH)]
    is_mark = np.isin(log.instants.name, codes)
    marks = log.instants.take(is_mark & (log.instants.attributes >= 0))
    if is_mark.any():
        log.instants = log.instants.take(~is_mark)
    facts = [json.loads(log.attributes[place]) for place in marks.attributes.tolist()]
    since = np.array([fact.get("since_ns", 0) for fact in facts], np.int64)
    return Marks(
        start_ns=since,
        dur_ns=marks.start_ns - since,
        lane=marks.lane,
        is_batch=np.array([log.names[code] == BATCH for code in marks.name.tolist()], bool),
        facts=facts,
    )


def _marks_of_watch(log: Log) -> Marks:
    """Return those of strobe.watch: counters whose value is the batch's number.

    They come right after the span of the wait, which is the last of its name in its lane to end.
    """
    told = {
        code: json.loads(name.removeprefix(BATCH))
        for code, name in enumerate(log.names)
        if name.startswith(BATCH) and name != BATCH
    }
    is_mark = np.isin(log.counters.name, list(told))
    marks = log.counters.take(is_mark)
    if is_mark.any():
        log.counters = log.counters.take(~is_mark)
    codes = {name: code for code, name in enumerate(log.names)}
    wait_of = {code: codes.get(fact["wait"], -1) for code, fact in told.items()}
    waits = log.spans.take(np.isin(log.spans.name, list(wait_of.values())))
    names = len(log.names)
    wanted = np.array([wait_of[code] for code in marks.name.tolist()], np.int64)
    row = _latest(
        waits.lane.astype(np.int64) * names + waits.name,
        marks.lane.astype(np.int64) * names + wanted,
        waits.start_ns + waits.dur_ns,
        marks.start_ns,
    )
    seen = row >= 0
    row, marks = row[seen], marks.take(seen)
    numbers = np.ascontiguousarray(marks.dur_ns).view(np.float64).astype(np.int64).tolist()
    return Marks(
        start_ns=waits.start_ns[row],
        dur_ns=waits.dur_ns[row],
        lane=marks.lane,
        is_batch=np.ones(len(marks), bool),
        facts=[
            {**told[code], "number": number, "automatic": 0}
            for code, number in zip(marks.name.tolist(), numbers, strict=True)
        ],
    )


def batches_table(marks: Marks, spans: Gathered, log: Log) -> dict[str, Column]:
    """Return the rows of `batches`, by time."""
    rows = _told(marks, log, ("loader", *_TOLD), batches=True)
    if rows.is_empty():
        return dict(empty("batches").to_dict())
    rows = _add_fetches(rows, _told(marks, log, _OF_FETCH, batches=False))
    rows = _merge_automatic(rows)
    rows = rows.with_columns(outer=pl.Series(_around(rows), dtype=pl.Int64))
    rows = _add_spans(rows, spans, log)
    return dict(rows.select(empty("batches").columns).to_dict())


def _told(marks: Marks, log: Log, keys: tuple[str, ...], *, batches: bool) -> pl.DataFrame:
    """Return the facts of batches or of fetches, by the time they began, the outermost first."""
    rows = np.flatnonzero(marks.is_batch == batches)
    facts = [marks.facts[row] for row in rows.tolist()]
    pids, tids = lane_ids(log)
    told = {
        key: pl.Series(
            [fact.get(key) for fact in facts], dtype=pl.String if key == "loader" else pl.Int64
        )
        for key in keys
    }
    lane = marks.lane[rows]
    frame = pl.DataFrame(
        {
            "start_ns": marks.start_ns[rows],
            "dur_ns": marks.dur_ns[rows],
            "end_ns": (marks.start_ns + marks.dur_ns)[rows],
            "lane": lane,
            "pid": pids.gather(lane),
            "tid": tids.gather(lane),
            **told,
        }
    )
    return frame.sort("start_ns", "end_ns", descending=[False, True])


def _add_fetches(rows: pl.DataFrame, fetches: pl.DataFrame) -> pl.DataFrame:
    """Add who fetched each: the producer that it names, or what was fetched in its own thread."""
    named = rows["producer"].is_not_null().to_numpy()
    by_number = _latest(
        *_keyed(fetches.select("pid", "key", "number"), rows.select("producer", "key", "number")),
        fetches["end_ns"].to_numpy(),
        rows["end_ns"].to_numpy(),
    )
    by_lane = _latest(
        *_keyed(fetches.select("lane"), rows.select("lane")),
        fetches["end_ns"].to_numpy(),
        rows["end_ns"].to_numpy(),
    )
    ready_ns = np.append(fetches["end_ns"].to_numpy(), -1)
    by_lane[ready_ns[by_lane] < rows["start_ns"].to_numpy()] = -1
    place = np.where(named, by_number, by_lane)
    found = fetches.with_row_index("place").select(
        pl.col("place").cast(pl.Int64),
        *(pl.col(name).alias(f"fetched_{name}") for name in ("samples", "worker")),
        *("collate_ns", "cpu_ns"),
        ready_ns="end_ns",
        fetch_ns="dur_ns",
    )
    with_places = rows.with_columns(place=known(place))
    return with_places.join(found, on="place", how="left").with_columns(
        samples=pl.coalesce("samples", "fetched_samples"),
        worker=pl.coalesce("worker", "fetched_worker").cast(pl.Int32),
    )


def _keyed(one: pl.DataFrame, other: pl.DataFrame) -> tuple[Int64, Int64]:
    """Return a number for each row of both, the same for the same values."""
    numbers: dict[tuple[Any, ...], int] = {}

    def number(rows: pl.DataFrame) -> Int64:
        return np.array([numbers.setdefault(row, len(numbers)) for row in rows.iter_rows()], int)

    return number(one), number(other)


def _latest(key: Int64, at_key: Int64, time: Int64, at_time: Int64) -> Int64:
    """Return for each (at_key, at_time) the row of that key with the last time up to it, or -1."""
    keys, times = np.concatenate([key, at_key]), np.concatenate([time, at_time])
    asks = np.arange(len(keys)) >= len(key)
    order = np.lexsort((asks, times, keys))
    last = np.maximum.accumulate(np.where(asks[order], -1, np.arange(len(order))))
    row = order[last]
    row = np.where((last >= 0) & (keys[row] == keys[order]), row, -1)
    found = np.empty(len(keys), np.int64)
    found[order] = row
    return found[len(key) :]


def _around(rows: pl.DataFrame) -> list[int | None]:
    """Return the row of the wait that each was a part of."""
    parent, _ = nest(
        rows["lane"].cast(pl.Int32).to_numpy(),
        rows["start_ns"].to_numpy(),
        rows["end_ns"].to_numpy(),
    )
    return [None if row < 0 else row for row in parent.tolist()]


def _merge_automatic(rows: pl.DataFrame) -> pl.DataFrame:
    """Make one of a strobe.watch and the framework's loader directly in it: the same batch."""
    rows = rows.with_row_index("row").with_columns(outer=pl.Series(_around(rows), dtype=pl.Int64))
    seen = rows["automatic"].to_list()
    same = [
        outer is not None and seen[row] == 1 and seen[outer] == 0
        for row, outer in enumerate(rows["outer"].to_list())
    ]
    inner = rows.filter(pl.Series(same, dtype=pl.Boolean))
    facts = ("samples", "queue", "worker", "ready_ns", "fetch_ns", "collate_ns", "cpu_ns")
    # A watch that asked for several batches to make one of them has no one worker, nor one fetch.
    once = inner.filter(pl.len().over("outer") == 1)
    told = once.select(pl.col("outer").cast(pl.UInt32).alias("row"), *facts)
    rows = rows.filter(~pl.Series(same, dtype=pl.Boolean)).join(
        told, on="row", how="left", suffix="_told"
    )
    return rows.with_columns(pl.coalesce(name, f"{name}_told").alias(name) for name in facts).drop(
        "row", "outer"
    )


def _add_spans(rows: pl.DataFrame, spans: Gathered, log: Log) -> pl.DataFrame:
    """Add the row of the span that is the wait.

    That of strobe.watch begins when its batch is asked for, and a framework's right before.
    """
    is_wait = np.array([name.startswith(_WAITS) for name in log.names], bool)
    places = np.flatnonzero(is_wait[spans.name])
    lane, start_ns = spans.lane[places].astype(np.int64), spans.start_ns[places]
    at_lane, at_ns = rows["lane"].cast(pl.Int64).to_numpy(), rows["start_ns"].to_numpy()
    before = _latest(lane, at_lane, start_ns, at_ns)
    after = _latest(lane, at_lane, -start_ns, -at_ns)
    place = np.where(rows["automatic"].to_numpy() == 1, before, after)
    begin_ns = np.append(start_ns, 0)[place]
    end_ns = np.append((spans.start_ns + spans.dur_ns)[places], -1)[place]
    meets = (place >= 0) & (begin_ns <= rows["end_ns"].to_numpy()) & (end_ns >= at_ns)
    span = np.where(meets, np.append(places, -1)[place], -1)
    return rows.with_columns(span=known(span), wait_ns="dur_ns")
