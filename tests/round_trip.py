# SPDX-License-Identifier: Apache-2.0
"""What an exported trace must say, taken from the tables alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from strobe.exporters import chrome, perfetto
from strobe.store.tables import Tables
from trace_reader import Trace, read_chrome, read_perfetto

EXTRA = (
    *("phase", "module", "type", "full_name"),
    *("device", "stream", "correlation", "sequence", "flops"),
)


def check_exports(tables: Tables, folder: Path) -> None:
    """Export the tables and read them back: both formats must say what the tables say."""
    for exporter, read in ((chrome, read_chrome), (perfetto, read_perfetto)):
        path = folder / f"trace{exporter.SUFFIX}"
        exporter.write(tables, path, lambda _stage, _share: None)
        compare(read(path), tables, typed=exporter is perfetto)


def compare(trace: Trace, tables: Tables, *, typed: bool) -> None:
    """Assert that a trace says what the tables say; `typed`: it is one of Perfetto's."""
    lanes = tables.scan("threads").sort("lane").collect().to_dicts()
    steps = tables.scan("steps").filter(pl.col("kind") != "span").collect().to_dicts()
    shown, spans = trace.spans[: len(steps)], trace.spans[len(steps) :]
    assert [(s.name, s.category, s.start_ns, s.dur_ns) for s in shown] == [
        (f"{row['kind']} {row['step']}", "step", row["start_ns"], row["dur_ns"]) for row in steps
    ]
    assert [s.arguments for s in shown] == [
        _arguments({**row, "attributes": None}, typed=typed) for row in steps
    ]

    rows = tables.scan("spans").collect().to_dicts()
    assert [(s.name, s.category, s.start_ns, s.dur_ns) for s in spans] == [
        (row["name"], row["category"], row["start_ns"], row["dur_ns"]) for row in rows
    ]
    assert [s.arguments for s in spans] == [_arguments(row, typed=typed) for row in rows]
    for span, row in zip(spans, rows, strict=True):
        _check_place(trace, span.track, lanes, row["lane"])
    tracks = [span.track for span in spans]
    parents = [s.parent if s.parent is None else s.parent - len(steps) for s in spans]
    assert parents == expected_parents(rows, tracks)

    _compare_points(trace, tables, lanes, typed=typed)
    links = expected_links(tables.scan("links").collect().rows(), len(rows))
    kinds = [kind for kind, _, _ in links]
    pairs = [(source, target) for _, source, target in links]
    if not typed:
        bound = [_bound(rows, tracks, number) for number in range(len(rows))]
        pairs = [(bound[source], bound[target]) for source, target in pairs]
        assert sorted(trace.flow_names) == sorted(kinds)
    found = [(source - len(steps), target - len(steps)) for source, target in trace.flows]
    assert sorted(found) == sorted(pairs)


def _compare_points(
    trace: Trace, tables: Tables, lanes: list[dict[str, Any]], *, typed: bool
) -> None:
    instants = tables.scan("instants").collect().to_dicts()
    assert [(name, ns) for name, ns, _, _ in trace.instants] == [
        (row["name"], row["start_ns"]) for row in instants
    ]
    assert [arguments for _, _, _, arguments in trace.instants] == [
        _arguments(row, typed=typed) for row in instants
    ]
    for (_, _, track, _), row in zip(trace.instants, instants, strict=True):
        _check_place(trace, track, lanes, row["lane"])
        assert "(overlap" not in trace.places[track].name
    counters = [
        (row["name"], row["start_ns"], repr(row["value"]), lanes[row["lane"]]["pid"])
        for row in tables.scan("counters").collect().to_dicts()
    ]
    for row in tables.scan("allocations").collect().to_dicts():
        device = "host" if row["device"] is None else f"device {row['device']}"
        value = repr(float(row["allocated_bytes"]))
        counters.append((f"allocated_bytes ({device})", row["start_ns"], value, row["pid"]))
    found = [(name, ns, repr(value), pid) for name, ns, value, pid in trace.counters]
    assert found == counters


def _check_place(trace: Trace, track: object, lanes: list[dict[str, Any]], lane: int) -> None:
    """A row is on its lane's own track, or on one for those that cross, in its process."""
    place, row = trace.places[track], lanes[lane]
    name = row["thread"] + (f" context {row['context']}" if row["context"] else "")
    own, overlaps, _ = place.name.partition(" (overlap ")
    assert own == name
    assert place.pid == row["pid"]
    if not overlaps and not row["context"]:
        assert place.tid == row["tid"]


def _arguments(row: dict[str, Any], *, typed: bool) -> dict[str, Any]:
    given = _written_out(json.loads(row["attributes"] or "{}", parse_constant=str))
    given |= {name: row[name] for name in (*EXTRA, "samples") if row.get(name) is not None}
    if row.get("unfinished"):
        given["unfinished"] = True
    return {key: _typed(value) for key, value in given.items()} if typed else given


def _written_out(value: Any) -> Any:
    """Lone surrogates as text: UTF-8 has none."""
    if isinstance(value, dict):
        return {_written_out(key): _written_out(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_written_out(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _typed(value: Any) -> Any:
    """What a DebugAnnotation can hold of a value."""
    if value is None or value in ({}, []):
        return json.dumps(value)
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    is_long = isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
    return str(value) if is_long else value


def expected_parents(rows: list[dict[str, Any]], tracks: Sequence[object]) -> list[int | None]:
    """The last row above that contains a row, among those on its track."""
    found: list[int | None] = []
    for number, row in enumerate(rows):
        end_ns = row["start_ns"] + row["dur_ns"]
        around = [
            other
            for other in range(number)
            if tracks[other] == tracks[number]
            and rows[other]["start_ns"] + rows[other]["dur_ns"] >= end_ns
        ]
        found.append(around[-1] if around else None)
    return found


def expected_links(links: list[tuple[Any, ...]], rows: int) -> list[tuple[str, int, int]]:
    """The links that point forward to a span that is there: no viewer shows another."""
    return [(kind, source, target) for kind, source, target in links if 0 <= source < target < rows]


def _bound(rows: list[dict[str, Any]], tracks: Sequence[object], number: int) -> int:
    """The innermost of those that start on the same track in the same nanosecond."""
    same = [
        other
        for other, row in enumerate(rows)
        if (row["start_ns"], tracks[other]) == (rows[number]["start_ns"], tracks[number])
    ]
    return max(same, key=lambda other: (-rows[other]["dur_ns"], other))
