# SPDX-License-Identifier: Apache-2.0
"""Memory as text: a curve, the most of it, and who held it then."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strobe.analysis.memory import curve, held_at_peak, memory_timeline
from strobe.analysis.metadata import read_metadata, read_number
from strobe.model.attributes import ERROR, HELD, MESSAGE, RESIDENT
from strobe.model.marks import OUT_OF_MEMORY
from strobe.reports.numbers import format_bytes, format_count, format_ns, format_share
from strobe.reports.text import new_table, printable
from strobe.store.tables import Tables

_BARS = "_▁▂▃▄▅▆▇█"
_WIDEST, _OWNERS_WIDTH = 100, 16
# Counters that are memory of the process, as the system or Python tells.
_OF_PROCESS = ("process resident bytes", "process unique bytes", "python traced bytes")


@dataclass(frozen=True, kw_only=True)
class _Memory:
    """What is known of a recording's memory, as tables."""

    start_ns: int
    end_ns: int
    timeline: pl.DataFrame
    held: pl.DataFrame
    counters: pl.DataFrame
    lines: pl.DataFrame
    instants: pl.DataFrame


def memory_text(tables: Tables, *, top: int = 15, width: int | None = None) -> str:
    """Return memory over time, the most of it, and who held it then."""
    console = Console(width=width, file=io.StringIO(), highlight=False)
    with console.capture() as captured:
        _print(_gather(tables), top, console)
    return (
        captured.get()
        or "no memory here: record it with Profiler(profile_memory=True) or strobe run --memory\n"
    )


def _gather(tables: Tables) -> _Memory:
    metadata, timeline = read_metadata(tables), memory_timeline(tables)
    return _Memory(
        start_ns=read_number(metadata, "start_ns") or 0,
        end_ns=read_number(metadata, "end_ns") or 0,
        timeline=timeline,
        held=held_at_peak(timeline),
        counters=tables.counters().collect(),
        lines=tables.memory_lines().collect(),
        instants=tables.instants().collect(),
    )


def _print(memory: _Memory, top: int, console: Console) -> None:
    for row in memory.instants.filter(pl.col("name") == OUT_OF_MEMORY).iter_rows(named=True):
        _print_end(console, format_ns(row["start_ns"] - memory.start_ns), row["attributes"])
    for (pid, name), values in memory.counters.sort("start_ns").group_by(
        ["pid", "name"], maintain_order=True
    ):
        if name in _OF_PROCESS:
            _print_curve(memory, console, f"{name}, process {pid}", values, "value")
    for (pid, device), held in memory.held.group_by(["pid", "device"], maintain_order=True):
        where = "the host" if device is None else f"device {device}"
        of_both = (pl.col("pid") == pid) & pl.col("device").eq_missing(device)
        allocated = memory.timeline.filter(of_both)
        title = f"allocated on {where}, process {pid}"
        _print_curve(memory, console, title, allocated, "allocated_bytes")
        console.print(_held_table(memory, allocated, held, where, top))
    for moment in ("peak", OUT_OF_MEMORY):
        for (_,), lines in memory.lines.filter(pl.col("moment") == moment).group_by(["pid"]):
            console.print(_lines_table(memory, lines, moment, top))
    grown = _grown(memory.lines)
    if grown.height:
        console.print(_grown_table(grown, top))


def _print_end(console: Console, at: str, attributes: str) -> None:
    """Print what was known when memory had run out."""
    facts = json.loads(attributes)
    text = f"out of memory at {at}: {facts[ERROR]}: {facts[MESSAGE]}"
    if facts.get(RESIDENT) is not None:
        text += f" ({format_bytes(facts[RESIDENT])} resident)"
    console.print(printable(text), markup=False)
    for sums in facts.get(HELD, ()):
        where = "the host" if sums["device"] is None else f"device {sums['device']}"
        table = new_table(f"held on {where} then", "owner", "blocks", "bytes", "share")
        for owner, size, blocks in sums["owners"]:
            count = "" if blocks is None else format_count(blocks)
            share = format_share(size / sums["bytes"] if sums["bytes"] else None)
            table.add_row(Text(printable(owner)), count, format_bytes(size), share)
        table.caption = f"share: of the {format_bytes(sums['bytes'])} in use on {where}"
        console.print(table)


def _print_curve(
    memory: _Memory, console: Console, title: str, values: pl.DataFrame, column: str
) -> None:
    parts = max(10, min(_WIDEST, console.width - 4))
    most = int(values[column].to_numpy().max())
    at = values["start_ns"][int(values[column].to_numpy().argmax())] - memory.start_ns
    shown = _curve(memory, values, column, parts)
    each = format_ns((memory.end_ns - memory.start_ns) / parts)
    most_text = format_bytes(most)
    console.print(f"{title}: most {most_text} at {format_ns(at)}", markup=False)
    console.print(f"  {_bars(shown)}", markup=False)
    console.print(f"  each column: the most in {each}; full height: {most_text}", markup=False)


def _curve(memory: _Memory, rows: pl.DataFrame, column: str, parts: int) -> list[float | None]:
    times, values = rows["start_ns"].to_numpy(), rows[column].cast(pl.Float64).to_numpy()
    return curve(times, values, memory.start_ns, memory.end_ns, parts)


def _bars(values: Sequence[float | None]) -> str:
    most = max([0.0, *(value for value in values if value is not None)]) or 1.0
    return "".join(
        "·" if value is None else _BARS[max(0, round(value / most * (len(_BARS) - 1)))]
        for value in values
    )


def _held_table(
    memory: _Memory, timeline: pl.DataFrame, held: pl.DataFrame, where: str, top: int
) -> Table:
    keys = [key for key in ("module", "function") if held[key].null_count() < held.height]
    table = new_table(
        "held then, by owner", "owner", "blocks", "bytes", "share", "over time", names=keys
    )
    for row in held.head(top).iter_rows(named=True):
        mine = timeline.filter(
            pl.col("owner") == row["owner"],
            pl.col("module").eq_missing(row["module"]),
            pl.col("function").eq_missing(row["function"]),
        )
        shown = _curve(memory, mine, "held_bytes", _OWNERS_WIDTH)
        table.add_row(
            Text(printable(row["owner"])),
            *(Text(printable(_without_folder(row[key] or ""))) for key in keys),
            "" if row["blocks"] is None else format_count(row["blocks"]),
            format_bytes(row["bytes"]),
            format_share(row["share"]),
            Text(_bars(shown)),
        )
    rest = held.height - min(top, held.height)
    more = f"{rest} more owners; " if rest else ""
    whole = format_bytes(int(held["bytes"].sum()))
    table.caption = (
        f"{more}share: of the {whole} in use on {where}; over time: of each its own most"
    )
    return table


def _without_folder(function: str) -> str:
    """Return a function and its place as short as a narrow table needs it: `forward (net.py:7)`."""
    return re.sub(r" \(.*[/\\]", " (", function)


def _lines_table(memory: _Memory, lines: pl.DataFrame, moment: str, top: int) -> Table:
    first = lines.row(0, named=True)
    title = f"lines of Python, at {moment} ({format_ns(first['start_ns'] - memory.start_ns)})"
    table = new_table(title, "line", "blocks", "bytes", "share", "over time")
    mine = memory.lines.filter(pl.col("pid") == first["pid"])
    times = mine.select("start_ns").unique().sort("start_ns")
    for row in lines.head(top).iter_rows(named=True):
        table.add_row(
            Text(_place(row["file"], row["line"])),
            "" if row["blocks"] is None else format_count(row["blocks"]),
            format_bytes(row["bytes"]),
            format_share(row["bytes"] / first["held_bytes"] if first["held_bytes"] else None),
            Text(_bars(_curve(memory, _line_over_time(mine, times, row), "bytes", _OWNERS_WIDTH))),
        )
    held, before = format_bytes(first["held_bytes"]), format_bytes(first["peak_bytes"])
    most = format_bytes(int(mine["peak_bytes"].to_numpy().max()))
    table.caption = (
        f"share: of the {held} that Python had allocated since tracing began and held then; the "
        f"most until then was {before}, and {most} in the whole recording; over time: of each its "
        "own most"
    )
    return table


def _line_over_time(
    lines: pl.DataFrame, times: pl.DataFrame, line: dict[str, object]
) -> pl.DataFrame:
    """Return what a line held at each moment that was taken down; 0 where it was not among them."""
    same = pl.col("file").eq_missing(line["file"]) & pl.col("line").eq_missing(line["line"])
    of_line = lines.filter(same).group_by("start_ns").agg(pl.max("bytes"))
    return times.join(of_line, on="start_ns", how="left").fill_null(0).sort("start_ns")


def _grown(lines: pl.DataFrame) -> pl.DataFrame:
    """Return what lines hold more at the end than at the start, the most first."""
    key = ["pid", "file", "line"]
    end, start = (lines.filter(pl.col("moment") == moment) for moment in ("stop", "start"))
    both = end.join(start.select(*key, before="bytes"), on=key, how="left")
    return (
        both.select(*key, grown=pl.col("bytes") - pl.col("before").fill_null(0))
        .filter(pl.col("grown") > 0, pl.col("file").is_not_null())
        .sort("grown", descending=True)
    )


def _grown_table(grown: pl.DataFrame, top: int) -> Table:
    table = new_table("held at the end and not at the start", "line", "bytes")
    for row in grown.head(top).iter_rows(named=True):
        table.add_row(Text(_place(row["file"], row["line"])), format_bytes(row["grown"]))
    return table


def _place(file: str | None, line: int | None) -> str:
    return "(all further lines)" if file is None else printable(f"{file}:{line}")
