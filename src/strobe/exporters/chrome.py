# SPDX-License-Identifier: Apache-2.0
"""Chrome's Trace Event JSON: opens in Perfetto, chrome://tracing, speedscope and many scripts.

    {"traceEvents":[
    {"ph":"X","name":"forward","cat":"user","ts":1.250,"dur":0.750,"pid":7,"tid":7,"args":{...}},
    {"ph":"s","id":1,"name":"backward","cat":"link","ts":1.250,"pid":7,"tid":7},
    ...
    ],"displayTimeUnit":"ns","metadata":{...},"completeness":[...]}

Times are microseconds with three decimals, so exact; `metadata.base_ns` is to be added to get those
of the tables (0 unless the host had been up so long that a double could not hold them). A link is
an arrow from "s" to "f", each at the start of its span: viewers know the span by its track and time
alone, so of several that start there in the same nanosecond they take the innermost one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from strobe.analysis.completeness import completeness
from strobe.analysis.metadata import read_metadata, read_number
from strobe.exporters._lanes import Lanes, read_lanes
from strobe.exporters._links import Ends, ends_within, read_ends
from strobe.exporters._rows import (
    SPAN_COLUMNS,
    Batch,
    Pieces,
    arguments,
    combine,
    join,
    join_column,
    number_texts,
    numbers,
    read_batches,
    read_counters,
    read_steps,
)
from strobe.exporters._writing import Room, compressed, writers
from strobe.exporters.files import new_file
from strobe.exporters.json_events import Events, write_events
from strobe.model.arrays import Int32, Int64
from strobe.store.tables import Tables

NAME = "chrome"
SUFFIX = ".json"
DOC = "Chrome Trace Event JSON, compressed if the name ends in .gz: for Perfetto and most viewers"

Progress = Callable[[str, float], None]

# From here on neighbouring nanoseconds may be the same double of microseconds.
_INEXACT_NS = (1 << 43) * 1000
_NO_DURATIONS = np.zeros(0, np.int64)


def write(tables: Tables, path: Path, progress: Progress) -> None:
    """Write one JSON file."""
    with new_file(path) as file:
        if path.suffix == ".gz":
            with compressed(file) as packed:
                _Writer(tables, packed, progress).write()
        else:
            _Writer(tables, file, progress).write()


class _Writer:
    def __init__(self, tables: Tables, file: IO[bytes], progress: Progress) -> None:
        self._tables = tables
        self._file = file
        self._progress = progress
        self._room = Room(file)
        self._lanes = read_lanes(tables)
        self._metadata = read_metadata(tables)
        self._base_ns = _base_ns(tables, self._metadata)
        # (lane, number within the lane, tid) of each track
        self._tracks: list[tuple[int, int, int]] = []
        self._uses_unknown = False

    def write(self) -> None:
        self._file.write(b'{"traceEvents":[\n')
        self._write_spans(read_steps(self._tables, self._lanes.steps))
        self._write_spans(read_batches(self._tables, "spans", SPAN_COLUMNS), links=True)
        self._write_instants()
        self._write_counters()
        names = [*_process_names(self._lanes, self._metadata), *self._track_names()]
        self._file.write(b",\n".join(_encode(event) for event in names))
        end = {
            "displayTimeUnit": "ns",
            "metadata": {**self._metadata, "base_ns": self._base_ns},
            "completeness": completeness(self._tables).to_dicts(),
        }
        self._file.write(b"\n]," + _encode(end)[1:] + b"\n")
        self._progress("exporting", 1.0)

    def _write_spans(self, batches: Iterator[Batch], *, links: bool = False) -> None:
        tracks = writers.Tracks()
        ends = read_ends(self._tables) if links else None
        written = 0
        on_lane: Counter[int] = Counter()
        known = len(self._tracks)
        for rows, share in batches:
            lane = self._number_lanes(rows)
            start_ns, dur_ns = numbers(rows["start_ns"]), numbers(rows["dur_ns"])
            track = np.empty(len(rows), np.int32)
            _, made = tracks.place(lane, start_ns, dur_ns, track, False)
            for number in np.frombuffer(made, np.int32).tolist():
                first = not on_lane[number]
                tid = self._lanes.lanes[number].tid if first else self._lanes.tids.take()
                self._tracks.append((number, on_lane[number], tid))
                on_lane[number] += 1
            places = [self._place(lane, tid) for lane, _, tid in self._tracks[known:]]
            head, heads = _span_heads(rows)
            given = join_column(arguments(rows))
            self._write_events(
                Events(head, join(heads), start_ns, dur_ns, track, join(places), given)
            )
            if ends is not None:
                some = ends_within(ends, written, len(rows))
                self._write_flows(some, start_ns[some.row], track[some.row], join(places))
            written += len(rows)
            self._progress("exporting", 0.9 * share)

    def _write_flows(self, ends: Ends, start_ns: Int64, track: Int32, places: Pieces) -> None:
        if len(ends.row) == 0:
            return
        head = np.arange(len(ends.row), dtype=np.int32)
        heads = _flow_heads(ends)
        self._write_events(Events(head, heads, start_ns, _NO_DURATIONS, track, places))

    def _write_instants(self) -> None:
        places = [self._place(lane, own.tid) for lane, own in enumerate(self._lanes.lanes)]
        for rows, _ in read_batches(self._tables, "instants"):
            names = number_texts(rows["name"])
            heads = [_head("i", name, '"s":"t",') for name in names.texts]
            lane = self._number_lanes(rows)
            start_ns = numbers(rows["start_ns"])
            given = join_column(arguments(rows))
            self._write_events(
                Events(names.codes, join(heads), start_ns, _NO_DURATIONS, lane, join(places), given)
            )

    def _write_counters(self) -> None:
        processes = self._lanes.processes
        places = [f',"pid":{processes[lane.process].pid}'.encode() for lane in self._lanes.lanes]
        for rows in read_counters(self._tables):
            names = number_texts(rows["name"])
            heads = [_head("C", name) for name in names.texts]
            lane = self._number_lanes(rows)
            start_ns = numbers(rows["start_ns"])
            given = join_column(_counter_arguments(rows["value"]))
            self._write_events(
                Events(names.codes, join(heads), start_ns, _NO_DURATIONS, lane, join(places), given)
            )

    def _write_events(self, events: Events) -> None:
        if self._base_ns:
            events = events._replace(start_ns=events.start_ns - self._base_ns)
        write_events(self._room, events)

    def _number_lanes(self, rows: pl.DataFrame) -> Int32:
        lane = self._lanes.number(rows["lane"])
        self._uses_unknown |= bool((lane == self._lanes.unknown).any())
        return lane

    def _place(self, lane: int, tid: int) -> bytes:
        pid = self._lanes.processes[self._lanes.lanes[lane].process].pid
        return f',"pid":{pid},"tid":{tid}'.encode()

    def _track_names(self) -> Iterable[dict[str, Any]]:
        lanes = self._lanes.lanes
        idle = set() if self._uses_unknown else {self._lanes.unknown}
        if all(lane != self._lanes.steps for lane, _, _ in self._tracks):
            idle.add(self._lanes.steps)
        used = [(number, lane) for number, lane in enumerate(lanes) if number not in idle]
        first = [(number, 0, lane.tid) for number, lane in used]
        more = [track for track in self._tracks if track[1] > 0]
        ordered = sorted(first + more, key=lambda track: (lanes[track[0]].thread, *track))
        for order, (lane, number, tid) in enumerate(ordered):
            pid = self._lanes.processes[lanes[lane].process].pid
            name = self._lanes.track_name(lane, number)
            yield _describe("thread_name", pid, tid, name=name)
            yield _describe("thread_sort_index", pid, tid, sort_index=order)


def _base_ns(tables: Tables, metadata: dict[str, str]) -> int:
    first_ns, last_ns = read_number(metadata, "start_ns"), read_number(metadata, "end_ns")
    if first_ns is None or last_ns is None:
        found = [
            tables.scan(table).select(pl.min("start_ns"), last=pl.max("start_ns")).collect().row(0)
            for table in ("spans", "instants", "counters")
        ]
        first_ns = min((low for low, _ in found if low is not None), default=0)
        last_ns = max((high for _, high in found if high is not None), default=0)
    return 0 if first_ns >= 0 and last_ns < _INEXACT_NS else first_ns


def _span_heads(rows: pl.DataFrame) -> tuple[Int32, list[bytes]]:
    name, category = number_texts(rows["name"]), number_texts(rows["category"])
    head, pairs = combine(name.codes, category.codes, len(category.texts))
    quoted = [f'"cat":{_quote(text)},' if text else "" for text in category.texts]
    return head, [_head("X", name.texts[first], quoted[second]) for first, second in pairs]


def _flow_heads(ends: Ends) -> Pieces:
    """Return one piece for each end: its event up to its time."""
    begins = pl.Series(['{"ph":"f","bp":"e","id":', '{"ph":"s","id":'])
    name = ends.kind.replaced(lambda kind: f',"name":{_quote(kind)},"cat":"link","ts":')
    begin = begins.gather(ends.is_source.astype(np.int64))
    return join_column(begin + pl.Series(ends.link).cast(pl.String) + name)


def _head(phase: str, name: str, more: str = "") -> bytes:
    """Return an event up to its time."""
    return f'{{"ph":"{phase}","name":{_quote(name)},{more}"ts":'.encode()


def _counter_arguments(values: pl.Series) -> pl.Series:
    text = values.cast(pl.String)
    # JSON has no such numbers; Perfetto reads the strings as what they say.
    odd = {"NaN": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
    named = pl.when(pl.col("v").is_null()).then(pl.lit('"NaN"')).otherwise(pl.col("v").replace(odd))
    frame = text.alias("v").to_frame()
    objects: pl.DataFrame = frame.select(pl.concat_str(pl.lit('{"value":'), named, pl.lit("}")))
    return objects.to_series()


def _process_names(lanes: Lanes, metadata: dict[str, str]) -> Iterable[dict[str, Any]]:
    for order, process in enumerate(lanes.processes):
        yield _describe("process_name", process.pid, 0, name=metadata.get("name") or "python")
        yield _describe("process_sort_index", process.pid, 0, sort_index=order)
        if process.label:
            yield _describe("process_labels", process.pid, 0, labels=process.label)


def _describe(what: str, pid: int, tid: int, **about: object) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": about}


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
