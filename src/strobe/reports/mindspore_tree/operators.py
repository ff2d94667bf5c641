# SPDX-License-Identifier: Apache-2.0
"""Files about operators of the host.

An operator's time is its own: what operators inside it took is theirs. So shares sum to 1 where a
framework nests its operators; MindSpore does not.
"""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from strobe.analysis.steps import number_steps
from strobe.reports.mindspore_tree.run import Run, as_csv, as_json, without_zeros

_MS = 1e6
# MindSpore tells no subgraph on a CPU but this one.
_SUBGRAPH = "Default"
# Those whose work is a product of matrices, which an Ascend gives to its cube unit.
_CUBE = r"(?i)mm\b|mm_|matmul|conv|linear|gemm|attention|einsum|\bdot\b"


def _totals(run: Run, *by: str) -> pl.DataFrame:
    return (
        run.operators.group_by(*by, maintain_order=True)
        .agg(calls=pl.len(), total_ns=pl.sum("self_ns"))
        .with_columns(share=pl.col("total_ns") / (pl.sum("total_ns").replace(0, None)))
    )


def cpu_op_detail(run: Run) -> str | None:
    """One row per operator; milliseconds."""
    header = (
        *("op_side", "op_type", "op_name", "full_op_name", "op_occurrences", "op_total_time(ms)"),
        *("op_avg_time(ms)", "total_proportion", "subgraph", "pid"),
    )
    rows = [
        (
            *("Host", row["type"], row["op"], row["name"], row["calls"]),
            f"{row['total_ns'] / _MS:.6f}",
            f"{row['total_ns'] / row['calls'] / _MS:.6g}",
            "" if row["share"] is None else f"{row['share']:.6g}",
            *(_SUBGRAPH, row["pid"]),
        )
        for row in _totals(run, "type", "op", "name", "pid").iter_rows(named=True)
    ]
    return as_csv(header, rows) if rows else None


def cpu_op_type(run: Run) -> str | None:
    """One row per type; milliseconds; how often in a step, or in all if there are no steps."""
    header = (
        *("op_type", "type_occurrences", "execution_frequency(per-step)", "total_compute_time"),
        *("avg_time(ms)", "percent"),
    )
    steps = max(1, run.steps.height)
    rows = [
        (
            *(row["type"], row["calls"], without_zeros(row["calls"] / steps, 6)),
            f"{row['total_ns'] / _MS:.6f}",
            f"{row['total_ns'] / row['calls'] / _MS:.6g}",
            "" if row["share"] is None else f"{row['share']:.6g}",
        )
        for row in _totals(run, "type").iter_rows(named=True)
    ]
    return as_csv(header, rows) if rows else None


def cpu_op_execute_timestamp(run: Run) -> str | None:
    """One line per operator: each time that it ran, as wall-clock nanoseconds, ms and thread."""
    if run.operators.is_empty():
        return None
    ran = pl.concat_str(
        (pl.col("start_ns") + run.wall_offset_ns).cast(pl.String),
        pl.lit(","),
        (pl.col("dur_ns") / _MS).round(6).cast(pl.String),
        pl.lit(","),
        pl.col("tid").cast(pl.String),
        pl.lit(" "),
    )
    lines = run.operators.group_by("name", maintain_order=True).agg(ran.alias("ran"))
    return "".join(
        f"{_on_one_line(name)};HostCpuOps;{''.join(ran)}\n" for name, ran in lines.iter_rows()
    )


def cpu_framework(run: Run) -> str | None:
    """One line per launch: type, name, graph, and the shapes of the inputs as far as known."""
    if run.operators.is_empty():
        return None
    columns = run.kinds.select("type", "op", "shapes")
    lines = [
        f"{_on_one_line(kind)};{_on_one_line(name)};0;{_inputs(shapes)}\n"
        for kind, name, shapes in columns.iter_rows()
    ]
    return _per_launch(lines, run.operators)


def _on_one_line(name: str) -> str:
    """Return a name for a file whose lines are its rows, and which knows no quotes."""
    return " ".join(name.splitlines())


def _per_launch(lines: list[str], operators: pl.DataFrame) -> str:
    """Return the line of its kind for each of the operators."""
    text: str = pl.Series(lines).gather(operators["kind"]).str.join("").item()
    return text


def _inputs(text: str | None) -> str:
    shapes = json.loads(text) if text else []
    return "".join(
        f"input_{place}:{'NoShape' if shape is None else json.dumps(shape)};"
        for place, shape in enumerate(shapes, 1)
    )


def framework_raw(run: Run) -> str | None:
    """One row per operator and shape of its inputs, in the order of their first launch."""
    header = (
        *("task_id", "stream_id", "block_dim", "full_kernel_name", "op_name", "kernel_name"),
        *("kernel_type", "subgraph", "op_info", "model_id", "task_type"),
    )
    distinct = run.kinds.select("name", "op", "type", "shapes", "dtypes").unique(
        maintain_order=True
    )
    rows = [
        (
            *(number, 0, 0, row["name"], row["name"], row["op"], row["type"], _SUBGRAPH),
            json.dumps(_operands(row["shapes"], row["dtypes"])),
            *(0, "HOST_CPU"),
        )
        for number, row in enumerate(distinct.iter_rows(named=True))
    ]
    return as_csv(header, rows) if rows else None


def _operands(shapes_text: str | None, types_text: str | None) -> dict[str, Any]:
    shapes = json.loads(shapes_text) if shapes_text else []
    types = json.loads(types_text) if types_text else []
    return {
        f"Input_{place}": {
            "format": "DefaultFormat",
            "data_type": (types[place] if place < len(types) else None) or "UNKNOWN",
            "shape": [] if shape is None else shape,
        }
        for place, shape in enumerate(shapes)
    }


def operator_details(run: Run) -> str | None:
    """One row per launch whose inputs are known: name, and the shapes as `3,6;5,6;`."""
    known = run.operators.filter(pl.col("shapes").is_not_null())
    if known.is_empty():
        return None
    columns = run.kinds.select("name", "shapes")
    lines = [as_csv((name, _semicolons(shapes)), ()) for name, shapes in columns.iter_rows()]
    return as_csv(("Name", "Input Shapes"), ()) + _per_launch(lines, known)


def _semicolons(text: str | None) -> str:
    shapes = json.loads(text) if text else []
    return ";".join("" if shape is None else ",".join(map(str, shape)) for shape in shapes)


def dynamic_shape_info(run: Run) -> str | None:
    """All operators, where inputs differ from step to step: the n-th call of a name in each.

    Or where a graph leaves a size open: MindSpore tells -1 for it, and not what it was.
    """
    is_open = bool(run.kinds["shapes"].str.contains("-1", literal=True).any())
    shapes_of = run.kinds.group_by("name").agg(pl.col("shapes").n_unique())
    if run.steps.is_empty() or (shapes_of["shapes"].max() == 1 and not is_open):
        return None
    calls = number_steps(run.operators.drop("category"), run.steps).filter(
        pl.col("step").is_not_null() & pl.col("shapes").is_not_null()
    )
    calls = calls.with_columns(call=pl.int_range(pl.len()).over("step", "name"))
    per_call = calls.group_by("name", "call", maintain_order=True)
    varying = per_call.agg(different=pl.col("shapes").n_unique()).filter(pl.col("different") > 1)
    if calls.is_empty() or (varying.is_empty() and not is_open):
        return None
    found: dict[str, Any] = {}
    for (kind,), part in calls.group_by("type", maintain_order=True):
        found[kind] = [
            {
                name: {
                    "op_exe_time": (mine["self_ns"] / _MS).round(6).to_list(),
                    "op_shape": mine["shapes"].to_list(),
                    "op_exe_occurrences": mine.height,
                }
            }
            for (name,), mine in part.group_by("name", maintain_order=True)
        ]
    means = calls.group_by("type", "step", maintain_order=True).agg(pl.mean("self_ns") / _MS)
    found["op_type"] = {
        kind: part["self_ns"].round(6).to_list()
        for (kind,), part in means.sort("step").group_by("type", maintain_order=True)
    }
    return as_json(found, run)


def flops(run: Run) -> str | None:
    """One row per operator of which the operations are known: millions, and billions a second."""
    header = (
        *("full_kernel_name", "MFLOPs(10^6 cube)", "GFLOPS(10^9 cube)"),
        *("MFLOPs(10^6 vector)", "GFLOPS(10^9 vector)"),
    )
    rows = []
    for row in _worked(run).iter_rows(named=True):
        figures = (f"{row['flops'] / 1e6:.6f}", f"{row['flops'] / max(1, row['dur_ns']):.6f}")
        rows.append((row["name"], *(figures if row["cube"] else ("0", "0")), *_other(row, figures)))
    return as_csv(header, rows) if rows else None


def _other(row: dict[str, Any], figures: tuple[str, str]) -> tuple[str, str]:
    return ("0", "0") if row["cube"] else figures


def _worked(run: Run) -> pl.DataFrame:
    known = run.operators.filter(pl.col("flops").is_not_null())
    return known.group_by("name", maintain_order=True).agg(
        pl.sum("flops"), pl.sum("dur_ns"), cube=pl.first("type").str.contains(_CUBE)
    )


def flops_summary(run: Run) -> str | None:
    """All operations in millions, and billions a second of the time in which they were made."""
    worked = _worked(run)
    if worked.is_empty():
        return None
    summary: dict[str, float] = {}
    for unit, part in (("cube", worked.filter("cube")), ("vec", worked.filter(~pl.col("cube")))):
        total, lasted_ns = int(part["flops"].sum()), int(part["dur_ns"].sum())
        summary[f"{unit}_FLOPs"] = total / 1e6
        summary[f"{unit}_FLOPS"] = total / lasted_ns if lasted_ns else 0.0
    return as_json(summary, run)


def find_operators(run: Run, names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return how often and how long the operators of these types ran, by the inputs' shapes."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        mine = run.operators.filter(pl.col("type") == name)
        totals = mine.group_by("shapes", maintain_order=True).agg(
            calls=pl.len(), total_ns=pl.sum("self_ns")
        )
        found[name] = [
            {
                "op_side": "cpu",
                "input_shape": _inputs(row["shapes"]).rstrip(";").replace(";", ","),
                "op_occurrences": row["calls"],
                "op_total_time(us)": row["total_ns"] / 1000,
                "op_avg_time(us)": row["total_ns"] / row["calls"] / 1000,
            }
            for row in totals.iter_rows(named=True)
        ]
    return found
