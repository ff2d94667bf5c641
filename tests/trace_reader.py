# SPDX-License-Identifier: Apache-2.0
"""Readers of Chrome JSON and Perfetto traces, for tests: short, and independent of strobe.

Both give the same Trace. What a viewer would refuse or misread is an AssertionError: a track that
was never described, an end without a begin, spans that cross on a track, an arrow with one end.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


@dataclass
class Span:
    name: str
    category: str | None
    start_ns: int
    dur_ns: int
    track: object
    parent: int | None  # the innermost one around it on its track
    arguments: dict[str, Any]


@dataclass
class Place:
    """A track; `tid` is None where it is no thread of its own."""

    name: str
    pid: int
    tid: int | None


@dataclass
class Trace:
    """Spans, instants (name, ns, track, arguments) and counters (name, ns, value, pid) in the
    order of the file; flows as (source, target): numbers of spans.
    """

    spans: list[Span] = field(default_factory=list)
    instants: list[tuple[str, int, object, dict[str, Any]]] = field(default_factory=list)
    counters: list[tuple[str, int, float, int]] = field(default_factory=list)
    flows: list[tuple[int, int]] = field(default_factory=list)
    flow_names: list[str] = field(default_factory=list)  # of each flow, where the format has them
    places: dict[object, Place] = field(default_factory=dict)


# ---- Chrome JSON ---------------------------------------------------------------------------------


def read_chrome(path: Path) -> Trace:
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    content = json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    trace, base_ns = Trace(), content["metadata"]["base_ns"]
    ends: list[dict[str, Any]] = []

    def ns(event: dict[str, Any]) -> int:
        return _whole(event["ts"] * 1000) + base_ns

    for event in content["traceEvents"]:
        phase, track = event["ph"], (event["pid"], event.get("tid"))
        arguments = _with_floats(event.get("args", {}))
        if phase == "X":
            times = (ns(event), _whole(event["dur"] * 1000))
            span = Span(event["name"], event.get("cat"), *times, track, None, arguments)
            trace.spans.append(span)
        elif phase == "i":
            trace.instants.append((event["name"], ns(event), track, arguments))
        elif phase == "C":
            value = float(arguments["value"])
            trace.counters.append((event["name"], ns(event), value, event["pid"]))
        elif phase == "M" and event["name"] == "thread_name":
            trace.places[track] = Place(arguments["name"], *track)
        elif phase in ("s", "f"):
            ends.append({**event, "ns": ns(event), "track": track})
        else:
            assert phase == "M", event
    by_track = defaultdict(list)
    for number, span in enumerate(trace.spans):
        by_track[span.track].append(number)
    for numbers in by_track.values():
        _nest(trace.spans, numbers)
    _bind(trace, ends, by_track)
    return trace


def _nest(spans: list[Span], numbers: list[int]) -> None:
    """Find parents by time alone; one without duration at the end of another is in it."""
    open_now: list[int] = []
    for number in numbers:
        start_ns, end_ns = spans[number].start_ns, spans[number].start_ns + spans[number].dur_ns
        while open_now:
            last_ns = spans[open_now[-1]].start_ns + spans[open_now[-1]].dur_ns
            if last_ns > start_ns or last_ns == start_ns == end_ns:
                assert last_ns >= end_ns, f"{spans[number]} crosses {spans[open_now[-1]]}"
                break
            open_now.pop()
        spans[number].parent = open_now[-1] if open_now else None
        open_now.append(number)


def _bind(trace: Trace, ends: list[dict[str, Any]], by_track: dict[object, list[int]]) -> None:
    """Find the spans of arrows as Perfetto does: on their track the last one to begin by then."""
    sources: dict[Any, int] = {}
    for event in sorted(ends, key=lambda event: event["ns"]):
        spans = trace.spans
        begun = [n for n in by_track[event["track"]] if spans[n].start_ns <= event["ns"]]
        bound = max(begun, key=lambda n: (spans[n].start_ns, -spans[n].dur_ns, n))
        assert event["ns"] <= spans[bound].start_ns + spans[bound].dur_ns
        key = event["id"], event["name"], event["cat"]
        if event["ph"] == "s":
            assert key not in sources
            sources[key] = bound
        else:
            assert event["bp"] == "e"
            trace.flows.append((sources.pop(key), bound))
            trace.flow_names.append(event["name"])
    assert not sources


def _whole(number: Decimal | int) -> int:
    assert number == int(number)
    return int(number)


def _with_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value


def _refuse(constant: str) -> None:
    message = f"{constant} is not JSON"
    raise AssertionError(message)


# ---- Perfetto ------------------------------------------------------------------------------------


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Return the fields of a protobuf message: numbers as they are, the rest as bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size = 8
        if tag & 7 != 1:
            assert tag & 7 == 2
            size, at = _varint(data, at)
        assert at + size <= len(data)
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def packets(path: Path) -> Iterator[tuple[dict[int, Any], dict[int, str], dict[int, str]]]:
    """Return the fields of each packet, and the names and categories known to it."""
    names: dict[int, str] = {}
    categories: dict[int, str] = {}
    for number, data in fields(path.read_bytes()):
        assert number == 1
        packet = dict(fields(data))
        assert packet[10] == 1
        if packet.get(13) == 1:
            names, categories = {}, {}
            assert dict(fields(packet[59])) == {58: 3}
        for kind, entry in fields(packet.get(12, b"")):
            values = dict(fields(entry))
            (names if kind == 2 else categories)[values[1]] = values[2].decode()
        yield packet, names, categories


def read_perfetto(path: Path) -> Trace:
    trace, tracks = Trace(), {}
    opened: dict[object, list[int]] = defaultdict(list)
    sources: dict[bytes, int] = {}
    targets: list[tuple[bytes, int]] = []
    for packet, names, categories in packets(path):
        if 60 in packet:
            described = dict(fields(packet[60]))
            assert described[1] not in tracks
            tracks[described[1]] = described
            trace.places[described[1]] = _place(described, trace.places)
        if 11 not in packet:
            continue
        event, time_ns = dict(fields(packet[11])), packet[8]
        kind, track = event[9], event[11]
        assert track in tracks
        found = [value for key, value in fields(packet[11]) if key == 4]
        arguments = dict(map(annotation, found))
        assert len(arguments) == len(found)
        name = names[event[10]] if 10 in event else ""
        if kind == BEGIN:
            category = categories[event[3]] if 3 in event else None
            parent = opened[track][-1] if opened[track] else None
            trace.spans.append(Span(name, category, time_ns, -1, track, parent, arguments))
            number = len(trace.spans) - 1
            opened[track].append(number)
            for key, value in fields(packet[11]):
                if key == 47:
                    assert value not in sources
                    sources[value] = number
                elif key == 48:
                    targets.append((value, number))
        elif kind == END:
            span = trace.spans[opened[track].pop()]
            span.dur_ns = time_ns - span.start_ns
            assert span.dur_ns >= 0
        elif kind == INSTANT:
            trace.instants.append((name, time_ns, track, arguments))
        else:
            assert kind == COUNTER
            (value,) = struct.unpack("<d", event[44])
            place = trace.places[track]
            trace.counters.append((place.name, time_ns, value, place.pid))
    assert not any(opened.values())
    trace.flows = [(sources.pop(flow), target) for flow, target in targets]
    assert not sources
    return trace


def _place(described: dict[int, Any], known: dict[object, Place]) -> Place:
    if 3 in described:
        process = dict(fields(described[3]))
        return Place(process[6].decode(), process[1], None)
    if 4 in described:
        thread = dict(fields(described[4]))
        assert known[described[5]].pid == thread[1]
        return Place(thread[5].decode(), thread[1], thread[2])
    return Place(described[2].decode(), known[described[5]].pid, None)


def annotation(data: bytes) -> tuple[str | None, Any]:
    """Return the name and value of a DebugAnnotation."""
    name, entries, value = None, [], None
    for kind, content in fields(data):
        if kind == 10:
            name = content.decode()
        elif kind == 2:
            value = bool(content)
        elif kind == 4:
            value = content - (content >> 63 << 64)
        elif kind == 5:
            (value,) = struct.unpack("<d", content)
        elif kind == 6:
            value = content.decode()
        else:
            entries.append(annotation(content))
            value = dict(entries) if kind == 11 else [item for _, item in entries]
    return name, value
