# SPDX-License-Identifier: Apache-2.0
"""What frameworks do not say about their spans: links, phases, steps, collectives, FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from strobe.assemble.collectives import collectives
from strobe.assemble.cut import Rows
from strobe.assemble.derived_steps import derived_steps
from strobe.assemble.flops import flops_column
from strobe.assemble.lanes import known, number_processes
from strobe.assemble.links import Pairs, layers, link_backward, link_launches, links_table
from strobe.assemble.phases import phases
from strobe.assemble.steps import has_steps
from strobe.model.arrays import Int8, Int64
from strobe.model.tables import CATEGORIES
from strobe.model.trace import Spans, Trace
from strobe.store.frames import empty
from strobe.store.parquet import Column
from strobe.store.spill import Spill

_COMMUNICATION = CATEGORIES.index("communication")


@dataclass(frozen=True)
class Derived:
    """Columns of `spans` that follow from the others, None where all is null, and tables.

    What a row has not is -1.
    """

    links: dict[str, Column]
    collectives: dict[str, Column]
    steps: pl.DataFrame | None = None
    """Found by the framework's events; None if no framework was recorded."""
    phase: Int8 | None = None
    """Place in PHASES."""
    module: Int64 | None = None
    """Place in the trace's names."""
    flops: Int64 | None = None


def derive(spans: Rows, parent: Int64, trace: Trace, spill: Spill) -> Derived:
    """Find out what frameworks do not say; a user's spans alone have nothing of it."""
    if not spans.category.any():
        return Derived(
            links=links_table([], spill), collectives=dict(empty("collectives").to_dict())
        )
    process = number_processes(trace.threads)
    backward = link_backward(spans, parent, process, spill)
    launches = link_launches(spans, process, spill)
    exchanged = _collectives(spans, parent, process, trace)
    asked = exchanged.drop_nulls("work")
    works = Pairs(asked["span"].to_numpy(), asked["work"].to_numpy())
    phase = phases(spans, parent, trace, backward, [launches, works], spill)
    links = [("backward", backward), ("launch", launches), ("launch", works)]
    return Derived(
        links=links_table(links, spill),
        collectives=dict(exchanged.to_dict()),
        steps=None
        if has_steps(trace, spans)
        else derived_steps(spans, parent, phase, trace, spill),
        phase=phase,
        module=_module(spans, parent, backward, trace, spill),
        flops=flops_column(spans, trace.names, spill) if trace.wanted.flops else None,
    )


def _collectives(spans: Rows, parent: Int64, process: Int64, trace: Trace) -> pl.DataFrame:
    rows = np.flatnonzero(spans.category == _COMMUNICATION)
    chosen = spans.take(rows)
    frame = pl.DataFrame(
        {
            "row": rows,
            "name": pl.Series(trace.names, dtype=pl.String).gather(chosen.name),
            "process": process[chosen.lane],
            "lane": chosen.lane,
            "start_ns": chosen.start_ns,
            "dur_ns": chosen.dur_ns,
            "parent": known(parent[rows]),
        }
    )
    contents = [spans.texts.content(place) for place in chosen.attributes.tolist()]
    return collectives(frame, contents, trace.groups)


def _module(
    spans: Spans, parent: Int64, backward: Pairs, trace: Trace, spill: Spill
) -> Int64 | None:
    """Return the layer of each span: by the spans around it, or as the framework states it."""
    layer = layers(spans, parent, backward, spill)
    if layer is None:
        return spans.module if trace.wanted.modules else None
    for part in spill.parts(len(spans)):
        rows = layer[part]
        layer[part] = np.where(rows < 0, -1, spans.name[rows])
    return layer
