# SPDX-License-Identifier: Apache-2.0
"""Which span led to which: forward to backward, a launch to what ran, a layer to its operators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from strobe.model.ancestors import innermost
from strobe.model.arrays import Int64
from strobe.model.tables import CATEGORIES
from strobe.model.trace import Spans

_BACKWARD, _MODULE = CATEGORIES.index("backward"), CATEGORIES.index("module")


def number_engine(spans: Spans, parent: Int64) -> Spans:
    """Give the engine's span around a backward, which has no number, that of the backward."""
    if spans.sequence is None or spans.numbered_by is None:
        return spans
    is_backward = spans.category == _BACKWARD
    inner = np.flatnonzero(is_backward & (spans.sequence >= 0) & (parent >= 0))
    around = parent[inner]
    inner = inner[is_backward[around] & (spans.sequence[around] < 0)][::-1]  # the first one stays
    sequence, numbered_by = spans.sequence.copy(), spans.numbered_by.copy()
    sequence[parent[inner]] = sequence[inner]
    numbered_by[parent[inner]] = numbered_by[inner]
    return replace(spans, sequence=sequence, numbered_by=numbered_by)


def link_backward(spans: Spans, parent: Int64, process: Int64) -> tuple[Int64, Int64]:
    """Return (forward, backward): which operator each backward computes the gradients of.

    The framework numbers operators thread by thread. Several share a number, one inside the other
    or one after the other: the last to begin is the one that made the node of the graph. Of the
    backward spans with one number the outermost counts.
    """
    none = np.zeros(0, np.int64)
    is_backward = spans.category == _BACKWARD
    if spans.sequence is None or spans.numbered_by is None or not is_backward.any():
        return none, none
    numbered = np.flatnonzero(spans.sequence >= 0)
    key = pl.DataFrame(
        {
            "row": numbered,
            "process": process[numbered],
            "thread": spans.numbered_by[numbered],
            "sequence": spans.sequence[numbered],
            "backward": is_backward[numbered],
            "parent": parent[numbered],
        }
    )
    number = ["process", "thread", "sequence"]
    forward = key.filter(~pl.col("backward")).group_by(number).agg(pl.max("row").alias("forward"))
    same = key.filter("backward").select(*number, pl.col("row").alias("parent"))
    backward = key.filter("backward").join(same, on=[*number, "parent"], how="anti")
    pairs = backward.join(forward, on=number).filter(pl.col("forward") < pl.col("row")).sort("row")
    return pairs["forward"].to_numpy(), pairs["row"].to_numpy()


def link_launches(spans: Spans, process: Int64) -> tuple[Int64, Int64]:
    """Return (call, work): which call of the runtime started each kernel and copy."""
    if spans.correlation is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = np.flatnonzero(spans.correlation > 0)
    found = pl.DataFrame(
        {
            "row": rows,
            "process": process[rows],
            "correlation": spans.correlation[rows],
            "call": spans.category[rows] == CATEGORIES.index("runtime"),
        }
    )
    key = ["process", "correlation"]
    calls = found.filter("call").unique(key, keep="first").rename({"row": "source"})
    pairs = found.filter(~pl.col("call")).join(calls, on=key).sort("row")
    return pairs["source"].to_numpy(), pairs["row"].to_numpy()


def links_of(kind: str, source: Int64, target: Int64) -> pl.DataFrame:
    """Return rows of the table `links`."""
    kinds = pl.repeat(kind, len(source), dtype=pl.String, eager=True)
    return pl.DataFrame({"kind": kinds, "source": source, "target": target})


def layers(spans: Spans, parent: Int64, forward: Int64, backward: Int64) -> Int64 | None:
    """Return the row of the layer each span was called in, -1 for none; None where there are none.

    A backward belongs to the layer of its forward, and so does what is inside it.
    """
    is_module = spans.category == _MODULE
    if not is_module.any():
        return None
    layer = innermost(is_module, parent)
    source = np.full(len(spans), -1, np.int64)
    source[backward] = forward
    linked = source >= 0
    inside = innermost(linked, parent)
    found: Int64 = np.where(inside >= 0, np.append(layer, -1)[source[inside]], layer)
    return found
