# SPDX-License-Identifier: Apache-2.0
"""strobe summary on a drawn training step: what it shows is what can be counted in the drawing."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import strobe
from drawing import COLUMN_NS, spans
from programs import command
from strobe.errors import UsageError
from strobe.model.tables import PHASES
from strobe.session.recording import Recording
from strobe.store.frames import empty, file_path, file_schema
from strobe.store.parquet import TableWriter

# A step of 36 columns, 1 µs each. Forward has 8 to 17; 7 columns belong to no phase.
STEP = """
    main | epoch-----------------------------
    main | load--  mm-- relu grad----  sgd---
    main |         add
"""
PHASE_OF = {
    "load": "data_loading",
    "mm": "forward",
    "add": "forward",
    "relu": "forward",
    "grad": "backward",
    "sgd": "optimizer",
}
MODULES = {"mm": "net.first", "add": "net.first", "relu": "net.second"}
FLOPS = {"mm": 6_000_000, "add": 500, "grad": 12_000_000}


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    with strobe.Profiler(output=tmp_path) as profiler:
        pass
    trace = spans(STEP)
    names = trace["name"].to_list()
    trace = trace.with_columns(
        category=pl.Series(["user" if name == "epoch" else "operator" for name in names]),
        phase=pl.Series([PHASE_OF.get(name) for name in names], dtype=pl.String),
        module=pl.Series([MODULES.get(name) for name in names], dtype=pl.String),
        flops=pl.Series([FLOPS.get(name) for name in names], dtype=pl.Int64),
        pid=pl.lit(7, dtype=pl.Int64),
    )
    step = {"step": 0, "kind": "optimizer", "start_ns": 0, "dur_ns": 36 * COLUMN_NS, "lane": 0}
    memory = [{"pid": 7, "allocated_bytes": size} for size in (3_000_000, 2_000_000)]
    put(profiler.recording, "spans", trace)
    put(profiler.recording, "steps", pl.DataFrame([step | {"unfinished": False}]))
    put(profiler.recording, "allocations", pl.DataFrame(memory))
    return profiler.recording


def put(recording: Recording, table: str, rows: pl.DataFrame) -> None:
    """Write a table of the recording anew; columns that are not given are null."""
    full = pl.concat([empty(table), rows], how="diagonal_relaxed")
    if table == "spans":
        full = full.with_columns(
            covered_ns=pl.col("dur_ns") - pl.col("self_ns"),
            parent_distance=pl.int_range(pl.len(), dtype=pl.Int64) - pl.col("parent"),
        )
    full = full.cast(dict(empty(table).schema))
    schema = file_schema(table)
    with TableWriter(file_path(recording.directory, table), schema) as writer:
        writer.append({name: full[name] for name in schema})


def run(recording: Recording, *arguments: str) -> str:
    status, out, _ = command("summary", recording.path, *arguments)
    assert status == 0
    return out


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_summary_says_where_the_step_goes(recording: Recording) -> None:
    shown = lines(recording.summary(width=120))

    first = shown.index("where the step goes, by phase")
    assert shown[first + 4 : first + 11] == [
        "data_loading 6.00 µs 6.00 µs 16.7 %",
        "forward 9.00 µs 9.00 µs 25.0 %",
        "backward 8.00 µs 8.00 µs 22.2 %",
        "optimizer 6.00 µs 6.00 µs 16.7 %",
        "other 7.00 µs 7.00 µs 19.4 %",
        "",
        "each: per step; share: of 36.0 µs in steps",
    ]
    assert first < shown.index("operators")


def test_operations_and_memory_have_a_line_each(recording: Recording) -> None:
    shown = lines(recording.summary(width=120))

    # the add is part of the mm; 18 million in 36 µs
    assert (
        "18.0 MFLOP in the steps, where known; 500 GFLOP/s over the 36.0 µs spent in steps" in shown
    )
    assert "most memory allocated: 3.00 MB on the host" in shown


def test_with_phases_only_the_users_spans_are_parts_of_a_step(recording: Recording) -> None:
    shown = lines(recording.summary(width=120))

    first = shown.index("where the time of a step goes")
    assert shown[first + 4 : first + 6] == [
        "epoch 1 34.0 µs 34.0 µs 94.4 %",
        "(rest) 2.00 µs 2.00 µs 5.6 %",
    ]


def test_phases_are_a_table(recording: Recording) -> None:
    phases = recording.phases()

    assert phases.columns == ["phase", "total_ns", "per_step_ns", "share"]
    assert phases["total_ns"].to_list() == [6_000, 9_000, 8_000, 6_000, 0, 7_000]
    assert phases["share"].sum() == pytest.approx(1)


def test_operators_can_be_told_apart_by_module(recording: Recording) -> None:
    rows = json.loads(run(recording, "--by", "module", "--json"))["operators"]

    found = [(row["module"], row["name"], row["self_ns"]) for row in rows]
    assert sorted(found) == [
        ("-", "epoch", 6_000),
        ("-", "grad", 8_000),
        ("-", "load", 6_000),
        ("-", "sgd", 6_000),
        ("net.first", "add", 3_000),
        ("net.first", "mm", 1_000),
        ("net.second", "relu", 4_000),
    ]
    assert "net.second" in run(recording, "--by", "module")


def test_json_has_all_that_the_text_has(recording: Recording) -> None:
    content = json.loads(run(recording, "--json"))

    assert [row["phase"] for row in content["phases"]] == list(PHASES)
    assert content["flops"] == {"total": 18_000_000, "over_ns": 36_000, "over": "steps"}
    assert content["peak_allocated"] == [{"pid": 7, "device": None, "peak_bytes": 3_000_000}]


def test_what_is_not_known_is_not_shown(tmp_path: Path) -> None:
    with strobe.Profiler(output=tmp_path) as profiler:
        for _ in range(2):
            with strobe.span("work"):
                pass
            profiler.step()

    text = profiler.recording.summary(width=100)

    assert "where the time of a step goes" in text
    for absent in ("where the step goes", "FLOP", "memory"):
        assert absent not in text
    assert profiler.recording.phases().is_empty()
    assert profiler.recording.flops_rate() is None
    content = json.loads(run(profiler.recording, "--json"))
    assert (content["phases"], content["flops"], content["peak_allocated"]) == ([], None, [])


def test_another_column_is_refused(recording: Recording) -> None:
    with pytest.raises(UsageError, match="must be 'thread', 'step' or 'module'"):
        recording.operators_by("device")  # type: ignore[arg-type]
