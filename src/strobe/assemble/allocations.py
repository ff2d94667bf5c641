# SPDX-License-Identifier: Apache-2.0
"""Memory that was allocated and freed, and the spans that it was for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import polars as pl

from strobe.assemble.lanes import known, lane_ids
from strobe.assemble.owners import innermost_open
from strobe.model.arrays import Int64
from strobe.model.trace import Allocations, Held, Spans, Thread, Trace
from strobe.store.frames import empty
from strobe.store.parquet import Column
from strobe.store.spill import Spill

_HOST = -1
_WIDTH = 4
"""Frames of allocations are so much larger than the columns of other tables' parts."""


def allocation_parts(
    events: Allocations, spans: Spans, trace: Trace, spill: Spill
) -> Iterator[dict[str, Column]]:
    """Yield the rows of `allocations`: those alive at the start first, then by time.

    The events come by time. Of those in earlier parts, the blocks that are alive are remembered.
    """
    owner = innermost_open(events.owner_ns, events.lane, spans, spill)
    before = _before(trace.held).with_columns(start_ns=pl.lit(trace.start_ns, pl.Int64))
    alive, in_use = before.clear(), before.clear().select("pid", "device", "bytes")
    for part in spill.parts(len(events), columns=_WIDTH) or [slice(0, 0)]:
        rows = _rows(events.take(part), owner[part], trace.threads)
        if part.start == 0:
            rows = pl.concat([before, rows], how="diagonal")
        rows, alive = _balance(rows, alive)
        rows, in_use = _add_up(rows, in_use)
        on_device = pl.when(pl.col("device") != _HOST).then("device")
        rows = rows.with_columns(device=on_device)
        yield dict(rows.select(empty("allocations").columns).to_dict())


def _rows(events: Allocations, owner: Int64, threads: Sequence[Thread]) -> pl.DataFrame:
    pids, tids = lane_ids(threads)
    return pl.DataFrame(
        {
            "start_ns": events.start_ns,
            "bytes": events.bytes,
            "address": known(events.address),
            "device": pl.Series(events.device, dtype=pl.Int32),
            "lane": events.lane,
            "span": known(owner),
            "reserved_bytes": known(events.reserved_bytes),
            "pid": pids.gather(events.lane),
            "tid": tids.gather(events.lane),
        }
    )


def _before(held: Sequence[Held]) -> pl.DataFrame:
    schema = {"bytes": pl.Int64, "address": pl.Int64, "device": pl.Int32, "pid": pl.Int64}
    rows = [(each.bytes, each.address, each.device, each.pid) for each in held]
    return pl.DataFrame(rows, schema=schema, orient="row")


def _balance(rows: pl.DataFrame, alive: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add what was freed unseen, and set sizes right that frameworks mix up.

    If an address is reused, its previous block was freed unseen: torch does not report the free of
    a block older than its profiler, and we do not see all that other threads free. A block is freed
    with the size it was allocated with: torch may report that of an older block at the address.

    `alive` are the blocks that earlier rows left. Returns those that are alive now, too.
    """
    block = ["pid", "device", "address"]
    earlier = len(alive)
    rows = pl.concat([alive, rows], how="diagonal").with_row_index("order")
    has_address = pl.col("address").is_not_null()
    held = pl.when(has_address).then(pl.col("bytes").shift().over(block))
    rows = rows.with_columns(order=pl.col("order") * 2 + 1, held=held)
    last = rows.filter(has_address).unique(block, keep="last", maintain_order=True)
    rows = rows[earlier:]
    unseen = rows.filter(pl.col("bytes") > 0, pl.col("held") > 0).select(
        *block, "start_ns", bytes=-pl.col("held"), order=pl.col("order") - 1
    )
    rows = rows.with_columns(
        bytes=pl.when(pl.col("bytes") < 0, pl.col("held") > 0)
        .then(-pl.col("held"))
        .otherwise("bytes")
    )
    balanced = pl.concat([rows, unseen], how="diagonal").sort("order")
    return balanced, last.filter(pl.col("bytes") > 0).select(alive.columns)


def _add_up(rows: pl.DataFrame, in_use: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Add the bytes in use after each row; `in_use` are those that earlier rows left."""
    memory = ["pid", "device"]
    rows = pl.concat([in_use, rows], how="diagonal").with_columns(
        allocated_bytes=pl.col("bytes").cum_sum().over(memory)
    )
    left = rows.group_by(memory, maintain_order=True).agg(pl.sum("bytes"))
    return rows[len(in_use) :], left
