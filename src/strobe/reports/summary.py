# SPDX-License-Identifier: Apache-2.0
"""Where the time of a recording went, as text: steps, phases, operators, and what is missing."""

from __future__ import annotations

import io
from typing import Literal

import polars as pl
from rich.console import Console

from strobe.analysis.completeness import completeness
from strobe.analysis.counters import counter_summary
from strobe.analysis.flops import flops_rate
from strobe.analysis.functions import functions, is_known
from strobe.analysis.loading import loaders, workers
from strobe.analysis.memory import peak_allocated
from strobe.analysis.operators import operators, operators_by
from strobe.analysis.phase_times import phases
from strobe.analysis.steps import step_breakdown, step_statistics
from strobe.reports.text import (
    breakdown_table,
    completeness_line,
    counters_table,
    flops_line,
    functions_table,
    loaders_table,
    operator_table,
    peaks_line,
    phases_table,
    sort_operators,
    steps_table,
    workers_table,
)
from strobe.store.tables import Tables

By = Literal["name", "thread", "step", "module", "loader", "counter"]


def summary_text(
    tables: Tables, *, by: By = "name", sort: str = "self", top: int = 20, width: int | None = None
) -> str:
    """Return the steps and where their time goes, then the operators, then what is missing.

    `width` is that of the terminal unless given. Raises UsageError for another `by` or `sort`.
    By loader and by counter, waits for data and counters take the place of the operators, and
    `sort` does nothing.
    """
    console = Console(width=width, file=io.StringIO(), highlight=False, emoji=False)
    with console.capture() as captured:
        if by == "loader":
            _print_loaders(tables, top, console)
        elif by == "counter":
            _print_counters(tables, console)
        else:
            _print_summary(tables, by, sort, top, console)
    return captured.get()


def summary_html(tables: Tables) -> str:
    """Return the summary by name for a notebook."""
    console = Console(width=120, file=io.StringIO(), highlight=False, emoji=False, record=True)
    _print_summary(tables, "name", "self", 20, console)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


def _print_summary(
    tables: Tables,
    by: Literal["name", "thread", "step", "module"],
    sort: str,
    top: int,
    console: Console,
) -> None:
    shown = sort_operators(operators(tables) if by == "name" else operators_by(tables, by), sort)
    read = _SpansInMemory.of(tables)
    steps, phase_times, parts = step_statistics(tables), phases(read), step_breakdown(read)
    if steps.height:
        console.print(steps_table(steps))
    if phase_times.height:
        console.print(phases_table(phase_times))
    if parts.height:
        console.print(breakdown_table(parts))
    rate, peaks = flops_rate(read), peak_allocated(tables)
    if rate is not None:
        console.print(flops_line(rate), markup=False)
    if peaks.height:
        console.print(peaks_line(peaks), markup=False)
    called = functions(tables)
    if shown.height or not called.height:
        console.print(operator_table(shown, top, console.width))
    if called.height:
        console.print(functions_table(called, top, console.width))
    for source in completeness(tables).iter_rows(named=True):
        console.print(completeness_line(source), markup=False)


class _SpansInMemory(Tables):
    """Tables whose spans have been read, with the columns that several questions need."""

    def __init__(self, tables: Tables, spans: pl.DataFrame) -> None:
        super().__init__(tables.directory)
        self._tables = tables
        self._spans = spans

    @staticmethod
    def of(tables: Tables) -> Tables:
        """Read the spans once. If there are no phases, only one question needs so many of them."""
        if not is_known(tables, "phase"):
            return tables
        columns = ("name", "category", "phase", "lane", "pid", "tid")
        times = ("start_ns", "dur_ns", "parent", "flops")
        return _SpansInMemory(tables, tables.spans().select(*columns, *times).collect())

    def scan(self, table: str) -> pl.LazyFrame:
        """Return a table; the spans with these columns only."""
        return self._spans.lazy() if table == "spans" else self._tables.scan(table)


def _print_loaders(tables: Tables, top: int, console: Console) -> None:
    steps, waits, fetches = step_statistics(tables), loaders(tables), workers(tables)
    if steps.height:
        console.print(steps_table(steps))
    if waits.is_empty():
        console.print("no batches here: wrap the loader, as in strobe.watch(loader)")
        return
    console.print(loaders_table(waits.head(top), console.width))
    if fetches.height:
        console.print(workers_table(fetches.head(top)))


def _print_counters(tables: Tables, console: Console) -> None:
    counters = counter_summary(tables)
    console.print(counters_table(counters) if counters.height else "no counters here")
