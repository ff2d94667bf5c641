# SPDX-License-Identifier: Apache-2.0
"""Reads a recording's logs, manifest and frameworks' bytes into a Trace, and writes its tables."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from strobe.assemble.tables import First, Progress, assemble
from strobe.finalize.foreign import Foreign, Report, read_foreign
from strobe.finalize.log_trace import read_log
from strobe.model.arrays import Int64
from strobe.model.tables import SOURCES
from strobe.model.trace import (
    UNFINISHED,
    Clock,
    Held,
    Source,
    Steps,
    Trace,
    Wanted,
    combine,
    concatenate,
)
from strobe.store import files, rounds
from strobe.store import log as chunk_log
from strobe.store.log import ProcessLog
from strobe.store.manifest import IMPORTED, Manifest
from strobe.store.references import LOG, Logs
from strobe.store.spill import Spill

_FACTS_OF_SOURCES = ("version", "devices", "memory")
"""Facts reported by sources that become metadata of the recording."""
_ESTIMATED = "its own time is estimated from the number of events"


def build(
    logs: Logs,
    manifest: Manifest,
    into: Path,
    progress: Progress,
    first: First = lambda _operators: None,
) -> bool:
    """Write all tables of a recording into a directory; `first` gets the operators early.

    Returns False if a log or a ring is missing, else True.
    """
    progress("reading", 0.0)
    spill = Spill(into)
    with spill.large_arrays():
        recorded = read_recording(logs, manifest, spill)
        assemble(recorded.trace, into, progress, first, spill, rows=recorded.records)
    return recorded.is_complete


@dataclass(frozen=True)
class Recorded:
    """What a recording's logs hold."""

    trace: Trace
    records: int
    """How many records the logs hold: about as many as there will be rows."""
    is_complete: bool
    """Whether nothing is missing that may be found again."""


def read_recording(logs: Logs, manifest: Manifest, spill: Spill) -> Recorded:
    """Return a recording's own records and frameworks' traces, on the monotonic clock."""
    processes = [each for directory in logs.found for each in chunk_log.read(directory, spill)]
    missing = [*logs.missing, *(each for process in processes for each in process.missing)]
    if not processes and not missing and manifest.recorder != IMPORTED:
        missing.append("the log is missing: its folder is empty")
    own, nameless, without_attributes = read_log(processes, manifest, spill)
    prefix = _prefix(manifest)
    of_process = [each.prefix for each in processes if prefix in each.prefix]
    foreign = read_foreign(logs.found, manifest, of_process[0] if of_process else prefix)
    trace = combine([own, *foreign.traces])
    if manifest.clock != "monotonic":
        trace = trace.moved(_clock(manifest))
    end_ns, is_known = _find_end(manifest, trace)
    start_ns = manifest.start.monotonic_ns
    held = _read_held(logs.found, start_ns) if manifest.wants.get("memory") else []
    problems = _Problems(
        missing=missing,
        nameless=nameless,
        without_attributes=without_attributes,
        end_is_known=is_known,
        uncounted=bool(logs.missing) or not processes or any(each.uncounted for each in processes),
        dropped=_count_dropped(manifest, processes, start_ns, end_ns),
        unread_tensors=sum(content.get("unread", 0) for content in held),
    )
    trace = replace(
        trace,
        start_ns=start_ns,
        end_ns=end_ns,
        steps=_with_the_last(trace.steps, manifest, end_ns),
        held=[each for content in held for each in _held_blocks(content)],
        memory_lines=_read_memory_lines(manifest, logs.found),
        groups=_groups(manifest),
        wanted=_wanted(manifest),
        sources=_sources(manifest, processes, foreign, problems),
        metadata=_metadata(manifest, processes, start_ns, end_ns),
    )
    # Names that are lost although all of them were written may be found again.
    may_be_found = bool(nameless) and not manifest.stats.get("lost_definitions")
    records = sum(len(each) for process in processes for each in process.records)
    return Recorded(trace, records, is_complete=not missing and not may_be_found)


def _prefix(manifest: Manifest) -> str:
    """Return the part of file names that identifies the recording process."""
    return f"-{manifest.pid}-{manifest.process_start}-"


def _clock(manifest: Manifest) -> Clock:
    """Return the conversion from the records' clock to the monotonic one, by the two anchors."""
    first, last = manifest.start, manifest.stop
    drift = 0.0
    if last is not None and last.clock_ns > first.clock_ns:
        drift = (last.monotonic_ns - first.monotonic_ns) / (last.clock_ns - first.clock_ns) - 1

    def moved(times: Int64) -> Int64:
        since = times - first.clock_ns
        corrected: Int64 = since + np.rint(since * drift).astype(np.int64)
        return first.monotonic_ns + corrected

    return moved


def _find_end(manifest: Manifest, trace: Trace) -> tuple[int, bool]:
    """Return when the recording ended, and False if that is only the time of its last record."""
    bound_ns = 1 << 62
    if manifest.max_seconds is not None:  # it ends then, whether or not anybody called step()
        bound_ns = manifest.start.monotonic_ns + round(manifest.max_seconds * 1e9)
    if manifest.stop is not None:
        return min(manifest.stop.monotonic_ns, bound_ns), True
    last = manifest.start.monotonic_ns
    for spans in trace.spans:
        ends = spans.start_ns + np.where(spans.dur_ns == UNFINISHED, 0, spans.dur_ns)
        last = int(ends.max(initial=last))
    for points in (*trace.instants, *trace.counters):
        last = int(points.start_ns.max(initial=last))
    return min(last, bound_ns), False


def _with_the_last(steps: Steps | None, manifest: Manifest, end_ns: int) -> Steps | None:
    """Add the step that was still going on at the end."""
    if steps is None or manifest.ended_with_step or steps.is_request.all():
        return steps
    marked = steps.take(~steps.is_request)
    last = int(np.argmax(marked.number))
    begun_ns = int(marked.start_ns[last] + marked.dur_ns[last])
    if begun_ns >= end_ns:
        return steps
    going_on = Steps(
        start_ns=np.array([begun_ns], np.int64),
        dur_ns=np.array([end_ns - begun_ns], np.int64),
        number=marked.number[last : last + 1] + 1,
        samples=np.array([-1], np.int64),
        lane=np.array([-1], np.int32),
        is_request=np.array([False]),
        unfinished=np.array([True]),
    )
    every = concatenate([steps, going_on], Steps)
    return every.take(np.argsort(every.start_ns, kind="stable"))


def _wanted(manifest: Manifest) -> Wanted:
    wants = manifest.wants
    stacks = wants.get("stacks", {})
    return Wanted(
        memory=bool(wants.get("memory")),
        flops=bool(wants.get("flops")),
        modules=bool(wants.get("modules")),
        traced=bool(stacks.get("traced")),
        sampled=bool(stacks.get("rate_hz")),
        include=tuple(stacks.get("include", ())),
        exclude=tuple(stacks.get("exclude", ())),
        min_ns=stacks.get("min_ns", 0),
    )


def _groups(manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
    """Return the groups of processes that sources know, by name."""
    found: dict[str, Mapping[str, Any]] = {}
    for report in manifest.sources.values():
        found.update(report["facts"].get("groups", {}))
    return found


def _read_held(log_directories: Iterable[Path], start_ns: int) -> list[dict[str, Any]]:
    """Return what each process wrote about its memory when it began to record in this window."""
    latest: dict[int, dict[str, Any]] = {}
    for directory in log_directories:
        for path in filter(files.is_regular, files.list_folder(directory, "alive-*.json")):
            content = json.loads(files.read_text(path))
            known = latest.get(content["pid"])
            # The last that was written before the window, else the first one in it.
            if known is None or known["start_ns"] < content["start_ns"] <= start_ns:
                latest[content["pid"]] = content
    return list(latest.values())


def _held_blocks(content: Mapping[str, Any]) -> list[Held]:
    """Return the memory that a process had allocated before."""
    return [
        Held(content["pid"], size, address, device) for address, size, device in content["storages"]
    ]


def _read_memory_lines(manifest: Manifest, directories: Sequence[Path]) -> list[dict[str, Any]]:
    """Return what lines of Python held, as the source wrote it."""
    rows = []
    names = [report["facts"].get("lines") for report in manifest.sources.values()]
    for path in (folder / Path(name).name for folder in directories for name in names if name):
        content: dict[str, Any] = {"moments": []}
        if files.is_regular(path):
            content = json.loads(files.read_text(path))
        for moment in content["moments"]:
            facts = {"moment": moment["moment"], "start_ns": moment["start_ns"]}
            facts |= {"held_bytes": moment["bytes"], "peak_bytes": moment["peak_bytes"]}
            for file, line, size, blocks in moment["lines"]:
                held = {"file": file, "line": line, "bytes": size, "blocks": blocks}
                rows.append({**facts, **held, "pid": content["pid"]})
    return rows


@dataclass(frozen=True)
class _Problems:
    """What is missing from the tables."""

    missing: Sequence[str]
    nameless: int
    without_attributes: int
    end_is_known: bool
    uncounted: bool
    """Whether the number of missing records is unknown."""
    dropped: int
    unread_tensors: int
    """Tensors from before the recording whose memory could not be read."""


def _sources(
    manifest: Manifest, processes: Sequence[ProcessLog], foreign: Foreign, problems: _Problems
) -> list[Source]:
    is_known = bool(problems.dropped) or not problems.uncounted
    dropped = problems.dropped if is_known else None
    in_rings = [name for name, report in manifest.sources.items() if report["source_class"] == "A"]
    loss = f"the lost records are of any of these sources: {', '.join(['spans', *in_rings])}"
    once_ns = manifest.stats.get("start_stop_ns")
    if once_ns is not None:
        once_ns += sum(process.once_ns for process in processes)
    spans = Source(
        name="spans",
        source_class="A",
        rows="own",
        dropped=dropped,
        loss_is_shared=bool(in_rings),
        own_ns=sum(process.own_ns for process in processes),
        costs_ns=manifest.costs_ns or {"user": manifest.span_cost_ns},
        once_ns=once_ns,
        drain_ns=sum(process.drain_ns for process in processes),
        clock_residual_ns=_residual_ns(manifest),
        notes=[
            *problems.missing,
            *_notes(manifest, processes, problems),
            *([loss] if dropped and in_rings else []),
        ],
    )
    sources = [
        _framework_source(name, report, foreign.reports.get(name, Report()), manifest, dropped)
        for name, report in manifest.sources.items()
    ]
    # A program that was killed leaves no report of its own.
    unreported = [
        Source(
            name=name,
            source_class="B",
            rows="own" if name in SOURCES else None,
            notes=report.notes,
            skipped=report.skipped,
        )
        for name, report in foreign.reports.items()
        if name not in manifest.sources
    ]
    unanswered = [
        Source(name=option, notes=[f"asked for and not collected: {reason}"])
        for option, reason in manifest.missing.items()
    ]
    return [spans, *sources, *unreported, *unanswered]


def _framework_source(
    name: str, recorded: Mapping[str, Any], read: Report, manifest: Manifest, lost: int | None
) -> Source:
    """Join what a source reported while it recorded with how its traces could be read.

    `lost`: records of any source that are missing from the rings.
    """
    hook_ns, span_ns = manifest.costs_ns.get("hook", 0.0), manifest.costs_ns.get("user", 0.0)
    hooks = {kind: cost_ns + hook_ns for kind, cost_ns in manifest.costs_ns.items()}
    in_spans = recorded.get("costs_in_spans") or {}
    estimated = {kind: count * span_ns for kind, count in in_spans.items()}
    return Source(
        name=name,
        source_class=recorded["source_class"],
        rows="own" if name in SOURCES else None,
        dropped=0 if lost == 0 and recorded["source_class"] == "A" else None,
        own_ns=recorded.get("own_ns"),
        costs_ns={**hooks, "attributes": 0.0, **(recorded.get("costs_ns") or {}), **estimated},
        once_ns=recorded.get("once_ns"),
        drain_ns=recorded["facts"].get("own_cpu_ns"),
        clock_residual_ns=read.residual_ns,
        notes=[_way(recorded), *read.notes, *([_ESTIMATED] if in_spans else [])],
        skipped=read.skipped,
    )


def _way(report: Mapping[str, Any]) -> str:
    """Say how a source recorded, and why in that way."""
    if report["path"] == "none":
        return f"not recorded: {report['reason']}"
    return f"by {report['path']}: {report['reason']}"


def _count_dropped(
    manifest: Manifest, processes: Sequence[ProcessLog], start_ns: int, end_ns: int
) -> int:
    """Return how many records of the window are lost, as far as that is known."""
    gaps = [gap for process in processes for gap in process.gaps]
    dropped = sum(gap.count for gap in gaps if gap.before_ns >= start_ns and gap.after_ns <= end_ns)
    own = [process for process in processes if _prefix(manifest) in process.prefix]
    if not own and manifest.log != LOG:
        return dropped  # the count is that of the whole log, from before this recording too
    found = sum(process.dropped + sum(map(len, process.records)) for process in own)
    return dropped + max(0, manifest.stats.get("records", 0) - found)


def _residual_ns(manifest: Manifest) -> int | None:
    if manifest.stop is None:
        return None
    monotonic_ns = manifest.stop.monotonic_ns - manifest.start.monotonic_ns
    return manifest.stop.wall_ns - manifest.start.wall_ns - monotonic_ns


def _failures(manifest: Manifest, processes: Sequence[ProcessLog]) -> Iterable[str]:
    """Yield a sentence for each reason why processes could not write."""
    failed: dict[str, list[Any]] = {}
    for process in processes:
        if process.failed_errno:
            reason = _failure(process.failed_errno, manifest)
            failed.setdefault(reason, []).append(process.process.get("pid"))
    if manifest.stats.get("failed_errno") and not failed:
        failed[os.strerror(manifest.stats["failed_errno"])] = [manifest.pid]
    for reason, pids in failed.items():
        who = "process" if len(pids) == 1 else "processes"
        yield f"{who} {', '.join(map(str, pids))} could not write ({reason})"


def _failure(number: int, manifest: Manifest) -> str:
    """Return the reason: rings have EDQUOT for the bound, unless it is the disk's own error."""
    if number != errno.EDQUOT or manifest.stats.get("failed_errno") == errno.EDQUOT:
        return os.strerror(number)
    bound = manifest.stats.get("max_bytes")
    return f"max_bytes={bound} is reached" if bound else "max_bytes is reached"


def _notes(manifest: Manifest, processes: Sequence[ProcessLog], problems: _Problems) -> list[str]:
    notes = []
    if not problems.end_is_known:
        notes.append("the program ended without stop(): the recording ends with its last record")
    deleted = manifest.metadata.get(rounds.DELETED_ROUNDS)
    if deleted:
        notes.append(
            f"{deleted} earlier rounds of this program were deleted, "
            f"{manifest.metadata.get(rounds.DELETED_BYTES)} bytes in all "
            f"(max_total_bytes={manifest.metadata.get(rounds.MAX_TOTAL_BYTES)} is reached)"
        )
    notes += _failures(manifest, processes)
    for process in processes:
        notes += process.faults
    if problems.unread_tensors:
        notes.append(
            f"{problems.unread_tensors} tensors that existed at the start failed to say how much "
            "memory they hold: it is not counted"
        )
    if problems.nameless:
        notes.append(f"{problems.nameless} records have lost their names")
    if problems.without_attributes:
        notes.append(f"{problems.without_attributes} records have lost their attributes")
    if manifest.stats.get("lost_definitions"):
        notes.append(f"{manifest.stats['lost_definitions']} names could not be written at first")
    if manifest.stats.get("forgotten_errors"):
        notes.append(f"{manifest.stats['forgotten_errors']} failures inside the recorder")
    return notes


def _metadata(
    manifest: Manifest, processes: Sequence[ProcessLog], start_ns: int, end_ns: int
) -> dict[str, Any]:
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
        "start_ns": start_ns,
        "end_ns": end_ns,
        "start_wall_ns": manifest.start.wall_ns,
        "span_cost_ns": manifest.span_cost_ns,
        **manifest.metadata,
    }
    for name, report in manifest.sources.items():
        facts |= {f"{name}_path": report["path"], f"{name}_reason": report["reason"]}
        reported = report["facts"]
        facts |= {f"{name}_{key}": reported[key] for key in _FACTS_OF_SOURCES if reported.get(key)}
        facts |= {f"{name}_{key}": value for key, value in reported.get("metadata", {}).items()}
    return facts
