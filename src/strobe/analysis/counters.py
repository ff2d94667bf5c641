# SPDX-License-Identifier: Apache-2.0
"""Counters: the values they had while they were recorded."""

from __future__ import annotations

import polars as pl

from strobe.store.tables import Tables


def counter_summary(tables: Tables) -> pl.DataFrame:
    """What counters were at: one row per process and name, by name.

    Columns:
        name, pid: which counter.
        values: how many were recorded.
        mean: of these, each counted once, however long it held.
        min, max, last: the smallest, the largest, the last of them.
    """
    return (
        tables.counters()
        .sort("start_ns")
        .group_by("name", "pid")
        .agg(
            values=pl.len().cast(pl.Int64),
            mean=pl.mean("value"),
            min=pl.min("value"),
            max=pl.max("value"),
            last=pl.last("value"),
        )
        .sort("name", "pid")
        .collect()
    )
