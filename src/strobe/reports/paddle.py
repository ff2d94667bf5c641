# SPDX-License-Identifier: Apache-2.0
"""The tables of Paddle's summary as text, laid out as Paddle's users know them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from strobe.analysis.paddle_tables import PaddleTables
from strobe.model.paddle import SummaryView

UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""What `time_unit` may be: nanoseconds in each."""
_SPACING = "  "
_EXTREMES = ("total_ns", "avg_ns", "max_ns", "min_ns")
_NOBODY = "(no event)"
_RULE = 100


class _Text:
    """One text in the making: lines, and how numbers are to be written."""

    def __init__(self, time_unit: str, row_limit: int) -> None:
        self.time_unit = time_unit
        self._size = UNITS[time_unit]
        self._limit = row_limit
        self.lines: list[str] = []

    def time(self, value: float | None) -> str:
        return "-" if value is None else f"{value / self._size:.2f}"

    def times(self, row: dict[str, Any], unit: str) -> str:
        """Return total / avg / max / min / ratio, a dash for each that there is none of."""
        parts = [self.time(row[f"{unit}_{name}"]) for name in _EXTREMES]
        return " / ".join([*parts, ratio(row[f"{unit}_ratio"])])

    def table(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *heads: str
    ) -> None:
        """Add a table; names are as long as they are, and the last rows are counted."""
        cells = [[str(cell) for cell in row] for row in rows]
        shown = cells[: self._limit]
        widths = [
            max([len(head), *(len(row[place]) for row in shown)])
            for place, head in enumerate(columns)
        ]
        whole = sum(widths) + len(_SPACING) * (len(widths) - 1)
        rule = _SPACING.join("-" * width for width in widths)
        self.lines += ["", title.center(whole, "-"), *heads, rule, _line(columns, widths), rule]
        self.lines += [*(_line(row, widths) for row in shown), rule]
        hidden = len(cells) - len(shown)
        if hidden:
            rows = "row" if hidden == 1 else "rows"
            self.lines.append(f"{hidden} more {rows}; row_limit shows more")


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return _SPACING.join(cells).rstrip()


def ratio(value: float | None) -> str:
    """Return a ratio as per cent; a dash where there is nothing to be a part of."""
    return "-" if value is None else f"{value * 100:.2f}"


def summary_text(
    tables: PaddleTables,
    *,
    op_detail: bool = True,
    time_unit: str = "ms",
    views: Collection[SummaryView] | None = None,
    row_limit: int = 100,
) -> str:
    """Return the tables that are asked for, all if `views` is None; `row_limit` rows of each.

    Of a table without rows one line says why. Names are not cut.
    """
    text = _Text(time_unit, row_limit)
    for view, (write, name, nothing) in _VIEWS.items():
        if views is not None and view not in views:
            continue
        if getattr(tables, name).is_empty():
            text.lines += ["", nothing]
        else:
            write(text, tables, op_detail)
    text.lines += [f"Note: {note}." for note in tables.notes]
    return "\n".join(text.lines).lstrip("\n")


def flops_text(tables: PaddleTables) -> str:
    """Return the floating-point operations of the layers and operators of the first forward."""
    lines = [" Flops Profiler Begin ".center(_RULE, "-")]
    for row in tables.flops.to_dicts():
        name = _ENDINGS.sub("", row["name"])
        told, time_ns = row["flops"], row["time_ns"]
        rate = told * 1e9 / time_ns if told is not None and time_ns else None
        figures = {
            "latency": _scaled(time_ns, _TIMES),
            "FLOPs": _scaled(told, _COUNTS),
            "FLOPS": _scaled(rate, _COUNTS),
        }
        shown = ", ".join(f"{figure}: {value}" for figure, value in figures.items())
        lines.append(f"{_SPACING * row['level']}{name} {shown}")
    if tables.flops.is_empty():
        lines.append("no operator of a known number of operations was recorded with its shapes")
    return "\n".join([*lines, " Flops Profiler End ".center(_RULE, "-")])


_ENDINGS = re.compile(" (compute|dygraph|pybind_imperative_func)$")
_TIMES = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1}
_COUNTS = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3}


def _scaled(value: float | None, units: Mapping[str, float]) -> str:
    """Return a number by the largest unit that it has one of, to two decimals; a dash for none."""
    if value is None:
        return "-"
    for unit, size in units.items():
        if value >= size:
            return f"{round(value / size, 2)} {unit}"
    return f"{round(value, 2)}"


def _unit(text: _Text) -> str:
    return f"Time unit: {text.time_unit}"


def _device(text: _Text, tables: PaddleTables, _detail: bool) -> None:
    rows = [(row["device"], ratio(row["utilization"])) for row in tables.device.to_dicts()]
    text.table("Device Summary", ("Device", "Utilization (%)"), rows)
    text.lines += [
        "Note: CPU(Process) is the processor time of this process / elapsed time: with several",
        "threads it may exceed 100. CPU(System) is that of all processors. GPU is the time in",
        "which a kernel ran / the time of the steps.",
    ]


def _overview(text: _Text, tables: PaddleTables, _detail: bool) -> None:
    for on_device, time in ((False, "CPU Time"), (True, "GPU Time")):
        rows = [
            (
                row["type"] if row["type"] == "ProfileStep" else f"  {row['type']}",
                str(row["calls"]),
                text.time(row["time_ns"]),
                ratio(row["ratio"]),
            )
            for row in tables.overview.filter(pl.col("on_device") == on_device).to_dicts()
        ]
        if rows:
            title = "Overview Summary" if not on_device else "Overview Summary (devices)"
            text.table(title, ("Event Type", "Calls", time, "Ratio (%)"), rows, _unit(text))
    text.lines += [
        "Note: times of a type are those in which at least one such event was open, in any thread.",
        "Types are inside one another, so that they do not sum to 100. Ratio: of ProfileStep.",
    ]


_CPU_TITLE = "CPU Total / Avg / Max / Min / Ratio(%)"
_GPU_TITLE = "GPU Total / Avg / Max / Min / Ratio(%)"


def _timed(text: _Text, row: dict[str, Any], name: str) -> tuple[str, ...]:
    calls = "-" if row["calls"] is None else str(row["calls"])
    return (name, calls, text.times(row, "cpu"), text.times(row, "gpu"))


def _model(text: _Text, tables: PaddleTables, _detail: bool) -> None:
    rows = [
        _timed(text, row, row["name"] if row["name"] == "ProfileStep" else f"  {row['name']}")
        for row in tables.model.to_dicts()
    ]
    columns = ("Name", "Calls", _CPU_TITLE, _GPU_TITLE)
    text.table("Model Summary", columns, rows, _unit(text))


def _distributed(text: _Text, tables: PaddleTables, _detail: bool) -> None:
    rows = [
        (
            row["name"] if row["name"] == "ProfileStep" else f"  {row['name']}",
            text.time(row["time_ns"]),
            ratio(row["ratio"]),
        )
        for row in tables.distributed.to_dicts()
    ]
    columns = ("Name", "Total Time", "Ratio (%)")
    text.table("Distribution Summary", columns, rows, _unit(text))
    text.lines += [
        "Note: Computation is the time in which kernels ran that do not communicate; without a",
        "device, that in which operators were open and waited for none. Ratio: of ProfileStep.",
    ]


def _operators(text: _Text, tables: PaddleTables, detail: bool) -> None:
    table = tables.operator if detail else tables.operator.filter(pl.col("level") == 0)
    columns = ("Name", "Calls", _CPU_TITLE, _GPU_TITLE, "FLOPs")

    def row_of(row: dict[str, Any]) -> tuple[str, ...]:
        flops = "-" if row["flops"] is None else str(row["flops"])
        return (*_timed(text, row, "  " * row["level"] + row["name"]), flops)

    _by_thread(text, "Operator Summary", columns, table, row_of)


def _by_thread(
    text: _Text,
    title: str,
    columns: Sequence[str],
    table: pl.DataFrame,
    row_of: Callable[[dict[str, Any]], Sequence[str]],
) -> None:
    """Add a table, or one for each thread where its rows tell of threads."""
    if "thread" not in table.columns:
        rows = map(row_of, table.to_dicts())
        text.table(title, columns, rows, _unit(text), "Thread: All threads merged")
        return
    for (thread,), mine in table.group_by("thread", maintain_order=True):
        rows = map(row_of, mine.to_dicts())
        text.table(title, columns, rows, _unit(text), f"Thread: {thread}")


def _kernels(text: _Text, tables: PaddleTables, _detail: bool) -> None:
    rows = [
        (row["name"], str(row["calls"]), text.times(row, "gpu")) for row in tables.kernel.to_dicts()
    ]
    text.table("Kernel Summary", ("Name", "Calls", _GPU_TITLE), rows, _unit(text))


def _copies(text: _Text, tables: PaddleTables, _detail: bool) -> None:
    rows = [_timed(text, row, row["name"]) for row in tables.memory_manipulation.to_dicts()]
    columns = ("Name", "Calls", _CPU_TITLE, _GPU_TITLE)
    text.table("Memory Manipulation Summary", columns, rows, _unit(text))


def _userdefined(text: _Text, tables: PaddleTables, _detail: bool) -> None:
    columns = ("Name", "Calls", _CPU_TITLE, _GPU_TITLE)
    _by_thread(
        text,
        "UserDefined Summary",
        columns,
        tables.userdefined,
        lambda row: _timed(text, row, row["name"]),
    )


_SIZES = (
    *("allocation_count", "free_count", "allocation_bytes", "free_bytes"),
    "increased_bytes",
)


def _memory(text: _Text, tables: PaddleTables, _detail: bool) -> None:
    columns = (
        *("Name", "Type", "Allocation Count", "Free Count", "Allocation Size", "Free Size"),
        "Increased Size",
    )
    for (place,), mine in tables.memory.group_by("place", maintain_order=True):
        peaks = dict(mine.select("type", "peak_bytes").unique().iter_rows())
        heads = [
            f"Peak {kind} Memory: {'unknown' if peaks.get(kind) is None else peaks[kind]}"
            for kind in ("Allocated", "Reserved")
        ]
        rows = [
            (row["name"] or _NOBODY, row["type"], *(str(row[name]) for name in _SIZES))
            for row in mine.to_dicts()
        ]
        text.table(f"Memory Summary - {place}", columns, rows, *heads)


_View = Callable[[_Text, PaddleTables, bool], None]
_VIEWS: dict[SummaryView, tuple[_View, str, str]] = {
    SummaryView.DeviceView: (_device, "device", ""),
    SummaryView.OverView: (_overview, "overview", "Overview Summary: there are no events."),
    SummaryView.ModelView: (
        _model,
        "model",
        "Model Summary: no part of a step was told (data loading, forward, backward, optimizer).",
    ),
    SummaryView.DistributedView: (
        _distributed,
        "distributed",
        "Distribution Summary: there was no communication.",
    ),
    SummaryView.OperatorView: (_operators, "operator", "Operator Summary: there are no operators."),
    SummaryView.KernelView: (_kernels, "kernel", "Kernel Summary: no kernel ran on a device."),
    SummaryView.MemoryManipulationView: (
        _copies,
        "memory_manipulation",
        "Memory Manipulation Summary: no event is named memcpy, memorycopy or memset.",
    ),
    SummaryView.UDFView: (
        _userdefined,
        "userdefined",
        "UserDefined Summary: there are no RecordEvents, but for those of memory manipulation.",
    ),
    SummaryView.MemoryView: (
        _memory,
        "memory",
        "Memory Summary: no framework told of memory; Profiler(profile_memory=True) asks for it.",
    ),
}
"""In the order in which they are printed: how, of which table, and what to say if it is empty."""
