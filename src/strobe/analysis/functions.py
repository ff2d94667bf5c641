# SPDX-License-Identifier: Apache-2.0
"""Python's functions: which of them the time went to, as calls or as samples tell."""

from __future__ import annotations

import numpy as np
import polars as pl

from strobe.model import nesting
from strobe.store.tables import Tables

_IS_CALL = pl.col("category") == "python"
SCHEMA = pl.Schema(
    {
        "name": pl.String,
        "file": pl.String,
        "line": pl.Int64,
        "module": pl.String,
        "calls": pl.Int64,
        "total_ns": pl.Int64,
        "self_ns": pl.Int64,
        "share": pl.Float64,
    }
)


def functions(tables: Tables) -> pl.DataFrame:
    """One row per function that was called or sampled, the largest self time first.

    Columns: name, file, line, module, calls (samples where it was sampled), total_ns, self_ns,
    share (of the self time of all).
    """
    columns = ("lane", "start_ns", "dur_ns", "self_ns", "stack")
    return function_summary(
        tables.spans().filter(_IS_CALL).select(columns).collect(),
        tables.samples().collect(),
        tables.stacks().collect(),
        tables.frames().collect(),
    )


def function_summary(
    calls: pl.DataFrame, samples: pl.DataFrame, stacks: pl.DataFrame, frames: pl.DataFrame
) -> pl.DataFrame:
    """One row per function, sorted by self_ns descending, then by name: of calls, else of samples.

    Columns:
        name, file, line, module: as in `frames`.
        calls: how often it was called; of samples, in how many it was the innermost.
        total_ns: time in which at least one call of it was open, lane by lane: recursion counts
            once.
        self_ns: time in which it was the innermost call.
        share: self_ns / that of all functions; null if it is 0.
    """
    if calls.height:
        rows = _of_calls(calls, stacks, frames.height)
    else:
        rows = _of_samples(samples, stacks, frames.height)
    whole_ns = pl.sum("self_ns")
    return (
        pl.concat([frames, rows], how="horizontal")
        .filter((pl.col("calls") > 0) | (pl.col("total_ns") > 0))
        .with_columns(share=pl.when(whole_ns > 0).then(pl.col("self_ns") / whole_ns))
        .select(SCHEMA.names())
        .sort("self_ns", "name", descending=[True, False])
    )


def read_other_spans(tables: Tables, *columns: str) -> pl.DataFrame:
    """Return these columns of spans, as if Python's calls had not been recorded."""
    spans = tables.spans()
    if spans.filter(_IS_CALL).select(pl.len()).collect().item() == 0:
        return spans.select(columns).collect()
    return without_calls(spans.select("category", *columns).collect()).select(columns)


def is_known(tables: Tables, column: str) -> bool:
    """Say whether any span has a value in this column; it takes 1 ms to see that none has."""
    return bool(tables.spans().select(pl.col(column).is_not_null().any()).collect().item())


def without_calls(spans: pl.DataFrame) -> pl.DataFrame:
    """Return a whole table of spans without Python's calls; parents are row numbers again."""
    is_call = (spans["category"].cast(pl.String) == "python").fill_null(False)
    if not is_call.any():
        return spans
    place = (~is_call).cast(pl.Int64).cum_sum() - 1
    others = spans.filter(~is_call)
    if "parent" not in others.columns:
        return others
    return others.with_columns(parent=place.gather(others["parent"]))


def _of_calls(calls: pl.DataFrame, stacks: pl.DataFrame, frames: int) -> pl.DataFrame:
    code = stacks["frame"].gather(calls["stack"]).cast(pl.Int32).to_numpy()
    start_ns = calls["start_ns"].to_numpy()
    total_ns = nesting.cover(
        lane=calls["lane"].cast(pl.Int32).to_numpy(),
        start_ns=start_ns,
        end_ns=start_ns + calls["dur_ns"].to_numpy(),
        name=code,
        names=frames,
    )
    self_ns = np.zeros(frames, np.int64)
    np.add.at(self_ns, code, calls["self_ns"].to_numpy())
    count = np.bincount(code, minlength=frames).astype(np.int64)
    return pl.DataFrame({"calls": count, "total_ns": total_ns, "self_ns": self_ns})


def _of_samples(samples: pl.DataFrame, stacks: pl.DataFrame, frames: int) -> pl.DataFrame:
    count, total_ns, self_ns = (np.zeros(frames, np.int64) for _ in range(3))
    parents, frame_of = stacks["parent"].to_list(), stacks["frame"].to_list()
    seen = samples.group_by("stack").agg(count=pl.len(), interval_ns=pl.sum("interval_ns"))
    for stack, times, interval_ns in seen.iter_rows():
        count[frame_of[stack]] += times
        self_ns[frame_of[stack]] += interval_ns
        around, functions = stack, set()
        while around is not None:
            functions.add(frame_of[around])
            around = parents[around]
        total_ns[list(functions)] += interval_ns
    return pl.DataFrame({"calls": count, "total_ns": total_ns, "self_ns": self_ns})
