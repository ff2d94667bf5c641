# SPDX-License-Identifier: Apache-2.0
"""The timeline: a Chrome trace as an array, its times as strings of wall-clock microseconds."""

from __future__ import annotations

import json
from collections.abc import Iterator

import polars as pl

from strobe.analysis.intervals import Union
from strobe.analysis.step_trace import communicating, computing, union_of
from strobe.reports.mindspore_tree.run import Run, as_json, exact_us

_US = 1000
# The processes of the trace: number, name.
_FRAMEWORK, _CPU, _SCOPES, _DEVICES, _OVERLAP = 1, 2, 3, 4, 5
_PROCESSES = {
    _FRAMEWORK: "MindSpore",
    _CPU: "CPU OP",
    _SCOPES: "Scope Layer",
    _DEVICES: "Ascend Hardware",
    _OVERLAP: "Overlap Analysis",
}
_SCOPE_ROOTS = ("Default", "Gradients", "recompute_Default")
_EVENT = pl.Schema(
    {
        "pid": pl.Int64,
        "tid": pl.Int64,
        "thread": pl.String,
        "name": pl.String,
        "cat": pl.String,
        "start_ns": pl.Int64,
        "dur_ns": pl.Int64,
        "args": pl.String,
    }
)


def trace_view(run: Run) -> str | None:
    """The whole timeline; None where there is nothing to draw."""
    outer_first = [False, False, False, True]
    events = pl.concat([*_layers(run)]).sort(
        "pid", "tid", "start_ns", "dur_ns", descending=outer_first, maintain_order=True
    )
    if events.is_empty():
        return None
    separator = ",\n" if run.pretty else ","
    texts = [*_heads(events), *_instants(run), *_written(events, run.wall_offset_ns)]
    return f"[{separator.join(texts)}]\n"


def _layers(run: Run) -> Iterator[pl.DataFrame]:
    yield pl.DataFrame(schema=_EVENT)
    yield _steps(run)
    yield _host(run)
    yield _operators(run)
    yield from _scopes(run)
    yield _kernels(run)
    yield from _overlap(run)


def _event(frame: pl.DataFrame, **columns: pl.Expr) -> pl.DataFrame:
    columns = {"cat": pl.lit(""), "args": pl.lit("{}"), **columns}
    return frame.select(
        [columns.get(name, pl.col(name)).cast(dtype).alias(name) for name, dtype in _EVENT.items()]
    )


def _steps(run: Run) -> pl.DataFrame:
    name = pl.lit("ProfilerStep#") + pl.col("step").cast(pl.String)
    return _event(
        run.steps,
        pid=pl.lit(_FRAMEWORK),
        tid=pl.lit(0),
        thread=pl.lit("steps"),
        name=name,
    )


def _host(run: Run) -> pl.DataFrame:
    """What is neither an operator nor on a device: annotations, waits for data, user's spans."""
    category = pl.col("category").cast(pl.String)
    rest = run.spans.filter(
        pl.col("device").is_null()
        & ~category.is_in(["operator", "communication", "kernel", "copy"])
    )
    rest = _of_domains(rest, run)
    theirs = category.replace("python", "python_function")
    return _event(rest, pid=pl.lit(_FRAMEWORK), tid=_tid(), thread=_thread(run), cat=theirs)


def _of_domains(frame: pl.DataFrame, run: Run) -> pl.DataFrame:
    """Leave out marks and ranges of mstx whose domain is not asked for."""
    include = run.parameters.get("mstx_domain_include") or []
    exclude = run.parameters.get("mstx_domain_exclude") or []
    if not include and not exclude:
        return frame
    domain = pl.col("attributes").str.json_path_match("$.domain")
    asked = domain.is_in(include) if include else ~domain.is_in(exclude)
    return frame.filter(domain.is_null() | asked)


def _operators(run: Run) -> pl.DataFrame:
    shapes = pl.lit('{"type":"HostCpuOps","Input Shapes":') + pl.col("shapes") + pl.lit("}")
    args = pl.coalesce(shapes, pl.lit('{"type":"HostCpuOps"}'))
    return _event(run.operators, pid=pl.lit(_CPU), tid=_tid(), thread=_thread(run), args=args)


def _kernels(run: Run) -> pl.DataFrame:
    found = run.spans.filter(pl.col("device").is_not_null())
    stream = pl.col("stream").fill_null(0)
    place = pl.col("device").cast(pl.Int64) * 100_000 + stream
    thread = pl.format("Device {} Stream {}", "device", stream)
    return _event(found, pid=pl.lit(_DEVICES), tid=place, thread=thread)


def _tid() -> pl.Expr:
    """The system's thread; its contexts, and lanes that have no thread, are lanes after it."""
    first = pl.col("lane") == pl.col("lane").min().over("pid", "tid")
    return (
        pl.when(first & (pl.col("tid") > 0))
        .then("tid")
        .otherwise(pl.col("lane").cast(pl.Int64) + 10_000_000)
    )


def _thread(run: Run) -> pl.Expr:
    return pl.col("lane").replace_strict(
        list(run.lanes), list(run.lanes.values()), default="thread", return_dtype=pl.String
    )


def _scopes(run: Run) -> Iterator[pl.DataFrame]:
    """The scopes of operators' names, one thread per depth; runs of one scope are one event."""
    operators = run.operators.filter(
        pl.col("name").str.split("/").list.first().is_in(_SCOPE_ROOTS)
    ).sort("start_ns")
    if operators.is_empty():
        return
    parts = operators.select(
        "start_ns",
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        parts=pl.col("name").str.split("/"),
    )
    depth = int(parts.select(pl.col("parts").list.len().max()).item()) - 1
    for level in range(depth):
        path = pl.col("parts").list.head(level + 1).list.join("/")
        deep = pl.col("parts").list.len() > level + 1
        runs = parts.with_columns(path=pl.when(deep).then(path)).with_columns(
            run=pl.col("path").rle_id()
        )
        merged = (
            runs.filter(pl.col("path").is_not_null())
            .group_by("run", maintain_order=True)
            .agg(pl.min("start_ns"), pl.max("end_ns"), pl.first("path"))
        )
        yield _event(
            merged,
            pid=pl.lit(_SCOPES),
            tid=pl.lit(level),
            thread=pl.lit(f"depth {level}"),
            name=pl.col("path").str.split("/").list.last(),
            dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        )


def _overlap(run: Run) -> Iterator[pl.DataFrame]:
    """When it computed, communicated, did the one without the other, and neither.

    On a host that communicates with nobody this would be its operators again.
    """
    work, exchange = computing(run.spans), communicating(run.spans)
    if exchange.is_empty() and not work["device"].is_not_null().any():
        return
    computed, exchanged = union_of(work), union_of(exchange)
    either = computed | exchanged
    alone = exchanged.minus(computed)
    free = either.gaps(int(either.start_ns[0]), int(either.end_ns[-1]))
    lines = {
        "Computing": computed,
        "Communication": exchanged,
        "Communication(Not Overlapped)": alone,
        "Free": free,
    }
    for tid, (name, union) in enumerate(lines.items()):
        yield _event(
            _frame(union),
            pid=pl.lit(_OVERLAP),
            tid=pl.lit(tid),
            thread=pl.lit(name),
            name=pl.lit(name),
        )


def _frame(union: Union) -> pl.DataFrame:
    return pl.DataFrame({"start_ns": union.start_ns, "dur_ns": union.end_ns - union.start_ns})


def _heads(events: pl.DataFrame) -> Iterator[str]:
    for pid in events["pid"].unique().sort().to_list():
        yield _head("process_name", pid, 0, name=_PROCESSES[pid])
        yield _head("process_sort_index", pid, 0, sort_index=pid)
        labels = "NPU" if pid in (_DEVICES, _OVERLAP) else "CPU"
        yield _head("process_labels", pid, 0, labels=labels)
    threads = events.group_by("pid", "tid", maintain_order=True).agg(pl.first("thread"))
    for pid, tid, name in threads.iter_rows():
        yield _head("thread_name", pid, tid, name=name)
        yield _head("thread_sort_index", pid, tid, sort_index=tid)


def _head(kind: str, pid: int, tid: int, **args: object) -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args})


def _instants(run: Run) -> Iterator[str]:
    marks = _of_domains(run.instants, run).select("name", "start_ns", "tid")
    for name, start_ns, tid in marks.iter_rows():
        place = {"pid": _FRAMEWORK, "tid": tid, "ts": exact_us(start_ns + run.wall_offset_ns)}
        yield json.dumps({"ph": "i", "s": "t", "name": name, **place})


def _written(events: pl.DataFrame, offset_ns: int) -> list[str]:
    names = {name: json.dumps(name) for name in events["name"].unique().to_list()}
    quoted = pl.col("name").replace_strict(
        list(names), list(names.values()), return_dtype=pl.String
    )
    text = pl.concat_str(
        pl.lit('{"ph":"X","name":'),
        quoted,
        pl.lit(',"pid":'),
        pl.col("pid").cast(pl.String),
        pl.lit(',"tid":'),
        pl.col("tid").cast(pl.String),
        pl.lit(',"ts":"'),
        *_microseconds(pl.col("start_ns") + offset_ns),
        pl.lit('","dur":"'),
        *_microseconds(pl.col("dur_ns")),
        pl.lit('","cat":"'),
        pl.col("cat"),
        pl.lit('","args":'),
        pl.col("args"),
        pl.lit("}"),
    )
    return events.select(text.alias("text"))["text"].to_list()


def _microseconds(ns: pl.Expr) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
    """The parts of an exact text."""
    rest = (ns % _US).cast(pl.String).str.zfill(3)
    return (ns // _US).cast(pl.String), pl.lit("."), rest


def timeline_summary(run: Run) -> str | None:
    """How much the timeline holds; milliseconds."""
    work = computing(run.spans)
    if work.is_empty():
        return None
    streams = work.select("device", "stream", "lane").unique().height
    depth = run.operators["name"].str.split("/").list.len().max()
    return as_json(
        {
            "total_time": int(work["dur_ns"].sum()) / 1e6,
            "num_of_streams": streams,
            "num_of_ops": run.operators["name"].n_unique() or work["name"].n_unique(),
            "op_exe_times": work.height,
            "max_scope_name_num": int(depth) - 1 if isinstance(depth, int) else 0,
        },
        run,
    )


def output_timeline_data(run: Run) -> str | None:
    """Each time that an operator ran: start in microseconds of the wall clock, milliseconds."""
    kernels = run.spans.filter(pl.col("category").cast(pl.String) == "kernel")
    if kernels.is_empty():
        found = run.operators.select("name", pl.lit(0).alias("stream"), "start_ns", "dur_ns")
    else:
        found = kernels.select("name", pl.col("stream").fill_null(0), "start_ns", "dur_ns")
    if found.is_empty():
        return None
    start = pl.concat_str(*_microseconds(pl.col("start_ns") + run.wall_offset_ns))
    lasted = (pl.col("dur_ns") / 1e6).round(6)
    columns = {"kernel_name": "name", "stream_id": "stream"}
    return found.select(**columns, **{"start_time(us)": start, "duration(ms)": lasted}).write_csv(
        float_precision=6
    )
