# SPDX-License-Identifier: Apache-2.0
"""assemble(trace, into) writes all tables of a trace, whoever produced it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from strobe.assemble.allocations import allocation_parts
from strobe.assemble.batches import batches_table, timed
from strobe.assemble.completeness import Tally, completeness_table
from strobe.assemble.cut import Rows, cut, ends, within
from strobe.assemble.derive import derive
from strobe.assemble.lanes import known, lane_ids
from strobe.assemble.links import number_engine
from strobe.assemble.merge import Table, with_calls
from strobe.assemble.operators import operators_table
from strobe.assemble.sorting import Sorter
from strobe.assemble.stacks import gather_calls, sampled_stacks, split_calls
from strobe.assemble.steps import step_parts
from strobe.model.arrays import Int32
from strobe.model.coded import Coded
from strobe.model.nesting import nest
from strobe.model.tables import CATEGORIES, PHASES, SOURCES
from strobe.model.trace import (
    NAMES,
    Allocations,
    Counters,
    Instants,
    Loads,
    Samples,
    Thread,
    Trace,
    concatenate,
)
from strobe.store.frames import empty, file_path, file_schema
from strobe.store.parquet import ROW_GROUP_ROWS, Column, TableWriter
from strobe.store.spill import Spill

Progress = Callable[[str, float], None]
First = Callable[[pl.DataFrame], None]
_Timed = TypeVar("_Timed", Instants, Counters, Allocations)
_Taken = TypeVar("_Taken", Instants, Counters, Samples)
_ALWAYS_KNOWN = ("start_ns", "dur_ns", "lane")
_CALLS = SOURCES.index("python_calls")


def assemble(
    trace: Trace,
    into: Path,
    progress: Progress = lambda _stage, _share: None,
    first: First = lambda _operators: None,
    spill: Spill | None = None,
    rows: int = 0,
) -> None:
    """Write all tables of a trace into a directory; `first` gets the operators early.

    `rows` is about how many spans there are, for `progress`; 0 if that is not known.
    What is too long for memory is put into files without names in the same directory.
    """
    spill = Spill(into) if spill is None else spill
    tally = Tally()
    spans, calls = _sort(trace, tally, spill, progress, rows)
    points = _Points.of(trace, tally, spill)
    if trace.steps is not None:
        tally.add("steps", trace.steps.take(~trace.steps.unfinished))
    progress("nesting", 0.55)
    parent, self_ns = nest(spans.lane, spans.start_ns, ends(spans, spill), spill.empty)
    progress("summing up", 0.6)
    operators = operators_table(spans, self_ns, trace.names, spill)
    first(operators)
    progress("deriving", 0.72)
    spans = number_engine(spans, parent, spill)
    derived = derive(spans, parent, trace, spill)
    called, stacks = gather_calls(calls, points.samples, trace, spill)
    tally.add_number("samples", [0] * _CALLS + [len(stacks.samples)])
    trace = replace(trace, threads=called.threads)
    stack = (
        called.stacks_at(spans, spill)
        if len(calls)
        else sampled_stacks(stacks, spans, parent, trace.threads, spill)
    )
    table = Table(
        **vars(replace(spans, phase=derived.phase, module=derived.module)),
        parent=parent,
        self_ns=self_ns,
        stack=stack,
        flops=derived.flops,
    )
    merged = with_calls(table, called.table, spill)
    with TableWriter(file_path(into, "spans"), file_schema("spans")) as writer:
        _write_spans(writer, merged.table, trace, progress)
    tables: dict[str, Mapping[str, Column]] = {
        "stacks": stacks.stacks,
        "frames": stacks.frames,
        "operators": operators.to_dict(),
        "memory_lines": pl.DataFrame(
            trace.memory_lines, schema=empty("memory_lines").schema
        ).to_dict(),
        "collectives": merged.moved(derived.collectives, "span", "work"),
        "batches": merged.moved(
            batches_table(points.loads, spans, trace.names, trace.threads), "span"
        ),
        "threads": _threads(trace.threads),
        "completeness": completeness_table(trace, tally),
        "metadata": _metadata(trace),
    }
    long_tables: dict[str, Iterable[Mapping[str, Column]]] = {
        "allocations": (
            merged.moved(part, "span")
            for part in allocation_parts(points.memory, spans, trace, spill)
        ),
        "links": (merged.moved(part, "source", "target") for part in _groups(derived.links)),
        "steps": step_parts(trace.steps, spans, trace.names, derived.steps, spill),
        "samples": (_samples(rows, trace) for rows in _taken(stacks.samples)),
        "instants": (_instants(rows, trace) for rows in _taken(points.instants)),
        "counters": (_counters(rows, trace) for rows in _taken(points.counters)),
    }
    for name, columns in tables.items():
        _write(into, name, _groups(columns))
    for name, parts in long_tables.items():
        _write(into, name, (group for part in parts for group in _groups(part)))
    progress("done", 1.0)


def _sort(
    trace: Trace, tally: Tally, spill: Spill, progress: Progress, expected: int
) -> tuple[Rows, Rows]:
    """Return the spans in the window, and the calls of Python functions, by start; count both."""
    spans, calls = Sorter(spill, Rows), Sorter(spill, Rows)
    done = 0
    for batch in trace.spans:
        others, called = split_calls(batch, trace)
        for sorter, rows in ((spans, cut(others, trace.start_ns, trace.end_ns)), (calls, called)):
            tally.add_spans(rows, rows.unfinished)
            sorter.add(replace(rows, source=None))  # it is only counted
        done += len(batch)
        progress("reading", 0.1 + 0.3 * min(1.0, done / expected) if expected else 0.1)
    progress("sorting", 0.4)
    return spans.rows(), calls.rows()


@dataclass(frozen=True)
class _Points:
    """The rows in the window besides spans, by start."""

    instants: Instants
    counters: Counters
    loads: Loads
    memory: Allocations
    samples: Samples
    """Those outside of the window, too: a stack may be in nothing else."""

    @staticmethod
    def of(trace: Trace, tally: Tally, spill: Spill) -> _Points:
        """Cut and sort the rows, and count them."""
        loads = trace.loads if trace.loads is not None else concatenate([], Loads)
        loads = within(timed(loads, trace.spans, trace.names), trace.start_ns, trace.end_ns)
        tally.add("loads", loads)
        # If memory was not asked for, another profiler that overlapped may have recorded it.
        memory = trace.allocations if trace.wanted.memory else ()

        def ordered(table: str, batches: Iterable[_Timed], kind: type[_Timed]) -> _Timed:
            sorter = Sorter(spill, kind)
            for batch in batches:
                rows = within(batch, trace.start_ns, trace.end_ns)
                tally.add(table, rows)
                sorter.add(replace(rows, source=None))
            return sorter.rows()

        samples = Sorter(spill, Samples)
        for batch in trace.samples:
            samples.add(batch)
        return _Points(
            samples=samples.rows(),
            instants=ordered("instants", trace.instants, Instants),
            counters=ordered("counters", trace.counters, Counters),
            loads=loads,
            memory=ordered("memory", memory, Allocations),
        )


def _write_spans(writer: TableWriter, table: Table, trace: Trace, progress: Progress) -> None:
    for first in range(0, len(table), ROW_GROUP_ROWS):
        rows = slice(first, min(first + ROW_GROUP_ROWS, len(table)))
        writer.append(_span_columns(table.take(rows), first, trace))
        progress("writing", 0.75 + 0.23 * rows.stop / len(table))


def _span_columns(table: Table, first: int, trace: Trace) -> dict[str, Column]:
    """Return some rows of the table: derived columns, and the rest as the producer gave them."""
    number = np.arange(first, first + len(table))
    pids, tids = lane_ids(trace.threads)
    derived: dict[str, Column] = {
        "category": Coded(table.category.astype(np.int32), CATEGORIES),
        "phase": None if table.phase is None else Coded(table.phase, PHASES),
        "covered_ns": table.dur_ns - table.self_ns,
        "pid": pids.gather(table.lane),
        "tid": tids.gather(table.lane),
        "parent_distance": known(np.where(table.parent < 0, -1, number - table.parent)),
        "unfinished": table.unfinished,
        "attributes": Coded(table.attributes, table.texts),
    }
    given = [name for name in file_schema("spans") if name not in derived]
    return derived | {name: _given(table, name, trace.names) for name in given}


def _given(table: Table, column: str, names: Sequence[str]) -> Column:
    values = getattr(table, column)
    if values is None:
        return None
    if column in NAMES:
        return Coded(values, names)
    return values if column in _ALWAYS_KNOWN else known(values)


def _samples(samples: Samples, trace: Trace) -> dict[str, Column]:
    return {
        **_of_lanes(samples.lane, trace),
        "start_ns": samples.start_ns,
        "interval_ns": samples.interval_ns,
        "stack": samples.stack,
    }


def _instants(instants: Instants, trace: Trace) -> dict[str, Column]:
    attributes = Coded(instants.attributes, instants.texts)
    return {**_placed(instants, trace), "attributes": attributes}


def _counters(counters: Counters, trace: Trace) -> dict[str, Column]:
    return {**_placed(counters, trace), "value": counters.value}


def _placed(rows: Instants | Counters, trace: Trace) -> dict[str, Column]:
    name = Coded(rows.name, trace.names)
    return {**_of_lanes(rows.lane, trace), "name": name, "start_ns": rows.start_ns}


def _of_lanes(lane: Int32, trace: Trace) -> dict[str, Column]:
    pids, tids = lane_ids(trace.threads)
    return {"pid": pids.gather(lane), "tid": tids.gather(lane), "lane": lane}


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


def _write(into: Path, table: str, groups: Iterable[Mapping[str, Column]]) -> None:
    with TableWriter(file_path(into, table), file_schema(table)) as writer:
        for group in groups:
            writer.append(dict(group))


def _groups(columns: Mapping[str, Column]) -> Iterator[Mapping[str, Column]]:
    """Cut columns into groups of rows, as files have them."""
    rows = max((len(column) for column in columns.values() if column is not None), default=0)
    for first in range(0, rows, ROW_GROUP_ROWS):
        group = slice(first, first + ROW_GROUP_ROWS)
        yield {name: _rows(column, group) for name, column in columns.items()}


def _taken(points: _Taken) -> Iterator[_Taken]:
    for first in range(0, len(points), ROW_GROUP_ROWS):
        yield points.take(slice(first, first + ROW_GROUP_ROWS))


def _rows(column: Column, rows: slice) -> Column:
    if isinstance(column, Coded):
        return Coded(column.codes[rows], column.texts)
    return None if column is None else column[rows]
