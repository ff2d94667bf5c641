# SPDX-License-Identifier: Apache-2.0
"""What is true of every table of spans, whoever recorded it; for tests and for real data."""

from __future__ import annotations

from typing import TYPE_CHECKING

# polars is imported when a table is checked, not before: recording imports `model` and must stay
# as quick to import as it is.
if TYPE_CHECKING:
    import polars as pl


def check(spans: pl.DataFrame) -> list[str]:
    """Return a sentence for each law that `spans` breaks; an empty list if it breaks none.

    Reads the columns name, start_ns, dur_ns, self_ns, lane, parent (row number or null) and
    unfinished; raises polars' ColumnNotFoundError if one is not there. The laws: nothing but
    parent is null; durations are not negative; rows are sorted by start_ns; a parent is an earlier
    row of the same lane and contains the row; self_ns is within 0 and dur_ns; a lane's self times
    sum to its busy time, the union of its spans.
    """
    return _broken_by_rows(spans) + _broken_by_lanes(spans)


def _faults() -> dict[str, pl.Expr]:
    """Return what a row may do to break a law, and whether it does.

    Comparing with a null breaks nothing: "is missing" says it once.
    """
    import polars as pl

    lane, parent, self_ns = pl.col("lane"), pl.col("parent"), pl.col("self_ns")
    start, dur = pl.col("start_ns"), pl.col("dur_ns")
    end = start + dur
    # The parent where it is a row above this one, so that looking it up cannot fail.
    above = pl.when((parent >= 0) & (parent < pl.int_range(pl.len()))).then(parent)
    never_null = ("name", "start_ns", "dur_ns", "self_ns", "lane", "unfinished")
    return {
        **{f"{column} is missing": pl.col(column).is_null() for column in never_null},
        "dur_ns is negative": dur < 0,
        "starts before the row above it": start < start.shift(1),
        "parent is not a row above it": parent.is_not_null() & above.is_null(),
        "parent is in another lane": lane.gather(above) != lane,
        "parent does not contain it": (start.gather(above) > start) | (end.gather(above) < end),
        "self_ns is not within 0 and dur_ns": ~self_ns.is_between(0, dur),
    }


def _broken_by_rows(spans: pl.DataFrame) -> list[str]:
    sentences = []
    for fault, breaks in _faults().items():
        rows = spans.select(breaks.fill_null(False)).to_series().arg_true()
        if len(rows):
            sentences.append(f"{_count(len(rows), 'row')}: {fault} (first: row {rows[0]})")
    return sentences


def _broken_by_lanes(spans: pl.DataFrame) -> list[str]:
    import polars as pl

    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns")
    fresh_ns = end - pl.max_horizontal(start, end.cum_max().shift(1))
    lanes = (
        spans.sort("start_ns", maintain_order=True)
        .group_by("lane", maintain_order=True)
        .agg(busy_ns=fresh_ns.clip(lower_bound=0).sum(), self_ns=pl.sum("self_ns"))
        .filter(pl.col("busy_ns") != pl.col("self_ns"))
    )
    if lanes.is_empty():
        return []
    first = lanes.row(0, named=True)
    return [
        f"{_count(lanes.height, 'lane')}: self times do not sum to the busy time "
        f"(first: lane {first['lane']}, {first['self_ns']} ns of {first['busy_ns']} ns)"
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
