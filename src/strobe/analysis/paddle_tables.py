# SPDX-License-Identifier: Apache-2.0
"""The nine tables of Paddle's summary, as frames. Times are nanoseconds, ratios from 0 to 1.

A ratio's denominator is said with its table; it is null where that is 0. "CPU time" of an event is
its duration; "GPU time" is that of the kernels launched in it, and of the copies too where the
table is of operators or of what users named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from strobe.analysis.metadata import read_metadata
from strobe.analysis.paddle_tree import PaddleEvents, model_events, paddle_events
from strobe.model.ancestors import innermost, is_inside
from strobe.model.arrays import Bool, Int8, Int64
from strobe.model.intervals import Union
from strobe.model.paddle import MODEL, ON_DEVICE, PROCESS_USE, SYSTEM_USE, SortedKeys
from strobe.model.paddle import TracerEventType as Type
from strobe.store.tables import Tables

_MEASURES = ("total_ns", "avg_ns", "max_ns", "min_ns", "ratio")
CPU = tuple(f"cpu_{measure}" for measure in _MEASURES)
GPU = tuple(f"gpu_{measure}" for measure in _MEASURES)
_COPIES = "memcpy|memorycopy|memset"
_EXCHANGES = "allreduce|broadcast|rpc"
_EXCHANGE_KERNELS = "nccl|xccl"
_GRADIENTS = "gradnode"
_TEMPLATE = r"^(.+?)(<.*>)(\(.*\))$"
_MOST_DEPTH = 10_000


@dataclass(frozen=True)
class PaddleTables:
    """The tables; what a recording has nothing of is a table without rows."""

    device: pl.DataFrame
    overview: pl.DataFrame
    model: pl.DataFrame
    distributed: pl.DataFrame
    operator: pl.DataFrame
    kernel: pl.DataFrame
    memory_manipulation: pl.DataFrame
    userdefined: pl.DataFrame
    memory: pl.DataFrame
    flops: pl.DataFrame
    """Of the layers of one forward: what Paddle prints after the tables."""
    notes: list[str] = field(default_factory=list)
    """What the figures leave out, for people."""


def paddle_tables(
    tables: Tables, *, sorted_by: SortedKeys = SortedKeys.CPUTotal, thread_sep: bool = False
) -> PaddleTables:
    """Return all tables of a recording: see make_tables."""
    return make_tables(
        paddle_events(tables),
        tables.allocations().collect(),
        read_metadata(tables),
        sorted_by=sorted_by,
        thread_sep=thread_sep,
    )


def make_tables(
    events: PaddleEvents,
    allocations: pl.DataFrame,
    metadata: Mapping[str, str],
    *,
    sorted_by: SortedKeys = SortedKeys.CPUTotal,
    thread_sep: bool = False,
) -> PaddleTables:
    """Return all tables of these events.

    sorted_by: of the operator, kernel and userdefined tables; a table that has no CPU times is
        sorted by the GPU's total instead.
    thread_sep: operator and userdefined have their rows by thread, of which they then tell.
    """
    columns = _Columns.of(events)
    return PaddleTables(
        device=_device(columns, metadata),
        overview=_overview(columns),
        model=_model(columns),
        distributed=_distributed(columns),
        operator=_operators(columns, sorted_by, thread_sep=thread_sep),
        kernel=_kernels(columns, sorted_by),
        memory_manipulation=_named_events(columns, columns.is_copy),
        userdefined=_in_order(
            _named_events(columns, columns.is_userdefined, by_thread=thread_sep), sorted_by
        ),
        memory=_memory(events, columns, allocations),
        flops=_layers(columns),
        notes=_notes(events),
    )


@dataclass(frozen=True)
class _Columns:
    rows: pl.DataFrame
    type: Int8
    start_ns: Int64
    end_ns: Int64
    parent: Int64
    kernels_ns: Int64
    """Of the kernels launched in an event."""
    device_ns: Int64
    """Of these and of copies."""
    steps: pl.DataFrame
    total_ns: int
    """Time of the steps, the denominator of most ratios."""
    is_copy: Bool
    is_userdefined: Bool

    @cached_property
    def exchanges(self) -> tuple[Bool, Bool, Bool]:
        """What is communication on the host and on devices, and which kernels are not."""
        kernels, names = self.type == Type.Kernel, self.rows["name"]
        operators = self.type == Type.Operator
        host = (self.type == Type.Communication) | (operators & _named(names, _EXCHANGES))
        device = kernels & (is_inside(host, self.parent) | _named(names, _EXCHANGE_KERNELS))
        return host, device, kernels & ~device

    @staticmethod
    def of(events: PaddleEvents) -> _Columns:
        rows = events.rows
        types = rows["type"].to_numpy()
        start_ns, end_ns = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        parent = rows["parent"].to_numpy()
        dur_ns = end_ns - start_ns
        copied = np.isin(types, (Type.UserDefined, Type.PythonUserDefined))
        if copied.any():
            copied &= _named(rows["name"], _COPIES)
        steps = events.steps.sort("start_ns")
        return _Columns(
            rows=rows,
            type=types,
            start_ns=start_ns,
            end_ns=end_ns,
            parent=parent,
            kernels_ns=_sum_up(np.where(types == Type.Kernel, dur_ns, 0), parent),
            device_ns=_sum_up(np.where(np.isin(types, ON_DEVICE), dur_ns, 0), parent),
            steps=steps,
            total_ns=_union(steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()),
            is_copy=copied,
            is_userdefined=(types == Type.PythonUserDefined) & ~copied,
        )

    def union(self, chosen: Bool) -> int:
        """Return how long at least one of the chosen events was open during the steps."""
        if not chosen.any():
            return 0
        mine = self.start_ns[chosen], self.end_ns[chosen]
        steps = self.steps["start_ns"].to_numpy(), self.steps["end_ns"].to_numpy()
        start_ns, end_ns = (np.concatenate(pair) for pair in zip(mine, steps, strict=True))
        order = np.argsort(start_ns, kind="stable")
        return _union(*mine) + self.total_ns - _union(start_ns[order], end_ns[order])

    def intervals(self, chosen: Bool) -> Union:
        """Return when at least one of the chosen events was open."""
        return Union.of(self.start_ns[chosen], self.end_ns[chosen])

    def frame(self, chosen: Bool, *, gpu: Int64 | None = None) -> pl.DataFrame:
        """Return the chosen events with their times: name, tid, row, cpu_ns, gpu_ns."""
        place = np.flatnonzero(chosen)
        device = self.device_ns if gpu is None else gpu
        return self.rows.select("name", "tid", "flops")[place].with_columns(
            row=pl.Series(place),
            cpu_ns=pl.Series(self.end_ns[place] - self.start_ns[place]),
            gpu_ns=pl.Series(device[place]),
        )


def _named(names: pl.Series, words: str) -> Bool:
    """Return which names, of an Enum, hold one of the words; each of them is looked at once."""
    assert isinstance(names.dtype, pl.Enum)
    holds = names.dtype.categories.str.to_lowercase().str.contains(words).to_numpy()
    found: Bool = holds[names.to_physical().to_numpy()]
    return found


def _union(start_ns: Int64, end_ns: Int64) -> int:
    """Return how long at least one of the intervals, sorted by start, lasted."""
    if not len(start_ns):
        return 0
    reached = np.maximum.accumulate(end_ns)
    before = np.append(start_ns[:1], reached[:-1])
    return int(np.maximum(0, end_ns - np.maximum(start_ns, before)).sum())


def _sum_up(values: Int64, parent: Int64) -> Int64:
    """Return for each row the sum of the values in it and in all that is inside."""
    total: Int64 = values.copy()
    row = np.flatnonzero(values)
    at, carried = parent[row], values[row]
    for _ in range(_MOST_DEPTH):
        there = at >= 0
        if not there.any():
            break
        at, carried = at[there], carried[there]
        np.add.at(total, at, carried)
        at = parent[at]
    return total


def _ratio(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    return pl.when(whole > 0).then(part / whole)


def _device(columns: _Columns, metadata: Mapping[str, str]) -> pl.DataFrame:
    """Columns: device; utilization, of CPU(Process) in cores, of a GPU of the time of the steps."""
    rows: list[dict[str, Any]] = [
        {"device": "CPU(Process)", "utilization": _number(metadata.get(PROCESS_USE))},
        {"device": "CPU(System)", "utilization": _number(metadata.get(SYSTEM_USE))},
    ]
    kernels = columns.type == Type.Kernel
    number = columns.rows["device"].fill_null(-1).to_numpy()
    for device in np.unique(number[kernels]).tolist():
        busy_ns = columns.union(kernels & (number == device))
        share = busy_ns / columns.total_ns if columns.total_ns else None
        rows.append({"device": f"GPU{device}", "utilization": share})
    return pl.DataFrame(rows, schema={"device": pl.String, "utilization": pl.Float64})


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


_OVERVIEW = pl.Schema(
    {
        "on_device": pl.Boolean,
        "type": pl.String,
        "calls": pl.Int64,
        "time_ns": pl.Int64,
        "ratio": pl.Float64,
    }
)


def _overview(columns: _Columns) -> pl.DataFrame:
    """Time of the steps in which an event of each type was open; ratio: of all their time.

    Of the parts of a step only the outermost count. Columns: on_device, type, calls, time_ns,
    ratio; first the host's, each by time.
    """
    outermost = model_events(columns.type, columns.parent)
    host_exchanges, device_exchanges, _ = columns.exchanges
    found = []
    for kind in Type:
        chosen = columns.type == kind
        if kind in MODEL:
            chosen &= outermost
            time_ns = int((columns.end_ns - columns.start_ns)[chosen].sum())
        elif kind is Type.Communication:
            chosen = host_exchanges
            time_ns = columns.union(host_exchanges | device_exchanges)
        else:
            time_ns = columns.union(chosen)
        if chosen.any():
            found.append((kind in ON_DEVICE, kind.name, int(chosen.sum()), time_ns))
    if device_exchanges.any():
        time_ns = columns.union(device_exchanges)
        found.append((True, "Communication", int(device_exchanges.sum()), time_ns))
    table = pl.DataFrame(found, schema=dict(list(_OVERVIEW.items())[:4]), orient="row")
    table = table.with_columns(
        ratio=_ratio(pl.col("time_ns"), pl.lit(columns.total_ns)).cast(pl.Float64),
        is_step=pl.col("type") == "ProfileStep",
    )
    return table.sort(
        "on_device", "is_step", "time_ns", descending=[False, True, True], maintain_order=True
    ).drop("is_step")


def _model(columns: _Columns) -> pl.DataFrame:
    """The steps and their parts; ratios: of the time of the steps, and of the GPU time in them.

    Columns: name, calls, those of CPU and GPU. The last row, Others, is the time of the steps in
    which no part was open, in any thread: its calls, averages and extremes are null.
    """
    outermost = model_events(columns.type, columns.parent)
    chosen = outermost | (columns.type == Type.ProfileStep)
    kinds = {int(kind): kind.name for kind in (Type.ProfileStep, *MODEL)}
    named = columns.frame(chosen, gpu=columns.kernels_ns).with_columns(
        name=pl.Series(columns.type[chosen]).replace_strict(kinds, return_dtype=pl.String)
    )
    table = _grouped(named, ["name"])
    if set(table["name"]) <= {"ProfileStep"}:
        return _with_ratios(table.clear(), pl.lit(0), pl.lit(0)).drop("flops")
    step_gpu_ns = table.filter(pl.col("name") == "ProfileStep")["gpu_total_ns"].sum()
    parts = table.filter(pl.col("name") != "ProfileStep")
    others = {
        "name": "Others",
        "cpu_total_ns": columns.total_ns - columns.union(outermost),
        "gpu_total_ns": int(step_gpu_ns) - int(parts["gpu_total_ns"].sum()),
    }
    order = {name: place for place, name in enumerate([*kinds.values(), "Others"])}
    table = pl.concat([table, pl.DataFrame([others])], how="diagonal_relaxed").sort(
        pl.col("name").replace_strict(order)
    )
    return _with_ratios(table, pl.lit(columns.total_ns), pl.lit(int(step_gpu_ns))).drop("flops")


def _distributed(columns: _Columns) -> pl.DataFrame:
    """Communication, computation and both at once; ratio: of the time of the steps.

    Computation is the other kernels; without a device, the operators that are no communication,
    less what they wait for inside them. Columns: name, time_ns, ratio.
    """
    schema = {"name": pl.String, "time_ns": pl.Int64, "ratio": pl.Float64}
    host, device, computing = columns.exchanges
    communicating = host | device
    if not communicating.any():
        return pl.DataFrame(schema=schema)
    on_device = (columns.type == Type.Kernel).any()
    steps = Union.of(columns.steps["start_ns"].to_numpy(), columns.steps["end_ns"].to_numpy())
    communication = columns.intervals(communicating).both(steps)
    computation = columns.intervals(computing) if on_device else _without_device(columns, host)
    times = {
        "ProfileStep": columns.total_ns,
        "Communication": communication.length_ns,
        "Computation": computation.both(steps).length_ns,
        "Overlap": computation.both(communication).length_ns,
    }
    whole = columns.total_ns
    ratios = [time_ns / whole if whole else None for time_ns in times.values()]
    values = {"name": list(times), "time_ns": list(times.values()), "ratio": ratios}
    return pl.DataFrame(values, schema=schema)


def _without_device(columns: _Columns, host: Bool) -> Union:
    """Return when operators computed: were open, and did not wait for communication inside them."""
    operators = (columns.type == Type.Operator) & ~host & ~is_inside(host, columns.parent)
    waiting = host & is_inside(operators, columns.parent)
    thread = columns.rows["tid"].fill_null(-1).to_numpy()
    computing = columns.intervals(operators & ~np.isin(thread, thread[waiting]))
    for each in np.unique(thread[waiting]).tolist():
        open_there = columns.intervals(operators & (thread == each))
        computing |= open_there.minus(columns.intervals(waiting & (thread == each)))
    return computing


def _grouped(events: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return calls and times by the keys: columns of CPU and GPU but the ratios, and flops."""
    measures = [
        expression.alias(f"{unit}_{name}")
        for unit in ("cpu", "gpu")
        for name, expression in {
            "total_ns": pl.sum(f"{unit}_ns"),
            "avg_ns": pl.mean(f"{unit}_ns"),
            "max_ns": pl.max(f"{unit}_ns"),
            "min_ns": pl.min(f"{unit}_ns"),
        }.items()
    ]
    known = pl.col("flops").is_not_null().any()
    grouped = events.group_by(keys, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls"),
        *measures,
        flops=pl.when(known).then(pl.sum("flops")),
    )
    return grouped.with_columns(pl.col(key).cast(pl.String) for key in keys if key != "thread")


def _with_ratios(table: pl.DataFrame, cpu: pl.Expr, gpu: pl.Expr) -> pl.DataFrame:
    """Return the table with its ratios, in the order of columns that all tables have."""
    keys = [name for name in ("thread", "operator", "level", "name") if name in table.columns]
    return table.with_columns(
        cpu_ratio=_ratio(pl.col("cpu_total_ns"), cpu).cast(pl.Float64),
        gpu_ratio=_ratio(pl.col("gpu_total_ns"), gpu).cast(pl.Float64),
    ).select(*keys, "calls", *CPU, *GPU, "flops")


def _in_order(table: pl.DataFrame, sorted_by: SortedKeys) -> pl.DataFrame:
    column, descending = sort_column(sorted_by)
    keys = ["thread"] if "thread" in table.columns else []
    return table.sort(
        *keys, column, descending=[*(False for _ in keys), descending], maintain_order=True
    )


def sort_column(sorted_by: SortedKeys) -> tuple[str, bool]:
    """Return the column that a key sorts by, and whether the largest comes first."""
    unit, measure = sorted_by.name[:3].lower(), sorted_by.name[3:].lower()
    return f"{unit}_{measure}_ns", measure != "min"


def _operators(columns: _Columns, sorted_by: SortedKeys, *, thread_sep: bool) -> pl.DataFrame:
    """One row per operator (level 0), each followed by what is directly in it.

    Level 1 are its children that are no operators, and what it launched on a device itself; level 2
    what a child launched. Ratios: of all operators of the table, or thread; of the operator; of the
    child. Columns: thread if asked for, operator, level, name, calls, those of CPU and GPU, flops.
    """
    operators = columns.type == Type.Operator
    keys = ["thread"] if thread_sep else []
    top = columns.frame(operators).rename({"tid": "thread"})
    top = top.with_columns(operator="name", flops=_flops(columns, top["row"].to_numpy()))
    level0 = _grouped(top, [*keys, "operator"])
    level0 = _with_ratios(
        level0.with_columns(name=pl.col("operator"), level=pl.lit(0, dtype=pl.Int8)),
        *(
            pl.sum(name).over(keys) if keys else pl.sum(name)
            for name in ("cpu_total_ns", "gpu_total_ns")
        ),
    )
    level0 = _in_order(level0, sorted_by).with_row_index("place")
    above = np.where(columns.parent < 0, -1, columns.type[columns.parent])
    on_device = np.isin(columns.type, ON_DEVICE)
    calls = columns.type == Type.CudaRuntime
    children = (above == Type.Operator) & ~operators & ~on_device & ~calls
    owner = innermost(operators | children, columns.parent)
    inner = _details(columns, children, columns.parent, keys)
    launched = _details(columns, on_device & (owner >= 0), owner, keys)
    if inner.is_empty() and launched.is_empty():
        return level0.drop("place")
    table = pl.concat([level0, *_placed(level0, inner, launched, keys)], how="diagonal_relaxed")
    order = ("place", "group", "level", "gpu_total_ns", "name")
    down = [name == "gpu_total_ns" for name in order]
    return table.sort(*order, descending=down, nulls_last=False).select(
        level0.drop("place").columns
    )


def _flops(columns: _Columns, rows: Int64) -> pl.Series:
    """Return what is known to have been computed in each of the rows, what is in them included."""
    told = columns.rows["flops"]
    known = told.is_not_null().to_numpy()
    if not known.any():
        return told.gather(rows)
    outermost = known & ~is_inside(known, columns.parent)
    computed = _sum_up(np.where(outermost, told.fill_null(0).to_numpy(), 0), columns.parent)
    some = _sum_up(known.astype(np.int64), columns.parent) > 0
    return pl.Series(computed[rows]).set(pl.Series(~some[rows]), None)


_FLOPS = {"level": pl.Int64, "name": pl.String, "time_ns": pl.Int64, "flops": pl.Int64}


def _layers(columns: _Columns) -> pl.DataFrame:
    """Layers and operators of the first forward whose flops are known, in their order.

    Columns: level, of layers around it; name; time_ns; flops, of all that is in it, null where
    unknown.
    """
    operators = columns.type == Type.Operator
    other = np.isin(columns.type, (Type.Dataloader, Type.Backward, Type.Optimization))
    other |= _named(columns.rows["name"], _GRADIENTS)
    shown = (operators | (columns.type == Type.Forward)) & ~other
    shown &= ~is_inside(other | operators, columns.parent)
    around = np.append(innermost(shown, columns.parent), -1)[columns.parent]
    rows = np.flatnonzero(shown & _is_one_forward(columns, np.flatnonzero(shown & (around < 0))))
    level, above = np.zeros(len(rows), np.int64), around[rows]
    while (above >= 0).any():
        level += above >= 0
        above = np.where(above >= 0, around[above], -1)
    return pl.DataFrame(
        {
            "level": level,
            "name": columns.rows["name"].gather(rows).cast(pl.String),
            "time_ns": columns.end_ns[rows] - columns.start_ns[rows],
            "flops": _flops(columns, rows),
        },
        schema=_FLOPS,
    )


def _is_one_forward(columns: _Columns, outermost: Int64) -> Bool:
    """Return which events are of the first forward of which flops are known.

    It is of one thread and one step, and ends where its outermost layer, or where there are no
    layers its first operator, begins again.
    """
    told = outermost[_flops(columns, outermost).is_not_null().to_numpy()]
    if not len(told):
        return np.zeros(len(columns.type), bool)
    layers = told[columns.type[told] == Type.Forward]
    first = (layers if len(layers) else told)[0]
    thread = columns.rows["tid"].fill_null(-1).to_numpy()
    start_ns, name = columns.start_ns, columns.rows["name"].to_physical().to_numpy()
    ends_ns = columns.steps["end_ns"].to_numpy()
    ended = np.searchsorted(ends_ns, start_ns[first], side="right")
    same = outermost[(name[outermost] == name[first]) & (thread[outermost] == thread[first])]
    chosen: Bool = thread == thread[first]
    for limit_ns in (*ends_ns[ended : ended + 1], *start_ns[same[same > first][:1]]):
        chosen &= start_ns < limit_ns
    for limit_ns in ends_ns[:ended][-1:]:
        chosen &= start_ns >= limit_ns
    return chosen


def _details(columns: _Columns, chosen: Bool, owner: Int64, keys: list[str]) -> pl.DataFrame:
    """Return events with the name of the operator that each is in, and of the child, if any."""
    frame = columns.frame(chosen).rename({"tid": "thread"})
    if frame.is_empty():
        return frame.with_columns(operator=pl.lit(""), child=pl.lit(None, dtype=pl.String))
    names = columns.rows["name"]
    at = owner[frame["row"].to_numpy()]
    is_operator = columns.type[at] == Type.Operator
    operator = np.where(is_operator, at, columns.parent[at])
    child = pl.when(~pl.Series(is_operator)).then(names.gather(at))
    host = columns.rows["tid"].gather(operator)
    return frame.with_columns(
        operator=names.gather(operator), child=child, **({"thread": host} if keys else {})
    )


def _placed(
    level0: pl.DataFrame, inner: pl.DataFrame, launched: pl.DataFrame, keys: list[str]
) -> list[pl.DataFrame]:
    """Return the rows of levels 1 and 2, each with its operator's place and its group's in it."""
    by = [*keys, "operator"]
    whole = level0.select(*by, "place", above_cpu="cpu_total_ns", above_gpu="gpu_total_ns")
    children = _grouped(inner, [*by, "name"]).join(whole, on=by, how="left")
    children = children.sort("place", "cpu_total_ns", "name", descending=[False, True, False])
    children = children.with_columns(
        group=pl.int_range(pl.len()).over("place") + 1, level=pl.lit(1, dtype=pl.Int8)
    )
    groups = children.select(*by, "place", "group", child="name", mine="gpu_total_ns")
    no_cpu = [pl.lit(None, dtype=pl.Int64).alias(name) for name in CPU if name != "cpu_ratio"]
    kernels = _grouped(launched, [*by, "child", "name"]).with_columns(*no_cpu, flops=None)
    of_child = kernels.drop_nulls("child").join(groups, on=[*by, "child"], how="left")
    of_child = of_child.with_columns(above_gpu="mine", level=pl.lit(2, dtype=pl.Int8))
    direct = kernels.filter(pl.col("child").is_null()).join(whole, on=by, how="left")
    direct = direct.with_columns(group=pl.lit(1 << 40), level=pl.lit(1, dtype=pl.Int8))
    return [
        table.with_columns(
            cpu_ratio=_ratio(pl.col("cpu_total_ns"), pl.col("above_cpu")).cast(pl.Float64)
            if "above_cpu" in table.columns
            else pl.lit(None, dtype=pl.Float64),
            gpu_ratio=_ratio(pl.col("gpu_total_ns"), pl.col("above_gpu")).cast(pl.Float64),
        ).select(*by, "level", "name", "calls", *CPU, *GPU, "flops", "place", "group")
        for table in (children, of_child, direct)
    ]


def _kernels(columns: _Columns, sorted_by: SortedKeys) -> pl.DataFrame:
    """One row per kernel, its template's arguments and parameters cut off; ratio: of all kernels.

    Columns: name, calls, those of GPU.
    """
    kernels = columns.frame(columns.type == Type.Kernel)
    kernels = kernels.with_columns(
        name=pl.col("name").cast(pl.String).str.replace(_TEMPLATE, "${1}${2}"),
        gpu_ns=pl.col("cpu_ns"),
    )
    table = _with_ratios(_grouped(kernels, ["name"]), pl.lit(0), pl.sum("gpu_total_ns"))
    if sorted_by.name.startswith("CPU"):
        sorted_by = SortedKeys.GPUTotal
    return _in_order(table, sorted_by).select("name", "calls", *GPU)


def _named_events(columns: _Columns, chosen: Bool, *, by_thread: bool = False) -> pl.DataFrame:
    """One row per name; ratios: of the time of the steps, and of the GPU time in them.

    Columns: thread if asked for, name, calls, those of CPU and GPU.
    """
    keys = ["thread", "name"] if by_thread else ["name"]
    table = _grouped(columns.frame(chosen).rename({"tid": "thread"}), keys)
    steps = columns.type == Type.ProfileStep
    step_gpu_ns = int(columns.device_ns[steps].sum())
    return _with_ratios(table, pl.lit(columns.total_ns), pl.lit(step_gpu_ns)).drop("flops")


_MEMORY = pl.Schema(
    {
        "place": pl.String,
        "type": pl.String,
        "name": pl.String,
        "allocation_count": pl.Int64,
        "free_count": pl.Int64,
        "allocation_bytes": pl.Int64,
        "free_bytes": pl.Int64,
        "increased_bytes": pl.Int64,
        "peak_bytes": pl.Int64,
    }
)


def _memory(events: PaddleEvents, columns: _Columns, allocations: pl.DataFrame) -> pl.DataFrame:
    """What each event allocated and freed, by place: each block once.

    A block belongs to the operator around it, or else to the innermost event that is not a part of
    one. Reserved is what the framework's allocator took and gave back, where it says so. Columns:
    place, type (Allocated or Reserved), name (null for blocks of no event), counts and sizes,
    peak_bytes of the place and type; by place, type and increase.
    """
    if events.end_ns is not None:
        allocations = allocations.filter(pl.col("start_ns") < events.end_ns)
    if allocations.is_empty():
        return pl.DataFrame(schema=_MEMORY)
    before = allocations["tid"].is_null()  # was there when the recording began: nobody's
    held = allocations.with_columns(
        place=pl.concat_str(pl.lit("Place(gpu:"), pl.col("device"), pl.lit(")")).fill_null(
            "Place(cpu)"
        ),
        name=_owners(events, columns, allocations["span"]),
    )
    reserved = (
        held.drop_nulls("reserved_bytes")
        .with_columns(bytes=pl.col("reserved_bytes").diff().over("place").fill_null(0))
        .filter(pl.col("bytes") != 0)
    )
    tables = []
    for kind, rows, peaks, level in (
        ("Allocated", held.filter(~before), held, "allocated_bytes"),
        ("Reserved", reserved, held, "reserved_bytes"),
    ):
        peak = peaks.group_by("place").agg(pl.max(level).alias("peak_bytes"))
        tables.append(
            rows.group_by("place", "name", maintain_order=True)
            .agg(
                allocation_count=(pl.col("bytes") > 0).sum().cast(pl.Int64),
                free_count=(pl.col("bytes") < 0).sum().cast(pl.Int64),
                allocation_bytes=pl.col("bytes").filter(pl.col("bytes") > 0).sum(),
                free_bytes=-pl.col("bytes").filter(pl.col("bytes") < 0).sum(),
                increased_bytes=pl.sum("bytes"),
            )
            .join(peak, on="place", how="left")
            .with_columns(type=pl.lit(kind))
            .select(*_MEMORY.names())
            .cast(_MEMORY)
        )
    return pl.concat(tables).sort(
        *("place", "type", "increased_bytes", "name"), descending=[False, False, True, False]
    )


def _owners(events: PaddleEvents, columns: _Columns, span: pl.Series) -> pl.Series:
    """Return the name of the event that each span's blocks belong to."""
    parts = (Type.OperatorInner, Type.DygraphKernelLaunch, Type.StaticKernelLaunch)
    operator = innermost(columns.type == Type.Operator, columns.parent)
    plain = innermost(~np.isin(columns.type, parts), columns.parent)
    owner = np.where(operator >= 0, operator, plain)
    place = np.append(owner, -1)[events.rows_of(span.fill_null(-1).to_numpy())]
    names = events.rows["name"].extend_constant(None, 1)
    found: pl.Series = names.gather(np.where(place < 0, len(names) - 1, place))
    return found


def _notes(events: PaddleEvents) -> list[str]:
    if not events.left_out:
        return []
    return [
        f"{events.left_out} events began after the last step had ended and are left out; call "
        "step() after what is to be counted"
    ]
