# SPDX-License-Identifier: Apache-2.0
"""The rows of `spans`: those of frameworks and users, with Python's calls between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from strobe.assemble.cut import Rows
from strobe.assemble.lanes import known
from strobe.assemble.sorting import merge
from strobe.model.arrays import Int64
from strobe.store.parquet import Column
from strobe.store.spill import Spill


@dataclass(frozen=True, kw_only=True)
class Table(Rows):
    """Rows of `spans`, by start. What a row has not is -1; its phase and its layer are derived."""

    parent: Int64
    self_ns: Int64
    stack: Int64 | None = None
    flops: Int64 | None = None


@dataclass(frozen=True)
class Merged:
    """All rows of `spans`, and where the rows of frameworks and users are among them."""

    table: Table
    place: Int64 | None
    """None: where they were."""

    def moved(self, columns: Mapping[str, Column], *names: str) -> dict[str, Column]:
        """Return columns of which some are rows of `spans`, as these rows are now."""
        moved = dict(columns)
        if self.place is not None:
            for name in names:
                rows = (
                    pl.DataFrame({name: moved[name]})[name].cast(pl.Int64).fill_null(-1).to_numpy()
                )
                moved[name] = known(np.where(rows < 0, -1, self.place[rows]))
        return moved


def with_calls(spans: Table, calls: Table, spill: Spill) -> Merged:
    """Put the calls between the other spans."""
    if not len(calls):
        return Merged(spans, None)
    parent: Int64 = spill.empty(len(calls), np.int64)
    for rows in spill.parts(len(calls)):
        inside = calls.parent[rows]
        parent[rows] = np.where(inside < 0, -1, inside + len(spans))
    place: Int64 = spill.empty(len(spans) + len(calls), np.int64)
    table = merge([spans, replace(calls, parent=parent)], Table, spill, place)
    for rows in spill.parts(len(table)):
        inside = table.parent[rows]
        table.parent[rows] = np.where(inside < 0, -1, place[inside])
    return Merged(table, place[: len(spans)])
