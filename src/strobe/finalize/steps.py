# SPDX-License-Identifier: Apache-2.0
"""The steps of a recording: as the program marked them, or else as its spans tell."""

from __future__ import annotations

import numpy as np
import polars as pl

from strobe.analysis.steps import SPAN_NAME
from strobe.finalize.gather import Gathered, Log
from strobe.model.arrays import Bool, Places
from strobe.store.manifest import Manifest
from strobe.store.parquet import Column

_UNKNOWN = 0xFFFFFFFF


def steps_table(
    log: Log,
    manifest: Manifest,
    spans: Gathered,
    unfinished: Bool,
    end_ns: int,
    derived: pl.DataFrame | None,
) -> dict[str, Column]:
    """Return the rows of `steps`: marked steps and requests, and the one still going on.

    Where none are marked, the spans named step; where there are none, those that are `derived`.
    """
    own = f"-{manifest.pid}-{manifest.process_start}-"
    marks = log.steps
    mine = np.array([own in prefix for prefix in marks.process], bool)
    mine &= marks.window == manifest.window
    if not mine.any():
        chosen = _named(log, spans)
        if derived is not None and not derived.is_empty() and not len(chosen):
            return dict(derived.to_dict())
        return _from_spans(chosen, spans, unfinished)
    samples = marks.samples[mine].astype(np.int64)
    request = marks.request[mine]
    rows = pl.DataFrame(
        {
            "step": marks.number[mine].astype(np.int64),
            "kind": np.where(request, "request", "step").tolist(),
            "start_ns": marks.start_ns[mine],
            "dur_ns": marks.dur_ns[mine],
            "samples": pl.Series(samples).set(pl.Series(samples == _UNKNOWN), None),
            "lane": marks.lane[mine],
            "unfinished": np.zeros(int(mine.sum()), bool),
        }
    )
    steps = rows.filter(pl.col("kind") == "step")
    if not manifest.ended_with_step and steps.height:
        last = steps.sort("step").row(-1, named=True)
        begun_ns = last["start_ns"] + last["dur_ns"]
        if begun_ns < end_ns:
            going_on = {
                "step": last["step"] + 1,
                "kind": "step",
                "start_ns": begun_ns,
                "dur_ns": end_ns - begun_ns,
                "samples": None,
                "lane": None,
                "unfinished": True,
            }
            rows = rows.vstack(pl.DataFrame([going_on], schema=rows.schema))
    return dict(rows.sort("start_ns").to_dict())


def _named(log: Log, spans: Gathered) -> Places:
    """Return the rows of the spans named step; the name may be a Python function's alone."""
    number = log.names.index(SPAN_NAME) if SPAN_NAME in log.names else -1
    return np.flatnonzero(spans.name == number)


def _from_spans(chosen: Places, spans: Gathered, unfinished: Bool) -> dict[str, Column]:
    return {
        "step": np.arange(len(chosen), dtype=np.int64),
        "kind": pl.Series(["span"] * len(chosen), dtype=pl.String),
        "start_ns": spans.start_ns[chosen],
        "dur_ns": spans.dur_ns[chosen],
        "samples": pl.Series([None] * len(chosen), dtype=pl.Int64),
        "lane": spans.lane[chosen],
        "unfinished": unfinished[chosen],
    }
