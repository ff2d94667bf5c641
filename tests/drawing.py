# SPDX-License-Identifier: Apache-2.0
"""Tables of spans from drawings, so that a test shows its input instead of describing it."""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from strobe.analysis.nesting import nest

COLUMN_NS = 1000


def spans(drawing: str) -> pl.DataFrame:
    """Return the drawn spans as a table, sorted, with parents and self times computed.

        main   | forward----  backward--
        main   |   mm---
        worker |     load----

    Each line is a lane and its boxes. A box is a name and dashes up to its end; one column is
    1000 ns, the first one stands two after the bar. Boxes that touch or overlap go on lines of
    their own with the same lane.

    Columns: name, start_ns, dur_ns, self_ns, lane (Int32, 0 for the lane drawn first), parent
    (row number or null), unfinished (False).
    """
    lanes: dict[str, int] = {}
    rows = []
    for line in filter(str.strip, drawing.splitlines()):
        lane, bar, boxes = line.partition(" | ")
        if not bar:
            message = f"spans(): {line!r} is not of the form 'lane | boxes'"
            raise ValueError(message)
        number = lanes.setdefault(lane.strip(), len(lanes))
        for box in re.finditer(r"\S+", boxes):
            rows.append((box[0].rstrip("-"), *box.span(), number))
    return table(rows)


def table(rows: list[tuple[str, int, int, int]]) -> pl.DataFrame:
    """Return the table of (name, first column, column after the last, lane) boxes, in any order."""
    ordered = sorted(rows, key=lambda row: (row[1], -row[2]))
    name = [row[0] for row in ordered]
    start_ns = np.array([row[1] for row in ordered], np.int64) * COLUMN_NS
    end_ns = np.array([row[2] for row in ordered], np.int64) * COLUMN_NS
    lane = np.array([row[3] for row in ordered], np.int32)
    parent, self_ns = nest(lane, start_ns, end_ns)
    return pl.DataFrame(
        {
            "name": pl.Series(name, dtype=pl.String),
            "start_ns": start_ns,
            "dur_ns": end_ns - start_ns,
            "self_ns": self_ns,
            "lane": lane,
            "parent": pl.Series(parent).replace(-1, None),
            "unfinished": pl.repeat(False, len(rows), eager=True),
        }
    )
