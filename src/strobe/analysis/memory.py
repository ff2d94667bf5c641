# SPDX-License-Identifier: Apache-2.0
"""What the table of allocations says about a program's need of memory."""

from __future__ import annotations

import polars as pl


def peak_allocated(allocations: pl.LazyFrame) -> pl.LazyFrame:
    """One row per process and device, the host first: the most that was in use at any time.

    Columns: pid; device, null for the host; peak_bytes.
    """
    return (
        allocations.group_by("pid", "device")
        .agg(peak_bytes=pl.max("allocated_bytes"))
        .sort("pid", "device", nulls_last=False)
    )
