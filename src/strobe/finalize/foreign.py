# SPDX-License-Identifier: Apache-2.0
"""Reads the traces that frameworks' own profilers left in a log (class B), on our clock.

Beside each trace lies a file of facts: the importer that reads it, and anchors for its clock.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from strobe.errors import FormatError
from strobe.model.clocks import align
from strobe.model.text import escape
from strobe.model.trace import Allocations, Spans, Thread, Trace, concatenate, split
from strobe.store import files
from strobe.store.manifest import Manifest
from strobe.store.places import FACTS, HELD

_LOST = "what the framework's own profiler held when the program ended is lost"
# The names that sources use for some readers -> importer and options.
_READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "xspace": ("xspace", {"shapes": False}),
    "xspace with shapes": ("xspace", {}),
    "paddle JSON": ("paddle_json", {}),
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a source's traces could be read: their clock error, problems, and what was skipped."""

    residual_ns: int | None = None
    notes: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Foreign:
    """The traces of frameworks, and a report on each source."""

    traces: Sequence[Trace]
    reports: Mapping[str, Report]


class _Outcome(NamedTuple):
    """The result of reading one trace."""

    source: str
    report: Report
    trace: Trace | None = None


def read_foreign(directories: Sequence[Path], manifest: Manifest, process: str) -> Foreign:
    """Read every trace in the logs, assigned to the process that recorded.

    The reports say which could not be read.
    """
    listed = sorted(path for each in directories for path in files.list_folder(each))
    outcomes: list[_Outcome] = []
    for path in (path for path in listed if path.suffix == FACTS and files.is_regular(path)):
        facts = json.loads(files.read_text(path))
        read = [each.source for each in outcomes if each.trace is not None]
        is_first = facts["source"] not in read
        outcomes.append(
            _read_one(path.with_suffix(""), facts, manifest, process, is_first=is_first)
        )
    if manifest.stop is None:
        held = [path.stem for path in listed if path.suffix == HELD]
        outcomes += [_Outcome(source, Report(notes=[_LOST])) for source in held]
    parts: dict[str, list[Report]] = defaultdict(list)
    for outcome in outcomes:
        parts[outcome.source].append(outcome.report)
    return Foreign(
        [outcome.trace for outcome in outcomes if outcome.trace is not None],
        {source: _summarise(reports) for source, reports in parts.items()},
    )


def _summarise(parts: Sequence[Report]) -> Report:
    """Merge the reports on a source's traces into one."""
    residuals = [part.residual_ns for part in parts if part.residual_ns is not None]
    return Report(
        residual_ns=max(residuals, default=None),
        notes=[note for part in parts for note in part.notes],
        skipped=sum((Counter(part.skipped) for part in parts), Counter()),
    )


def _read_one(
    path: Path, facts: Mapping[str, Any], manifest: Manifest, process: str, *, is_first: bool
) -> _Outcome:
    """Read one trace and lay it on our clock; `is_first` if it is the source's first."""
    try:
        trace = _read(facts["reader"], path)
        aligned, residual_ns = _aligned(trace, facts, manifest, is_first=is_first)
    except (OSError, ValueError, KeyError, FormatError) as error:
        note = f"{path.name} could not be read ({error})"
        return _Outcome(facts["source"], Report(notes=[note]))
    notes = [*facts["notes"], *trace.notes]
    report = Report(residual_ns=residual_ns, notes=notes, skipped=trace.skipped)
    own = _adopt(aligned, manifest, process).of_source(facts["source"])
    return _Outcome(facts["source"], report, own)


def _read(reader: str, path: Path) -> Trace:
    from strobe.importers import IMPORTERS  # once it is needed: most recordings have none

    name, options = _READERS.get(reader, (reader, {}))
    modules: dict[str, Any] = {importer.NAME: importer for importer in IMPORTERS}
    trace: Trace = modules[name].read(path, **options)
    return trace


def _aligned(
    trace: Trace, facts: Mapping[str, Any], manifest: Manifest, *, is_first: bool
) -> tuple[Trace, int]:
    """Lay a trace on the records' clock, using the marks in it, which are then left out.

    Returns the trace and the largest error that its times may have.
    """
    spans = concatenate(trace.spans, Spans)
    is_mark_name = [name == facts["anchor_name"] for name in trace.names]
    is_mark = np.array(is_mark_name or [False])[spans.name]
    marks_ns = np.sort(spans.start_ns[is_mark])
    if facts.get("marks_ns") is not None:
        marks_ns = np.array(facts["marks_ns"], np.int64)
    if len(marks_ns) != len(facts["anchors"]):
        message = f"{len(marks_ns)} of {len(facts['anchors'])} marks are in it"
        raise ValueError(message)
    clock = align(marks_ns, facts["anchors"])
    begun_ns = facts["anchors"][0][0]
    if is_first:
        start = manifest.start
        begun_ns = start.monotonic_ns if manifest.clock == "monotonic" else start.clock_ns
    numbered = [_with_number_of_system(each, facts.get("threads", {})) for each in trace.threads]
    moved = replace(trace, spans=split(spans.take(~is_mark)), threads=numbered).moved(clock.apply)
    memory = concatenate(moved.allocations, Allocations)
    kept = split(_begin(memory, begun_ns, keep_level=is_first))
    return replace(moved, allocations=kept), clock.residual_ns


def _with_number_of_system(thread: Thread, numbers: Mapping[str, int]) -> Thread:
    if thread.device is not None:
        return thread
    return thread._replace(tid=numbers.get(str(thread.tid), thread.tid))


def _begin(memory: Allocations, begun_ns: int, *, keep_level: bool) -> Allocations:
    """Leave out what blocks without an address did before the recording began.

    Only their sum can be known, so the memory in use at the beginning becomes one such block.
    """
    before = np.flatnonzero((memory.address == -1) & (memory.start_ns < begun_ns))
    if not len(before):
        return memory
    kept = np.ones(len(memory), bool)
    kept[before] = False
    if not keep_level or memory.allocated_bytes is None:
        return memory.take(kept)
    start_ns, size, owner_ns = memory.start_ns.copy(), memory.bytes.copy(), memory.owner_ns.copy()
    last = before[-1]
    kept[last], size[last] = True, memory.allocated_bytes[last]
    start_ns[last] = owner_ns[last] = begun_ns
    return replace(memory, start_ns=start_ns, bytes=size, owner_ns=owner_ns).take(kept)


def _adopt(trace: Trace, manifest: Manifest, process: str) -> Trace:
    """Assign the trace to the process that recorded, whatever process its file names."""
    return replace(trace, threads=[_adopted(each, manifest, process) for each in trace.threads])


def _adopted(thread: Thread, manifest: Manifest, process: str) -> Thread:
    tid = manifest.pid if thread.tid is None else thread.tid
    name = thread.name
    if thread.device is None:
        name = escape(manifest.threads.get(str(tid), name or f"thread {tid}"))
    return thread._replace(pid=manifest.pid, tid=tid, name=name, process=process)
