# SPDX-License-Identifier: Apache-2.0
"""The batches of a recording: what loaders told when they fetched them and handed them out."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from strobe.analysis.nesting import nest
from strobe.finalize.gather import Gathered, Log
from strobe.finalize.relations import known, lane_ids
from strobe.model.marks import BATCH, FETCH, MARKS
from strobe.store.parquet import Column
from strobe.store.tables import empty

Rows = NDArray[np.int64]

_WAITS = ("enumerate(", "_DataLoaderIter")
"""What the names of waits begin with: ours, torch's and MindSpore's; Paddle's."""
_TOLD = ("number", "samples", "queue", "worker", "producer", "key", "automatic")
_OF_FETCH = ("number", "key", "samples", "worker", "collate_ns", "cpu_ns")


def take_marks(log: Log) -> Gathered:
    """Take what is no user's out of the instants, and return it as intervals of the same clock."""
    codes = [code for code, name in enumerate(log.names) if name in MARKS]
    is_mark = np.isin(log.instants.name, codes)
    marks = log.instants.take(is_mark)
    if len(marks):
        log.instants = log.instants.take(~is_mark)
    told = [json.loads(text) for text in _texts(marks, log, "{}")]
    end_ns = marks.start_ns.tolist()
    begun = [fact.get("since_ns", end) for fact, end in zip(told, end_ns, strict=True)]
    ended = [fact.get("until_ns", end) for fact, end in zip(told, end_ns, strict=True)]
    marks.start_ns = np.array(begun, np.int64)
    marks.dur_ns = np.array(ended, np.int64) - marks.start_ns
    return marks


def batches_table(marks: Gathered, spans: Gathered, log: Log) -> dict[str, Column]:
    """Return the rows of `batches`, by time."""
    rows = _told(marks, log, BATCH, ("loader", *_TOLD))
    if rows.is_empty():
        return dict(empty("batches").to_dict())
    rows = _add_fetches(rows, _told(marks, log, FETCH, _OF_FETCH))
    rows = _merge_automatic(rows)
    rows = rows.with_columns(outer=pl.Series(_around(rows), dtype=pl.Int64))
    rows = _add_spans(rows, spans, log)
    return dict(rows.select(empty("batches").columns).to_dict())


def _texts(marks: Gathered, log: Log, nothing: str) -> list[str]:
    texts = [*log.attributes, nothing]  # a mark that has lost its own finds the last
    return [texts[place] for place in marks.attributes.tolist()]


def _told(marks: Gathered, log: Log, name: str, keys: tuple[str, ...]) -> pl.DataFrame:
    """Return what marks of this name have told, by the time they began, the outermost first."""
    codes = [code for code, text in enumerate(log.names) if text == name]
    mine = marks.take(np.isin(marks.name, codes) & (marks.attributes >= 0))
    pids, tids = lane_ids(log)
    facts = [json.loads(text) for text in _texts(mine, log, "{}")]
    told = {
        key: pl.Series(
            [fact.get(key) for fact in facts], dtype=pl.String if key == "loader" else pl.Int64
        )
        for key in keys
    }
    frame = pl.DataFrame(
        {
            "start_ns": mine.start_ns,
            "dur_ns": mine.dur_ns,
            "end_ns": mine.start_ns + mine.dur_ns,
            "lane": mine.lane,
            "pid": pids.gather(mine.lane),
            "tid": tids.gather(mine.lane),
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


def _keyed(one: pl.DataFrame, other: pl.DataFrame) -> tuple[Rows, Rows]:
    """Return a number for each row of both, the same for the same values."""
    numbers: dict[tuple[Any, ...], int] = {}

    def number(rows: pl.DataFrame) -> Rows:
        return np.array([numbers.setdefault(row, len(numbers)) for row in rows.iter_rows()], int)

    return number(one), number(other)


def _latest(key: Rows, at_key: Rows, time: Rows, at_time: Rows) -> Rows:
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

    That of strobe.watch begins right after its batch is asked for, and a framework's right before.
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
