# SPDX-License-Identifier: Apache-2.0
"""Counters: what they were at, over the time that they were told."""

from __future__ import annotations

import polars as pl


def counter_summary(counters: pl.DataFrame) -> pl.DataFrame:
    """One row per process and name, by name.

    Columns:
        name, pid: which counter.
        values: how often it was told.
        mean: of the values, each as often as it was told.
        min, max, last: the smallest, the largest, the last of them.
    """
    return (
        counters.sort("start_ns")
        .group_by("name", "pid")
        .agg(
            values=pl.len().cast(pl.Int64),
            mean=pl.mean("value"),
            min=pl.min("value"),
            max=pl.max("value"),
            last=pl.last("value"),
        )
        .sort("name", "pid")
    )
