# SPDX-License-Identifier: Apache-2.0
"""Files about steps: microseconds, and in the older ones ticks of 10 ns of the monotonic clock."""

from __future__ import annotations

import polars as pl

from strobe.analysis.step_trace import communicating, step_times
from strobe.analysis.steps import number_steps
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
    """One row per step in ticks of 10 ns; the last is the average of all but the first.

    After the step's own figures there are three for each collective in it: time, start and end.
    """
    points = run.points
    if points is None:
        return None
    trains = points["backward_ns"].is_not_null().any()
    table = points.select(
        "step",
        start_point=_ticks("start_ns"),
        end_point=_ticks("end_ns"),
        fp_point=_ticks("forward_ns"),
        bp_point=_ticks("backward_ns"),
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
    collectives = _collectives(run)
    table = table.join(collectives, on="step", how="left").sort("start_point")
    steps = table["step"].to_list()
    table = table.select(columns + [name for name in collectives.columns if name != "step"])
    later = table[1:] if table.height > 1 else table
    average = later.select(pl.all().mean().round().cast(pl.Int64).fill_null(0)).row(0)
    places = {step: place for place, step in enumerate(run.steps["step"], run.first_step)}
    rows = [
        (places[step], *row)
        for step, row in zip(steps, table.fill_null(0).iter_rows(), strict=True)
    ]
    return as_csv(["step_num", *table.columns], [*rows, ("-", *average)])


def _ticks(column: str) -> pl.Expr:
    return pl.col(column) // _TICK_NS


def _collectives(run: Run) -> pl.DataFrame:
    """One row per step that has any: the n-th collective of a stream; the host's are its threads.

    Columns: step, and for each stream_<stream>_<n>_<name> its time, and with _start_point and
    _end_point when it ran; null where the step has none of this name at this place.
    """
    exchange = communicating(run.spans)
    if exchange["device"].is_not_null().any():
        exchange = exchange.filter(pl.col("device").is_not_null()).with_columns(op="name")
    else:
        exchange = run.operators.filter(pl.col("category") == "communication")
        exchange = exchange.with_columns(stream=pl.col("lane").rank("dense") - 1)
    placed = number_steps(exchange.drop("category"), run.steps).filter(pl.col("step").is_not_null())
    placed = placed.with_columns(pl.col("stream").fill_null(0)).select(
        "step",
        pl.format(
            "stream_{}_{}_{}", "stream", pl.int_range(pl.len()).over("step", "stream"), "op"
        ).alias("name"),
        _ticks("start_ns"),
        ((pl.col("start_ns") + pl.col("dur_ns")) // _TICK_NS).alias("end"),
    )
    found: dict[int, dict[str, int]] = {}
    names = ["step"]
    for step, name, start, end in placed.iter_rows():
        figures = {name: end - start, f"{name}_start_point": start, f"{name}_end_point": end}
        found.setdefault(step, {"step": step}).update(figures)
        names += figures
    return pl.DataFrame([*found.values()], schema=dict.fromkeys(names, pl.Int64))
