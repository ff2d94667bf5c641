# SPDX-License-Identifier: Apache-2.0
"""Whatever the tables hold, both trace formats hold it too, for an independent reader."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drawing import lanes, make_tables
from drawing import spans as drawn
from round_trip import EXTRA, check_exports, compare, expected_links
from strobe.exporters import chrome, perfetto
from strobe.model.tables import CATEGORIES, PHASES, TABLES
from strobe.store.frames import empty
from strobe.store.tables import Tables
from trace_reader import read_chrome

THREADS = lanes(
    (7, 7, "main", 0, "host-7"),
    (7, 7, "main", 3, "host-7"),
    (7, 8, "worker", 0, "host-7"),
    (9, 9, "main", 0, "host-9"),
)
INT64 = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
VALUES = st.recursive(
    LEAVES, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3), max_leaves=4
)
# A user's attribute may well be called "phase"; which of the two a reader sees is its own choice.
KEYS = TEXT.filter(lambda key: key not in (*EXTRA, "unfinished"))
ATTRIBUTES = st.none() | st.dictionaries(KEYS, VALUES, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)
TIMES = st.integers(0, 12) | st.integers(10**15, 10**15 + 3)


@st.composite
def recordings(draw: st.DrawFn) -> dict[str, pl.DataFrame]:
    """Draw tables in which everything crosses, coincides and is linked."""
    lane = st.integers(0, len(THREADS) - 1)
    span = {
        "name": TEXT,
        "category": st.sampled_from(CATEGORIES),
        "start_ns": TIMES,
        "dur_ns": st.integers(0, 12),
        "lane": lane,
        "unfinished": st.booleans(),
        "attributes": ATTRIBUTES,
        "phase": st.none() | st.sampled_from(PHASES),
        "module": st.none() | TEXT,
        **{name: st.none() | INT64 for name in ("stream", "correlation", "sequence", "flops")},
        "device": st.none() | st.integers(0, 2**31 - 1),
    }
    point = {"name": TEXT, "start_ns": TIMES, "lane": lane}
    spans = draw(_table("spans", span))
    number = st.integers(-1, spans.height)
    step = {
        "step": st.integers(0, 9),
        "kind": st.sampled_from(["step", "request", "span"]),
        "start_ns": TIMES,
        "dur_ns": st.integers(0, 12),
        "samples": st.none() | INT64,
        "unfinished": st.booleans(),
    }
    link = {"kind": st.sampled_from(["backward", "launch"]), "source": number, "target": number}
    block = {
        "start_ns": TIMES,
        "device": st.none() | st.integers(0, 1),
        "allocated_bytes": st.integers(0, 2**53),
        "pid": st.sampled_from([7, 9]),
    }
    return {
        "spans": spans.sort("start_ns", pl.col("dur_ns") * -1, maintain_order=True),
        "threads": THREADS,
        "instants": draw(_table("instants", {**point, "attributes": ATTRIBUTES})),
        "counters": draw(_table("counters", {**point, "value": st.floats()})),
        "steps": draw(_table("steps", step)).sort("start_ns"),
        "links": draw(_table("links", link)),
        "allocations": draw(_table("allocations", block)),
    }


def _table(name: str, columns: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    schema = {column: empty(name).schema[column] for column in columns}
    rows = st.lists(st.fixed_dictionaries(columns), max_size=12)
    return rows.map(lambda found: pl.DataFrame(found, schema=schema))


@settings(max_examples=settings.default.max_examples // 2)  # each is two exports
@given(recording=recordings())
def test_what_is_read_back_is_what_was_exported(recording: dict[str, pl.DataFrame]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tables = make_tables(Path(folder), **recording)

        check_exports(tables, Path(folder))


def test_a_real_recording_is_read_back(tables: Tables, tmp_path: Path) -> None:
    check_exports(tables, tmp_path)


LINKED = {
    "spans": drawn("""
        main   | step----------------------------------
        main   |   mm---  relu--        crossing----------
        main   |    add                   under--
        worker |               mm_backward--
        worker |                 relu_backward------
    """),
    "threads": lanes((7, 7, "main", 0, "host-7"), (7, 8, "worker", 0, "host-7")),
}


def number_of(name: str) -> int:
    names: list[str] = LINKED["spans"]["name"].to_list()
    return names.index(name)


@pytest.fixture
def linked(tmp_path: Path) -> Tables:
    pairs = [
        ("backward", "mm", "mm_backward"),
        ("backward", "relu", "relu_backward"),
        ("launch", "mm", "crossing"),
        ("launch", "add", "under"),
        ("launch", "step", "under"),
    ]
    rows = [(kind, number_of(source), number_of(target)) for kind, source, target in pairs]
    links = pl.DataFrame(rows, schema=empty("links").schema, orient="row")
    spans = LINKED["spans"].with_columns(category=pl.lit("operator"))
    return make_tables(tmp_path, **{**LINKED, "spans": spans}, links=links)


ARROWS = [
    ["add", "under"],
    ["mm", "crossing"],
    ["mm", "mm_backward"],
    ["relu", "relu_backward"],
    ["step", "under"],
]
FLOWS = """
    select a.name, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in
    order by a.name, b.name;
"""


@pytest.mark.parametrize("exporter", [chrome, perfetto])
def test_perfetto_draws_links_between_their_spans(
    exporter: Any, linked: Path, tmp_path: Path, query: Any
) -> None:
    path = tmp_path / f"trace{exporter.SUFFIX}"

    exporter.write(linked, path, lambda _stage, _share: None)

    assert query(path, FLOWS) == ARROWS


def test_chrome_flows_are_pairs_at_the_starts_of_their_spans(linked: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    chrome.write(linked, path, lambda _stage, _share: None)

    events = json.loads(path.read_text())["traceEvents"]
    flows = [event for event in events if event["ph"] in "sf"]
    assert Counter(event["id"] for event in flows) == dict.fromkeys(range(1, 6), 2)
    launch = [event for event in flows if event["id"] == 3]
    crossing = next(event for event in events if event["name"] == "crossing")
    assert launch == [
        {"ph": "s", "id": 3, "name": "launch", "cat": "link", "ts": 2.0, "pid": 7, "tid": 7},
        {"ph": "f", "bp": "e", "id": 3, "name": "launch", "cat": "link", "ts": 23.0, "pid": 7}
        | {"tid": crossing["tid"]},
    ]
    assert crossing["tid"] != 7  # it crosses the step


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(recording=recordings())
def test_perfetto_counts_what_the_tables_count(
    recording: dict[str, pl.DataFrame], query: Any
) -> None:
    links = expected_links(recording["links"].rows(), recording["spans"].height)
    with tempfile.TemporaryDirectory() as folder:
        tables = make_tables(Path(folder), **recording)
        for exporter in (chrome, perfetto):
            path = Path(folder) / f"trace{exporter.SUFFIX}"
            exporter.write(tables, path, lambda _stage, _share: None)

            assert query(path, "select count(*) from flow;") == [[str(len(links))]]


def test_allocations_are_a_counter_of_each_device(tmp_path: Path) -> None:
    rows = [(5, 100, None, 7), (6, 64, 0, 7), (7, 300, None, 9)]
    columns = ("start_ns", "allocated_bytes", "device", "pid")
    schema = {name: empty("allocations").schema[name] for name in columns}
    blocks = pl.DataFrame(rows, schema=schema, orient="row")
    tables = make_tables(tmp_path, spans=drawn(""), threads=THREADS, allocations=blocks)
    path = tmp_path / "trace.json"

    chrome.write(tables, path, lambda _stage, _share: None)

    assert read_chrome(path).counters == [
        ("allocated_bytes (host)", 5, 100.0, 7),
        ("allocated_bytes (device 0)", 6, 64.0, 7),
        ("allocated_bytes (host)", 7, 300.0, 9),
    ]
    compare(read_chrome(path), tables, typed=False)


def test_the_readers_know_every_table_and_column() -> None:
    """A new column of spans is exported, or is one of those that a trace shows otherwise."""
    otherwise = ("name", "category", "start_ns", "dur_ns", "self_ns", "pid", "tid", "lane")
    more = ("parent", "unfinished", "attributes", "stack")  # calls are slices of their own

    assert {*EXTRA, *otherwise, *more} == TABLES["spans"].schema.keys()
