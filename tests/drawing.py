# SPDX-License-Identifier: Apache-2.0
"""Spans from drawings, as tables or as Traces: a test shows its input instead of describing it."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from strobe.assemble.cut import Rows, cut
from strobe.assemble.derived_steps import derived_steps
from strobe.assemble.links import Pairs
from strobe.assemble.phases import phases
from strobe.model.attributes import ENDINGS
from strobe.model.interning import Interner
from strobe.model.nesting import nest
from strobe.model.phases import NONE, UNKNOWN
from strobe.model.tables import CATEGORIES, PHASES, SOURCES, TABLES
from strobe.model.texts import Attributes
from strobe.model.trace import UNFINISHED, Spans, Thread, Trace, concatenate
from strobe.store.frames import file_path, file_schema
from strobe.store.parquet import TableWriter
from strobe.store.spill import IN_MEMORY_ROWS, Spill
from strobe.store.tables import Tables

COLUMN_NS = 1000
PID = 7
"""The process of drawn threads, which have the numbers 70, 71, ..."""
_CODES = {"category": CATEGORIES, "source": SOURCES, "phase": PHASES, "ends": ENDINGS}
_TYPES: dict[str, Any] = {
    "category": np.uint8,
    "source": np.uint8,
    "attributes": np.int32,
    "phase": np.int8,
    "ends": np.int8,
    "frame": np.int32,
}


class _Box(NamedTuple):
    name: str
    first: int
    last: int
    lane: str
    is_open: bool


def _boxes(drawing: str) -> Iterator[_Box]:
    """Yield the boxes as they are drawn; `last` is the column after the last one."""
    for line in filter(str.strip, drawing.splitlines()):
        lane, bar, drawn = line.partition(" | ")
        if not bar:
            message = f"{line!r} is not of the form 'lane | boxes'"
            raise ValueError(message)
        for box in re.finditer(r"\S+", drawn):
            name = box[0].rstrip("~").rstrip("-")
            yield _Box(name, *box.span(), lane.strip(), is_open=box[0].endswith("~"))


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
    numbers = Interner[str]()
    rows = [(box.name, box.first, box.last, numbers[box.lane]) for box in _boxes(drawing)]
    return table(rows)


def trace(drawing: str, *, rename: Mapping[str, str] | None = None, **given: Any) -> Trace:
    """Return the drawn spans, in the order in which they are drawn, as a Trace.

        main | outer------~
        main |   mm---

    Lanes become threads, and a box that ends with ~ is a span that had not ended. The trace lasts
    from the first column to the end of the last box.

    rename: other names for some boxes, which may have spaces in them or be longer than their boxes.
    given: columns of Spans by the names of boxes, as sequence={"mm": 5}; those of CATEGORIES,
        SOURCES, PHASES and ENDINGS and names of modules as texts, attributes as objects. `threads`
        has Threads by the names of lanes. The rest are sections of the Trace, as held=[...].
    """
    boxes = list(_boxes(drawing))
    names, numbers, texts = Interner[str](), Interner[str](), Interner[str]()
    name = [names[(rename or {}).get(box.name, box.name)] for box in boxes]
    lane = [numbers[box.lane] for box in boxes]
    given = {"category": {}, "attributes": {}, **given}
    columns: dict[str, Any] = {}
    for each in (each.name for each in fields(Spans) if each.name in given):
        if each == "start_ns":  # the Trace's
            continue
        by_name = {box: _code(each, value, names, texts) for box, value in given.pop(each).items()}
        others = 0 if each in ("category", "source") else -1
        values = [by_name.get(box.name, others) for box in boxes]
        columns[each] = np.array(values, _TYPES.get(each, np.int64))
    spans = Spans(
        start_ns=np.array([box.first for box in boxes], np.int64) * COLUMN_NS,
        dur_ns=np.array([_duration_ns(box) for box in boxes], np.int64),
        name=np.array(name, np.int32),
        lane=np.array(lane, np.int32),
        texts=Attributes(list(texts)),
        **columns,
    )
    known = given.pop("threads", {})
    threads = [
        known.get(lane, Thread(PID, 10 * PID + number, lane, process=str(PID)))
        for number, lane in enumerate(numbers)
    ]
    end_ns = max((box.last for box in boxes), default=0) * COLUMN_NS
    drawn = {"names": list(names), "threads": threads, "end_ns": end_ns, "spans": [spans]}
    return Trace(**{**drawn, **given})


def _duration_ns(box: _Box) -> int:
    return UNFINISHED if box.is_open else (box.last - box.first) * COLUMN_NS


def _code(column: str, value: Any, names: Interner[str], texts: Interner[str]) -> int:
    """Return what a column holds of a value."""
    if column == "attributes":
        return texts[json.dumps(value)]
    if column == "module":
        return names[value]
    return _CODES[column].index(value) if isinstance(value, str) else value


def batch(drawing: str, **given: Any) -> Spans:
    """Return the drawn spans as one batch; see trace()."""
    (spans,) = trace(drawing, **given).spans
    return spans


def in_window(drawn: Trace) -> Rows:
    """Return the spans in the window of a Trace, by start."""
    spans = cut(concatenate(drawn.spans, Spans), drawn.start_ns, drawn.end_ns)
    return spans.take(np.lexsort((-spans.dur_ns, spans.start_ns)))


def nested(drawn: Trace) -> tuple[Spans, NDArray[np.int64]]:
    """Return the spans of a Trace by start, and the row of each one's parent."""
    spans = in_window(drawn)
    parent, _ = nest(spans.lane, spans.start_ns, spans.start_ns + spans.dur_ns)
    return spans, parent


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


def make_tables(folder: Path, **given: pl.DataFrame) -> Tables:
    """Write tables, those that are not given without rows; columns that are not given are null."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in TABLES:
        with TableWriter(file_path(folder, table), file_schema(table)) as writer:
            if table in given:
                frame = given[table]
                columns = {
                    name: frame.get_column(name, default=None) for name in file_schema(table)
                }
                writer.append(columns)
    return Tables(folder)


def lanes(*rows: tuple[int | None, int | None, str | None, int | None, str | None]) -> pl.DataFrame:
    columns = {"pid": pl.Int64, "tid": pl.Int64, "thread": pl.String, "context": pl.Int64}
    schema = {**columns, "process": pl.String}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_columns(lane=pl.int_range(len(rows), dtype=pl.Int32))


SPILLS = tuple(Spill(Path(tempfile.gettempdir()), rows) for rows in (IN_MEMORY_ROWS, 3))
"""All in memory, and all that has more than three rows in files and in parts of one row."""


def phases_of(spans: pl.DataFrame, links: pl.DataFrame) -> list[str | None]:
    """Return the phases of a table of spans, the same whether or not they fit into memory.

    Of the columns, `stated` has phases that spans state, and `unknown` is true where they state
    that it is unknown.
    """
    columns, parent, drawn = _columns(spans)
    linked = links.with_columns(pl.col("kind").cast(pl.String)).sort("target")
    backward, launches = (
        Pairs(chosen["source"].to_numpy(), chosen["target"].to_numpy())
        for chosen in (linked.filter(kind=kind) for kind in ("backward", "launch"))
    )
    found = [phases(columns, parent, drawn, backward, [launches], spill) for spill in SPILLS]
    assert found[0].tolist() == found[1].tolist()
    return [None if code == NONE else PHASES[code] for code in found[0].tolist()]


def steps_of(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the steps that are derived from a table of spans, in memory and not.

    Of the columns, `stated` has phases that spans state, `ends` what ends with them, and `number`
    the numbers of the steps that they are.
    """
    columns, parent, drawn = _columns(spans)
    phase = _codes(spans, "phase", PHASES)
    found = [derived_steps(columns, parent, phase, drawn, spill) for spill in SPILLS]
    assert found[0].equals(found[1])
    return found[0]


def _columns(spans: pl.DataFrame) -> tuple[Rows, NDArray[np.int64], Trace]:
    """Return a table of spans as a producer and assemble() have it."""
    names = Interner[str]()
    stated = _codes(spans, "stated", PHASES)
    stated[spans.get_column("unknown", default=pl.repeat(False, len(spans), eager=True))] = UNKNOWN
    columns = Rows(
        start_ns=spans["start_ns"].to_numpy(),
        dur_ns=spans["dur_ns"].to_numpy(),
        name=np.array([names[name] for name in spans["name"].cast(pl.String)], np.int32),
        category=np.maximum(_codes(spans, "category", CATEGORIES), 0).astype(np.uint8),
        lane=spans["lane"].cast(pl.Int32).to_numpy(),
        attributes=np.full(len(spans), -1, np.int32),
        phase=stated,
        ends=_codes(spans, "ends", ENDINGS),
        step=spans["number"].to_numpy() if "number" in spans.columns else None,
        unfinished=spans["unfinished"].to_numpy(),
    )
    lanes = int(columns.lane.max(initial=0)) + 1
    pids = dict(spans.select("lane", "pid").iter_rows()) if "pid" in spans.columns else {}
    threads = [Thread(pids.get(lane, PID), lane, "") for lane in range(lanes)]
    parent = spans["parent"].fill_null(-1).to_numpy()
    return columns, parent, Trace(names=list(names), threads=threads)


def _codes(spans: pl.DataFrame, column: str, texts: Sequence[str]) -> NDArray[np.int8]:
    """Return a column of texts by their numbers, -1 for null, and all -1 without the column."""
    if column not in spans.columns:
        return np.full(len(spans), -1, np.int8)
    found = spans[column].cast(pl.String)
    return np.array([-1 if text is None else texts.index(text) for text in found], np.int8)
