# SPDX-License-Identifier: Apache-2.0
"""Calls, works and waits that were drawn by hand."""

from __future__ import annotations

from typing import Any

import polars as pl

from strobe.assemble.collectives import collectives
from strobe.model.collectives import is_communication

GROUPS = {"0": {"ranks": [0, 1], "backend": "gloo"}}
SUM = {"shapes": [[[2, 3], [4]], [], []], "dtypes": ["TensorList", "", ""]}
ALL_REDUCE = {**SUM, "group": "0", "dtype": "float"}


Row = tuple[str, int, int, int, dict[str, Any]]


def table(*rows: Row) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Rows of name, lane, begin, end and attributes; all in one process, in no span."""
    frame = pl.DataFrame(
        [
            {
                "row": 10 + number,
                "name": name,
                "process": 0,
                "lane": lane,
                "start_ns": begin,
                "dur_ns": end - begin,
                "parent": None,
            }
            for number, (name, lane, begin, end, _) in enumerate(rows)
        ],
        schema_overrides={"parent": pl.Int64},
    )
    return frame, [attributes for *_, attributes in rows]


def test_a_call_and_its_work_are_one_collective() -> None:
    spans = table(
        ("c10d::allreduce_", 0, 100, 110, ALL_REDUCE),
        ("gloo:all_reduce", 1, 105, 150, {"shapes": [[10]], "dtypes": ["float"]}),
        ("Work.wait", 0, 112, 155, {"synchronous": True}),
    )

    (row,) = collectives(*spans, GROUPS).to_dicts()

    assert row == {
        "name": "all_reduce",
        "backend": "gloo",
        "group": "0",
        "ranks": "[0, 1]",
        "bytes": (2 * 3 + 4) * 4,
        "dtype": "float",
        "start_ns": 100,
        "dur_ns": 50,  # until the work is done
        "wait_ns": 10 + 43,  # in the call, and waiting for it
        "span": 10,
        "work": 11,
    }


def test_a_call_that_tells_no_group_is_for_the_only_one() -> None:
    spans = table(("c10d::allreduce_", 0, 100, 110, SUM))
    two = {**GROUPS, "1": {"ranks": [0], "backend": "gloo"}}

    found = [collectives(*spans, groups)["ranks"].to_list() for groups in (GROUPS, two, {})]

    assert found == [["[0, 1]"], [None], [None]]


def test_works_go_to_calls_in_the_order_they_began() -> None:
    spans = table(
        ("gloo:broadcast", 1, 90, 95, {}),  # of a call before the recording
        ("c10d::broadcast_", 0, 100, 101, {}),
        ("c10d::broadcast_", 0, 102, 103, {}),
        ("gloo:broadcast", 1, 104, 120, {}),
        ("gloo:broadcast", 2, 105, 110, {}),
    )

    found = collectives(*spans, {})

    assert found["span"].to_list() == [11, 12]
    assert found["work"].to_list() == [13, 14]
    assert found["dur_ns"].to_list() == [20, 8]
    assert found["bytes"].to_list() == [None, None]  # nobody recorded their inputs


def test_asynchronous_calls_are_waited_for_in_turn() -> None:
    spans = table(
        ("c10d::allreduce_", 0, 0, 1, ALL_REDUCE),
        ("c10d::allreduce_", 0, 2, 3, ALL_REDUCE),
        ("Work.wait", 0, 10, 14, {}),
        ("Work.wait", 0, 20, 21, {}),
        ("c10d::allreduce_", 0, 30, 31, ALL_REDUCE),
    )

    assert collectives(*spans, GROUPS)["wait_ns"].to_list() == [1 + 4, 1 + 1, None]


def test_a_barrier_sends_nothing() -> None:
    spans = table(("c10d::barrier", 0, 0, 5, {"shapes": [[1]], "dtypes": ["unsigned char"]}))

    (row,) = collectives(*spans, {}).to_dicts()

    assert (row["name"], row["bytes"], row["dtype"], row["work"]) == ("barrier", 0, None, None)


def test_what_communicates_is_told_by_its_name() -> None:
    names = ["c10d::send", "gloo:recv", "nccl:_all_gather_base", "aten::add", "gloom", "c10d"]

    assert [is_communication(name) for name in names] == [True, True, True, False, False, False]


def test_a_compiled_collective_is_an_operator_on_each_device() -> None:
    spans = table(
        ("all-reduce.3", 0, 0, 9, {"device_ordinal": 0}),
        ("all-reduce.3", 1, 2, 9, {"device_ordinal": 1}),
        ("all-gather-start.1.2", 0, 10, 12, {}),
        ("all-gather-done.1.2", 0, 12, 20, {}),
    )

    found = collectives(*spans, {}).select("name", "backend", "start_ns", "dur_ns", "span", "work")

    assert found.rows() == [
        ("all_reduce", "xla", 0, 9, 10, None),
        ("all_reduce", "xla", 2, 7, 11, None),
        ("all_gather", "xla", 10, 2, 12, None),
    ]
    passes = ["all-reduce-promotion", "all_to_all_decomposer", "all-reduce.x", "reduce-window"]
    assert not any(is_communication(name) for name in passes)


TOLD = {"collective": "all_reduce", "group": "0", "bytes": 40, "dtype": "float32"}


def test_a_call_that_waits_for_itself_is_all_waiting() -> None:
    spans, told = table(
        ("paddle.distributed.all_reduce", 0, 10, 30, {**TOLD, "synchronous": True}),
        ("task.wait", 0, 12, 29, {}),
    )
    inside = spans.with_columns(parent=pl.Series([None, 10], dtype=pl.Int64))

    (row,) = collectives(inside, told, GROUPS).to_dicts()

    expected = {"name": "all_reduce", "backend": "gloo", "group": "0", "ranks": "[0, 1]"}
    expected |= {"bytes": 40, "dtype": "float32", "start_ns": 10, "dur_ns": 20, "wait_ns": 20}
    assert row == {**expected, "span": 10, "work": None}


def test_a_call_that_is_waited_for_later_ends_with_the_wait() -> None:
    spans = table(
        ("paddle.distributed.all_reduce", 0, 10, 15, {**TOLD, "synchronous": False}),
        ("task.wait", 0, 40, 48, {}),
    )

    (row,) = collectives(*spans, GROUPS).to_dicts()

    assert (row["start_ns"], row["dur_ns"], row["wait_ns"]) == (10, 38, 5 + 8)


def test_of_lists_of_lists_bytes_are_those_of_the_work_if_it_is_the_same_thing() -> None:
    lists = {"shapes": [[[3]], []], "dtypes": ["TensorList", "ScalarList"], "dtype": "float"}
    spans = table(
        ("c10d::scatter_", 0, 100, 110, lists),
        ("gloo:scatter", 1, 105, 150, {"shapes": [[3], [3]], "dtypes": ["float", "float"]}),
        ("c10d::scatter_", 0, 200, 210, lists),
        ("gloo:scatter", 1, 205, 250, {}),
        ("c10d::reduce_scatter_", 0, 300, 310, lists),
        ("gloo:all_reduce", 1, 305, 350, {"shapes": [[3]], "dtypes": ["float"]}),
    )

    found = collectives(*spans, GROUPS)

    assert found.select("name", "bytes", "work").rows() == [
        ("scatter", 2 * 3 * 4, 11),
        ("scatter", None, 13),
        ("reduce_scatter", None, 15),
    ]
