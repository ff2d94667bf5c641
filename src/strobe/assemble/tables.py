# SPDX-License-Identifier: Apache-2.0
"""assemble(trace, into) writes all tables of a trace, whoever produced it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from strobe.assemble.allocations import allocations_table
from strobe.assemble.batches import batches_table, timed
from strobe.assemble.completeness import Counts, completeness_table
from strobe.assemble.cut import cut, within
from strobe.assemble.derive import derive
from strobe.assemble.lanes import known, lane_ids
from strobe.assemble.links import number_engine
from strobe.assemble.merge import Table, merge
from strobe.assemble.stacks import gather_calls, sampled_stacks, split_calls
from strobe.assemble.steps import steps_table
from strobe.model.arrays import Int64
from strobe.model.coded import Coded
from strobe.model.nesting import nest
from strobe.model.operators import in_order, summarise_coded
from strobe.model.tables import CATEGORIES
from strobe.model.trace import (
    NAMES,
    Allocations,
    Counters,
    Instants,
    Loads,
    Samples,
    Spans,
    Thread,
    Trace,
    concatenate,
)
from strobe.store.frames import empty, file_path, file_schema
from strobe.store.parquet import ROW_GROUP_ROWS, Column, TableWriter

Progress = Callable[[str, float], None]
First = Callable[[pl.DataFrame], None]
_ALWAYS_KNOWN = ("start_ns", "dur_ns", "lane")


def assemble(
    trace: Trace,
    into: Path,
    progress: Progress = lambda _stage, _share: None,
    first: First = lambda _operators: None,
) -> None:
    """Write all tables of a trace into a directory; `first` gets the operators early."""
    points, others, calls = _part(trace)
    spans, unfinished = cut(others, trace.start_ns, trace.end_ns)
    progress("nesting", 0.3)
    parent, self_ns = nest(spans.lane, spans.start_ns, spans.start_ns + spans.dur_ns)
    operators = _operators(spans, self_ns, trace.names)
    first(operators)
    spans = number_engine(spans, parent)
    derived = derive(spans, parent, unfinished, trace)
    called, stacks = gather_calls(calls, concatenate(trace.samples, Samples), trace)
    trace = replace(trace, threads=called.threads)
    sampled = sampled_stacks(stacks, spans, parent, trace.threads)
    table = merge(spans, parent, self_ns, unfinished, derived, called, sampled)
    with TableWriter(file_path(into, "spans"), file_schema("spans")) as writer:
        _write_spans(writer, table, trace, progress)
    allocated = allocations_table(points.memory, spans, trace)
    tables: dict[str, Mapping[str, Column]] = {
        **vars(stacks),
        "operators": operators.to_dict(),
        "links": table.moved(derived.links, "source", "target"),
        "allocations": table.moved(allocated, "span"),
        "steps": steps_table(trace.steps, spans, unfinished, trace.names, derived.steps),
        "memory_lines": pl.DataFrame(
            trace.memory_lines, schema=empty("memory_lines").schema
        ).to_dict(),
        "instants": _instants(points.instants, trace),
        "counters": _counters(points.counters, trace),
        "collectives": table.moved(derived.collectives, "span", "work"),
        "batches": table.moved(
            batches_table(points.loads, spans, trace.names, trace.threads), "span"
        ),
        "threads": _threads(trace.threads),
        "completeness": completeness_table(
            trace,
            Counts(
                every=len(spans) + points.rows,
                framework=int(np.count_nonzero(spans.category)) + len(points.memory),
                calls=len(called.spans) + len(stacks.samples["stack"]),  # type: ignore[arg-type]
                unfinished=int(unfinished.sum()),
                unfinished_calls=int(called.unfinished.sum()),
            ),
        ),
        "metadata": _metadata(trace),
    }
    for name, columns in tables.items():
        _write(into, name, columns)
    progress("done", 1.0)


@dataclass(frozen=True)
class _Points:
    """The rows in the window besides spans."""

    instants: Instants
    counters: Counters
    loads: Loads
    memory: Allocations

    @staticmethod
    def of(trace: Trace, spans: Spans) -> _Points:
        bounds = (trace.start_ns, trace.end_ns)
        loads = trace.loads if trace.loads is not None else concatenate([], Loads)
        memory = concatenate(trace.allocations, Allocations)
        # If memory was not asked for, another profiler that overlapped may have recorded it.
        asked = bounds if trace.wanted.memory else (0, -1)
        return _Points(
            instants=within(concatenate(trace.instants, Instants), *bounds),
            counters=within(concatenate(trace.counters, Counters), *bounds),
            loads=within(timed(loads, spans, trace.names), *bounds),
            memory=within(memory, *asked),
        )

    @property
    def rows(self) -> int:
        return sum(map(len, vars(self).values()))


def _part(trace: Trace) -> tuple[_Points, Spans, Spans]:
    """Separate the rows of points, the spans, and the calls of Python functions."""
    spans = concatenate(trace.spans, Spans)
    return _Points.of(trace, spans), *split_calls(spans, trace.threads)


def _operators(spans: Spans, self_ns: Int64, names: Sequence[str]) -> pl.DataFrame:
    coded = pl.DataFrame(
        {
            "name": spans.name,
            "lane": spans.lane,
            "start_ns": spans.start_ns,
            "dur_ns": spans.dur_ns,
            "self_ns": self_ns,
        }
    )
    rows = summarise_coded(coded, len(names))
    named = rows.with_columns(pl.Series(names, dtype=pl.String).gather(rows["name"]).alias("name"))
    return in_order(named)


def _write_spans(writer: TableWriter, table: Table, trace: Trace, progress: Progress) -> None:
    for first in range(0, len(table.spans), ROW_GROUP_ROWS):
        writer.append(_span_columns(table, trace, first))
        progress("writing", 0.4 + 0.6 * min(1.0, (first + ROW_GROUP_ROWS) / len(table.spans)))


def _span_columns(table: Table, trace: Trace, first: int) -> dict[str, Column]:
    """Return some rows of the table: derived columns, and the rest as the producer gave them."""
    rows = slice(first, first + ROW_GROUP_ROWS)
    spans, lane, parent = table.spans, table.spans.lane[rows], table.parent[rows]
    number = np.arange(first, first + len(lane))
    pids, tids = lane_ids(trace.threads)
    derived: dict[str, Column] = {
        "category": Coded(spans.category[rows].astype(np.int32), CATEGORIES),
        "phase": _texts_or_null(table.phase, rows),
        "module": _texts_or_null(table.module, rows),
        "covered_ns": spans.dur_ns[rows] - table.self_ns[rows],
        "pid": pids.gather(lane),
        "tid": tids.gather(lane),
        "flops": None if table.flops is None else table.flops[rows],
        "parent_distance": known(np.where(parent < 0, -1, number - parent)),
        "stack": None if table.stack is None else known(table.stack[rows]),
        "unfinished": table.unfinished[rows],
        "attributes": Coded(spans.attributes[rows], spans.texts),
    }
    given = [name for name in file_schema("spans") if name not in derived]
    return derived | {name: _given(spans, name, trace.names, rows) for name in given}


def _given(spans: Spans, column: str, names: Sequence[str], rows: slice) -> Column:
    values = getattr(spans, column)
    if values is None:
        return None
    if column in NAMES:
        return Coded(values[rows], names)
    return values[rows] if column in _ALWAYS_KNOWN else known(values[rows])


def _texts_or_null(texts: Coded | None, rows: slice) -> Coded | None:
    return None if texts is None else Coded(texts.codes[rows], texts.texts)


def _instants(instants: Instants, trace: Trace) -> dict[str, Column]:
    rows = instants.take(np.argsort(instants.start_ns, kind="stable"))
    return {**_placed(rows, trace), "attributes": Coded(rows.attributes, rows.texts)}


def _counters(counters: Counters, trace: Trace) -> dict[str, Column]:
    rows = counters.take(np.argsort(counters.start_ns, kind="stable"))
    return {**_placed(rows, trace), "value": rows.value}


def _placed(rows: Instants | Counters, trace: Trace) -> dict[str, Column]:
    pids, tids = lane_ids(trace.threads)
    return {
        "name": Coded(rows.name, trace.names),
        "start_ns": rows.start_ns,
        "pid": pids.gather(rows.lane),
        "tid": tids.gather(rows.lane),
        "lane": rows.lane,
    }


def _threads(threads: Sequence[Thread]) -> dict[str, Column]:
    pids, tids = lane_ids(threads)
    return {
        "lane": np.arange(len(threads), dtype=np.int32),
        "pid": pids,
        "tid": tids,
        "thread": pl.Series([thread.name for thread in threads], dtype=pl.String),
        "context": pl.Series([thread.context for thread in threads], dtype=pl.Int64),
        "process": pl.Series([thread.process for thread in threads], dtype=pl.String),
    }


def _metadata(trace: Trace) -> dict[str, Column]:
    facts: Mapping[str, Any] = trace.metadata
    texts = [value if isinstance(value, str) else json.dumps(value) for value in facts.values()]
    # A path need not be Unicode.
    texts = [text.encode(errors="backslashreplace").decode() for text in texts]
    return {
        "key": pl.Series(list(facts), dtype=pl.String),
        "value": pl.Series(texts, dtype=pl.String),
    }


def _write(into: Path, table: str, columns: Mapping[str, Column]) -> None:
    with TableWriter(file_path(into, table), file_schema(table)) as writer:
        writer.append(dict(columns))
