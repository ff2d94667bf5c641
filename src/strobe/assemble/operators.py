# SPDX-License-Identifier: Apache-2.0
"""The table `operators`, made of sorted spans part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from strobe.assemble.sorting import Sorter
from strobe.model import nesting
from strobe.model.arrays import Bool, Int64
from strobe.model.operators import in_order, nearest_rank, summarise_coded
from strobe.model.trace import Columns, Spans, concatenate
from strobe.store.spill import Spill


def operators_table(
    spans: Spans, self_ns: Int64, names: Sequence[str], spill: Spill
) -> pl.DataFrame:
    """Return the rows of `operators` for spans that are sorted by start."""
    if len(spans) <= spill.in_memory_rows:
        rows = summarise_coded(_frame(spans, self_ns), len(names))
    else:
        rows = _summarise_parts(spans, self_ns, len(names), spill)
    named = pl.Series(names, dtype=pl.String).gather(rows["name"]).alias("name")
    return in_order(rows.with_columns(named))


def _frame(spans: Spans, self_ns: Int64) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "name": spans.name,
            "lane": spans.lane,
            "start_ns": spans.start_ns,
            "dur_ns": spans.dur_ns,
            "self_ns": self_ns,
        }
    )


@dataclass(frozen=True, kw_only=True)
class _Durations(Columns):
    """How many spans of a name last how long. Sorted, the longest of a name come first."""

    start_ns: Int64
    """The name, which is what they are sorted by."""
    dur_ns: Int64
    count: Int64


def _summarise_parts(spans: Spans, self_ns: Int64, names: int, spill: Spill) -> pl.DataFrame:
    """Return the same as summarise_coded."""
    sorter = Sorter(spill, _Durations)
    total_ns = np.zeros(names, np.int64)
    sums, going_on = [], spans.take(slice(0, 0))
    for rows in spill.parts(len(spans)):
        part = spans.take(rows)
        frame = _frame(part, self_ns[rows])
        sums.append(
            frame.group_by("name").agg(pl.len().alias("calls"), pl.sum("self_ns", "dur_ns"))
        )
        counted = frame.group_by("name", "dur_ns").len()
        sorter.add(
            _Durations(
                start_ns=counted["name"].cast(pl.Int64).to_numpy(),
                dur_ns=counted["dur_ns"].to_numpy(),
                count=counted["len"].cast(pl.Int64).to_numpy(),
            )
        )
        total_ns += _covered(going_on, part, names)
        going_on = _going_on(concatenate([going_on, part], type(spans)), int(part.start_ns[-1]))
    summed = pl.concat(sums).group_by("name").agg(pl.col("calls", "self_ns", "dur_ns").sum())
    summed = summed.sort("name").with_columns(pl.col("calls").cast(pl.Int64))
    return _with_durations(summed, sorter.rows(), spill).with_columns(
        total_ns=pl.Series(total_ns).gather(summed["name"]),
    )


def _covered(going_on: Spans, part: Spans, names: int) -> Int64:
    """Return how long each name was open in a part and was not in what goes on from before it."""
    before, both = (
        nesting.cover(
            lane=rows.lane,
            start_ns=rows.start_ns,
            end_ns=rows.start_ns + rows.dur_ns,
            name=rows.name,
            names=names,
        )
        for rows in (going_on, concatenate([going_on, part], type(part)))
    )
    return both - before


def _going_on(spans: Spans, last_ns: int) -> Spans:
    """Return the spans that are open when the last begins: of a lane and name, the last to end."""
    still_open = spans.take(spans.start_ns + spans.dur_ns > last_ns)
    end_ns = still_open.start_ns + still_open.dur_ns
    order = np.lexsort((end_ns, still_open.name, still_open.lane))
    lane, name = still_open.lane[order], still_open.name[order]
    is_last: Bool = np.append((lane[1:] != lane[:-1]) | (name[1:] != name[:-1]), True)[: len(order)]
    return still_open.take(np.sort(order[is_last]))


def _with_durations(summed: pl.DataFrame, durations: _Durations, spill: Spill) -> pl.DataFrame:
    """Add what the durations say to the sums, which are in the order of the names."""
    seen = spill.empty(len(durations), np.int64)
    np.cumsum(durations.count, out=seen)
    name, calls = summed["name"].to_numpy(), summed["calls"].to_numpy()
    last = np.searchsorted(durations.start_ns, name, side="right") - 1
    first = np.append(0, last[:-1] + 1)

    def percentile(percent: int) -> Int64:
        # The longest come first: the last of as many as are no shorter has that rank.
        longer = calls - nearest_rank(calls, percent)
        found: Int64 = durations.dur_ns[np.searchsorted(seen, seen[last] - calls + longer + 1)]
        return found

    busy_ns = pl.sum("self_ns")
    return summed.select(
        "name",
        "calls",
        "self_ns",
        mean_ns=pl.col("dur_ns") / pl.col("calls"),
        p50_ns=pl.Series(percentile(50)),
        p95_ns=pl.Series(percentile(95)),
        p99_ns=pl.Series(percentile(99)),
        max_ns=pl.Series(durations.dur_ns[first]),
        min_ns=pl.Series(durations.dur_ns[last]),
        share=pl.when(busy_ns > 0).then(pl.col("self_ns") / busy_ns),
    )
