# SPDX-License-Identifier: Apache-2.0
"""Files about steps: microseconds, and in the older ones ticks of 10 ns of the monotonic clock."""

from __future__ import annotations

import polars as pl

from strobe.analysis.step_trace import step_times
from strobe.reports.mindspore_tree.run import Run, as_csv, as_json, in_units

_TICK_NS = 10
_US = 1000
STEP_TIME = (
    *("Step", "Computing", "Communication(Not Overlapped)", "Overlapped", "Communication"),
    *("Free", "Stage", "Bubble", "Communication(Not Overlapped and Exclude Receive)"),
    "Preparing",
)


def step_trace_time(run: Run, *, preparing: bool = True) -> str | None:
    """One row per step, or one for the whole if there are none; microseconds."""
    if run.work.is_empty():
        return None
    steps = run.steps
    if steps.is_empty():
        start_ns, end_ns = int(run.facts["start_ns"]), int(run.facts["end_ns"])
        whole = {"step": [0], "start_ns": [start_ns], "dur_ns": [end_ns - start_ns]}
        steps = pl.DataFrame(whole, schema=dict.fromkeys(whole, pl.Int64))
    rows = []
    for row in step_times(run.spans, steps).iter_rows(named=True):
        alone_ns = row["communication_ns"] - row["overlapped_ns"]
        times = (
            *(row["computing_ns"], alone_ns, row["overlapped_ns"], row["communication_ns"]),
            *(row["free_ns"], max(0, row["span_ns"] - row["bubble_ns"]), row["bubble_ns"]),
            max(0, alone_ns - row["bubble_ns"]),
            *((row["preparing_ns"],) if preparing else ()),
        )
        rows.append((row["step"], *(in_units(ns, _US, 3) for ns in times)))
    return as_csv(STEP_TIME if preparing else STEP_TIME[:-1], rows)


def step_trace_time_without_preparing(run: Run) -> str | None:
    """The same as older versions wrote it."""
    return step_trace_time(run, preparing=False)


def step_trace_point_info(run: Run) -> str | None:
    """The operators that begin the forward and end the backward, as most steps have it."""
    points = run.points
    if points is None:
        return None
    names = {"fp_start": points["forward_name"].mode().sort()[0]}
    if points["backward_name"].is_not_null().any():
        names["bp_end"] = points["backward_name"].mode().sort()[0]
    return as_json(names, run)


def step_trace_raw(run: Run) -> str | None:
    """One row per step in ticks of 10 ns; the last is the average of all but the first."""
    points = run.points
    if points is None:
        return None

    def ticks(column: str) -> pl.Expr:
        return pl.col(column) // _TICK_NS

    trains = points["backward_ns"].is_not_null().any()
    table = points.select(
        start_point=ticks("start_ns"),
        end_point=ticks("end_ns"),
        fp_point=ticks("forward_ns"),
        bp_point=ticks("backward_ns"),
    ).with_columns(
        total=pl.col("end_point") - pl.col("start_point"),
        iteration_interval=pl.col("fp_point") - pl.col("start_point"),
        fp_and_bp=pl.col("bp_point") - pl.col("fp_point"),
        fp=pl.col("end_point") - pl.col("fp_point"),
        tail=pl.col("end_point") - pl.col("bp_point"),
    )
    columns = ["start_point", "end_point", "total", "fp_point"]
    if trains:
        columns += ["bp_point", "iteration_interval", "fp_and_bp", "tail"]
    else:
        columns += ["iteration_interval", "fp"]
    table = table.select(columns)
    later = table[1:] if table.height > 1 else table
    average = later.select(pl.all().mean().round().cast(pl.Int64)).row(0)
    rows = [(number, *row) for number, row in enumerate(table.iter_rows(), 1)]
    return as_csv(["step_num", *columns], [*rows, ("-", *average)])
