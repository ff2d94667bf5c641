# SPDX-License-Identifier: Apache-2.0
"""The most memory in use."""

from pathlib import Path

import numpy as np
import polars as pl

from drawing import make_tables
from strobe.analysis.memory import (
    callers,
    curve,
    held_at_peak,
    owner_timeline,
    peak_allocated,
)
from strobe.store.frames import empty


def test_the_peak_is_the_most_of_each_process_and_device(tmp_path: Path):
    rows = [
        {"pid": 2, "device": None, "allocated_bytes": 5},
        {"pid": 1, "device": 0, "allocated_bytes": 70},
        {"pid": 1, "device": None, "allocated_bytes": 10},
        {"pid": 1, "device": None, "allocated_bytes": 30},
        {"pid": 1, "device": None, "allocated_bytes": 20},
    ]
    allocations = pl.DataFrame(rows, schema_overrides={"device": pl.Int32})

    assert peak_allocated(make_tables(tmp_path, allocations=allocations)).rows() == [
        (1, None, 30),
        (1, 0, 70),
        (2, None, 5),
    ]


def test_without_allocations_there_is_no_peak(tmp_path: Path):
    assert peak_allocated(make_tables(tmp_path)).is_empty()


SPANS = pl.DataFrame(
    {"name": ["mm", "relu"], "module": ["Net.0", None], "function": [None, "forward (net.py:7)"]},
    schema_overrides={"function": pl.String},
)


def events(*rows: tuple) -> pl.DataFrame:
    """Rows of (bytes, address, span, tid) of one process, on the host; times count up."""
    frame = pl.DataFrame(
        [
            {
                "start_ns": time,
                "bytes": size,
                "address": address,
                "span": span,
                "tid": tid,
                "pid": 1,
            }
            for time, (size, address, span, tid) in enumerate(rows)
        ],
        schema=empty("allocations").schema,
    )
    return frame.with_columns(allocated_bytes=pl.col("bytes").cum_sum())


def test_what_is_held_at_the_peak_sums_to_it():
    rows = events(
        (100, 1, None, None),  # there before
        (50, 2, 0, 9),  # mm, freed
        (-50, 2, 0, 9),
        (70, 2, 1, 9),  # relu, at the same place
        (30, 3, 0, 9),  # mm
        (20, 4, 0, 9),  # mm
        (5, 5, None, 9),  # outside of all spans: 225 in all, the most
        (-70, 2, 0, 9),  # relu's, while mm runs
        (40, 6, 0, 9),
    )
    timeline = owner_timeline(rows, SPANS)
    held = held_at_peak(timeline)

    assert held.select("owner", "module", "function", "blocks", "bytes").rows() == [
        ("(before the start)", None, None, 1, 100),
        ("relu", None, "forward (net.py:7)", 1, 70),
        ("mm", "Net.0", None, 2, 50),
        ("(unknown)", None, None, 1, 5),
    ]
    assert held["bytes"].sum() == 225
    assert held["share"].to_list() == [100 / 225, 70 / 225, 50 / 225, 5 / 225]
    assert set(held["start_ns"]) == {6}
    of_mm = timeline.filter(pl.col("owner") == "mm").select("start_ns", "held_bytes", "held_blocks")
    assert of_mm.rows() == [(1, 50, 1), (2, 0, 0), (4, 30, 1), (5, 50, 2), (8, 90, 3)]
    of_relu = timeline.filter(pl.col("owner") == "relu")
    assert of_relu["held_bytes"].to_list() == [70, 0]  # who frees it has no part in it


def test_blocks_without_an_address_have_unknown_owners():
    rows = events((100, None, 0, 9), (-30, None, 0, 9), (60, None, 1, 9))

    assert held_at_peak(owner_timeline(rows, SPANS)).select("owner", "blocks", "bytes").rows() == [
        ("(unknown)", None, 130)  # how many blocks, nobody knows
    ]
    assert held_at_peak(owner_timeline(events(), SPANS)).is_empty()


def test_what_nobody_saw_allocated_was_there_before():
    rows = events(
        (100, None, None, None),  # there before: how many blocks, the framework does not say
        (10, 1, 0, 9),  # mm
        (-40, 2, 1, 9),  # of those there before, while relu runs
        (90, 3, 1, 9),
    )

    assert held_at_peak(owner_timeline(rows, SPANS)).select("owner", "blocks", "bytes").rows() == [
        ("relu", 1, 90),
        ("(before the start)", None, 60),
        ("mm", 1, 10),
    ]


def test_a_block_that_was_freed_unseen_is_its_owners():
    """The row that assemble adds for it has neither thread nor span."""
    rows = events((50, 1, 0, 9), (-50, 1, None, None), (70, 1, 1, 9), (-70, 1, 0, 9), (9, 2, 0, 9))

    of_mm = owner_timeline(rows, SPANS).filter(pl.col("owner") == "mm")
    assert of_mm["held_bytes"].to_list() == [50, 0, 9]


def test_a_curve_has_the_most_of_each_part():
    # 1 from 10 on, 8 from 32 to 35, then 2: five parts of ten
    time_ns, value = np.array([10, 32, 35]), np.array([1.0, 8.0, 2.0])

    assert curve(time_ns, value, 0, 50, 5) == [1, 1, 1, 8, 2]
    assert curve(time_ns + 1, value, 0, 50, 5) == [None, 1, 1, 8, 2]


def test_the_caller_of_a_span_is_the_innermost_python_function_of_its_stack():
    frames = pl.DataFrame(
        {
            "name": ["main", "Net.forward", "len"],
            "file": ["a.py", "n.py", None],
            "line": [1, 7, None],
        }
    )
    stacks = pl.DataFrame({"parent": [None, 0, 1], "frame": [0, 1, 2]})
    spans = pl.DataFrame({"stack": [1, None, 2, 0]}, schema={"stack": pl.Int64})

    assert callers(spans, stacks, frames).to_list() == [
        "Net.forward (n.py:7)",
        None,
        "Net.forward (n.py:7)",
        "main (a.py:1)",
    ]
    none = (empty(name) for name in ("stacks", "frames"))
    assert callers(spans[1:2], *none).to_list() == [None]
