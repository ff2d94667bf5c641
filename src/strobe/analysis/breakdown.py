# SPDX-License-Identifier: Apache-2.0
"""What a phase is made of: the time of one kind of span, split among its direct children."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from strobe.analysis.functions import read_other_spans
from strobe.model import nesting
from strobe.model.arrays import Bool, Int32, Int64
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
    start_ns = spans["start_ns"].to_numpy()
    return split_parents(
        Nested(
            lane=spans["lane"].cast(pl.Int32).to_numpy(),
            start_ns=start_ns,
            end_ns=start_ns + spans["dur_ns"].to_numpy(),
            parent=spans["parent"].fill_null(-1).to_numpy(),
            # As text, since an Enum refuses to be compared with a name it does not have.
            is_parent=(spans["name"].cast(pl.String) == of).fill_null(False).to_numpy(),
        ),
        name=spans["name"].gather,
    )


class Nested(NamedTuple):
    """Columns of a whole table of spans, and which of its rows are to be split."""

    lane: Int32
    start_ns: Int64
    end_ns: Int64
    parent: Int64
    """A row number, or -1."""
    is_parent: Bool

    def take(self, rows: NDArray[Any]) -> Nested:
        """Return some rows; their parents remain row numbers of the whole table."""
        return Nested(*(column[rows] for column in self))


def split_parents(spans: Nested, name: Callable[[Int64], pl.Series]) -> pl.DataFrame:
    """Split the time of the marked rows as phase_breakdown does; `name` returns names of rows."""
    parents = spans.take(spans.is_parent)
    count = len(parents.lane)
    if not count:
        return pl.DataFrame(schema=SCHEMA)
    whole_ns = _union_ns(parents.take(np.argsort(parents.start_ns, kind="stable")))
    rows, self_ns = _clipped_children(spans)
    parts = (
        pl.DataFrame({"name": name(rows), "self_ns": self_ns})
        .group_by("name")
        .agg(calls=pl.len().cast(pl.Int64), total_ns=pl.sum("self_ns"))
        .with_columns(pl.col("name").cast(pl.String))
        .sort("total_ns", "name", descending=[True, False])
    )
    rest_ns = whole_ns - parts["total_ns"].sum()
    rest = pl.DataFrame({"name": REST, "calls": 0, "total_ns": rest_ns}, schema=parts.schema)
    return pl.concat([parts, rest]).with_columns(
        per_parent_ns=pl.col("total_ns") / count,
        share=pl.col("total_ns") / (whole_ns or None),
    )


def _union_ns(spans: Nested) -> int:
    covered_ns = nesting.cover(
        lane=spans.lane,
        start_ns=spans.start_ns,
        end_ns=spans.end_ns,
        name=np.zeros(len(spans.lane), np.int32),
        names=1,
    )
    return int(covered_ns[0])


def _clipped_children(spans: Nested) -> tuple[Int64, Int64]:
    """Return the row of each child, and self_ns: the time that belongs to it alone."""
    # One more entry, False, for parent -1 to find: no parent.
    is_parent = np.append(spans.is_parent, False)
    rows = np.flatnonzero(is_parent[spans.parent] & ~spans.is_parent)
    around = spans.parent[rows]
    # Lane and bounds are the parent's: a table that breaks the laws must not give a negative rest.
    low_ns, high_ns = spans.start_ns[around], spans.end_ns[around]
    start_ns = np.clip(spans.start_ns[rows], low_ns, high_ns)
    end_ns = np.clip(spans.end_ns[rows], low_ns, high_ns)
    lane = spans.lane[around]
    if not nesting.is_sorted(start_ns, end_ns):
        order = np.lexsort((-end_ns, start_ns))
        rows, lane = rows[order], lane[order]
        start_ns, end_ns = start_ns[order], end_ns[order]
    _, self_ns = nesting.nest(lane, start_ns, end_ns)
    return rows, self_ns
