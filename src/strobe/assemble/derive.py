# SPDX-License-Identifier: Apache-2.0
"""What frameworks do not say about their spans: links, phases, steps, collectives, FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from strobe.assemble.collectives import collectives
from strobe.assemble.derived_steps import derived_steps
from strobe.assemble.flops import flops_column
from strobe.assemble.lanes import known, lane_ids, number_processes
from strobe.assemble.links import layers, link_backward, link_launches, links_of
from strobe.assemble.phases import phases
from strobe.model.arrays import Bool, Int8, Int64
from strobe.model.attributes import ENDINGS
from strobe.model.coded import Coded
from strobe.model.phases import UNKNOWN
from strobe.model.tables import CATEGORIES, PHASES
from strobe.model.trace import Spans, Trace
from strobe.store.frames import empty
from strobe.store.parquet import Column

_COMMUNICATION = CATEGORIES.index("communication")


@dataclass(frozen=True)
class Derived:
    """Columns of `spans` that follow from the others, None where all is null, and tables."""

    links: dict[str, Column]
    collectives: dict[str, Column]
    steps: pl.DataFrame | None = None
    """Found by the framework's events; None if no framework was recorded."""
    phase: Coded | None = None
    module: Coded | None = None
    flops: pl.Series | None = None


def derive(spans: Spans, parent: Int64, unfinished: Bool, trace: Trace) -> Derived:
    """Find out what frameworks do not say; a user's spans alone have nothing of it."""
    if not spans.category.any():
        return Derived(
            links=dict(empty("links").to_dict()), collectives=dict(empty("collectives").to_dict())
        )
    process = number_processes(trace.threads)[spans.lane]
    forward, backward = link_backward(spans, parent, process)
    layer = layers(spans, parent, forward, backward)
    frame = _frame(spans, parent, trace)
    exchanging = np.flatnonzero(spans.category == _COMMUNICATION)
    exchanged = collectives(
        frame[exchanging].with_columns(
            row=pl.Series(exchanging),
            process=process[exchanging],
        ),
        [spans.texts.content(place) for place in spans.attributes[exchanging].tolist()],
        trace.groups,
    )
    asked = exchanged.drop_nulls("work")
    links = pl.concat(
        [
            links_of("backward", forward, backward),
            links_of("launch", *link_launches(spans, process)),
            links_of("launch", asked["span"].to_numpy(), asked["work"].to_numpy()),
        ]
    )
    unknown = None if spans.phase is None else spans.phase == UNKNOWN
    phase = phases(frame, links, unknown)
    steps = derived_steps(frame.with_columns(phase=phase, unfinished=unfinished), spans.step)
    codes = phase.cast(pl.Enum(PHASES)).to_physical().cast(pl.Int32).fill_null(-1)
    return Derived(
        links=dict(links.to_dict()),
        collectives=dict(exchanged.to_dict()),
        steps=steps,
        phase=Coded(codes.to_numpy(), PHASES),
        module=_module(spans, layer, trace),
        flops=flops_column(spans, trace.names) if trace.wanted.flops else None,
    )


def _frame(spans: Spans, parent: Int64, trace: Trace) -> pl.DataFrame:
    """Return what phases, steps and collectives are derived from."""
    pids, _ = lane_ids(trace.threads)
    frame = pl.DataFrame(
        {
            "name": _enum(spans.name, trace.names),
            "category": _enum(spans.category, CATEGORIES),
            "lane": spans.lane,
            "pid": pids.gather(spans.lane),
            "start_ns": spans.start_ns,
            "dur_ns": spans.dur_ns,
            "parent": known(parent),
        }
    )
    if spans.phase is not None and (spans.phase >= 0).any():
        frame = frame.with_columns(stated=_texts(spans.phase, PHASES))
    if spans.ends is not None:
        frame = frame.with_columns(ends=_texts(spans.ends, ENDINGS))
    return frame


def _enum(codes: NDArray[np.integer], texts: Sequence[str]) -> pl.Series:
    """Return texts by their numbers, without making a text for each row."""
    return pl.Series(texts, dtype=pl.Enum(texts)).gather(codes)


def _texts(codes: Int8, texts: Sequence[str]) -> pl.Series:
    """Return texts by their numbers, null for what is negative."""
    return pl.Series([*texts, None]).gather(np.where(codes < 0, len(texts), codes))


def _module(spans: Spans, layer: Int64 | None, trace: Trace) -> Coded | None:
    """Return the layer of each span: by the spans around it, or as the framework states it."""
    if layer is not None:
        return Coded(np.append(spans.name, -1)[layer], trace.names)
    if spans.module is not None and trace.wanted.modules:
        return Coded(spans.module.astype(np.int32), trace.names)
    return None
