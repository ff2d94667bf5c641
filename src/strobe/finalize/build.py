# SPDX-License-Identifier: Apache-2.0
"""A recording's log -> its tables."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from strobe.analysis.operators import in_order, summarise_coded
from strobe.finalize.batches import Marks, batches_table, take_marks
from strobe.finalize.foreign import Added, add_foreign
from strobe.finalize.gather import Gathered, Log, concatenate, gather
from strobe.finalize.merge import Table, merge
from strobe.finalize.relations import (
    allocations,
    derive,
    known,
    lane_ids,
    number_engine,
    read_alive,
    within_memory,
)
from strobe.finalize.stacks import gather_calls, sampled_stacks, split_calls
from strobe.finalize.steps import steps_table
from strobe.model.arrays import Bool, Int64
from strobe.model.nesting import nest
from strobe.model.tables import CATEGORIES
from strobe.model.text import escape
from strobe.store import files
from strobe.store import log as chunk_log
from strobe.store.log import ProcessLog
from strobe.store.manifest import IMPORTED, Manifest
from strobe.store.parquet import ROW_GROUP_ROWS, Coded, Column, TableWriter
from strobe.store.references import LOG, Logs
from strobe.store.tables import empty, file_path, file_schema

Progress = Callable[[str, float], None]
First = Callable[[pl.DataFrame], None]

_FACTS_OF_SOURCES = ("version", "devices", "memory")
"""What goes into the recording's metadata of the facts that a source reports."""


@dataclass(frozen=True)
class _Window:
    start_ns: int
    end_ns: int
    known_end: bool


def build(
    logs: Logs,
    manifest: Manifest,
    into: Path,
    progress: Progress,
    first: First = lambda _operators: None,
) -> bool:
    """Write all tables of a recording into a directory; `first` gets that of operators early.

    Returns whether all that was recorded is there: False if a log or a ring is missing.
    """
    log_directories = logs.found
    progress("reading", 0.0)
    processes = [process for directory in log_directories for process in chunk_log.read(directory)]
    missing = [*logs.missing, *(each for process in processes for each in process.missing)]
    if not processes and not missing and manifest.recorder != IMPORTED:
        missing.append("the log is missing: its folder is empty")
    log = gather(processes)
    _name_threads(log, manifest)
    foreign = add_foreign(log, log_directories, manifest)
    marks = take_marks(log)
    if manifest.clock != "monotonic":
        _set_to_monotonic(log, marks, manifest)
    window = _find_window(manifest, log)
    called = split_calls(log)
    spans, unfinished = _cut(log, window)
    progress("nesting", 0.3)
    parent, self_ns = nest(spans.lane, spans.start_ns, spans.start_ns + spans.dur_ns)
    operators = _operators(spans, self_ns, log.names)
    first(operators)
    number_engine(spans, parent)
    derived = derive(spans, parent, unfinished, log, manifest)
    stacks_wanted = manifest.wants.get("stacks", {})
    calls, stacks = gather_calls(called, log, stacks_wanted, window.start_ns, window.end_ns)
    sampled = sampled_stacks(stacks, spans, parent, log)
    table = merge(spans, parent, self_ns, unfinished, derived, calls, sampled)
    with TableWriter(file_path(into, "spans"), file_schema("spans")) as writer:
        _write_spans(writer, table, log, progress)
    for name, columns in vars(stacks).items():
        _write(into, name, columns)
    _write(into, "operators", dict(operators.to_dict()))
    _write(into, "links", table.moved(derived.links, "source", "target"))
    # Another profiler that recorded at the same time may have asked for it.
    asked = manifest.wants.get("memory", False)
    memory = within_memory(log.memory, window.start_ns, window.end_ns if asked else -1)
    alive = read_alive(log_directories if asked else [], window.start_ns)
    allocated = allocations(memory, spans, log, alive, window.start_ns)
    _write(into, "allocations", table.moved(allocated, "span"))
    _write(
        into, "steps", steps_table(log, manifest, spans, unfinished, window.end_ns, derived.steps)
    )
    _write(into, "memory_lines", _memory_lines(manifest, log_directories))
    instants = _within(log.instants, window)
    counters = _within(log.counters, window)
    _write(into, "instants", _points(instants, log, attributes=True))
    _write(into, "counters", _counters(counters, log))
    _write(into, "collectives", table.moved(derived.collectives, "span", "work"))
    marks = marks.between(window.start_ns, window.end_ns)
    _write(into, "batches", table.moved(batches_table(marks, spans, log), "span"))
    _write(into, "threads", _threads(log))
    completeness = _completeness(
        manifest,
        processes,
        collected=len(spans) + len(instants) + len(counters) + len(marks) + len(memory.start_ns),
        unfinished=int(unfinished.sum()),
        window=window,
        nameless=log.nameless,
        framework_rows=int(np.count_nonzero(spans.category)) + len(memory.start_ns),
        call_rows=len(calls.spans) + len(stacks.samples["stack"]),  # type: ignore[arg-type]
        calls_unfinished=int(calls.unfinished.sum()),
        foreign=foreign,
        missing=missing,
        uncounted=bool(logs.missing) or not processes or any(each.uncounted for each in processes),
    )
    _write(into, "completeness", completeness)
    _write(into, "metadata", _metadata(manifest, processes, window))
    progress("done", 1.0)
    # Names that are lost although all of them were written may be found again.
    return not missing and (not log.nameless or bool(manifest.stats.get("lost_definitions")))


def _name_threads(log: Log, manifest: Manifest) -> None:
    """Give threads that only the system has named the names that Python knew at the stop."""
    for lane in log.lanes:
        if lane["system_name"] and lane["pid"] == manifest.pid:
            lane["thread"] = escape(manifest.threads.get(str(lane["tid"]), lane["thread"]))


def _find_window(manifest: Manifest, log: Log) -> _Window:
    bound = _bound_ns(manifest)
    if manifest.stop is not None:
        end = min(manifest.stop.monotonic_ns, bound)
        return _Window(manifest.start.monotonic_ns, end, known_end=True)
    last = manifest.start.monotonic_ns
    for part in (log.spans, log.instants, log.counters, log.unfinished):
        last = max(last, int(part.start_ns.max(initial=last)))
    last = max(last, int((log.spans.start_ns + log.spans.dur_ns).max(initial=last)))
    return _Window(manifest.start.monotonic_ns, min(last, bound), known_end=False)


def _bound_ns(manifest: Manifest) -> int:
    """Return when max_seconds ends the recording, whether or not anybody called step()."""
    if manifest.max_seconds is None:
        return 1 << 62
    return manifest.start.monotonic_ns + round(manifest.max_seconds * 1e9)


def _set_to_monotonic(log: Log, marks: Marks, manifest: Manifest) -> None:
    """Move times from the records' clock to the system's, by what the two showed at both ends."""
    first, last = manifest.start, manifest.stop
    drift = 0.0
    if last is not None and last.clock_ns > first.clock_ns:
        drift = (last.monotonic_ns - first.monotonic_ns) / (last.clock_ns - first.clock_ns) - 1

    def moved(times: Int64) -> Int64:
        since = times - first.clock_ns
        corrected: Int64 = since + np.rint(since * drift).astype(np.int64)
        return first.monotonic_ns + corrected

    for lasting in (log.spans, log.steps, marks):
        lasting.dur_ns = moved(lasting.start_ns + lasting.dur_ns) - moved(lasting.start_ns)
    points = (log.unfinished, log.instants, log.counters, log.memory, log.samples)
    for part in (log.spans, log.steps, marks, *points):
        part.start_ns = moved(part.start_ns)
    log.memory.owner_ns = moved(log.memory.owner_ns)


def _within(part: Gathered, window: _Window) -> Gathered:
    mask = (part.start_ns >= window.start_ns) & (part.start_ns <= window.end_ns)
    return part if mask.all() else part.take(mask)


def _cut(log: Log, window: _Window) -> tuple[Gathered, Bool]:
    """Return the spans that began in the window, by start, and which had not ended by its end."""
    ended = _within(log.spans, window)
    never_ended = _within(log.unfinished, window)
    if len(never_ended):
        never_ended.dur_ns[:] = window.end_ns - never_ended.start_ns
        ended = concatenate([ended, never_ended])
    unfinished = np.zeros(len(ended), bool)
    unfinished[len(ended) - len(never_ended) :] = True
    late = ended.dur_ns > window.end_ns - ended.start_ns
    unfinished |= late
    ended.dur_ns[late] = window.end_ns - ended.start_ns[late]
    order = np.argsort(ended.start_ns, kind="stable")
    if (np.diff(ended.start_ns[order]) == 0).any():
        order = np.lexsort((-ended.dur_ns, ended.start_ns))
    return ended.take(order), unfinished[order]


def _operators(spans: Gathered, self_ns: Int64, names: list[str]) -> pl.DataFrame:
    coded = pl.DataFrame(
        {
            "name": spans.name,
            "lane": spans.lane,
            "start_ns": spans.start_ns,
            "dur_ns": spans.dur_ns,
            "self_ns": self_ns,
        }
    )
    rows = summarise_coded(coded, len(names))
    named = rows.with_columns(pl.Series(names, dtype=pl.String).gather(rows["name"]).alias("name"))
    return in_order(named)


def _write_spans(writer: TableWriter, table: Table, log: Log, progress: Progress) -> None:
    spans, parent, self_ns = table.spans, table.parent, table.self_ns
    pids, tids = lane_ids(log)
    for first in range(0, len(spans), ROW_GROUP_ROWS):
        rows = slice(first, first + ROW_GROUP_ROWS)
        numbers = np.arange(first, min(first + ROW_GROUP_ROWS, len(spans)))
        lane = spans.lane[rows]
        writer.append(
            {
                "name": Coded(spans.name[rows], log.names),
                "category": Coded(spans.category[rows].astype(np.int32), CATEGORIES),
                "phase": _texts_or_null(table.phase, rows),
                "module": _texts_or_null(table.module, rows),
                "start_ns": spans.start_ns[rows],
                "dur_ns": spans.dur_ns[rows],
                "covered_ns": spans.dur_ns[rows] - self_ns[rows],
                "pid": pids.gather(lane),
                "tid": tids.gather(lane),
                "lane": lane,
                "device": _numbers_or_null(spans.device, rows),
                "stream": _numbers_or_null(spans.stream, rows),
                "correlation": _numbers_or_null(spans.correlation, rows),
                "sequence": _numbers_or_null(spans.sequence, rows),
                "flops": None if table.flops is None else table.flops[rows],
                "parent_distance": known(np.where(parent[rows] < 0, -1, numbers - parent[rows])),
                "stack": _numbers_or_null(table.stack, rows),
                "unfinished": table.unfinished[rows],
                "attributes": Coded(spans.attributes[rows], log.attributes),
            }
        )
        progress("writing", 0.4 + 0.6 * min(1.0, (first + ROW_GROUP_ROWS) / len(spans)))


def _texts_or_null(texts: Coded | None, rows: slice) -> Coded | None:
    return None if texts is None else Coded(texts.codes[rows], texts.texts)


def _numbers_or_null(numbers: Int64 | None, rows: slice) -> pl.Series | None:
    return None if numbers is None else known(numbers[rows])


def _points(part: Gathered, log: Log, *, attributes: bool) -> dict[str, Column]:
    order = np.argsort(part.start_ns, kind="stable")
    part = part.take(order)
    pids, tids = lane_ids(log)
    columns: dict[str, Column] = {
        "name": Coded(part.name, log.names),
        "start_ns": part.start_ns,
        "pid": pids.gather(part.lane),
        "tid": tids.gather(part.lane),
        "lane": part.lane,
    }
    if attributes:
        columns["attributes"] = Coded(part.attributes, log.attributes)
    return columns


def _counters(part: Gathered, log: Log) -> dict[str, Column]:
    order = np.argsort(part.start_ns, kind="stable")
    values = np.ascontiguousarray(part.dur_ns[order]).view(np.float64)
    return {**_points(part, log, attributes=False), "value": values}


def _memory_lines(manifest: Manifest, directories: list[Path]) -> dict[str, Column]:
    """Return what lines of Python held, as the source has written it."""
    rows = []
    schema = empty("memory_lines").schema
    names = [report["facts"].get("lines") for report in manifest.sources.values()]
    for path in (folder / Path(name).name for folder in directories for name in names if name):
        content: dict[str, Any] = {"moments": []}
        if files.is_regular(path):
            content = json.loads(files.read_text(path))
        for moment in content["moments"]:
            facts = {"moment": moment["moment"], "start_ns": moment["start_ns"]}
            facts |= {"held_bytes": moment["bytes"], "peak_bytes": moment["peak_bytes"]}
            for file, line, size, blocks in moment["lines"]:
                told = {"file": file, "line": line, "bytes": size, "blocks": blocks}
                rows.append({**facts, **told, "pid": content["pid"]})
    frame = pl.DataFrame(rows, schema=schema)
    return dict(frame.to_dict())


def _threads(log: Log) -> dict[str, Column]:
    kinds = {
        "pid": pl.Int64,
        "tid": pl.Int64,
        "thread": pl.String,
        "context": pl.Int64,
        "process": pl.String,
    }
    columns: dict[str, Column] = {"lane": np.arange(len(log.lanes), dtype=np.int32)}
    for name, kind in kinds.items():
        columns[name] = pl.Series([lane[name] for lane in log.lanes], dtype=kind)
    return columns


def _completeness(
    manifest: Manifest,
    processes: list[ProcessLog],
    *,
    collected: int,
    unfinished: int,
    window: _Window,
    nameless: int,
    framework_rows: int,
    call_rows: int,
    calls_unfinished: int,
    foreign: Mapping[str, Added],
    missing: list[str],
    uncounted: bool,
) -> dict[str, Column]:
    gaps = [gap for process in processes for gap in process.gaps]
    dropped = sum(
        gap.count
        for gap in gaps
        if gap.before_ns >= window.start_ns and gap.after_ns <= window.end_ns
    )
    dropped += _missing(manifest, processes)
    is_known = bool(dropped) or not uncounted
    own_ns = sum(process.own_ns for process in processes) + manifest.stats.get("start_stop_ns", 0)
    own_ns += round(manifest.span_cost_ns * collected)
    spans: dict[str, Any] = {
        "source": "spans",
        "source_class": "A",
        "asked": collected + dropped if is_known else None,
        "collected": collected,
        "dropped": dropped if is_known else None,
        "unfinished": unfinished,
        "own_ns": own_ns,
        "drain_ns": sum(process.drain_ns for process in processes),
        "clock_residual_ns": _residual_ns(manifest),
        "note": "; ".join([*missing, *_notes(manifest, processes, window, nameless)]) or None,
    }
    sources = [
        {
            "source": name,
            "source_class": report["source_class"],
            "collected": _collected(name, report, framework_rows, call_rows),
            "unfinished": calls_unfinished if name == "python_calls" else None,
            "drain_ns": report["facts"].get("own_cpu_ns"),
            "clock_residual_ns": foreign.get(name, Added()).residual_ns,
            "note": "; ".join([_way(report), *foreign.get(name, Added()).notes]),
        }
        for name, report in manifest.sources.items()
    ]
    # Of a program that was killed there is no report.
    sources += [
        {"source": name, "source_class": "B", "note": "; ".join(added.notes) or None}
        for name, added in foreign.items()
        if name not in manifest.sources
    ]
    unanswered = [
        {"source": option, "note": f"asked for and not collected: {reason}"}
        for option, reason in manifest.missing.items()
    ]
    rows = [spans, *sources, *unanswered]
    empty_row = empty("completeness")
    return {
        name: pl.Series([row.get(name) for row in rows], dtype=dtype)
        for name, dtype in empty_row.schema.items()
    }


def _collected(name: str, report: Mapping[str, Any], framework_rows: int, call_rows: int) -> int:
    rows = call_rows if name == "python_calls" else framework_rows
    collected: int = report["facts"].get("collected", rows)
    return collected


def _way(report: Mapping[str, Any]) -> str:
    """Say by which way a source recorded, and why by that one."""
    if report["path"] == "none":
        return f"not recorded: {report['reason']}"
    return f"by {report['path']}: {report['reason']}"


def _missing(manifest: Manifest, processes: list[ProcessLog]) -> int:
    """Return how many records the recording process had made at stop() and left nowhere."""
    prefix = f"-{manifest.pid}-{manifest.process_start}-"
    own = [process for process in processes if prefix in process.prefix]
    if not own and manifest.log != LOG:
        return 0  # unknown: the count is that of the whole log, from before this recording too
    found = sum(process.dropped + sum(map(len, process.records)) for process in own)
    return max(0, manifest.stats.get("records", 0) - found)


def _residual_ns(manifest: Manifest) -> int | None:
    if manifest.stop is None:
        return None
    monotonic_ns = manifest.stop.monotonic_ns - manifest.start.monotonic_ns
    return manifest.stop.wall_ns - manifest.start.wall_ns - monotonic_ns


def _failure(number: int) -> str:
    return "max_bytes is reached" if number == errno.EDQUOT else os.strerror(number)


def _notes(
    manifest: Manifest, processes: list[ProcessLog], window: _Window, nameless: int
) -> list[str]:
    notes = []
    if not window.known_end:
        notes.append("the program ended without stop(): the recording ends with its last record")
    for process in processes:
        if process.failed_errno:
            reason = _failure(process.failed_errno)
            notes.append(f"process {process.process.get('pid')} could not write ({reason})")
        notes += process.faults
    if manifest.stats.get("failed_errno") and not any(p.failed_errno for p in processes):
        reason = _failure(manifest.stats["failed_errno"])
        notes.append(f"process {manifest.pid} could not write ({reason})")
    if nameless:
        notes.append(f"{nameless} records have lost their names")
    if manifest.stats.get("lost_definitions"):
        notes.append(f"{manifest.stats['lost_definitions']} names could not be written at first")
    if manifest.stats.get("forgotten_errors"):
        notes.append(f"{manifest.stats['forgotten_errors']} failures inside the recorder")
    return notes


def _metadata(
    manifest: Manifest, processes: list[ProcessLog], window: _Window
) -> dict[str, Column]:
    facts: dict[str, Any] = {
        "name": manifest.name,
        "id": manifest.id,
        "strobe": manifest.strobe,
        "format": manifest.format,
        "recorder": manifest.recorder,
        "clock": manifest.clock,
        "host": manifest.host,
        "pid": manifest.pid,
        "processes": len(processes),
        "first_step": manifest.first_step,
        "start_ns": window.start_ns,
        "end_ns": window.end_ns,
        "start_wall_ns": manifest.start.wall_ns,
        "span_cost_ns": manifest.span_cost_ns,
        **manifest.metadata,
    }
    for name, report in manifest.sources.items():
        facts |= {f"{name}_path": report["path"], f"{name}_reason": report["reason"]}
        told = report["facts"]
        facts |= {f"{name}_{key}": told[key] for key in _FACTS_OF_SOURCES if told.get(key)}
        facts |= {f"{name}_{key}": value for key, value in told.get("metadata", {}).items()}
    texts = [value if isinstance(value, str) else json.dumps(value) for value in facts.values()]
    # A path need not be Unicode.
    texts = [text.encode(errors="backslashreplace").decode() for text in texts]
    return {"key": pl.Series(list(facts)), "value": pl.Series(texts, dtype=pl.String)}


def _write(into: Path, table: str, columns: dict[str, Column]) -> None:
    with TableWriter(file_path(into, table), file_schema(table)) as writer:
        writer.append(columns)
