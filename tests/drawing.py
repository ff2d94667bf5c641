# SPDX-License-Identifier: Apache-2.0
"""Tables of spans from drawings, so that a test shows its input instead of describing it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from strobe.model.nesting import nest
from strobe.model.tables import TABLES
from strobe.store.parquet import TableWriter
from strobe.store.tables import file_path, file_schema

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


def make_tables(folder: Path, spans: pl.DataFrame, threads: pl.DataFrame, **rest: Any) -> Path:
    """Write tables; columns that are not given are null."""
    given = {"spans": spans, "threads": threads, **rest}
    for table in TABLES:
        with TableWriter(file_path(folder, table), file_schema(table)) as writer:
            if table in given:
                frame = given[table]
                columns = {
                    name: frame.get_column(name, default=None) for name in file_schema(table)
                }
                writer.append(columns)
    return folder


def lanes(*rows: tuple[int | None, int | None, str | None, int | None, str | None]) -> pl.DataFrame:
    columns = {"pid": pl.Int64, "tid": pl.Int64, "thread": pl.String, "context": pl.Int64}
    schema = {**columns, "process": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_columns(lane=pl.int_range(len(rows), dtype=pl.Int32))
