# SPDX-License-Identifier: Apache-2.0
"""What the table of allocations says about a program's need of memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray


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


BEFORE, UNKNOWN = "(before the start)", "(unknown)"

HELD = pl.Schema(
    {
        "pid": pl.Int64,
        "device": pl.Int32,
        "start_ns": pl.Int64,
        "owner": pl.String,
        "module": pl.String,
        "blocks": pl.Int64,
        "bytes": pl.Int64,
        "share": pl.Float64,
    }
)


def held_at_peak(allocations: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Who held memory when most was in use: per process and device one row for each owner.

    An owner is the innermost span that was open when the block was allocated, and its module. What
    was there when the recording began is "(before the start)"; what was allocated outside of all
    spans, or has no address to follow it by, is "(unknown)". The bytes of a process and device sum
    to its peak. Rows: the host first, the largest owner first.

    Reads a whole table of allocations, and name and module of a whole table of spans.
    Columns: pid; device, null for the host; start_ns, when that was; owner, module, blocks, bytes;
    share, of the peak, null if that is 0.
    """
    found = [pl.DataFrame(schema=HELD)]
    keys = allocations.select("pid", "device").unique().sort("pid", "device", nulls_last=False)
    for pid, device in keys.iter_rows():
        mine = allocations.filter(pl.col("pid") == pid, pl.col("device").eq_missing(device))
        found.append(_held(mine, spans, pid, device))
    return pl.concat(found)


def _held(mine: pl.DataFrame, spans: pl.DataFrame, pid: int, device: int | None) -> pl.DataFrame:
    place = int(mine["allocated_bytes"].to_numpy().argmax())
    peak = int(mine["allocated_bytes"][place])
    until = mine[: place + 1]
    blocks = (
        until.filter(pl.col("address").is_not_null())
        .group_by("address", maintain_order=True)
        .last()
        .filter(pl.col("bytes") > 0)
    )
    row = blocks["span"]
    owner = spans["name"].cast(pl.String).gather(row)
    before = row.is_null() & blocks["tid"].is_null()
    owners = blocks.select("bytes").with_columns(
        owner=owner.zip_with(row.is_not_null(), pl.Series([UNKNOWN], dtype=pl.String)),
        module=spans["module"].cast(pl.String).gather(row),
        before=before,
    )
    owners = owners.with_columns(owner=pl.when("before").then(pl.lit(BEFORE)).otherwise("owner"))
    rest = pl.DataFrame(
        {
            "owner": [UNKNOWN],
            "module": [None],
            "blocks": [0],
            "bytes": [peak - blocks["bytes"].sum()],
        },
        schema={name: HELD[name] for name in ("owner", "module", "blocks", "bytes")},
    )
    held = owners.group_by("owner", "module").agg(
        blocks=pl.len().cast(pl.Int64), bytes=pl.sum("bytes")
    )
    return (
        pl.concat([held, rest])
        .group_by("owner", "module")
        .agg(pl.sum("blocks"), pl.sum("bytes"))
        .filter((pl.col("bytes") != 0) | (pl.col("blocks") > 0))
        .sort("bytes", "owner", "module", descending=[True, False, False])
        .with_columns(
            pid=pl.lit(pid, pl.Int64),
            device=pl.lit(device, pl.Int32),
            start_ns=pl.lit(mine["start_ns"][place], pl.Int64),
            share=pl.col("bytes") / (peak or None),
        )
        .select(HELD.names())
    )


def curve(
    time_ns: NDArray[np.int64],
    value: NDArray[np.float64],
    start_ns: int,
    end_ns: int,
    parts: int,
) -> list[float | None]:
    """Return the largest value in each of as many equal parts of a time; null before the first.

    A value holds until the next one; times rise.
    """
    bounds = np.linspace(start_ns, end_ns, parts + 1)
    found: list[float | None] = []
    for low, high in pairwise(bounds):
        first = int(np.searchsorted(time_ns, low, side="right")) - 1
        last = int(np.searchsorted(time_ns, high, side="right"))
        inside = value[max(first, 0) : last]
        found.append(float(inside.max()) if len(inside) else None)
    return found
