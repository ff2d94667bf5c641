# SPDX-License-Identifier: Apache-2.0
"""Chrome JSON holds what the tables hold, exactly, and Perfetto reads it without complaint."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from drawing import lanes, make_tables
from drawing import spans as drawn
from strobe.exporters import chrome
from strobe.store.tables import Tables

Events = dict[str, list[dict[str, Any]]]


def silent(stage: str, share: float) -> None:
    assert stage
    assert 0 <= share <= 1


def read(path: Path) -> tuple[Events, dict[str, Any]]:
    """Return the events by phase, numbers as they are written, and the rest of the file."""
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    content = json.loads(text, parse_float=Decimal)
    events: Events = defaultdict(list)
    for event in content.pop("traceEvents"):
        events[event["ph"]].append(event)
    return events, content


def ns(event: dict[str, Any], field: str) -> int:
    exact = Decimal(event[field]) * 1000
    assert exact == int(exact)
    return int(exact)


@pytest.fixture(scope="module")
def exported(tables: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chrome") / "trace.json"
    chrome.write(tables, path, silent)
    return path


def test_spans_are_those_of_the_table(exported: Path, hostile: strobe.Recording) -> None:
    events, _ = read(exported)

    written = [(e["name"], e["cat"], ns(e, "ts"), ns(e, "dur"), e["pid"]) for e in events["X"]]

    columns = ("name", "category", "start_ns", "dur_ns", "pid")
    assert written == hostile.spans().select(columns).collect().rows()


def test_instants_and_counters_are_those_of_the_tables(
    exported: Path, hostile: strobe.Recording
) -> None:
    events, _ = read(exported)

    instants = [(e["name"], ns(e, "ts"), e["pid"], e["s"]) for e in events["i"]]
    counters = [(e["name"], ns(e, "ts"), e["pid"]) for e in events["C"]]
    values = [float(e["args"]["value"]) for e in events["C"]]

    table = hostile.instants().select("name", "start_ns", "pid", s=pl.lit("t")).collect()
    assert instants == table.rows()
    table = hostile.counters().collect()
    assert counters == table.select("name", "start_ns", "pid").rows()
    assert list(map(repr, values)) == list(map(repr, table["value"]))


def test_attributes_are_arguments(exported: Path, hostile: strobe.Recording) -> None:
    events, _ = read(exported)

    (event,) = (event for event in events["X"] if event["name"] == "attributed")

    table = hostile.spans().filter(pl.col("name") == "attributed").collect()
    expected = json.loads(table["attributes"][0], parse_float=Decimal, parse_constant=str)
    expected["lone"] = "x\\ud83dy"
    assert event["args"] == expected
    assert event["args"]["nan"] == "NaN"


def test_unfinished_spans_say_so(exported: Path) -> None:
    events, _ = read(exported)

    marked = [e for e in events["X"] if e.get("args", {}).get("unfinished") is True]

    assert [(e["name"], e["args"]) for e in marked] == [
        ("left open", {"rank": 3, "unfinished": True})
    ]


def test_spans_nest_on_each_track(exported: Path) -> None:
    events, _ = read(exported)

    open_ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in events["X"]:
        ends = open_ends[event["pid"], event["tid"]]
        start, end = ns(event, "ts"), ns(event, "ts") + ns(event, "dur")
        while ends and ends[-1] <= start and (ends[-1] < start or end > start):
            ends.pop()
        assert not ends or ends[-1] >= end, event["name"]
        ends.append(end)


def test_tracks_are_named_and_in_order(exported: Path, hostile: strobe.Recording) -> None:
    events, _ = read(exported)

    names = {e["tid"]: e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    order = {
        e["tid"]: e["args"]["sort_index"] for e in events["M"] if e["name"] == "thread_sort_index"
    }

    assert {e["tid"] for e in [*events["X"], *events["i"]]} <= names.keys()
    shown = [names[tid] for tid in sorted(names, key=lambda tid: order[tid])]
    overlaps = [f"MainThread (overlap {number})" for number in range(1, 5)]
    contexts = [f"MainThread context {number}" for number in range(1, 5)]
    assert shown[:-3] == ["MainThread", *overlaps, *contexts]
    assert sorted(shown[-3:]) == [f'thread "{number}"' for number in range(3)]
    main = hostile.threads().collect()["tid"][0]
    assert names[main] == "MainThread"
    processes = [e["args"]["name"] for e in events["M"] if e["name"] == "process_name"]
    assert processes == ['hostile "name"']


def test_a_child_stays_on_the_track_of_its_parent(exported: Path) -> None:
    events, _ = read(exported)

    tids = [e["tid"] for e in events["X"] if e["name"].startswith("crossing")]
    children = [e["tid"] for e in events["X"] if e["name"] == "child of a crossing one"]

    assert len(set(tids)) == 5
    assert children == tids


def test_metadata_and_completeness_are_in_the_file(
    exported: Path, hostile: strobe.Recording
) -> None:
    _, rest = read(exported)

    facts = dict(hostile.metadata().collect().iter_rows())
    assert rest["metadata"] == {**facts, "base_ns": 0}
    assert rest["completeness"][0]["dropped"] == 0


def test_gz_holds_the_same(exported: Path, tables: Tables, tmp_path: Path) -> None:
    packed = tmp_path / "trace.json.gz"

    chrome.write(tables, packed, silent)

    assert gzip.decompress(packed.read_bytes()) == exported.read_bytes()
    assert list(tmp_path.iterdir()) == [packed]


def test_perfetto_reads_the_same_spans(exported: Path, tables: Tables, query: Any) -> None:
    rows = query(exported, "select ts, dur, length(name) from slice where category is not null;")

    table = tables.scan("spans").select("start_ns", "dur_ns").collect()
    assert sorted((int(ts), int(dur)) for ts, dur, _ in rows) == sorted(table.rows())


# ---- tables that our recorder does not make ------------------------------------------------------


def test_ids_that_are_unknown_or_used_twice_become_tracks_of_their_own(tmp_path: Path) -> None:
    spans = drawn("""
        a | x--
        b | x--
        c | x--
        d | x--
        e | x--
        f | x--
        g | x--
    """).with_columns(lane=pl.Series([0, 1, 2, 3, 4, 5, None], dtype=pl.Int32))
    threads = lanes(
        (7, 7, "main", 0, "host-7-100"),
        (7, 7, "main", 0, "host-7-200"),  # the pid again
        (7, 8, "worker", 5, "host-7-200"),  # a context whose thread recorded nothing itself
        (7, 9, "worker", 0, "host-7-200"),
        (7, 9, "other", 0, "host-7-200"),  # the tid again
        (None, None, None, None, None),
    )
    path = tmp_path / "trace.json"

    chrome.write(make_tables(tmp_path, spans=spans, threads=threads), path, silent)

    events, _ = read(path)
    places = [(e["pid"], e["tid"]) for e in events["X"]]
    assert len(set(places)) == 7
    assert len({tid for _, tid in places}) == 7
    assert places[0] == (7, 7)
    assert places[3][1] == 9
    assert len({pid for pid, _ in places}) == 3
    names = {e["tid"]: e["args"]["name"] for e in events["M"] if e["name"] == "thread_name"}
    assert [names[tid] for _, tid in places] == [
        *("main", "main", "worker context 5", "worker", "other"),
        *("unnamed thread", "unknown thread"),
    ]


def test_times_beyond_a_double_are_told_from_a_base(tmp_path: Path, query: Any) -> None:
    base = 1 << 62
    spans = drawn("""
        a | x----
        a |  y--
    """).with_columns(pl.col("start_ns") + base + 1)
    path = tmp_path / "trace.json"

    chrome.write(
        make_tables(tmp_path, spans=spans, threads=lanes((1, 1, "a", 0, "p"))), path, silent
    )

    events, rest = read(path)
    times = [ns(e, "ts") + rest["metadata"]["base_ns"] for e in events["X"]]
    assert times == spans["start_ns"].to_list()
    assert rest["metadata"]["base_ns"] == base + 1
    assert query(path, "select name, ts, dur from slice order by ts;") == [
        ["x", "0", "5000"],
        ["y", "1000", "3000"],
    ]


def test_columns_without_a_place_of_their_own_are_arguments(tmp_path: Path) -> None:
    spans = drawn("""
        a | x--  y--  z--
    """).with_columns(
        phase=pl.Series(["forward", None, 'b"k']),
        module=pl.Series([None, "model.0.linear", None]),
        flops=pl.Series([None, 1 << 40, None], dtype=pl.Int64),
        correlation=pl.Series([5, None, None], dtype=pl.Int64),
        attributes=pl.Series([None, None, '{"a":1}'], dtype=pl.String),
        unfinished=pl.Series([False, False, True]),
    )
    path = tmp_path / "trace.json"

    chrome.write(
        make_tables(tmp_path, spans=spans, threads=lanes((1, 1, "a", 0, "p"))), path, silent
    )

    events, _ = read(path)
    assert [e.get("args") for e in events["X"]] == [
        {"phase": "forward", "correlation": 5},
        {"module": "model.0.linear", "flops": 1 << 40},
        {"a": 1, "phase": 'b"k', "unfinished": True},
    ]


def test_an_empty_recording_is_an_empty_trace(tmp_path: Path, query: Any) -> None:
    path = tmp_path / "new folder" / "trace.json"

    chrome.write(make_tables(tmp_path, spans=drawn(""), threads=lanes()), path, silent)

    events, _ = read(path)
    assert events.keys() == {"M"}
    assert query(path, "select count(*) from slice;") == [["0"]]


def test_what_fails_leaves_an_older_file_as_it_was(tables: Tables, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text("older")

    def interrupt(stage: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        chrome.write(tables, path, interrupt)

    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]
