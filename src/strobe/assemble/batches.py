# SPDX-License-Identifier: Apache-2.0
"""The batches of a trace, from what loaders recorded when they fetched and handed them out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from strobe.assemble.lanes import known, lane_ids
from strobe.model.arrays import Int64
from strobe.model.coded import distinct_rows
from strobe.model.nesting import nest
from strobe.model.trace import UNFINISHED, Loads, Spans, Thread, concatenate
from strobe.store.frames import empty
from strobe.store.parquet import Column

_WAITS = ("enumerate(", "_DataLoaderIter")
"""What the names of waits begin with: ours, torch's and MindSpore's; Paddle's."""
_OF_BATCH = ("loader", "number", "samples", "queue", "worker", "producer", "key", "automatic")
_OF_FETCH = ("number", "key", "samples", "worker", "collate_ns", "cpu_ns")


def timed(loads: Loads, spans: Iterable[Spans], names: Sequence[str]) -> Loads:
    """Return the loads with the times of those of which only the end is known.

    They come right after the span of the wait, which is the last of its name in its lane to end;
    one without it is left out.
    """
    is_open = loads.dur_ns == UNFINISHED
    if not is_open.any():
        return loads
    rows = np.flatnonzero(is_open)
    wanted = np.full(len(rows), -1) if loads.wait is None else loads.wait[rows].astype(np.int64)
    ended = (
        batch.take(np.isin(batch.name, wanted) & (batch.dur_ns != UNFINISHED)) for batch in spans
    )
    waits = concatenate(ended, Spans)
    wait = _latest(
        waits.lane.astype(np.int64) * len(names) + waits.name,
        loads.lane[rows].astype(np.int64) * len(names) + wanted,
        waits.start_ns + waits.dur_ns,
        loads.start_ns[rows],
    )
    seen = (wait >= 0) & (wanted >= 0)  # a name that is lost is no key
    start_ns, dur_ns = loads.start_ns.copy(), loads.dur_ns.copy()
    start_ns[rows[seen]], dur_ns[rows[seen]] = waits.start_ns[wait[seen]], waits.dur_ns[wait[seen]]
    kept = np.ones(len(loads), bool)
    kept[rows] = seen
    return replace(loads, start_ns=start_ns, dur_ns=dur_ns).take(kept)


def batches_table(
    loads: Loads, spans: Spans, names: Sequence[str], threads: Sequence[Thread]
) -> dict[str, Column]:
    """Return the rows of `batches`, by time."""
    rows = _facts(loads.take(loads.is_batch), threads, _OF_BATCH)
    if rows.is_empty():
        return dict(empty("batches").to_dict())
    named = pl.Series(names, dtype=pl.String).gather(rows["loader"])
    rows = rows.with_columns(loader=named)
    rows = _add_fetches(rows, _facts(loads.take(~loads.is_batch), threads, _OF_FETCH))
    rows = _merge_automatic(rows)
    rows = rows.with_columns(outer=known(_around(rows)))
    rows = _add_spans(rows, spans, names)
    return dict(rows.select(empty("batches").columns).to_dict())


def _facts(loads: Loads, threads: Sequence[Thread], keys: tuple[str, ...]) -> pl.DataFrame:
    """Return what is known of loads, by the time they began, the outermost first."""
    pids, tids = lane_ids(threads)
    frame = pl.DataFrame(
        {
            "start_ns": loads.start_ns,
            "dur_ns": loads.dur_ns,
            "end_ns": loads.start_ns + loads.dur_ns,
            "lane": loads.lane,
            "pid": pids.gather(loads.lane),
            "tid": tids.gather(loads.lane),
            **{key: _fact(loads, key) for key in keys},
        }
    )
    return frame.sort("start_ns", "end_ns", descending=[False, True])


def _fact(loads: Loads, key: str) -> pl.Series:
    values: Int64 | None = getattr(loads, key)
    if values is None:
        return pl.repeat(None, len(loads), dtype=pl.Int64, eager=True)
    return known(values.astype(np.int64))


def _add_fetches(rows: pl.DataFrame, fetches: pl.DataFrame) -> pl.DataFrame:
    """Add who fetched each: the producer that it names, or what was fetched in its own thread."""
    if fetches.is_empty():
        unknown = pl.lit(None, pl.Int64)
        times = dict.fromkeys(("collate_ns", "cpu_ns", "ready_ns", "fetch_ns"), unknown)
        return rows.with_columns(pl.col("worker").cast(pl.Int32), **times)
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
    every = pl.concat([one, other.rename(dict(zip(other.columns, one.columns, strict=True)))])
    numbers, _ = distinct_rows(every, *every.columns)
    return numbers[: len(one)], numbers[len(one) :]


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


def _around(rows: pl.DataFrame) -> Int64:
    """Return the row of the wait that each was a part of, -1 for none."""
    parent, _ = nest(
        rows["lane"].cast(pl.Int32).to_numpy(),
        rows["start_ns"].to_numpy(),
        rows["end_ns"].to_numpy(),
    )
    return parent


def _merge_automatic(rows: pl.DataFrame) -> pl.DataFrame:
    """Make one of a strobe.watch and the framework's loader directly in it: the same batch."""
    outer = _around(rows)
    automatic = np.append(rows["automatic"].fill_null(-1).to_numpy(), -1)
    same = pl.Series((outer >= 0) & (automatic[:-1] == 1) & (automatic[outer] == 0))
    if not same.any():
        return rows
    rows = rows.with_row_index("row").with_columns(outer=known(outer))
    inner = rows.filter(same)
    facts = ("samples", "queue", "worker", "ready_ns", "fetch_ns", "collate_ns", "cpu_ns")
    # A watch that asked for several batches to make one of them has no one worker, nor one fetch.
    once = inner.filter(pl.len().over("outer") == 1)
    adopted = once.select(pl.col("outer").cast(pl.UInt32).alias("row"), *facts)
    rows = rows.filter(~same).join(adopted, on="row", how="left", suffix="_inner")
    return rows.with_columns(pl.coalesce(name, f"{name}_inner").alias(name) for name in facts).drop(
        "row", "outer"
    )


def _add_spans(rows: pl.DataFrame, spans: Spans, names: Sequence[str]) -> pl.DataFrame:
    """Add the row of the span that is the wait.

    That of strobe.watch begins when its batch is asked for, and a framework's right before.
    """
    is_wait = np.array([name.startswith(_WAITS) for name in names], bool)
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
