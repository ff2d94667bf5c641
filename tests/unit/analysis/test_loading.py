# SPDX-License-Identifier: Apache-2.0
"""How long steps starve for data: by hand, in units of one nanosecond."""

from __future__ import annotations

import polars as pl

from strobe.analysis.loading import loader_summary, worker_summary
from strobe.store.frames import empty


def batches(*rows: tuple) -> pl.DataFrame:
    """Rows of (loader, lane, asked, had)."""
    named = [
        {"loader": loader, "lane": lane, "start_ns": start, "wait_ns": end - start}
        for loader, lane, start, end in rows
    ]
    return pl.DataFrame(named, schema=empty("batches").schema)


def steps(*rows: tuple) -> pl.DataFrame:
    """Rows of (lane, begin, end), with a third value where it has not ended."""
    named = [
        {"lane": row[0], "start_ns": row[1], "dur_ns": row[2] - row[1], "unfinished": len(row) > 3}
        for row in rows
    ]
    return pl.DataFrame(named, schema=empty("steps").schema)


def starved(waits: pl.DataFrame, laid: pl.DataFrame) -> list[tuple]:
    return loader_summary(waits, laid).select("loader", "starved_ns", "step_ns", "share").rows()


def test_only_what_lies_in_steps_of_the_same_thread_counts() -> None:
    waits = batches(("a", 0, 5, 15), ("a", 0, 38, 55), ("a", 0, 90, 95), ("b", 1, 0, 100))
    laid = steps((0, 10, 30), (0, 30, 50), (0, 50, 60), (0, 80, 99, "unfinished"))

    # a: 10-15 of the first, 38-50 of the second, 50-55 of the third; the last one never ended.
    assert starved(waits, laid) == [("b", None, None, None), ("a", 22, 50, 22 / 50)]


def test_requests_that_overlap_count_once() -> None:
    assert starved(batches(("a", 0, 0, 30)), steps((0, 10, 40), (0, 20, 60))) == [
        ("a", 20, 50, 20 / 50)
    ]


def test_without_steps_there_is_no_share() -> None:
    row = loader_summary(batches(("a", 0, 0, 4), ("a", 0, 10, 18)), steps()).row(0, named=True)

    assert (row["batches"], row["wait_ns"], row["mean_wait_ns"], row["max_wait_ns"]) == (
        2,
        12,
        6,
        8,
    )
    assert row["batches_per_s"] == 2 / 18e-9
    assert (row["share"], row["samples"], row["samples_per_s"], row["queue"]) == (None,) * 4
    assert row["workers"] == 0


def test_no_batches_no_rows() -> None:
    assert loader_summary(batches(), steps((0, 0, 10))).is_empty()


def test_workers_and_how_much_of_the_processor_they_had() -> None:
    names = ("loader", "worker", "fetch_ns", "collate_ns", "cpu_ns")
    rows = [("a", 1, 10, 1, 5), ("a", 0, 8, 2, 8), ("a", 1, 10, 1, 10), ("a", None, 9, 9, 9)]
    rows += [("b", 0, None, None, None), ("c", 0, 0, 0, 0)]
    fetched = [dict(zip(names, row, strict=True)) for row in rows]

    found = worker_summary(pl.DataFrame(fetched, schema=empty("batches").schema))

    assert found.rows() == [
        ("a", 0, 1, 8, 2, 8, 1.0),
        ("a", 1, 2, 20, 2, 15, 0.75),
        ("c", 0, 1, 0, 0, 0, None),
    ]
