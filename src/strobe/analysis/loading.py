# SPDX-License-Identifier: Apache-2.0
"""Data loading: how long the program waited for its loaders, and what they spent on a batch."""

from __future__ import annotations

import numpy as np
import polars as pl

from strobe.model.arrays import Int64
from strobe.store.tables import Tables


def loaders(tables: Tables) -> pl.DataFrame:
    """How long the program waited for its data: one row per loader, the longest wait first.

    Columns: loader, batches, samples, wait_ns, mean_wait_ns, max_wait_ns; starved_ns and
    step_ns, the waits inside steps and the time of these, and share, the one by the other;
    batches_per_s, samples_per_s; fetch_ns, collate_ns, cpu_ns, queue (means), workers.
    """
    return loader_summary(tables.batches().collect(), tables.steps().collect())


def workers(tables: Tables) -> pl.DataFrame:
    """What the workers of loaders did: one row per loader and worker, as far as it was seen.

    Columns: loader, worker, batches; fetch_ns, collate_ns and cpu_ns of these in all;
    cpu_share, the part of fetch_ns in which it had the processor.
    """
    return worker_summary(tables.batches().collect())


def loader_summary(batches: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """One row per loader, the longest wait first.

    Columns:
        loader: its name.
        batches, samples: how many it handed out; samples is null where one batch did not say.
        wait_ns, mean_wait_ns, max_wait_ns: how long the program waited for them.
        starved_ns: part of wait_ns inside steps of the thread that waited.
        step_ns: time of those steps, overlapping ones counted once; null where there are none.
        share: starved_ns / step_ns, 0 to 1; null where there are no steps.
        batches_per_s, samples_per_s: over the time from the first one asked for to the last one
            handed out; null where that is 0, or samples is.
        fetch_ns, collate_ns, cpu_ns: means of what making a batch took, of those where it is seen.
        queue: mean of the batches that were ready when one was asked for, null where unknown.
        workers: how many there were, 0 for none.
    Only steps that have ended, and whose lane is known, take part.
    """
    end_ns = pl.col("start_ns") + pl.col("wait_ns")
    over_s = (end_ns.max() - pl.col("start_ns").min()) / 1e9
    known = pl.col("samples").is_not_null().all()
    summary = batches.group_by("loader", maintain_order=True).agg(
        batches=pl.len().cast(pl.Int64),
        samples=pl.when(known).then(pl.sum("samples")),
        total_wait_ns=pl.sum("wait_ns"),
        mean_wait_ns=pl.mean("wait_ns"),
        max_wait_ns=pl.max("wait_ns"),
        batches_per_s=pl.when(over_s > 0).then(pl.len() / over_s),
        samples_per_s=pl.when(known & (over_s > 0)).then(pl.sum("samples") / over_s),
        **{name: pl.mean(name) for name in ("fetch_ns", "collate_ns", "cpu_ns", "queue")},
        workers=pl.col("worker").drop_nulls().n_unique().cast(pl.Int64),
    )
    starved = [
        _starved(batches.filter(pl.col("loader") == name), steps) for name in summary["loader"]
    ]
    told = pl.DataFrame(starved, schema={"starved_ns": pl.Int64, "step_ns": pl.Int64}, orient="row")
    columns = ["loader", "batches", "samples", "wait_ns", "mean_wait_ns", "max_wait_ns"]
    columns += ["starved_ns", "step_ns", "share", "batches_per_s", "samples_per_s"]
    columns += ["fetch_ns", "collate_ns", "cpu_ns", "queue", "workers"]
    return (
        pl.concat([summary.rename({"total_wait_ns": "wait_ns"}), told], how="horizontal")
        .with_columns(share=pl.col("starved_ns") / pl.col("step_ns"))
        .select(columns)
        .sort("wait_ns", descending=True, maintain_order=True)
    )


def worker_summary(batches: pl.DataFrame) -> pl.DataFrame:
    """One row per loader and worker of which a fetch was seen, by number.

    Columns: loader; worker; batches that it fetched; fetch_ns, collate_ns, cpu_ns: what they took
    in all, and of the processor; cpu_share: cpu_ns / fetch_ns, null where that is 0.
    """
    fetched = batches.filter(pl.col("worker").is_not_null(), pl.col("fetch_ns").is_not_null())
    return (
        fetched.group_by("loader", "worker")
        .agg(
            batches=pl.len().cast(pl.Int64),
            **{name: pl.sum(name) for name in ("fetch_ns", "collate_ns", "cpu_ns")},
        )
        .with_columns(
            cpu_share=pl.when(pl.col("fetch_ns") > 0).then(pl.col("cpu_ns") / pl.col("fetch_ns"))
        )
        .sort("loader", "worker")
    )


def _starved(batches: pl.DataFrame, steps: pl.DataFrame) -> tuple[int | None, int | None]:
    """Return how long the steps waited, and the time of the steps on the lanes that did."""
    ended = steps.filter(~pl.col("unfinished"), pl.col("dur_ns") > 0)
    waited_ns = step_ns = 0
    for (lane,), mine in batches.group_by("lane"):
        laid = ended.filter(pl.col("lane") == lane)
        if laid.height:
            start_ns, end_ns = _union(*_bounds(laid, "dur_ns"))
            # Waits of one loader may lie in each other, where it is watched twice.
            begun_ns, done_ns = _union(*_bounds(mine, "wait_ns"))
            past = _time_before(start_ns, end_ns, done_ns) - _time_before(
                start_ns, end_ns, begun_ns
            )
            waited_ns += int(past.sum())
            step_ns += int((end_ns - start_ns).sum())
    return (waited_ns, step_ns) if step_ns else (None, None)


def _bounds(rows: pl.DataFrame, duration: str) -> tuple[Int64, Int64]:
    start_ns = rows["start_ns"].to_numpy()
    return start_ns, start_ns + rows[duration].to_numpy()


def _union(start_ns: Int64, end_ns: Int64) -> tuple[Int64, Int64]:
    """Return intervals that do not overlap and cover the same time."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, reach_ns = start_ns[order], np.maximum.accumulate(end_ns[order])
    first = np.append(True, start_ns[1:] > reach_ns[:-1])
    last = np.append(first[1:], True)
    return start_ns[first], reach_ns[last]


def _time_before(start_ns: Int64, end_ns: Int64, at_ns: Int64) -> Int64:
    """Return how much of the intervals, which do not overlap, lies before each time."""
    past = np.append(0, np.cumsum(end_ns - start_ns))
    begun = np.searchsorted(start_ns, at_ns, side="right")
    rest = np.append(end_ns, 0)[begun - 1] - at_ns
    found: Int64 = past[begun] - np.where(begun > 0, np.maximum(rest, 0), 0)
    return found
