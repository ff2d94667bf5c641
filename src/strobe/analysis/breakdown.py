# SPDX-License-Identifier: Apache-2.0
"""What a phase is made of: the time of one kind of span, split among its direct children."""

from __future__ import annotations

from functools import partial

import numpy as np
import polars as pl

from strobe.analysis.functions import read_other_spans
from strobe.model import nesting
from strobe.store.tables import Tables

REST = "(rest)"

SCHEMA = pl.Schema(
    {
        "name": pl.String,
        "calls": pl.Int64,
        "total_ns": pl.Int64,
        "per_parent_ns": pl.Float64,
        "share": pl.Float64,
    }
)


def breakdown(tables: Tables, of: str) -> pl.DataFrame:
    """Where the time of the spans named `of` goes: their direct children and the rest.

    Python's calls take part only where no other span has the name.
    Columns: name, calls, total_ns, per_parent_ns, share (of the time of the `of` spans).
    """
    others = read_other_spans(tables, "name", "lane", "start_ns", "dur_ns", "parent")
    parts = phase_breakdown(others.lazy(), of).collect()
    return parts if parts.height else phase_breakdown(tables.spans(), of).collect()


def phase_breakdown(spans: pl.LazyFrame, of: str) -> pl.LazyFrame:
    """Split the time of the spans named `of` among their direct children, by the child's name.

    Each instant of an `of` span belongs to the latest-started child open then (of any `of` span
    of the lane), or to "(rest)" if there is none, so total_ns sums exactly to the whole: the time
    in which an `of` span was open, lane by lane. An `of` span directly in another is no child, it
    is more of the same: its children stand in for it.

    Reads the columns name, lane, start_ns, dur_ns and parent of a whole table: parent is a row
    number, or null, so rows must not have been filtered or moved.

    Rows are sorted by total_ns descending, then by name; "(rest)" comes last. There are none if no
    span is named `of`. Columns:
        name: the children's name, or "(rest)".
        calls: how many children have it; 0 for "(rest)".
        total_ns: the time that belongs to them, within their parents' bounds.
        per_parent_ns: total_ns / number of spans named `of`.
        share: total_ns / the whole, 0 to 1; null if the whole is 0.
    """
    return spans.select("name", "lane", "start_ns", "dur_ns", "parent").map_batches(
        partial(_break_down, of=of),
        schema=SCHEMA,
        predicate_pushdown=False,
        projection_pushdown=False,
        slice_pushdown=False,
    )


def _break_down(spans: pl.DataFrame, of: str) -> pl.DataFrame:
    spans = spans.with_columns(
        pl.col("lane").cast(pl.Int32),
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        # As text, since an Enum refuses to be compared with a name it does not have.
        is_parent=(pl.col("name").cast(pl.String) == of).fill_null(False),
    )
    parents = spans.filter("is_parent").sort("start_ns")
    if parents.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    whole_ns = _union_ns(parents)
    parts = (
        _clipped_children(spans)
        .group_by("name")
        .agg(calls=pl.len().cast(pl.Int64), total_ns=pl.sum("self_ns"))
        .sort("total_ns", "name", descending=[True, False])
    )
    rest_ns = whole_ns - parts["total_ns"].sum()
    rest = pl.DataFrame({"name": REST, "calls": 0, "total_ns": rest_ns}, schema=parts.schema)
    return pl.concat([parts, rest]).with_columns(
        per_parent_ns=pl.col("total_ns") / parents.height,
        share=pl.col("total_ns") / (whole_ns or None),
    )


def _union_ns(spans: pl.DataFrame) -> int:
    covered_ns = nesting.cover(
        lane=spans["lane"].to_numpy(),
        start_ns=spans["start_ns"].to_numpy(),
        end_ns=spans["end_ns"].to_numpy(),
        name=np.zeros(spans.height, np.int32),
        names=1,
    )
    return int(covered_ns[0])


def _clipped_children(spans: pl.DataFrame) -> pl.DataFrame:
    """Return name and self_ns (the time that belongs to it alone) of each child."""
    # One more entry, False, for parent -1 to find: no parent.
    is_parent = np.append(spans["is_parent"].to_numpy(), False)
    above = spans["parent"].fill_null(-1).to_numpy()
    rows = np.flatnonzero(is_parent[above] & ~is_parent[:-1])
    child, parent = spans[rows], spans[above[rows]]
    # Lane and bounds are the parent's: a table that breaks the laws must not give a negative rest.
    bounds = parent.select("lane", low_ns="start_ns", high_ns="end_ns")
    clipped = (
        pl.concat([child.select("name", "start_ns", "end_ns"), bounds], how="horizontal")
        .select(
            pl.col("name").cast(pl.String),
            "lane",
            pl.col("start_ns").clip("low_ns", "high_ns"),
            pl.col("end_ns").clip("low_ns", "high_ns"),
        )
        .sort("start_ns", "end_ns", descending=[False, True])
    )
    _, self_ns = nesting.nest(
        clipped["lane"].to_numpy(), clipped["start_ns"].to_numpy(), clipped["end_ns"].to_numpy()
    )
    return clipped.select("name", self_ns=pl.Series(self_ns))
