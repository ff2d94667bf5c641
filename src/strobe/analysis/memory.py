# SPDX-License-Identifier: Apache-2.0
"""What the table of allocations says about a program's need of memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl

from strobe.model.arrays import Float64, Int64
from strobe.store.tables import Tables


def peak_allocated(tables: Tables) -> pl.DataFrame:
    """The most memory in use at any time: one row per process and device, the host first.

    Columns: pid, device (null for the host), peak_bytes.
    """
    return (
        tables.allocations()
        .group_by("pid", "device")
        .agg(peak_bytes=pl.max("allocated_bytes"))
        .sort("pid", "device", nulls_last=False)
        .collect()
    )


def memory_held(tables: Tables) -> pl.DataFrame:
    """Who held memory when most of it was in use: one row per process, device and owner.

    Columns: pid, device (null for the host), start_ns (when that was), owner (a span's name,
    "(before the start)" or "(unknown)"), module, function (of Python, with with_stack), blocks,
    bytes, share (of all held then).
    """
    return held_at_peak(memory_timeline(tables))


def memory_timeline(tables: Tables) -> pl.DataFrame:
    """What each owner holds from each allocation or free on: one row per event.

    Columns: pid, device, start_ns, owner, module, function, held_bytes and held_blocks by that
    owner, allocated_bytes by all.
    """
    spans = tables.spans().select("name", "module", "stack").collect()
    function = callers(spans, tables.stacks().collect(), tables.frames().collect())
    return owner_timeline(tables.allocations().collect(), spans.with_columns(function=function))


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
        "function": pl.String,
        "blocks": pl.Int64,
        "bytes": pl.Int64,
        "share": pl.Float64,
    }
)


def callers(spans: pl.DataFrame, stacks: pl.DataFrame, frames: pl.DataFrame) -> pl.Series:
    """Return the Python function that each span was called in, and its place; null if unknown.

    C functions, which have no place, are passed over for the one that called them.
    """
    names = frames.select(pl.format("{} ({}:{})", "name", "file", "line")).to_series().to_list()
    called_in: list[str | None] = []
    for parent, frame in stacks.select("parent", "frame").iter_rows():
        above = None if parent is None else called_in[parent]
        called_in.append(above if names[frame] is None else names[frame])
    found: pl.Series = pl.Series(called_in, dtype=pl.String).gather(spans["stack"])
    return found


def owner_timeline(allocations: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """What each owner holds from each event on: one row per row of `allocations`, in its order.

    An owner is the innermost span that was open when a block was allocated, with its module and
    the Python function that called it; what is freed is its owner's. What was there when the
    recording began, seen or not, is "(before the start)"; what was allocated outside of all spans,
    or has no address to follow it by, is "(unknown)". So at any event, what all owners of a process
    and device hold sums to allocated_bytes.

    Reads a whole table of allocations, and name, module and function (see callers) of a whole table
    of spans. Columns: pid; device, null for the host; start_ns; owner, module, function; held_bytes
    and held_blocks by it from then on, null where some have no address; allocated_bytes.
    """
    row = allocations["span"]
    before = row.is_null() & allocations["tid"].is_null() & (allocations["bytes"] > 0)
    rows = allocations.select(
        *("pid", "device", "start_ns", "bytes", "address", "allocated_bytes"),
        owner=spans["name"].cast(pl.String).gather(row).fill_null(UNKNOWN),
        module=spans["module"].cast(pl.String).gather(row),
        function=spans["function"].gather(row),
        is_before=before,
    )
    place = ("pid", "device", "address")
    allocated = pl.col("bytes") > 0
    found = pl.col("address").is_not_null()
    whole_owner = pl.when("is_before").then(pl.lit(BEFORE)).otherwise("owner")
    # If nobody saw a block being allocated, it is older than the recording.
    freed = whole_owner.shift().over(place).fill_null(BEFORE)
    rows = rows.with_columns(
        owner=pl.when("is_before")
        .then(pl.lit(BEFORE))
        .when(~found)
        .then(pl.lit(UNKNOWN))
        .when(allocated)
        .then("owner")
        .otherwise(freed),
        **{
            name: pl.when(~found)
            .then(None)
            .when(allocated)
            .then(name)
            .otherwise(pl.col(name).shift().over(place))
            for name in ("module", "function")
        },
        block=pl.when(found).then(pl.col("bytes").sign()).otherwise(0),
        is_counted=found,
    )
    whose = ("pid", "device", "owner", "module", "function")
    return rows.select(
        *("pid", "device", "start_ns", "owner", "module", "function"),
        held_bytes=pl.col("bytes").cum_sum().over(whose),
        held_blocks=pl.when(pl.col("is_counted").cum_min().over(whose)).then(
            pl.col("block").cum_sum().over(whose).cast(pl.Int64)
        ),
        allocated_bytes="allocated_bytes",
    )


def held_at_peak(timeline: pl.DataFrame) -> pl.DataFrame:
    """Who held memory when most was in use: per process and device one row for each owner.

    The bytes of a process and device sum to its peak. Rows: the host first, the largest owner
    first. Reads what owner_timeline returns.
    Columns: pid; device, null for the host; start_ns, when that was; owner, module, function;
    blocks, null if they cannot be counted; bytes; share, of the peak, null if that is 0.
    """
    found = [pl.DataFrame(schema=HELD)]
    keys = timeline.select("pid", "device").unique().sort("pid", "device", nulls_last=False)
    for pid, device in keys.iter_rows():
        mine = timeline.filter(pl.col("pid") == pid, pl.col("device").eq_missing(device))
        place = int(mine["allocated_bytes"].to_numpy().argmax())
        peak = int(mine["allocated_bytes"][place])
        until = mine[: place + 1]
        held = until.group_by("owner", "module", "function", maintain_order=True).last()
        found.append(
            held.select(
                pl.lit(pid, pl.Int64).alias("pid"),
                pl.lit(device, pl.Int32).alias("device"),
                pl.lit(mine["start_ns"][place], pl.Int64).alias("start_ns"),
                *("owner", "module", "function"),
                blocks="held_blocks",
                bytes="held_bytes",
                share=pl.col("held_bytes") / (peak or None),
            )
            .filter(pl.col("bytes") != 0)
            .sort("bytes", "owner", "module", "function", descending=[True, False, False, False])
        )
    return pl.concat(found)


def curve(
    time_ns: Int64,
    value: Float64,
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
