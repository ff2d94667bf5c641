# SPDX-License-Identifier: Apache-2.0
"""Memory that was allocated and freed, and the spans that it was for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from strobe.assemble.lanes import known, lane_ids
from strobe.assemble.owners import innermost_open
from strobe.model.trace import Allocations, Held, Spans, Trace
from strobe.store.frames import empty
from strobe.store.parquet import Column

_HOST = -1


def allocations_table(events: Allocations, spans: Spans, trace: Trace) -> dict[str, Column]:
    """Return the rows of `allocations`: those alive at the start first, then by time."""
    order = np.argsort(events.start_ns, kind="stable")
    pids, tids = lane_ids(trace.threads)
    owner = innermost_open(events.owner_ns, events.lane, spans)[order]
    rows = pl.DataFrame(
        {
            "start_ns": events.start_ns[order],
            "bytes": events.bytes[order],
            "address": known(events.address[order]),
            "device": pl.Series(events.device[order], dtype=pl.Int32),
            "lane": events.lane[order],
            "span": known(owner),
            "reserved_bytes": known(events.reserved_bytes[order]),
        }
    )
    rows = rows.with_columns(
        pid=pids.gather(events.lane[order]), tid=tids.gather(events.lane[order])
    )
    before = _before(trace.held).with_columns(start_ns=pl.lit(trace.start_ns, pl.Int64))
    rows = _balance(pl.concat([before, rows], how="diagonal")).with_columns(
        allocated_bytes=pl.col("bytes").cum_sum().over("pid", "device")
    )
    on_device = pl.when(pl.col("device") != _HOST).then("device")
    rows = rows.with_columns(device=on_device)
    return dict(rows.select(empty("allocations").columns).to_dict())


def _before(held: Sequence[Held]) -> pl.DataFrame:
    schema = {"bytes": pl.Int64, "address": pl.Int64, "device": pl.Int32, "pid": pl.Int64}
    rows = [(each.bytes, each.address, each.device, each.pid) for each in held]
    return pl.DataFrame(rows, schema=schema, orient="row")


def _balance(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what was freed unseen, and set sizes right that frameworks mix up.

    If an address is reused, its previous block was freed unseen: torch does not report the free of
    a block older than its profiler, and we do not see all that other threads free. A block is freed
    with the size it was allocated with: torch may report that of an older block at the address.
    """
    held = pl.when(pl.col("address").is_not_null()).then(
        pl.col("bytes").shift().over("pid", "device", "address")
    )
    rows = rows.with_row_index("order").with_columns(order=pl.col("order") * 2 + 1, held=held)
    unseen = rows.filter(pl.col("bytes") > 0, pl.col("held") > 0).select(
        "pid", "device", "address", "start_ns", bytes=-pl.col("held"), order=pl.col("order") - 1
    )
    rows = rows.with_columns(
        bytes=pl.when(pl.col("bytes") < 0, pl.col("held") > 0)
        .then(-pl.col("held"))
        .otherwise("bytes")
    )
    return pl.concat([rows, unseen], how="diagonal").sort("order")
