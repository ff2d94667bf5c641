# SPDX-License-Identifier: Apache-2.0
"""The Chrome trace that Paddle's profiler writes and VisualDL reads; Perfetto opens it too.

    {"displayTimeUnit":"ms","schemaVersion":"1.0.2","span_index":"0","span_indx":"0",
    "deviceProperties":[],"baseTimeNanoseconds":...,"traceEvents":[
    {"name":"matmul[12.250 us]","pid":7,"tid":"7(C++)","ts":1.250,"dur":12.250,"ph":"X",
    "cat":"Operator","cname":"thread_state_runnable",
    "args":{"start_time":"1.250 us","end_time":"13.500 us"}},
    ...
    ],"ExtraInfo":{...}}

Times are exact, and count from the first event, whose wall time is baseTimeNanoseconds. Events that
cross others of their thread are on tracks of their own. VisualDL needs `span_indx`, as older
versions of Paddle wrote it; newer ones write `span_index`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from strobe.exporters._paddle import VERSION, Content, read_content, read_inputs
from strobe.exporters._rows import number_texts
from strobe.exporters._writing import writers
from strobe.exporters.files import new_file
from strobe.model.arrays import Int32
from strobe.model.attributes import SHAPES
from strobe.model.paddle import OF_PYTHON, ON_DEVICE
from strobe.model.paddle import TracerEventType as Type
from strobe.model.paddle import TracerMemEventType as Memory
from strobe.store.tables import Tables

NAME = "paddle"
SUFFIX = ".paddle_trace.json"
DOC = "The Chrome trace of Paddle's profiler: for VisualDL"

Progress = Callable[[str, float], None]

_ROWS_AT_ONCE = 1 << 16
_DEVICE_ORDER = 0x10000000  # as Paddle sorts devices after processes


def write(tables: Tables, path: Path, progress: Progress) -> None:
    """Write one JSON file."""
    content = read_content(tables)
    with new_file(path) as file:
        _Writer(content, file, progress).write()


class _Writer:
    def __init__(self, content: Content, file: IO[bytes], progress: Progress) -> None:
        self._content = content
        self._file = file
        self._progress = progress
        self._on_device = np.isin(content.events.column("type"), ON_DEVICE)
        begins_ns = content.events.column("start_ns")[~self._on_device]
        self._base_ns = int(begins_ns.min()) if len(begins_ns) else 0
        self._tids: list[tuple[int, int]] = []
        """Of each track: its lane, and its number in the file."""
        self._streams: set[tuple[int, int]] = set()
        """Device and number of each that was met."""

    def write(self) -> None:
        index = str(self._content.span_index)
        head = {
            "displayTimeUnit": "ms",
            "schemaVersion": VERSION,
            "span_index": index,
            "span_indx": index,
            "deviceProperties": [],
            "baseTimeNanoseconds": self._base_ns + self._content.wall_ns,
        }
        self._file.write(_encode(head)[:-1] + b',"traceEvents":[\n')
        self._file.writelines(self._events())
        self._file.writelines(self._memory())
        names = [_encode(event) for event in self._names()]
        self._file.write(b",\n".join(names))
        self._file.write(b'\n],"ExtraInfo":' + _encode(self._content.extra_info) + b"}\n")
        self._progress("exporting", 1.0)

    def _events(self) -> Iterator[bytes]:
        """Return all events as lines, many at a time."""
        rows = self._content.events.rows
        track = self._place_on_tracks()
        tids = np.array([tid for _, tid in self._tids] or [0], np.int64)
        for first in range(0, rows.height, _ROWS_AT_ONCE):
            last = min(first + _ROWS_AT_ONCE, rows.height)
            some = rows[first:last].with_columns(
                *self._content.read_details(first, last, "stream", "correlation", "attributes"),
                tid=pl.Series(tids[track[first:last]]),
                pid=pl.Series(self._content.pid[first:last]),
            )
            launched = some.filter(pl.Series(self._on_device[first:last]))
            self._streams.update(launched.select("device", "stream").iter_rows())
            yield _joined(self._lines(some))
            self._progress("exporting", 0.9 * last / rows.height)

    def _place_on_tracks(self) -> Int32:
        """Return the track of each event: its lane's, or a further one where it crosses others."""
        content = self._content
        start_ns, end_ns = content.events.column("start_ns"), content.events.column("end_ns")
        host = np.flatnonzero(~self._on_device)
        track = np.zeros(len(start_ns), np.int32)
        lane = content.lane[host].astype(np.int32)
        placed = np.empty(len(host), np.int32)
        start_ns, dur_ns = start_ns[host], end_ns[host] - start_ns[host]
        _, made = writers.Tracks().place(lane, start_ns, dur_ns, placed, False)
        known: Counter[int] = Counter()
        for number in np.frombuffer(made, np.int32).tolist():
            own = content.lanes.lanes[number].tid
            tid = content.lanes.tids.take() if known[number] else own
            self._tids.append((number, tid))
            known[number] += 1
        track[host] = placed
        return track

    def _lines(self, rows: pl.DataFrame) -> pl.Series:
        names = {int(kind): kind.name for kind in Type}
        given = number_texts(rows["name"].cast(pl.String))
        quoted = given.replaced(lambda name: _quote(name)[:-1])
        on_device = pl.col("type").is_in([int(kind) for kind in ON_DEVICE])
        of_python = pl.col("type").is_in([int(kind) for kind in OF_PYTHON])
        side = pl.when(of_python).then(pl.lit('(Python)"')).otherwise(pl.lit('(C++)"'))
        dur_ns = pl.col("end_ns") - pl.col("start_ns")
        lines: pl.DataFrame = rows.select(
            pl.concat_str(
                pl.lit('{"name":'),
                pl.lit(quoted),
                pl.lit("["),
                _shown(dur_ns),
                pl.lit(']","pid":'),
                pl.when(on_device).then(pl.col("device").cast(pl.Int64)).otherwise(pl.col("pid")),
                pl.lit(',"tid":'),
                pl.when(on_device)
                .then(pl.col("stream").fill_null(0).cast(pl.String))
                .otherwise(pl.concat_str(pl.lit('"'), pl.col("tid"), side)),
                pl.lit(',"ts":'),
                _micros(pl.col("start_ns") - self._base_ns),
                pl.lit(',"dur":'),
                _micros(dur_ns),
                pl.lit(',"ph":"X","cat":"'),
                pl.col("type").replace_strict(names, return_dtype=pl.String),
                pl.lit('","cname":"'),
                pl.when(on_device)
                .then(pl.lit("cq_build_failed"))
                .otherwise(pl.lit("thread_state_runnable")),
                pl.lit('","args":{"start_time":"'),
                _micros(pl.col("start_ns") - self._base_ns),
                pl.lit(' us","end_time":"'),
                _micros(pl.col("end_ns") - self._base_ns),
                pl.lit(' us"'),
                *_more(rows),
                pl.lit("}}"),
            )
        )
        return lines.to_series()

    def _memory(self) -> Iterator[bytes]:
        memory = self._content.memory.filter(pl.col("start_ns") >= self._base_ns)
        for first in range(0, memory.height, _ROWS_AT_ONCE):
            yield _joined(self._memory_lines(memory[first : first + _ROWS_AT_ONCE]))

    def _memory_lines(self, memory: pl.DataFrame) -> pl.Series:
        tids = np.array([each.tid for each in self._content.lanes.lanes], np.int64)
        names = {int(kind): kind.name for kind in Memory}
        lines: pl.DataFrame = memory.with_columns(
            tid=pl.Series(tids[memory["lane"].to_numpy()])
        ).select(
            pl.concat_str(
                pl.lit('{"name":"[memory]","pid":'),
                "pid",
                pl.lit(',"tid":"'),
                "tid",
                pl.lit('(C++)","ts":'),
                _micros(pl.col("start_ns") - self._base_ns),
                pl.lit(',"ph":"i","s":"t","cat":"'),
                pl.col("type").replace_strict(names, return_dtype=pl.String),
                pl.lit('","args":{"place":"'),
                "place",
                pl.lit('","addr":"'),
                "address",
                pl.lit('","increase_bytes":'),
                "bytes",
                *_sums("current_allocated", "current_reserved", "peak_allocated", "peak_reserved"),
                pl.lit("}}"),
            )
        )
        return lines.to_series()

    def _names(self) -> Iterator[dict[str, Any]]:
        """Return what names processes and tracks; the file must not end with a comma."""
        lanes = self._content.lanes
        for lane, tid in self._tids or [(0, lanes.lanes[0].tid)]:
            pid = lanes.processes[lanes.lanes[lane].process].pid
            name = lanes.lanes[lane].name
            for order, side in enumerate(("Python", "C++")):
                track = f"{tid}({side})"
                yield _fact("process_name", pid, track, name=f"Process {pid} (CPU)")
                yield _fact("thread_name", pid, track, name=f"thread {tid}:{name}({side})")
                yield _fact("thread_sort_index", pid, track, sort_index=2 * tid + order)
            yield _fact("process_sort_index", pid, f"{tid}(Python)", sort_index=pid)
        for device, stream in sorted(self._streams):
            yield _fact("process_name", device, stream, name=f"Device {device} (GPU)")
            yield _fact("thread_name", device, stream, name=f"stream {stream}")
            order = device + _DEVICE_ORDER
            yield _fact("process_sort_index", device, stream, sort_index=order)


def _more(rows: pl.DataFrame) -> list[pl.Expr]:
    """Return what further arguments the rows have: a correlation, shapes of inputs."""
    parts = []
    if rows["correlation"].null_count() < rows.height:
        written = pl.concat_str(pl.lit(',"correlation id":'), pl.col("correlation"))
        parts.append(written.fill_null(""))
    attributes = rows["attributes"]
    if attributes.null_count() < rows.height and attributes.str.contains(f'"{SHAPES}"').any():
        parts.append(pl.lit(number_texts(attributes).replaced(_inputs)))
    return parts


def _inputs(text: str) -> str:
    """Return shapes and dtypes of an operator's inputs; "" for none."""
    shapes, dtypes = read_inputs(text)
    if not shapes:
        return ""
    found = {"input_shapes": shapes, "input_dtypes": dtypes, "callstack": ""}
    return "," + _encode(found).decode()[1:-1]


def _sums(*names: str) -> list[pl.Expr]:
    return [pl.concat_str(pl.lit(f',"{name}":'), pl.col(name)) for name in names]


def _micros(value_ns: pl.Expr) -> pl.Expr:
    """Return nanoseconds as microseconds with three decimals."""
    whole, rest = value_ns // 1000, value_ns % 1000
    return pl.concat_str(whole.cast(pl.String), pl.lit("."), rest.cast(pl.String).str.zfill(3))


def _shown(dur_ns: pl.Expr) -> pl.Expr:
    """Return a duration as Paddle shows it in names."""
    millis = pl.concat_str(_micros(dur_ns // 1000), pl.lit(" ms"))
    return (
        pl.when(dur_ns > 1_000_000)
        .then(millis)
        .otherwise(pl.concat_str(_micros(dur_ns), pl.lit(" us")))
    )


def _joined(lines: pl.Series) -> bytes:
    text: str = lines.str.join(",\n").item()
    return text.encode() + b",\n"


def _fact(what: str, pid: int, tid: object, **about: object) -> dict[str, Any]:
    return {"name": what, "pid": pid, "tid": tid, "ph": "M", "args": about}


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _encode(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
