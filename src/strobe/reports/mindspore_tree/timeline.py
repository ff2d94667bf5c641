# SPDX-License-Identifier: Apache-2.0
"""The timeline: a Chrome trace as an array, its times as strings of wall-clock microseconds."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from strobe.analysis.step_trace import communicating, union_of
from strobe.exporters.json_events import Events, Room, join, write_events
from strobe.model.attributes import DOMAIN
from strobe.model.coded import distinct_rows
from strobe.model.intervals import Union
from strobe.model.nesting import nest
from strobe.reports.mindspore_tree.run import Run, as_json, exact_us

_US = 1000
# The processes of the trace: number, name. To Perfetto a thread 0 is the one that has the number of
# its process, so where there may be both, one of them has another.
_FRAMEWORK, _CPU, _SCOPES, _DEVICES, _OVERLAP = 1, 2, 3, 99_999, 5
_STEPS = 9_999_999  # no system has so many threads
_PROCESSES = {
    _FRAMEWORK: "MindSpore",
    _CPU: "CPU OP",
    _SCOPES: "Scope Layer",
    _DEVICES: "Ascend Hardware",
    _OVERLAP: "Overlap Analysis",
}
_SCOPE_ROOTS = (["Default"], ["Gradients"], ["recompute_Default"])
_FURTHER, _MOST_THREADS = 10**8, 10**13  # the numbers of a thread, and of those that go with it
_NEVER = 1 << 62
_THOUSANDTHS = pl.Series([f".{number:03d}" for number in range(_US)])
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


def trace_view(run: Run) -> bytes | None:
    """The whole timeline, an event a line; None where there is nothing to draw."""
    events, marks = pl.concat([*_layers(run)]), _of_domains(run.instants, run)
    if events.is_empty() and marks.is_empty():
        return None
    head, heads = distinct_rows(events, "name", "cat", "args")
    threads = {
        **{(_FRAMEWORK, tid): run.lanes.get(lane, "thread") for tid, lane in _places(marks)},
        **{(pid, tid): name for pid, tid, name in _threads(events).iter_rows()},
    }
    events = events.select("pid", "tid", "start_ns", "dur_ns", head=pl.Series(head)).sort(
        "start_ns", "dur_ns", descending=[False, True], maintain_order=True
    )
    fitted = pl.concat(_shortened(each, run.wall_offset_ns) for each in _apart(events))
    events = fitted.sort("pid", "tid", maintain_order=True)
    out = io.BytesIO()
    out.write(b"[\n")
    track, rows = distinct_rows(events, "pid", "tid")
    tracks = rows.select("pid", "tid").rows()
    marked = [(_FRAMEWORK, tid) for tid, _ in _places(marks)]
    for text in (*_metadata([*dict.fromkeys(tracks + marked)], threads), *_instants(marks, run)):
        out.write(f"{text},\n".encode())
    write_events(
        Room(out),
        Events(
            head=events["head"].to_numpy().astype(np.int32),
            heads=join(_begun(*head) for head in heads.select("name", "cat", "args").iter_rows()),
            start_ns=events["start_ns"].to_numpy() + run.wall_offset_ns,
            dur_ns=events["dur_ns"].to_numpy(),
            track=track.astype(np.int32),
            tracks=join(f'","pid":{pid},"tid":{tid}'.encode() for pid, tid in tracks),
        ),
        between=b'","dur":"',
    )
    out.seek(-len(",\n"), io.SEEK_END)
    out.write(b"\n]\n")
    return out.getvalue()


def _places(marks: pl.DataFrame) -> list[tuple[int, int]]:
    """Return the threads of some marks, each with one of its lanes."""
    return marks.select("tid", "lane").unique("tid", maintain_order=True).rows()


def _threads(events: pl.DataFrame) -> pl.DataFrame:
    return distinct_rows(events, "pid", "tid")[1].select("pid", "tid", "thread")


def _apart(events: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield events, by start, of which none crosses another of its thread: readers would drop it.

    Those that do have threads of their own, after those that they cross. See _nested.
    """
    ends = pl.col("start_ns") + pl.col("dur_ns")
    open_until = ends.cum_max().shift(1).over("lane", "parent")
    for number in itertools.count():
        nested = _nested(events)
        crosses = nested.select(
            (open_until > pl.col("start_ns")).fill_null(value=False)
        ).to_series()
        yield _on_track(nested if not crosses.any() else _nested(events.filter(~crosses)), number)
        if not crosses.any():
            return
        events = events.filter(crosses)


def _on_track(events: pl.DataFrame, number: int) -> pl.DataFrame:
    return events.with_columns(pl.col("tid") + number * _FURTHER) if number else events


def _nested(events: pl.DataFrame) -> pl.DataFrame:
    """Return the events, by start, with a number of each thread and the row around each."""
    start_ns, dur_ns = events["start_ns"].to_numpy(), events["dur_ns"].to_numpy()
    thread = events["pid"].to_numpy() * _MOST_THREADS + events["tid"].to_numpy()
    threads = pl.Series(thread).unique().sort().to_numpy()  # they are few
    lane = np.searchsorted(threads, thread).astype(np.int32)
    parent, _ = nest(lane, start_ns, start_ns + dur_ns)
    return events.with_columns(lane=pl.Series(lane), parent=pl.Series(parent))


def _shortened(events: pl.DataFrame, offset_ns: int) -> pl.DataFrame:
    """Return nested events as short as they must be not to cross others in the eyes of readers.

    Those take microseconds for a double, as Perfetto and browsers do. Since 2005 there are four of
    them in a microsecond, so that an event may seem to begin before the one before it has ended.
    Nor do they cross for those who read the text as it is.
    """
    start_ns, dur_ns = events["start_ns"].to_numpy(), events["dur_ns"].to_numpy()
    wall_ns = start_ns + offset_ns
    us = wall_ns // _US + wall_ns % _US / _US
    seen_ns = np.where(us == np.floor(us), us.astype(np.int64) * _US, (us * _US).astype(np.int64))
    events = events.with_columns(seen_ns=pl.Series(seen_ns))
    following = events.select(pl.col("seen_ns").shift(-1).over("lane", "parent")).to_series()
    parent = events["parent"].to_numpy()
    dur_ns = np.minimum(dur_ns, following.fill_null(_NEVER).to_numpy() - seen_ns)
    inner = np.flatnonzero(parent >= 0)
    outer = parent[inner]
    into_ns = np.maximum(start_ns[inner] - start_ns[outer], seen_ns[inner] - seen_ns[outer])
    while (beyond := dur_ns[inner] > (most_ns := dur_ns[outer] - into_ns)).any():
        dur_ns[inner[beyond]] = most_ns[beyond]
    lasted = pl.Series("dur_ns", np.maximum(dur_ns, 0))
    return events.with_columns(lasted).drop("lane", "parent", "seen_ns")


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
        tid=pl.lit(_STEPS),
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
    domain = pl.col("attributes").str.json_path_match(f"$.{DOMAIN}")
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
    scopes = [name.split("/")[:-1] for name in run.kinds["name"].to_list()]
    known = np.array([scope[:1] in _SCOPE_ROOTS for scope in scopes], bool)
    which = run.operators["kind"].to_numpy()
    rows = np.flatnonzero(known[which])
    start_ns = run.operators["start_ns"].to_numpy()[rows]
    end_ns = start_ns + run.operators["dur_ns"].to_numpy()[rows]
    for level in range(max((len(scope) for scope in scopes), default=0)):
        paths = [tuple(scope[: level + 1]) if len(scope) > level else () for scope in scopes]
        codes = {path: code for code, path in enumerate(dict.fromkeys(paths))}
        path = np.array([codes[path] for path in paths], np.int64)[which[rows]]
        first = np.flatnonzero(np.diff(path, prepend=-1))
        lasts = pl.Series([path[-1] if path else None for path in codes], dtype=pl.String)
        runs = {
            "name": lasts.gather(path[first]),
            "start_ns": start_ns[first],
            "dur_ns": np.maximum.reduceat(end_ns, first) - start_ns[first],
        }
        yield _event(
            pl.DataFrame(runs).drop_nulls("name"),
            pid=pl.lit(_SCOPES),
            tid=pl.lit(level + 1),
            thread=pl.lit(f"depth {level}"),
        )


def _overlap(run: Run) -> Iterator[pl.DataFrame]:
    """When it computed, communicated, did the one without the other, and neither.

    On a host that communicates with nobody this would be its operators again.
    """
    work, exchange = run.work, communicating(run.spans)
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


def _metadata(
    tracks: Sequence[tuple[int, int]], names: Mapping[tuple[int, int], str]
) -> Iterator[str]:
    pids = sorted({pid for pid, _ in tracks})
    for pid in pids:
        yield _head("process_name", pid, 0, name=_PROCESSES[pid])
        yield _head("process_sort_index", pid, 0, sort_index=pid)
        labels = "NPU" if pid == _DEVICES or (pid == _OVERLAP and _DEVICES in pids) else "CPU"
        yield _head("process_labels", pid, 0, labels=labels)
    for pid, tid in tracks:
        yield _head("thread_name", pid, tid, name=_name_of(pid, tid, names))
        yield _head("thread_sort_index", pid, tid, sort_index=0 if tid == _STEPS else tid)


def _name_of(pid: int, tid: int, names: Mapping[tuple[int, int], str]) -> str:
    """Return the name of a thread, or of one that goes with it; some have large numbers."""
    for number in itertools.count():
        name = names.get((pid, tid - number * _FURTHER))
        if name is not None:
            return f"{name} (overlap {number})" if number else name
    raise AssertionError


def _json(content: object) -> str:
    return json.dumps(content, ensure_ascii=False)  # Perfetto refuses \ud83d\ude00


def _head(kind: str, pid: int, tid: int, **args: object) -> str:
    return _json({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args})


def _instants(marks: pl.DataFrame, run: Run) -> Iterator[str]:
    for name, start_ns, tid in marks.select("name", "start_ns", "tid").iter_rows():
        place = {"pid": _FRAMEWORK, "tid": tid, "ts": exact_us(start_ns + run.wall_offset_ns)}
        yield _json({"ph": "i", "s": "t", "name": name, **place})


def _begun(name: str, cat: str, args: str) -> bytes:
    """Return an event up to its start; its times are strings."""
    return f'{{"ph":"X","name":{_json(name)},"cat":"{cat}","args":{args},"ts":"'.encode()


def _microseconds(ns: pl.Expr) -> tuple[pl.Expr, pl.Expr]:
    """Return the parts of an exact text."""
    return (ns // _US).cast(pl.String), pl.lit(_THOUSANDTHS).gather(ns % _US)


def timeline_summary(run: Run) -> str | None:
    """How much the timeline holds, of kernels or, without any, of operators; milliseconds."""
    kernels = run.spans.filter(pl.col("category").cast(pl.String) == "kernel")
    work = run.operators if kernels.is_empty() else kernels
    if work.is_empty():
        return None
    slashes = run.kinds["name"].str.count_matches("/", literal=True).max()
    return as_json(
        {
            "total_time": int(work["self_ns"].sum()) / 1e6,
            "num_of_streams": work["lane"].n_unique(),
            "num_of_ops": work["name"].n_unique(),
            "op_exe_times": work.height,
            "max_scope_name_num": slashes or 0,
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
