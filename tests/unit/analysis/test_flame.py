# SPDX-License-Identifier: Apache-2.0
"""Flame graphs and functions, of small tables drawn by hand."""

from __future__ import annotations

import polars as pl

from strobe.analysis.flame import make_flame
from strobe.analysis.functions import function_summary, without_calls
from strobe.store.frames import empty

THREADS = pl.DataFrame(
    {
        "lane": [0, 1, 2],
        "pid": [7, 7, 7],
        "tid": [7, 7, 8],
        "thread": ["MainThread", "MainThread (Python)", "idle"],
        "context": [0, 0, 0],
        "process": ["p", "p", "p"],
    },
    schema_overrides={"lane": pl.Int32},
)
FRAMES = pl.DataFrame(
    {
        "name": ["main", "step", "len"],
        "file": ["/src/a.py", "/src/a.py", None],
        "line": [1, 5, None],
        "module": ["a", "a", "builtins"],
    }
)
# main, main;step, main;step;len, main;len
STACKS = pl.DataFrame({"parent": [None, 0, 1, 0], "frame": [0, 1, 2, 2], "depth": [1, 2, 3, 2]})


def table(name: str, rows: list[dict[str, object]]) -> pl.DataFrame:
    """These rows; columns that are not given are null."""
    schema = empty(name).schema
    return pl.DataFrame([{**dict.fromkeys(schema), **row} for row in rows], schema=schema)


def span(name: str, lane: int, start: int, end: int, **more: object) -> dict[str, object]:
    kind = "python" if lane == 1 else "operator"
    return {
        "name": name, "lane": lane, "start_ns": start, "dur_ns": end - start, "category": kind,
        **more,
    }  # fmt: skip


# Python | main----------------------
#        |   step------    len-
#  torch |     mm---
SPANS = table(
    "spans",
    [
        span("main", 1, 0, 100, stack=0, self_ns=45),
        span("step", 1, 10, 50, stack=1, self_ns=40, parent=0),
        span("mm", 0, 20, 40, stack=1, self_ns=20),
        span("len", 1, 60, 75, stack=3, self_ns=15, parent=0),
    ],
)


def lines(graph_nodes: pl.DataFrame) -> dict[str, tuple[int, int, int]]:
    paths: list[str] = []
    found = {}
    for row in graph_nodes.iter_rows(named=True):
        above = "" if row["parent"] is None else paths[row["parent"]] + ";"
        paths.append(above + row["name"])
        found[paths[-1]] = (row["self_ns"], row["total_ns"], row["calls"])
    return found


def test_operators_are_in_the_calls_that_made_them() -> None:
    graph = make_flame(SPANS, THREADS, STACKS, FRAMES, empty("samples"))

    assert graph.source == "calls"
    assert graph.total_ns == 100
    assert lines(graph.nodes) == {
        "MainThread": (0, 100, 0),
        "MainThread;main": (45, 100, 1),
        "MainThread;main;step": (20, 40, 1),
        "MainThread;main;step;mm": (20, 20, 1),
        "MainThread;main;len": (15, 15, 1),
    }
    assert graph.nodes["where"].to_list() == [None, "a.py:1", "a.py:5", None, "builtins"]


def test_samples_stand_for_their_intervals() -> None:
    rows = [(0, 10, 1), (1, 20, 3), (2, 30, 2), (3, 5, 2)]
    samples = table(
        "samples",
        [{"start_ns": at, "interval_ns": dur, "lane": 1, "stack": s} for at, dur, s in rows],
    )

    graph = make_flame(empty("spans"), THREADS, STACKS, FRAMES, samples)

    assert graph.source == "samples"
    assert graph.total_ns == 65
    assert lines(graph.nodes)["MainThread;main;step"] == (10, 45, 1)
    assert lines(graph.nodes)["MainThread;main;step;len"] == (35, 35, 2)
    functions = function_summary(empty("spans"), samples, STACKS, FRAMES)
    assert functions.select("name", "calls", "total_ns", "self_ns").rows() == [
        ("len", 3, 55, 55),
        ("step", 1, 45, 10),
        ("main", 0, 65, 0),
    ]


def test_functions_of_calls() -> None:
    calls = SPANS.filter(pl.col("category") == "python")

    found = function_summary(calls, empty("samples"), STACKS, FRAMES)

    assert found.select("name", "calls", "total_ns", "self_ns", "share").rows() == [
        ("main", 1, 100, 45, 0.45),
        ("step", 1, 40, 40, 0.4),
        ("len", 1, 15, 15, 0.15),
    ]


def test_without_calls_parents_are_row_numbers_again() -> None:
    inner = span("add", 0, 25, 30, parent=2, self_ns=5)
    spans = pl.concat([SPANS[:3], table("spans", [inner]), SPANS[3:]])

    assert without_calls(spans).select("name", "parent").rows() == [("mm", None), ("add", 0)]
