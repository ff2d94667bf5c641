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


def name_owners(allocations: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations with a column `owner`: the name of the innermost span open then."""
    names = spans["name"].cast(pl.String)
    known = allocations["span"].is_not_null()
    owner = names.gather(allocations["span"].fill_null(0)) if names.len() else known.cast(pl.String)
    return allocations.with_columns(owner=pl.when(known).then(owner))


def lifetimes(allocations: pl.DataFrame) -> pl.DataFrame:
    """One row per block that was allocated in a span, by start: who did it and when it was freed.

    A block is known by its process, device and address, so there are no rows where a framework
    tells no addresses. Reads the column that name_owners adds.

    Columns: owner; bytes; device; start_ns; end_ns, null if it was not freed; allocated_bytes and
    reserved_bytes from then on; freed_allocated_bytes and freed_reserved_bytes from its end on.
    """
    block = ["pid", "device", "address"]
    known = allocations.filter(pl.col("address").is_not_null())
    known = known.with_columns(pl.col("device").fill_null(-1)).with_columns(
        turn=(pl.col("bytes") > 0).cast(pl.Int32).cum_sum().over(block)
    )
    taken = known.filter((pl.col("bytes") > 0) & pl.col("owner").is_not_null())
    freed = known.filter(pl.col("bytes") < 0).unique([*block, "turn"], keep="first")
    freed = freed.select(
        *block,
        "turn",
        end_ns="start_ns",
        freed_allocated_bytes="allocated_bytes",
        freed_reserved_bytes="reserved_bytes",
    )
    return (
        taken.join(freed, on=[*block, "turn"], how="left")
        .sort("start_ns")
        .select(
            *("owner", "bytes"),
            pl.when(pl.col("device") >= 0).then("device").alias("device"),
            *("start_ns", "end_ns", "allocated_bytes", "reserved_bytes"),
            *("freed_allocated_bytes", "freed_reserved_bytes"),
        )
    )
