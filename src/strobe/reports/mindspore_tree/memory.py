# SPDX-License-Identifier: Apache-2.0
"""Files about memory. 1 KB is 1024 bytes and 1 MB 1024 KB in all of them."""

from __future__ import annotations

from typing import Any

import polars as pl

from strobe.analysis.memory import lifetimes
from strobe.reports.mindspore_tree.run import Run, as_csv, exact_us, in_units, without_zeros

_US = 1000
_OLD = (
    *("Name", "Size(KB)", "Allocation Time(us)", "Duration(us)", "Allocation Total Allocated(MB)"),
    *("Allocation Total Reserved(MB)", "Release Total Allocated(MB)"),
    *("Release Total Reserved(MB)", "Device", ""),
)
_NEW = (
    *("Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)"),
    *("Duration(us)", "Active Duration(us)"),
    *("Allocation Total Allocated(MB)", "Allocation Total Reserved(MB)"),
    *("Allocation Total Active(MB)", "Release Total Allocated(MB)", "Release Total Reserved(MB)"),
    *("Release Total Active(MB)", "Stream Ptr", "Device Type"),
)


def cpu_memory_record(run: Run) -> str | None:
    """The host's memory in use, a row per change: wall-clock nanoseconds and bytes."""
    header = (
        *("Timestamp(ns)", "Total Allocated(Byte)", "Total Reserved(Byte)"),
        "Total Active(Byte)",
    )
    host = run.allocations.filter(pl.col("device").is_null())
    rows = [
        (start_ns + run.wall_offset_ns, allocated, "" if reserved is None else reserved, allocated)
        for start_ns, allocated, reserved in host.select(
            "start_ns", "allocated_bytes", "reserved_bytes"
        ).iter_rows()
    ]
    return as_csv(header, rows) if rows else None


def memory_record(run: Run) -> str | None:
    """The memory in use of the host and of each device, a row per change."""
    header = (
        *("Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)"),
        *("Total Active(MB)", "Device Type"),
    )
    columns = ("start_ns", "allocated_bytes", "reserved_bytes", "device")
    rows = [
        (
            run.framework,
            exact_us(start_ns + run.wall_offset_ns),
            *(_mb(allocated), _mb(reserved), _mb(allocated), _device(device)),
        )
        for start_ns, allocated, reserved, device in run.allocations.select(columns).iter_rows()
    ]
    return as_csv(header, rows) if rows else None


def operator_memory(run: Run) -> str | None:
    """One row per block that an operator allocated; N/A for what was not freed."""
    rows = [
        (
            *(row["owner"], _kb(row["bytes"]), _time(run, row["start_ns"])),
            *(_time(run, row["end_ns"]), "N/A", _lasted(row), "N/A"),
            *(_mb(row["allocated_bytes"]), _mb(row["reserved_bytes"]), _mb(row["allocated_bytes"])),
            *_freed(row, "freed_allocated_bytes", "freed_reserved_bytes", "freed_allocated_bytes"),
            *(0, _device(row["device"])),
        )
        for row in _blocks(run)
    ]
    return as_csv(_NEW, rows) if rows else None


def operator_memory_old(run: Run) -> str | None:
    """The same as older versions wrote it, with the empty last column."""
    rows = [
        (
            *(
                row["owner"],
                _kb(row["bytes"]),
                _time(run, row["start_ns"]),
                _lasted(row),
            ),
            *(_mb(row["allocated_bytes"]), _mb(row["reserved_bytes"])),
            *_freed(row, "freed_allocated_bytes", "freed_reserved_bytes"),
            *(_device(row["device"]), ""),
        )
        for row in _blocks(run)
    ]
    return as_csv(_OLD, rows) if rows else None


def _blocks(run: Run) -> list[dict[str, Any]]:
    return lifetimes(run.allocations).to_dicts()


def _time(run: Run, ns: int | None) -> str:
    return "N/A" if ns is None else exact_us(ns + run.wall_offset_ns)


def _lasted(row: dict[str, Any]) -> str:
    return "N/A" if row["end_ns"] is None else in_units(row["end_ns"] - row["start_ns"], _US, 3)


def _kb(size_bytes: int) -> str:
    return without_zeros(size_bytes / 1024, 10)  # which is exact


def _mb(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 1024**2:.6f}"


def _freed(row: dict[str, Any], *columns: str) -> list[str]:
    return ["N/A" if row["end_ns"] is None else _mb(row[column]) for column in columns]


def _device(number: int | None) -> str:
    return "CPU" if number is None else f"NPU:{number}"
