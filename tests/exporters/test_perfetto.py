# SPDX-License-Identifier: Apache-2.0
"""Perfetto traces hold what the tables hold, exactly, and Perfetto reads them without complaint."""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from strobe.exporters import perfetto
from strobe.model.text import escape
from strobe.store.tables import Tables
from trace_reader import BEGIN, COUNTER, END, INSTANT, annotation, fields, packets


def silent(stage: str, share: float) -> None:
    assert stage
    assert 0 <= share <= 1


@dataclass
class Trace:
    clock: dict[int, int] = field(default_factory=dict)
    tracks: dict[int, dict[int, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: int) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]


def read(path: Path) -> Trace:
    trace = Trace()
    for packet, names, categories in packets(path):
        if 6 in packet:
            for kind, entry in fields(packet[6]):
                if kind == 1:
                    values = dict(fields(entry))
                    trace.clock[values[1]] = values[2]
                else:
                    assert entry == 3
        if 60 in packet:
            described = dict(fields(packet[60]))
            assert described[1] not in trace.tracks
            trace.tracks[described[1]] = described
        if 11 in packet:
            event = dict(fields(packet[11]))
            assert event[11] in trace.tracks
            trace.events.append(
                {
                    "type": event[9],
                    "time_ns": packet[8],
                    "track": event[11],
                    "name": names[event[10]] if 10 in event else None,
                    "category": categories[event[3]] if 3 in event else None,
                    "annotations": [value for key, value in fields(packet[11]) if key == 4],
                    "value": struct.unpack("<d", event[44])[0] if 44 in event else None,
                }
            )
    return trace


@pytest.fixture(scope="module")
def exported(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("perfetto") / "trace.pftrace"
    perfetto.write(tables, path, silent)
    return path


@pytest.fixture(scope="module")
def trace(exported: Path) -> Trace:
    return read(exported)


def test_begins_and_ends_are_the_spans_of_the_table(
    trace: Trace, hostile: strobe.Recording
) -> None:
    spans, opened = [], defaultdict(list)
    for event in trace.events:
        if event["type"] == BEGIN:
            spans.append([event["name"], event["category"], event["time_ns"], None])
            opened[event["track"]].append(spans[-1])
        elif event["type"] == END:
            span = opened[event["track"]].pop()
            span[3] = event["time_ns"] - span[2]

    columns = ("name", "category", "start_ns", "dur_ns")
    assert list(map(tuple, spans)) == hostile.spans().select(columns).collect().rows()
    assert not any(opened.values())


def test_turns_of_a_track_are_in_the_order_of_time(trace: Trace) -> None:
    last: dict[int, int] = {}
    for event in [*trace.of(BEGIN), *trace.of(END)]:
        last[event["track"]] = 0
    for event in trace.events:
        if event["type"] in (BEGIN, END):
            assert event["time_ns"] >= last[event["track"]]
            last[event["track"]] = event["time_ns"]


def test_instants_and_counters_are_those_of_the_tables(
    trace: Trace, hostile: strobe.Recording
) -> None:
    instants = [(event["name"], event["time_ns"]) for event in trace.of(INSTANT)]
    counters = [
        (trace.tracks[event["track"]][2].decode(), event["time_ns"], repr(event["value"]))
        for event in trace.of(COUNTER)
    ]

    assert instants == hostile.instants().select("name", "start_ns").collect().rows()
    table = hostile.counters().select("name", "start_ns", "value").collect()
    assert counters == [(name, time_ns, repr(value)) for name, time_ns, value in table.iter_rows()]


def test_the_clock_is_monotonic_and_tied_to_wall_time(
    trace: Trace, hostile: strobe.Recording
) -> None:
    facts = dict(hostile.metadata().collect().iter_rows())

    assert trace.clock == {3: int(facts["start_ns"]), 1: int(facts["start_wall_ns"])}


def test_tracks_are_named(trace: Trace) -> None:
    names = [track[2].decode() for track in trace.tracks.values() if 2 in track and 8 not in track]
    threads = [dict(fields(track[4]))[5].decode() for track in trace.tracks.values() if 4 in track]

    assert sorted(threads) == ["MainThread", *(f'thread "{number}"' for number in range(3))]
    assert sorted(names) == [
        *(f"MainThread (overlap {number})" for number in range(1, 5)),
        *(f"MainThread context {number}" for number in range(1, 5)),
    ]
    for track in trace.tracks.values():
        assert 3 in track or track[5] in trace.tracks


def test_attributes_are_annotations(trace: Trace) -> None:
    (event,) = (event for event in trace.of(BEGIN) if event["name"] == "attributed")

    assert dict(map(annotation, event["annotations"])) == {
        "int": 7,
        "large": str(2**63),
        "huge": str(10**400),
        "negative": -(2**63),
        "float": 0.1 + 0.2,
        "tiny": 5e-324,
        "nan": "NaN",
        "inf": ["Infinity", "-Infinity"],
        "text": 'a "quoted" \\ \n \0 text',
        "emoji": "😀",
        "lone": "x\\ud83dy",
        "true": True,
        "none": "null",
        "empty": "{}",
        "list": [1, [2.5, "x"], {"a": {"b": "[]"}}],
        "dotted.key[0]": 1,
        "": "empty key",
        "name": "a name",
        "ph": "E",
        "unfinished": "said by the user",
    }


def test_unfinished_spans_say_so(trace: Trace) -> None:
    (event,) = (event for event in trace.of(BEGIN) if event["name"] == "left open")

    assert list(map(annotation, event["annotations"])) == [("rank", 3), ("unfinished", True)]


def test_perfetto_reads_the_same_spans(
    exported: Path, hostile: strobe.Recording, query: Any
) -> None:
    columns = "ts, dur, length(name), hex(substr(name, 1, 1000))"
    rows = query(exported, f"select {columns} from slice where category = 'user';")

    def seen(name: str) -> tuple[int, str]:
        text = name.partition("\0")[0]  # Perfetto keeps the whole name; its SQL ends a text at NUL
        return len(text), text[:1000].encode().hex().upper()

    table = hostile.spans().select("start_ns", "dur_ns", "name").collect()
    expected = [(start, dur, *seen(name)) for start, dur, name in table.iter_rows()]
    assert sorted((*map(int, row[:3]), row[3]) for row in rows) == sorted(expected)


def test_perfetto_reads_the_same_parents(
    exported: Path, hostile: strobe.Recording, query: Any
) -> None:
    """Where spans do not cross, depth in Perfetto is that of our parents."""
    rows = query(
        exported, "select ts, depth from slice where name in ('recursion', 'deep', 'part');"
    )

    spans = hostile.spans().select("name", "start_ns", "parent").collect()
    parents = spans["parent"].to_list()
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent is None else depths[parent] + 1)
    chosen = spans.with_columns(depth=pl.Series(depths)).filter(
        pl.col("name").is_in(["recursion", "deep", "part"])
    )
    assert sorted((int(ts), int(depth)) for ts, depth in rows) == sorted(
        chosen.select("start_ns", "depth").rows()
    )


def test_perfetto_reads_the_same_counters_and_instants(
    exported: Path, hostile: strobe.Recording, query: Any
) -> None:
    sql = "select c.ts, c.value from counter c join counter_track t on c.track_id = t.id "
    rows = query(exported, sql + "where t.name = 'counter' and c.value = c.value order by c.ts;")
    instants = query(exported, "select ts from slice where category is null;")

    table = hostile.counters().filter((pl.col("name") == "counter") & pl.col("value").is_not_nan())
    assert [int(ts) for ts, _ in rows] == table.collect()["start_ns"].to_list()
    assert {int(ts) for (ts,) in instants} == set(hostile.instants().collect()["start_ns"])


def test_perfetto_reads_threads_and_arguments(exported: Path, query: Any) -> None:
    threads = query(exported, "select hex(name) from thread where tid > 0 order by tid;")
    sql = "select key, display_value from slice join args using (arg_set_id) "
    wanted = "('debug.int', 'debug.list[1][0]', 'debug.emoji')"
    arguments = dict(query(exported, f"{sql} where slice.name = 'attributed' and key in {wanted};"))

    names = [bytes.fromhex(name).decode() for (name,) in threads]
    assert sorted(names) == ["MainThread", *(f'thread "{number}"' for number in range(3))]
    assert arguments["debug.int"] == "7"
    assert float(arguments["debug.list[1][0]"]) == 2.5
    assert arguments["debug.emoji"] == "😀"


def test_lone_surrogates_are_written_out(trace: Trace) -> None:
    names = {event["name"] for event in trace.of(BEGIN)}

    assert escape("lone \ud83d surrogate, written \\ud83d, and \\\ud83d") in names
