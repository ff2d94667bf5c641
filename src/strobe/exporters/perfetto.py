# SPDX-License-Identifier: Apache-2.0
"""Perfetto's protobuf trace: exact times, typed attributes, half the bytes of the JSON.

    TracePacket ClockSnapshot: our times are those of CLOCK_MONOTONIC
    TracePacket TrackDescriptor: one per process, lane, track of crossing spans, counter
    TracePacket InternedData: names and categories of the rows that follow
    TracePacket TrackEvent: begins and ends, on each track in the order of time
    ...

Field numbers are those of perfetto_trace.proto. A lane's numbers and names are made in `_lanes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import polars as pl

from strobe.analysis.metadata import read_metadata, read_number
from strobe.exporters._lanes import read_lanes
from strobe.exporters._links import Ends, ends_within, insert, read_ends
from strobe.exporters._rows import (
    NO_PIECES,
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
from strobe.exporters._writers_python import varint
from strobe.exporters._writing import Room, writers
from strobe.exporters.files import new_file
from strobe.model.arrays import Int32
from strobe.model.coded import Coded
from strobe.store.tables import Tables

NAME = "perfetto"
SUFFIX = ".pftrace"
DOC = "Perfetto's own format: the smallest and most exact one for ui.perfetto.dev"

Progress = Callable[[str, float], None]

_REALTIME, _MONOTONIC = 1, 3  # ClockSnapshot's builtin clocks
_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_CLEARED, _NEEDED = 1, 2  # sequence_flags, about incremental state
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering
_INTERNED_BYTES = 1 << 20  # of names in one packet
_STEP_ROWS = 1 << 15  # whose turns stay in the cache
_NO_HEAD = np.zeros(0, np.int32)
_TURN = np.dtype([("time_ns", np.int64), ("row", np.int32), ("track", np.int32)])


def write(tables: Tables, path: Path, progress: Progress) -> None:
    """Write one trace file."""
    with new_file(path) as file:
        _Writer(tables, file, progress).write()


# ---- protobuf ------------------------------------------------------------------------------------


def _number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _packet(*fields: bytes) -> bytes:
    # Everything is on one sequence, so that it comes in order.
    return _bytes(1, b"".join(fields) + _SEQUENCE)


_SEQUENCE = _number(10, 1)
_TAIL = _SEQUENCE + _number(13, _NEEDED)


# ---- trace ---------------------------------------------------------------------------------------


class _Writer:
    def __init__(self, tables: Tables, file: IO[bytes], progress: Progress) -> None:
        self._tables = tables
        self._file = file
        self._progress = progress
        self._room = Room(file)
        self._lanes = read_lanes(tables)
        self._metadata = read_metadata(tables)
        lanes = len(self._lanes.lanes)
        # Tracks are known by uuid: first the processes, then the lanes, then what comes up.
        self._process_uuid = range(1, 1 + len(self._lanes.processes))
        self._lane_uuid = range(self._process_uuid.stop, self._process_uuid.stop + lanes)
        self._next_uuid = self._lane_uuid.stop
        self._described: set[int] = set()

    def write(self) -> None:
        self._file.write(_clock_packet(self._metadata))
        for number in range(len(self._lanes.processes)):
            self._describe_process(number)
        for lane in range(self._lanes.steps):
            self._describe_lane(lane)
        self._write_spans(read_steps(self._tables, self._lanes.steps))
        self._write_spans(read_batches(self._tables, "spans", SPAN_COLUMNS), links=True)
        self._write_instants()
        self._write_counters()
        self._progress("exporting", 1.0)

    # ---- events ----

    def _write_spans(self, batches: Iterator[Batch], *, links: bool = False) -> None:
        tracks = writers.Tracks()
        ends = read_ends(self._tables) if links else None
        written = 0
        on_lane: Counter[int] = Counter()
        uuids: list[int] = []
        for rows, share in batches:
            lane = self._number_lanes(rows)
            start_ns, dur_ns = numbers(rows["start_ns"]), numbers(rows["dur_ns"])
            track = np.empty(len(rows), np.int32)
            head, heads = self._intern(rows, _BEGIN)
            texts, at = _annotations(arguments(rows))
            if ends is not None:
                some_ends = ends_within(ends, written, len(rows))
                texts, at = _add_flows(Pieces(texts, at), some_ends, len(rows))
            written += len(rows)
            for first in range(0, len(rows), _STEP_ROWS):
                some = slice(first, first + _STEP_ROWS)
                turns, made = tracks.place(
                    lane[some], start_ns[some], dur_ns[some], track[some], True
                )
                for number in np.frombuffer(made, np.int32).tolist():
                    uuids.append(self._describe_track(number, on_lane[number]))
                    on_lane[number] += 1
                bodies = Pieces(texts, at[first : first + _STEP_ROWS + 1])
                self._write_turns(turns, head[some], heads, uuids, bodies)
            self._progress("exporting", 0.9 * share)
        heads = [_number(9, _END)]
        self._write_turns(tracks.finish(), _NO_HEAD, heads, uuids, NO_PIECES)

    def _write_instants(self) -> None:
        for rows, _ in read_batches(self._tables, "instants"):
            lane = self._number_lanes(rows)
            head, heads = self._intern(rows, _INSTANT)
            turns = _point_turns(rows, lane)
            bodies = _annotations(arguments(rows))
            self._write_turns(turns, head, heads, self._lane_uuid, bodies)

    def _write_counters(self) -> None:
        uuids: dict[tuple[int, str], int] = {}
        processes = np.array([lane.process for lane in self._lanes.lanes], np.int32)
        for rows in read_counters(self._tables):
            process = processes[self._number_lanes(rows)]
            name = number_texts(rows["name"])
            track, pairs = combine(name.codes, process, len(self._lanes.processes))
            used = [(number, name.texts[code]) for code, number in pairs]
            for key in used:
                if key not in uuids:
                    uuids[key] = self._describe_counter(*key)
            # An array of their own for the ten bytes of each: field 44, a double.
            body = np.empty((len(rows), 10), np.uint8)
            body[:, :2] = [0xE1, 0x02]
            values = rows["value"].fill_null(float("nan")).to_numpy().astype("<f8")
            body[:, 2:] = values.view(np.uint8).reshape(-1, 8)
            bodies = Pieces(body.tobytes(), np.arange(0, 10 * len(rows) + 1, 10, dtype=np.int64))
            heads = [_number(9, _COUNTER)]
            head = np.zeros(len(rows), np.int32)
            turns = _point_turns(rows, track)
            self._write_turns(turns, head, heads, [uuids[key] for key in used], bodies)

    def _write_turns(
        self, turns: bytes, head: Int32, heads: list[bytes], uuids: Iterable[int], bodies: Pieces
    ) -> None:
        fronts, tracks = join(heads), join(_number(11, uuid) for uuid in uuids)

        def write(out: bytearray, first: int) -> tuple[int, int]:
            return writers.perfetto_packets(
                *(out, turns, head, *fronts, *tracks, *bodies, _TAIL, first)
            )

        self._room.fill(write, len(turns) // _TURN.itemsize)

    def _number_lanes(self, rows: pl.DataFrame) -> Int32:
        lane = self._lanes.number(rows["lane"])
        for extra in (self._lanes.steps, self._lanes.unknown):
            if (lane == extra).any():
                self._describe_lane(extra)
        return lane

    def _intern(self, rows: pl.DataFrame, kind: int) -> tuple[Int32, list[bytes]]:
        """Write the rows' names; return each row's head and the heads, 0 being that of an end."""
        name = number_texts(rows["name"])
        has_category = "category" in rows.columns
        category = number_texts(rows["category"]) if has_category else Coded(name.codes, [""])
        head, pairs = combine(name.codes, category.codes, len(category.texts))
        # Every batch begins anew, else the names of a long recording would have to be kept.
        defaults = _bytes(59, _number(58, _MONOTONIC))
        self._file.write(_packet(_number(13, _CLEARED), defaults))
        entries = (
            _bytes(field, _number(1, number) + _text(2, text))
            for field, texts in ((1, category.texts), (2, name.texts))
            for number, text in enumerate(texts, 1)
        )
        for some in _chunks(entries, _INTERNED_BYTES):
            self._file.write(_packet(_bytes(12, some), _number(13, _NEEDED)))
        of_category = [_number(3, n) if text else b"" for n, text in enumerate(category.texts, 1)]
        kind_field = _number(9, kind)
        heads = [kind_field + of_category[b] + _number(10, 1 + a) for a, b in pairs]
        return head + 1, [_number(9, _END), *heads]

    # ---- tracks ----

    def _describe(self, uuid: int, *fields: bytes) -> None:
        self._file.write(_packet(_bytes(60, _number(1, uuid) + b"".join(fields))))

    def _describe_process(self, number: int) -> None:
        process = self._lanes.processes[number]
        name = self._metadata.get("name") or "python"
        label = _text(8, process.label) if process.label else b""
        content = _number(1, process.pid) + _text(6, name) + label
        self._describe(self._process_uuid[number], _bytes(3, content))

    def _describe_lane(self, number: int) -> None:
        uuid = self._lane_uuid[number]
        if uuid in self._described:
            return
        self._described.add(uuid)
        lane = self._lanes.lanes[number]
        if lane.thread == number:
            pid = self._lanes.processes[lane.process].pid
            content = _number(1, pid) + _number(2, lane.tid) + _text(5, lane.name)
            parent = _number(5, self._process_uuid[lane.process])
            self._describe(uuid, parent, _bytes(4, content), _number(11, _EXPLICIT))
        else:
            parent = _number(5, self._lane_uuid[lane.thread])
            order = _number(12, number + 1)
            self._describe(uuid, parent, _text(2, lane.name), order)

    def _describe_track(self, lane: int, number: int) -> int:
        """Return the uuid of a track of this lane: the lane's own, or a new one."""
        if number == 0:
            return self._lane_uuid[lane]
        uuid = self._take_uuid()
        parent = _number(5, self._lane_uuid[lane])
        self._describe(uuid, parent, _text(2, self._lanes.track_name(lane, number)))
        return uuid

    def _describe_counter(self, process: int, name: str) -> int:
        uuid = self._take_uuid()
        parent = _number(5, self._process_uuid[process])
        self._describe(uuid, parent, _text(2, name), _bytes(8, b""))
        return uuid

    def _take_uuid(self) -> int:
        self._next_uuid += 1
        return self._next_uuid - 1


def _clock_packet(metadata: dict[str, str]) -> bytes:
    start_ns, wall_ns = read_number(metadata, "start_ns"), _wall_ns(metadata)
    clocks = _bytes(1, _number(1, _MONOTONIC) + _number(2, start_ns or 0))
    if start_ns is not None and wall_ns is not None:
        clocks += _bytes(1, _number(1, _REALTIME) + _number(2, wall_ns))
    return _packet(_bytes(6, clocks + _number(2, _MONOTONIC)))


def _wall_ns(metadata: dict[str, str]) -> int | None:
    text = metadata.get("start_wall_ns", "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _point_turns(rows: pl.DataFrame, track: Int32) -> bytes:
    turns = np.empty(len(rows), _TURN)
    turns["time_ns"] = numbers(rows["start_ns"])
    turns["row"] = np.arange(len(rows))
    turns["track"] = track
    return turns.tobytes()


def _annotations(objects: pl.Series | None) -> Pieces:
    if objects is None:
        return NO_PIECES
    texts, at = writers.annotate(*join_column(objects))
    return Pieces(texts, np.frombuffer(at, np.int64))


def _add_flows(bodies: Pieces, ends: Ends, rows: int) -> Pieces:
    """Add flow_ids (47) and terminating_flow_ids (48) to the bodies: fixed64, ten bytes each."""
    if len(ends.row) == 0:
        return bodies
    flows = np.empty((len(ends.row), 10), np.uint8)
    flows[:, :2] = np.where(ends.is_source[:, None], [0xF9, 0x02], [0x81, 0x03])
    flows[:, 2:] = ends.link.astype("<i8").view(np.uint8).reshape(-1, 8)
    return insert(bodies, flows, ends.row, rows)


def _chunks(entries: Iterable[bytes], size_bytes: int) -> Iterator[bytes]:
    """Return entries one after another, in parts of about this size."""
    part = bytearray()
    for entry in entries:
        part += entry
        if len(part) >= size_bytes:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)
