# SPDX-License-Identifier: Apache-2.0
"""What frameworks' own profilers left in a log (class B), laid on our clock, added to the rest.

Beside each trace lies a file of facts: which importer reads it, and what anchors its clock.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strobe.analysis.collectives import is_communication
from strobe.errors import FormatError
from strobe.finalize.gather import (
    Gathered,
    Log,
    Memory,
    concatenate,
    concatenate_memory,
)
from strobe.importers.events import Alignment, Counters, Events, align
from strobe.model.arrays import Bool, Int32, Int64, Places
from strobe.model.tables import CATEGORIES
from strobe.model.text import escape
from strobe.store import files
from strobe.store.manifest import Manifest
from strobe.store.places import FACTS, HELD

_ON_DEVICE = [CATEGORIES.index("kernel"), CATEGORIES.index("copy")]
_BACKWARD = CATEGORIES.index("backward")
_COMMUNICATION = CATEGORIES.index("communication")
_LOST = "what the framework's own profiler held when the program ended is lost"


# The readers that sources name: a module of strobe.importers, imported once it is needed, and how
# its `read` is to be called.
READERS: dict[str, tuple[str, dict[str, Any]]] = {
    "kineto": ("kineto", {}),
    "xspace": ("xspace", {"shapes": False}),
    "xspace with shapes": ("xspace", {}),
    "paddle": ("paddle", {}),
    "paddle JSON": ("paddle_json", {}),
    "mindspore": ("mindspore", {}),
    "minddata": ("minddata", {}),
}


@dataclass
class Added:
    """How well it went for one source: the worst error of the clocks, and what is to be told."""

    residual_ns: int | None = None
    notes: list[str] = field(default_factory=list)


def add_foreign(log: Log, directories: list[Path], manifest: Manifest) -> dict[str, Added]:
    """Add the events of every trace, and return how it went, by source.

    A trace that cannot be read is told of, the others stay.
    """
    added: dict[str, Added] = defaultdict(Added)
    listed = sorted(path for each in directories for path in files.list_folder(each))
    for path in (path for path in listed if path.suffix == FACTS and files.is_regular(path)):
        facts = json.loads(files.read_text(path))
        source = added[facts["source"]]
        trace = path.with_suffix("")
        try:
            _add(log, _read(facts["reader"], trace), facts, manifest, source)
        except (OSError, ValueError, KeyError, FormatError) as error:
            source.notes.append(f"{trace.name} could not be read ({error})")
    for path in (path for path in listed if path.suffix == HELD):
        if manifest.stop is None:
            added[path.stem].notes.append(_LOST)
    return added


def _read(reader: str, trace: Path) -> Events:
    module, options = READERS[reader]
    read: Callable[..., Events] = import_module(f"strobe.importers.{module}").read
    return read(trace, **options)


def _add(log: Log, events: Events, facts: dict[str, Any], manifest: Manifest, added: Added) -> None:
    is_mark = np.array([name == facts["anchor_name"] for name in events.names], bool)[events.name]
    marks_ns = np.sort(events.start_ns[is_mark])
    if facts.get("marks_ns") is not None:
        marks_ns = np.array(facts["marks_ns"], np.int64)
    if len(marks_ns) != len(facts["anchors"]):
        message = f"{len(marks_ns)} of {len(facts['anchors'])} marks are in it"
        raise ValueError(message)
    clock = align(marks_ns, facts["anchors"])
    begun_ns = facts["anchors"][0][0]
    if added.residual_ns is None:  # the first of this source
        start = manifest.start
        begun_ns = start.monotonic_ns if manifest.clock == "monotonic" else start.clock_ns
    events = _with_threads_of_system(events, facts.get("threads", {}))
    lanes = _Lanes(log, manifest, events.threads)
    log.spans = concatenate(
        [log.spans, _spans(log, events, np.flatnonzero(~is_mark), clock, lanes)]
    )
    memory = _memory(events, clock, lanes, begun_ns, keep_level=added.residual_ns is None)
    log.memory = concatenate_memory([log.memory, memory])
    added.residual_ns = max(added.residual_ns or 0, clock.residual_ns)
    if events.counters is not None:
        counters = _counters(log, events.counters, clock, lanes)
        log.counters = concatenate([log.counters, counters])
    added.notes += [*facts["notes"], *events.notes]


def _with_threads_of_system(events: Events, numbers: Mapping[str, int]) -> Events:
    """Return the events with the system's numbers of threads, as far as they are known."""
    if not numbers:
        return events
    found, where = np.unique(events.tid, return_inverse=True)
    known = [numbers.get(str(tid), tid) for tid in found.tolist()]
    tid: Int64 = np.array(known, np.int64)[where.reshape(-1)]
    return replace(events, tid=tid)


def _spans(log: Log, events: Events, rows: Places, clock: Alignment, lanes: _Lanes) -> Gathered:
    sequence = _known(events.sequence, rows)
    category = events.category[rows].astype(np.uint8)
    exchanges = np.array([is_communication(name) for name in events.names], bool)
    category[exchanges[events.name[rows]]] = _COMMUNICATION
    start_ns = clock.apply(events.start_ns[rows])
    names = _renumber([escape(name) for name in events.names], log.names)
    layer = events.module
    return Gathered(
        start_ns=start_ns,
        dur_ns=clock.apply(events.start_ns[rows] + events.dur_ns[rows]) - start_ns,
        name=names[events.name[rows]],
        attributes=_renumber(events.texts, log.attributes)[events.attributes[rows]],
        lane=lanes.of_spans(events)[rows],
        category=category,
        sequence=sequence,
        thread=None
        if sequence is None
        else _threads(sequence, events.tid[rows], category == _BACKWARD),
        correlation=_known(events.correlation, rows),
        device=_known(events.device, rows),
        stream=_known(events.stream, rows),
        module=None if layer is None else names[layer[rows]].astype(np.int64),
    )


def _known(column: NDArray[Any], rows: Places) -> Int64 | None:
    """Return the column of these rows, None where no row has anything."""
    return column[rows].astype(np.int64, copy=False) if (column >= 0).any() else None


def _counters(log: Log, counters: Counters, clock: Alignment, lanes: _Lanes) -> Gathered:
    rows = len(counters.start_ns)
    none = np.full(rows, -1, np.int32)
    return Gathered(
        start_ns=clock.apply(counters.start_ns),
        dur_ns=counters.value.view(np.int64),
        name=_renumber([escape(name) for name in counters.names], log.names)[counters.name],
        attributes=none,
        lane=none + 1 + lanes.of_counters(),
        category=np.zeros(rows, np.uint8),
    )


def _renumber(texts: list[str], known: list[str]) -> Int32:
    """Return the place of each text among the known ones, to which it is added; -1 stays -1."""
    places = {text: place for place, text in enumerate(known)}
    found = [places.setdefault(text, len(places)) for text in texts]
    known.extend(list(places)[len(known) :])
    return np.array([*found, -1], np.int32)


def _threads(sequence: Int64, tid: Int64, backward: Bool) -> Int64:
    """Return the thread that numbered each operator, as far as it can be told.

    The trace names it for a backward only, and not as it names threads elsewhere. So a number that
    one thread alone has used for a forward is that thread's, and one that several have is nobody's.
    """
    thread = np.where(sequence >= 0, 0, -1)
    forward = np.flatnonzero((sequence >= 0) & ~backward)
    order = forward[np.lexsort((tid[forward], sequence[forward]))]
    same = (sequence[order][1:] == sequence[order][:-1]) & (tid[order][1:] != tid[order][:-1])
    several = np.unique(sequence[order][1:][same])
    thread[np.isin(sequence, several) & ~backward] = -1
    return thread


def _memory(
    events: Events, clock: Alignment, lanes: _Lanes, begun_ns: int, *, keep_level: bool
) -> Memory:
    """Return what was allocated and freed.

    Of blocks without an address only the sum can be known, so what was in use at the beginning is
    one such block, and what the trace tells of times before is left out.
    """
    told = events.allocations
    start_ns, size = clock.apply(told.start_ns), told.bytes.copy()
    owner_ns = start_ns if told.owner_ns is None else clock.apply(told.owner_ns)
    before = np.flatnonzero((told.address == -1) & (start_ns < begun_ns))
    kept = np.ones(len(size), bool)
    kept[before] = False
    if keep_level and len(before):
        last = before[-1]
        kept[last], size[last] = True, told.allocated_bytes[last]
        start_ns[last] = owner_ns[last] = begun_ns
    return Memory(
        start_ns=start_ns[kept],
        bytes=size[kept],
        address=told.address[kept],
        device=told.device[kept],
        lane=lanes.of_threads(told.pid, told.tid)[kept],
        reserved=np.where(told.reserved_bytes > 0, told.reserved_bytes, -1)[kept],
        owner_ns=owner_ns[kept],
    )


class _Lanes:
    """The lanes of a log, to which threads and streams are added as they are met."""

    def __init__(self, log: Log, manifest: Manifest, told: Mapping[tuple[int, int], str]) -> None:
        self._lanes = log.lanes
        self._pid = manifest.pid
        self._names = manifest.threads
        self._told = told
        own = f"-{manifest.pid}-{manifest.process_start}-"
        prefixes = [lane["process"] for lane in log.lanes if own in lane["process"]]
        self._process = prefixes[0] if prefixes else own
        self._places: dict[tuple[int, int], int] = {
            (lane["pid"], lane["tid"]): place
            for place, lane in reversed(list(enumerate(log.lanes)))
            if lane["context"] == 0
        }

    def of_spans(self, events: Events) -> Int32:
        """Return the lane of each event: its thread's, or its stream's."""
        on_device = np.isin(events.category, _ON_DEVICE)
        lane = np.full(len(events.start_ns), -1, np.int32)
        lane[~on_device] = self.of_threads(events.pid[~on_device], events.tid[~on_device])
        for row in np.flatnonzero(on_device).tolist():
            device, stream = int(events.device[row]), int(events.stream[row])
            lane[row] = self._place(-1 - device, stream, f"device {device} stream {stream}")
        return lane

    def of_threads(self, pid: Int64, tid: Int64) -> Int32:
        # Traces are by thread, or nearly: there are far fewer runs of one than rows.
        changes = (pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])
        first = np.flatnonzero(np.append(True, changes)[: len(pid)])
        pairs, where = np.unique(np.stack([pid[first], tid[first]]), axis=1, return_inverse=True)
        places = [
            self._place(process, thread, self._name(process, thread))
            for process, thread in pairs.T.tolist()
        ]
        of_runs: Int32 = np.array(places, np.int32)[where.reshape(-1)]
        return np.repeat(of_runs, np.diff(np.append(first, len(pid))))

    def of_counters(self) -> int:
        """Return the lane of what no thread has told."""
        return self._place(self._pid, self._pid, self._name(self._pid, self._pid))

    def _name(self, process: int, thread: int) -> str:
        told = self._told.get((process, thread), f"thread {thread}")
        return self._names.get(str(thread), told)

    def _place(self, pid: int, tid: int, name: str) -> int:
        place = self._places.get((pid, tid))
        if place is None:
            place = self._places[pid, tid] = len(self._lanes)
            self._lanes.append(
                {
                    "pid": self._pid,
                    "tid": tid,
                    "thread": escape(name),
                    "context": 0,
                    "system_name": False,
                    "process": self._process,
                }
            )
        return place
