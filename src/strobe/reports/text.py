# SPDX-License-Identifier: Apache-2.0
"""Tables for a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strobe.reports.numbers import format_bytes, format_count, format_ns, format_share

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
_NARROWEST_NAME = 24


def operator_table(operators: pl.DataFrame, top: int, width: int) -> Table:
    """Return the first `top` rows of the operator table (Recording.operators), `width` wide."""
    rows = list(operators.head(top).iter_rows(named=True))
    chosen, taken = [], _NARROWEST_NAME
    for title, text in _OPERATOR_COLUMNS.items():
        taken += 2 + max([len(title), *(len(text(row)) for row in rows)])
        if taken <= width:
            chosen.append(title)
    table = _table("operators", "name", *chosen)
    for row in rows:
        texts = (_OPERATOR_COLUMNS[title](row) for title in chosen)
        table.add_row(Text(printable(row["name"])), *texts)
    hidden = operators.height - len(rows)
    rest = f"{hidden} more names; " if hidden else ""
    busy = format_ns(int(operators["self_ns"].sum()))
    table.caption = f"{rest}share: of the {busy} spent in spans"
    return table


def breakdown_table(breakdown: pl.DataFrame, of: str) -> Table:
    """Return where the time of the spans named `of` goes (analysis.breakdown)."""
    table = _table(
        f"where the time of {printable(of)} goes", "part", "calls", "time", "each", "share"
    )
    for row in breakdown.iter_rows(named=True):
        table.add_row(
            Text(printable(row["name"])),
            format_count(row["calls"]) if row["calls"] else "",
            format_ns(row["total_ns"]),
            format_ns(row["per_parent_ns"]),
            format_share(row["share"]),
        )
    whole = format_ns(int(breakdown["total_ns"].sum()))
    table.caption = f"each: per {printable(of)}; share: of the {whole} spent in {printable(of)}"
    return table


def completeness_line(completeness: Mapping[str, Any]) -> str:
    """Return one line that says what is missing and what the profiler cost."""
    line = (
        f"{format_count(completeness['collected'])} of {format_count(completeness['asked'])} "
        f"records, {format_count(completeness['dropped'])} dropped, "
        f"{format_count(completeness['unfinished'])} unfinished; "
        f"profiler's own time about {format_ns(completeness['own_ns'])} in the program's threads"
    )
    if completeness["drain_ns"]:
        line += f", {format_ns(completeness['drain_ns'])} beside them"
    return line + (f"; {completeness['note']}" if completeness["note"] else "")


def summary_text(
    operators: pl.DataFrame,
    breakdown: tuple[str, pl.DataFrame] | None,
    completeness: Iterable[Mapping[str, Any]],
    *,
    top: int,
    width: int | None,
) -> str:
    """Return the summary of a recording: the steps' parts, the operators, what is missing."""
    console = Console(width=width, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        if breakdown is not None:
            console.print(breakdown_table(breakdown[1], breakdown[0]))
        console.print(operator_table(operators, top, console.width))
        for source in completeness:
            console.print(completeness_line(source), markup=False)
    return captured.get()


def facts_table(title: str, facts: Mapping[str, Any]) -> Table:
    """Return facts as two columns."""
    table = Table(title=title, show_header=False, title_justify="left", box=None)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in facts.items():
        table.add_row(key.replace("_", " "), Text(printable(str(value))))
    return table


def recordings_table(recordings: Iterable[Mapping[str, Any]]) -> Table:
    """Return a list of recordings: name, when, how large, in which state."""
    table = _table("recordings", "name", "recorded", "size", "state")
    for recording in recordings:
        table.add_row(
            Text(printable(recording["name"])),
            recording["recorded"],
            format_bytes(recording["size_bytes"]),
            recording["state"],
        )
    return table


def printable(text: str) -> str:
    """Return text that cannot upset a terminal or its table: control characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(
        title=title, title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1)
    )
    # Only names are folded where the terminal is narrow; a cut number would be a wrong one.
    table.add_column(first, overflow="fold", min_width=12)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
