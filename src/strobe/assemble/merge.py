# SPDX-License-Identifier: Apache-2.0
"""The rows of `spans`: those of frameworks and users, with Python's calls between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from strobe.assemble.derive import Derived
from strobe.assemble.stacks import Calls
from strobe.model.arrays import Bool, Int64
from strobe.model.coded import Coded
from strobe.model.trace import Spans, concatenate
from strobe.store.parquet import Column


@dataclass(frozen=True)
class Table:
    """All rows of `spans`, by start, and where the rows that were there before are now."""

    spans: Spans
    parent: Int64
    self_ns: Int64
    unfinished: Bool
    stack: Int64 | None
    phase: Coded | None
    module: Coded | None
    flops: pl.Series | None
    place: Int64 | None
    """None: where they were."""

    def moved(self, columns: dict[str, Column], *names: str) -> dict[str, Column]:
        """Return columns of which some are rows of `spans`, as these rows are now."""
        if self.place is None:
            return columns
        frame = pl.DataFrame({name: columns[name] for name in names})
        rows = {name: frame[name].cast(pl.Int64) for name in names}
        places = pl.Series(self.place, dtype=pl.Int64)
        return {**columns, **{name: places.gather(row) for name, row in rows.items()}}


def merge(
    spans: Spans,
    parent: Int64,
    self_ns: Int64,
    unfinished: Bool,
    derived: Derived,
    calls: Calls,
    sampled: Int64 | None,
) -> Table:
    """Put the calls between the other spans. Without calls, their stacks are the sampled ones."""
    if not len(calls.spans):
        derivations = (derived.phase, derived.module, derived.flops)
        return Table(spans, parent, self_ns, unfinished, sampled, *derivations, None)
    first, count = len(spans), len(calls.spans)
    both = concatenate([spans, calls.spans], Spans)
    order = np.lexsort((-both.dur_ns, both.start_ns))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    outer = np.concatenate([parent, np.where(calls.parent < 0, -1, calls.parent + first)])

    def coded(column: Coded | None) -> Coded | None:
        if column is None:
            return None
        codes = np.concatenate([column.codes, np.full(count, -1, np.int32)])
        return Coded(codes[order], column.texts)

    flops = derived.flops
    if flops is not None:
        flops = pl.concat([flops, pl.Series([None] * count, dtype=flops.dtype)]).gather(order)
    return Table(
        spans=both.take(order),
        parent=np.append(place, -1)[outer][order],
        self_ns=np.concatenate([self_ns, calls.self_ns])[order],
        unfinished=np.concatenate([unfinished, calls.unfinished])[order],
        stack=np.concatenate([calls.stacks_at(spans), calls.stack])[order],
        phase=coded(derived.phase),
        module=coded(derived.module),
        flops=flops,
        place=place[:first],
    )
