# SPDX-License-Identifier: Apache-2.0
"""Tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from strobe.errors import UsageError
from strobe.reports.numbers import (
    format_bytes,
    format_count,
    format_counter,
    format_flops,
    format_ns,
    format_share,
)

if TYPE_CHECKING:
    import polars as pl

    from strobe.analysis.flops import FlopsRate

# Column title -> its text. Those at the end go first where the terminal is narrow.
_OPERATOR_COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "calls": lambda row: format_count(row["calls"]),
    "self": lambda row: format_ns(row["self_ns"]),
    "share": lambda row: format_share(row["share"]),
    "total": lambda row: format_ns(row["total_ns"]),
    "mean": lambda row: format_ns(row["mean_ns"]),
    "max": lambda row: format_ns(row["max_ns"]),
    "p50": lambda row: format_ns(row["p50_ns"]),
    "p99": lambda row: format_ns(row["p99_ns"]),
}
_LOADER_COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "batches": lambda row: format_count(row["batches"]),
    "wait": lambda row: format_ns(row["wait_ns"]),
    "share": lambda row: format_share(row["share"]),
    "mean": lambda row: format_ns(row["mean_wait_ns"]),
    "max": lambda row: format_ns(row["max_wait_ns"]),
    "per second": lambda row: _rate(row),
    "fetch": lambda row: format_ns(row["fetch_ns"]),
    "queue": lambda row: "-" if row["queue"] is None else f"{row['queue']:.1f}",
}
_NARROWEST_NAME = 24
_WIDE = 90


def sort_operators(operators: pl.DataFrame, sort: str) -> pl.DataFrame:
    """Return the operators by `sort`, the largest first (names: the first); raises UsageError."""
    columns = {column.removesuffix("_ns"): column for column in operators.columns}
    if sort not in columns:
        message = f"sort={sort!r}: must be one of {', '.join(columns)}"
        raise UsageError(message)
    texts = not operators.schema[columns[sort]].is_numeric()
    return operators.sort(columns[sort], descending=not texts, maintain_order=True)


def operator_table(operators: pl.DataFrame, top: int, width: int) -> Table:
    """Return the first `top` operators (analysis.operators.operators), `width` wide."""
    rows = list(operators.head(top).iter_rows(named=True))
    keys = [name for name in ("thread", "step", "module") if name in operators.columns]
    taken = _NARROWEST_NAME
    for key in keys:  # long ones are folded, as names are
        longest = max([len(key), *(len(str(row[key])) for row in rows)])
        taken += 2 + min(longest, _NARROWEST_NAME)
    chosen = _fitting(_OPERATOR_COLUMNS, rows, taken, width)
    table = new_table("operators", "name", *chosen, names=keys)
    for row in rows:
        texts = (_OPERATOR_COLUMNS[title](row) for title in chosen)
        shown = (Text(printable(str(row[key]))) for key in keys)
        table.add_row(Text(printable(row["name"])), *shown, *texts)
    hidden = operators.height - len(rows)
    rest = f"{hidden} more rows; " if hidden else ""
    busy = format_ns(int(operators["self_ns"].sum()))
    share = f"{rest}share: of the {busy} spent in spans"
    table.caption = share if rows else "no spans were recorded"
    return table


def functions_table(functions: pl.DataFrame, top: int, width: int) -> Table:
    """Return the first `top` of Python's functions (analysis.functions.functions), `width` wide."""
    rows = list(functions.head(top).iter_rows(named=True))
    table = new_table("Python functions", "function", "calls", "self", "share", "total")
    for row in rows:
        file = "" if row["file"] is None else f" ({PurePath(row['file']).name}:{row['line']})"
        table.add_row(
            Text(printable(row["name"] + (file if width >= _WIDE else ""))),
            format_count(row["calls"]),
            format_ns(row["self_ns"]),
            format_share(row["share"]),
            format_ns(row["total_ns"]),
        )
    hidden = functions.height - len(rows)
    rest = f"{hidden} more functions; " if hidden else ""
    busy = format_ns(int(functions["self_ns"].sum()))
    table.caption = f"{rest}share: of the {busy} spent in Python's functions, all threads together"
    return table


def steps_table(statistics: pl.DataFrame) -> Table:
    """Return how long the steps took (analysis.steps.step_statistics)."""
    table = new_table("steps", "kind", "steps", "mean", "p50", "p95", "max", "slowest")
    for row in statistics.iter_rows(named=True):
        table.add_row(
            row["kind"],
            format_count(row["steps"]),
            *(format_ns(row[name]) for name in ("mean_ns", "p50_ns", "p95_ns", "max_ns")),
            f"step {row['slowest']}",
        )
    rates = [rate for rate in statistics["samples_per_s"] if rate is not None]
    if rates:
        table.caption = ", ".join(f"{rate:,.1f}" for rate in rates) + " samples per second"
    return table


def breakdown_table(breakdown: pl.DataFrame) -> Table:
    """Return where the time of the steps goes (analysis.steps.step_breakdown)."""
    table = new_table("where the time of a step goes", "part", "calls", "time", "each", "share")
    for row in breakdown.iter_rows(named=True):
        table.add_row(
            Text(printable(row["name"])),
            format_count(row["calls"]) if row["calls"] else "",
            format_ns(row["total_ns"]),
            format_ns(row["per_parent_ns"]),
            format_share(row["share"]),
        )
    whole = format_ns(int(breakdown["total_ns"].sum()))
    table.caption = f"each: per step; share: of the {whole} spent in steps"
    return table


def phases_table(phases: pl.DataFrame) -> Table:
    """Return where the steps go, phase by phase (analysis.phase_times.phases)."""
    table = new_table("where the step goes, by phase", "phase", "time", "each", "share")
    for row in phases.filter(phases["total_ns"] > 0).iter_rows(named=True):
        table.add_row(
            row["phase"],
            format_ns(row["total_ns"]),
            format_ns(row["per_step_ns"]),
            format_share(row["share"]),
        )
    whole = format_ns(int(phases["total_ns"].sum()))
    table.caption = f"each: per step; share: of {whole} in steps"
    return table


def loaders_table(loaders: pl.DataFrame, width: int) -> Table:
    """Return how long the program waited for its data (analysis.loading.loaders), `width` wide."""
    rows = list(loaders.iter_rows(named=True))
    chosen = _fitting(_LOADER_COLUMNS, rows, _NARROWEST_NAME, width)
    table = new_table("waits for data", "loader", *chosen)
    for row in rows:
        texts = (_LOADER_COLUMNS[title](row) for title in chosen)
        table.add_row(Text(printable(row["loader"])), *texts)
    whole = [format_ns(each) for each in loaders["step_ns"].unique().sort() if each is not None]
    of = f"of the {' and '.join(whole)} in steps" if whole else "unknown, there are no steps"
    table.caption = f"share: {of}; fetch: mean for one; queue: batches ready when asked"
    return table


def workers_table(workers: pl.DataFrame) -> Table:
    """Return what the workers of loaders did (analysis.loading.workers)."""
    table = new_table("workers", "loader", "worker", "batches", "fetch", "collate", "cpu", "share")
    for row in workers.iter_rows(named=True):
        times = (format_ns(row[name]) for name in ("fetch_ns", "collate_ns", "cpu_ns"))
        counts = (format_count(row[name]) for name in ("worker", "batches"))
        table.add_row(
            Text(printable(row["loader"])), *counts, *times, format_share(row["cpu_share"])
        )
    table.caption = "fetch, collate, cpu: in all; share: of fetch with the processor"
    return table


def counters_table(counters: pl.DataFrame) -> Table:
    """Return the values of counters (analysis.counters.counter_summary)."""
    several = counters["pid"].n_unique() > 1
    table = new_table("counters", "name", "values", "mean", "min", "max", "last")
    for row in counters.iter_rows(named=True):
        name = f"{row['name']} (process {row['pid']})" if several else row["name"]
        table.add_row(
            Text(printable(name)),
            format_count(row["values"]),
            *(format_counter(row["name"], row[each]) for each in ("mean", "min", "max", "last")),
        )
    table.caption = "mean: of the values as they were told"
    return table


def flops_line(rate: FlopsRate) -> str:
    """Return one line with the operations and how many there were in a second, of which time."""
    within = {"steps": "in the steps", "spans": "in all"}[rate.over]
    line = f"{format_flops(rate.total)} {within}, where known"
    if not rate.over_ns:
        return line
    time = {"steps": "spent in steps", "spans": "from the first span to the end of the last"}
    per_second = format_flops(rate.total * 1e9 / rate.over_ns)
    return f"{line}; {per_second}/s over the {format_ns(rate.over_ns)} {time[rate.over]}"


def peaks_line(peaks: pl.DataFrame) -> str:
    """Return one line with the most memory in use (analysis.memory.peak_allocated)."""
    several = peaks["pid"].n_unique() > 1
    parts = []
    for row in peaks.iter_rows(named=True):
        where = "the host" if row["device"] is None else f"device {row['device']}"
        process = f" by process {row['pid']}" if several else ""
        parts.append(f"{format_bytes(row['peak_bytes'])} on {where}{process}")
    return "most memory allocated: " + ", ".join(parts)


def completeness_line(completeness: Mapping[str, Any]) -> str:
    """Return one line that says what is missing and what the profiler cost."""
    source, collected = completeness["source"], completeness["collected"]
    if collected is None:
        return f"{source}: {completeness['note']}"
    asked, dropped = completeness["asked"], completeness["dropped"]
    of_all = "" if asked is None else f" of {format_count(asked)}"
    parts = [f"{source}: {format_count(collected)}{of_all} records"]
    if dropped is not None:
        parts[0] += f", {format_count(dropped)} dropped"
    if completeness["unfinished"] is not None:
        parts[0] += f", {format_count(completeness['unfinished'])} unfinished"
    return "; ".join([*parts, *_own_time(completeness), *filter(None, [completeness["note"]])])


def _own_time(completeness: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a source cost the program, and what is unknown of it."""
    own_ns, once_ns = completeness["own_ns"], completeness["once_ns"]
    if own_ns is not None:
        line = f"own time about {format_ns(own_ns)} in the program's threads"
        if completeness["drain_ns"]:
            line += f", {format_ns(completeness['drain_ns'])} beside them"
        yield line
    elif once_ns is not None:
        yield "own time unknown"
    if once_ns is not None:
        yield f"start and stop took {format_ns(once_ns)}"


def facts_table(title: str, facts: Mapping[str, Any]) -> Table:
    """Return facts as two columns."""
    table = Table(title=title, show_header=False, title_justify="left", box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), Text(printable(str(value))))
    return table


def recordings_text(recordings: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Return a line for each recording: when, how large, in which state, its path in the folder.

    A line is as long as it must be: whoever deletes a recording has to see its whole name.
    """
    rows = [
        (
            recording["recorded"],
            format_bytes(recording["size_bytes"]),
            printable(recording["state"]),
            printable(_path_in(folder, Path(recording["path"]))),
        )
        for recording in recordings
    ]
    size, state = (max(len(row[column]) for row in rows) for column in (1, 2))
    return "\n".join(f"{row[0]}  {row[1]:>{size}}  {row[2]:<{state}}  {row[3]}" for row in rows)


def _path_in(folder: Path, path: Path) -> str:
    inside = path != folder and path.is_relative_to(folder)
    return str(path.relative_to(folder)) if inside else str(path)


def _fitting(
    columns: Mapping[str, Callable[[Mapping[str, Any]], str]],
    rows: Sequence[Mapping[str, Any]],
    taken: int,
    width: int,
) -> list[str]:
    """Return the titles of the columns that there is room for, beside what is `taken`."""
    chosen = []
    for title, text in columns.items():
        taken += 2 + max([len(title), *(len(text(row)) for row in rows)])
        if taken <= width:
            chosen.append(title)
    return chosen


def _rate(loader: Mapping[str, Any]) -> str:
    """Return how much came in a second: samples where they are known, else batches."""
    for unit in ("samples", "batches"):
        if loader[f"{unit}_per_s"] is not None:
            return f"{loader[f'{unit}_per_s']:,.1f} {unit}"
    return "-"


def printable(text: str) -> str:
    """Return text that cannot upset a terminal or its table: control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def new_table(title: str, first: str, *others: str, names: Sequence[str] = ()) -> Table:
    """Return an empty table with these columns, numbers but for the first and `names`."""
    table = Table(
        title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1)
    )
    # Only names are folded where the terminal is narrow; a cut number would be a wrong one.
    table.add_column(first, overflow="fold", min_width=12)
    for name in names:
        table.add_column(name, overflow="fold")
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
