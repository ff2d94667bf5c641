# SPDX-License-Identifier: Apache-2.0
"""The steps of a trace: as the program marked them, or else as its spans imply them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from strobe.assemble.cut import Rows
from strobe.assemble.lanes import known
from strobe.model.arrays import Bool, Int32, Int64
from strobe.model.coded import Coded
from strobe.model.marks import STEP
from strobe.model.trace import Spans, Steps, Trace
from strobe.store.parquet import Column
from strobe.store.spill import Spill


def step_parts(
    marked: Steps | None,
    spans: Rows,
    names: Sequence[str],
    derived: pl.DataFrame | None,
    spill: Spill,
) -> Iterator[dict[str, Column]]:
    """Yield the rows of `steps`: marked steps and requests, which come by start.

    Where none are marked, the spans named step; where there are none, those that are `derived`.
    """
    if marked is not None and len(marked):
        yield from (_from_marks(marked.take(part)) for part in spill.parts(len(marked)))
        return
    chosen = np.flatnonzero(_are_named_so(spans, names))
    if derived is not None and not derived.is_empty() and not len(chosen):
        yield dict(derived.to_dict())
        return
    for part in spill.parts(len(chosen)):
        rows = spans.take(chosen[part])
        number = np.arange(part.start, part.stop)
        yield _columns(number, "span", rows.start_ns, rows.dur_ns, rows.lane, rows.unfinished)


def has_steps(trace: Trace, spans: Spans) -> bool:
    """Return whether steps need not be derived."""
    is_marked = trace.steps is not None and len(trace.steps) > 0
    return is_marked or bool(_are_named_so(spans, trace.names).any())


def _are_named_so(spans: Spans, names: Sequence[str]) -> Bool:
    # The name may be a Python function's alone.
    are: Bool = spans.name == (names.index(STEP) if STEP in names else -1)
    return are


def _from_marks(steps: Steps) -> dict[str, Column]:
    columns = _columns(
        steps.number, "step", steps.start_ns, steps.dur_ns, steps.lane, steps.unfinished
    )
    kinds = Coded(steps.is_request.astype(np.int32), ["step", "request"])
    return columns | {"kind": kinds, "samples": known(steps.samples)}


def _columns(
    number: Int64, kind: str, start_ns: Int64, dur_ns: Int64, lane: Int32, unfinished: Bool
) -> dict[str, Column]:
    rows = len(number)
    return {
        "step": number,
        "kind": pl.repeat(kind, rows, dtype=pl.String, eager=True),
        "start_ns": start_ns,
        "dur_ns": dur_ns,
        "samples": None,
        "lane": known(lane.astype(np.int64)),
        "unfinished": unfinished,
    }
