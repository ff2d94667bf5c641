# SPDX-License-Identifier: Apache-2.0
"""What both formats of Paddle's profiler hold: events of its types, memory, and a few facts.

Unlike other formats these need the times and names of all events at once, since Paddle's types
follow from the whole; the rest is read in batches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from strobe.analysis.metadata import read_metadata, read_number
from strobe.analysis.paddle_tree import PaddleEvents, paddle_events
from strobe.exporters._lanes import Lanes, read_lanes
from strobe.model.arrays import Int64
from strobe.model.attributes import DTYPES, INPUTS, SHAPES
from strobe.model.paddle import PROCESS_USE, SYSTEM_USE
from strobe.model.paddle import TracerMemEventType as Memory
from strobe.store.tables import Tables

VERSION = "1.0.2"
"""Of the format that Paddle 2.5 to 3.3 write."""
_SPAN_INDEX = "span_index"


@dataclass(frozen=True)
class Content:
    """What is to be written."""

    tables: Tables
    events: PaddleEvents
    lanes: Lanes
    lane: Int64
    """Place of each event's lane in `lanes`."""
    pid: Int64
    """Of each event, as the file is to have it."""
    memory: pl.DataFrame
    """By time: start_ns, type, bytes, address, place, lane, pid, span, and four sums."""
    wall_ns: int
    """Add it to a time to have the wall clock's."""
    span_index: int
    extra_info: dict[str, str]

    def read_details(self, first: int, last: int, *columns: str) -> pl.DataFrame:
        """Return further columns of `spans` for the events from `first` on and before `last`.

        These follow one another there, or nearly. What is no span has nulls.
        """
        place = self.events.rows["span"][first:last]
        known = place.filter(place >= 0)
        begin, end = (known.min(), known.max()) if len(known) else (0, -1)
        spans = self.tables.spans().slice(begin, end - begin + 1).select(columns).collect()
        return spans.select(pl.all().gather(place.set(place < 0, None) - begin))


def read_content(tables: Tables) -> Content:
    """Return all that is to be written."""
    metadata = read_metadata(tables)
    events = paddle_events(tables)
    lanes = read_lanes(tables)
    lane = lanes.number(events.rows["lane"]).astype(np.int64)
    pids = np.array([lanes.processes[each.process].pid for each in lanes.lanes], np.int64)
    first_ns = read_number(metadata, "start_ns") or 0
    wall = metadata.get("start_wall_ns", "")
    names = {str(each.tid): each.name for each in lanes.lanes[: lanes.steps]}
    use = {key: metadata[key] for key in (PROCESS_USE, SYSTEM_USE) if metadata.get(key)}
    return Content(
        tables=tables,
        events=events,
        lanes=lanes,
        lane=lane,
        pid=pids[lane],
        memory=_memory(tables, events, lanes, pids),
        wall_ns=int(wall) - first_ns if wall.isdecimal() else 0,
        span_index=read_number(metadata, _SPAN_INDEX) or 0,
        extra_info={**names, **use},
    )


def read_inputs(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return shapes and dtypes of an operator's inputs by name, as Paddle has them, of attributes.

    What is no list of lists of sizes is left out: a user may have meant something else.
    """
    content = json.loads(text) if f'"{SHAPES}"' in text else {}
    given = content.get(SHAPES) if isinstance(content, dict) else None
    if not isinstance(given, list) or not all(map(_is_shape, given)):
        return {}, {}
    names = content.get(INPUTS) or [f"input{place}" for place in range(len(given))]
    shapes = {str(name): [shape] for name, shape in zip(names, given, strict=False)}
    types = content.get(DTYPES) or []
    dtypes = {name: [str(dtype)] for name, dtype in zip(shapes, types, strict=False)}
    return shapes, dtypes


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(
        type(size) is int and 0 <= size < 1 << 63 for size in value
    )


def _memory(tables: Tables, events: PaddleEvents, lanes: Lanes, pids: Int64) -> pl.DataFrame:
    """Return what was allocated and freed, then what was reserved, as Paddle reports it."""
    held = tables.allocations().filter(pl.col("tid").is_not_null()).collect()
    if events.end_ns is not None:
        held = held.filter(pl.col("start_ns") < events.end_ns)
    lane = lanes.number(held["lane"])
    place = pl.concat_str(pl.lit("Place(gpu:"), pl.col("device"), pl.lit(")")).fill_null(
        "Place(cpu)"
    )
    held = held.with_columns(
        pl.Series("lane", lane),
        pl.Series("pid", pids[lane]),
        pl.col("address").fill_null(0),
        place=place,
        current_allocated=pl.col("allocated_bytes").fill_null(0).clip(0),
        current_reserved=pl.col("reserved_bytes").fill_null(0).clip(0),
    ).with_columns(
        peak_allocated=pl.col("current_allocated").cum_max().over("place"),
        peak_reserved=pl.col("current_reserved").cum_max().over("place"),
    )
    reserved = held.with_columns(bytes=pl.col("current_reserved").diff().over("place").fill_null(0))
    both = pl.concat(
        [
            held.with_columns(type=_kind(Memory.Allocate, Memory.Free)),
            reserved.filter(pl.col("bytes") != 0).with_columns(
                type=_kind(Memory.ReservedAllocate, Memory.ReservedFree)
            ),
        ]
    )
    return both.sort("start_ns", maintain_order=True)


def _kind(grown: Memory, shrunk: Memory) -> pl.Expr:
    return (
        pl.when(pl.col("bytes") >= 0).then(pl.lit(int(grown))).otherwise(pl.lit(int(shrunk)))
    ).cast(pl.Int64)
