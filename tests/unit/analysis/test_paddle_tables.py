# SPDX-License-Identifier: Apache-2.0
"""The nine tables of Paddle's summary, from drawings whose answers can be counted by hand."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from drawing import spans as drawn
from strobe.analysis.paddle_tables import PaddleTables, make_tables
from strobe.analysis.paddle_tree import PaddleEvents, make_events
from strobe.model.paddle import SortedKeys
from strobe.model.paddle import TracerEventType as Type
from strobe.reports.paddle import flops_text, summary_text

KNOWN = {
    "forward": ("annotation", '{"phase":"forward"}'),
    "layer": ("annotation", '{"phase":"forward"}'),
    "backward": ("annotation", '{"phase":"backward"}'),
    "load": ("annotation", '{"phase":"data_loading"}'),
    "optimizer": ("annotation", '{"phase":"optimizer"}'),
    "mm": ("operator", None),
    "inner": ("operator", None),
    "call": ("runtime", None),
    "gemm": ("kernel", None),
    "nccl": ("kernel", None),
    "copy": ("copy", None),
    "reduce": ("communication", None),
}
LINKS = pl.DataFrame(schema={"kind": pl.String, "source": pl.Int64, "target": pl.Int64})
NO_BLOCKS = pl.DataFrame(
    schema={
        "start_ns": pl.Int64,
        "bytes": pl.Int64,
        "device": pl.Int32,
        "tid": pl.Int64,
        "span": pl.Int64,
        "allocated_bytes": pl.Int64,
        "reserved_bytes": pl.Int64,
    }
)


def described(drawing: str) -> pl.DataFrame:
    """The drawn spans, of categories that follow from their names; each column is 1000 ns.

    What a `call` launched is the device's span that starts next after it.
    """
    spans = drawn(drawing)
    names = spans["name"].to_list()
    on_device = [KNOWN.get(name, ("user", None))[0] in ("kernel", "copy") for name in names]
    return spans.with_columns(
        category=pl.Series([KNOWN.get(name, ("user", None))[0] for name in names], dtype=pl.String),
        attributes=pl.Series([KNOWN.get(name, ("", None))[1] for name in names], dtype=pl.String),
        phase=pl.lit(None, dtype=pl.String),
        type=pl.lit(None, dtype=pl.String),
        pid=pl.lit(1, dtype=pl.Int64),
        tid=pl.col("lane").cast(pl.Int64) + 100,
        device=pl.Series([0 if each else None for each in on_device], dtype=pl.Int32),
        stream=pl.Series([0 if each else None for each in on_device], dtype=pl.Int64),
        correlation=pl.Series([1 if name == "call" else None for name in names], dtype=pl.Int64),
        flops=pl.lit(None, dtype=pl.Int64),
    )


def launched(spans: pl.DataFrame) -> pl.DataFrame:
    names, starts = spans["name"].to_list(), spans["start_ns"].to_list()
    device = [row for row, name in enumerate(names) if name in ("gemm", "nccl", "copy")]
    pairs = []
    for row, name in enumerate(names):
        if name == "call":
            after = [each for each in device if starts[each] >= starts[row]]
            pairs.append(("launch", row, after[0]))
            device.remove(after[0])
    return pl.DataFrame(pairs, schema=LINKS.schema, orient="row")


def steps(*bounds: tuple[int, int], unfinished: tuple[int, int] | None = None) -> pl.DataFrame:
    rows = [
        (place, "step", a * 1000, (b - a) * 1000, 0, False) for place, (a, b) in enumerate(bounds)
    ]
    if unfinished:
        first, last = unfinished
        rows.append((len(rows), "step", first * 1000, (last - first) * 1000, 0, True))
    schema = {
        **{"step": pl.Int64, "kind": pl.String, "start_ns": pl.Int64, "dur_ns": pl.Int64},
        **{"lane": pl.Int32, "unfinished": pl.Boolean},
    }
    return pl.DataFrame(rows, schema=schema, orient="row")


def events_of(spans: pl.DataFrame, marks: pl.DataFrame, window: tuple[int, int]) -> PaddleEvents:
    return make_events(spans, marks, launched(spans), (window[0] * 1000, window[1] * 1000))


def tables_of(
    drawing: str, marks: pl.DataFrame, blocks: pl.DataFrame = NO_BLOCKS, **options: Any
) -> PaddleTables:
    events = events_of(described(drawing), marks, (0, 100))
    return make_tables(events, blocks, {"Process Cpu Utilization": "1.5"}, **options)


TWO_STEPS = """
    main | forward------------  backward--    forward-----   mine
    main |  layer---  mm----     mm-           mm-----
    main |   mm--      inner                    inner
    main |             call                     call
    gpu  |               gemm----                  gemm-- copy
"""
MARKS = steps((0, 28), (28, 56))


def test_the_model_counts_the_outermost_parts_of_steps() -> None:
    model = tables_of(TWO_STEPS, MARKS).model

    # forward 0-19 and 30-42, backward 21-31: only the first ones of each are counted
    rows = {row["name"]: row for row in model.to_dicts()}
    assert list(rows) == ["ProfileStep", "Forward", "Backward", "Others"]
    step, forward = rows["ProfileStep"], rows["Forward"]
    assert (step["calls"], step["cpu_total_ns"], step["cpu_ratio"]) == (2, 56_000, 1.0)
    assert (forward["calls"], forward["cpu_total_ns"]) == (2, 19_000 + 12_000)
    assert (forward["cpu_max_ns"], forward["cpu_min_ns"]) == (19_000, 12_000)
    assert forward["cpu_ratio"] == pytest.approx(31 / 56)
    assert rows["Backward"]["calls"] == 1
    others = rows["Others"]
    assert others["cpu_total_ns"] == 56_000 - 31_000 - rows["Backward"]["cpu_total_ns"]
    assert (others["calls"], others["cpu_min_ns"]) == (None, None)
    # the kernels that forward launched: 8 and 6 columns
    assert (forward["gpu_total_ns"], forward["gpu_max_ns"]) == (14_000, 8_000)
    assert (step["gpu_total_ns"], forward["gpu_ratio"]) == (14_000, 1.0)


def test_parts_of_several_threads_may_overlap() -> None:
    drawn = """
        main  | forward------------
        other |      backward----------------
    """
    model = tables_of(drawn, steps((0, 40))).model

    rows = {name: total_ns for name, total_ns in model.select("name", "cpu_total_ns").iter_rows()}
    both_ns = rows["Forward"] + rows["Backward"]
    assert rows["Others"] == 40_000 - 29_000
    assert both_ns > 29_000


def test_operators_have_what_is_inside_them() -> None:
    table = tables_of(TWO_STEPS, MARKS).operator

    rows = table.select("level", "name", "calls", "cpu_total_ns", "gpu_total_ns").rows()
    # mm: 3-7, 10-16, 21-24, 31-38; inner, of which the second has a kernel, is 5 columns each
    assert rows == [
        (0, "mm", 4, 4_000 + 6_000 + 3_000 + 7_000, 14_000),
        (1, "inner", 2, 10_000, 14_000),
        (2, "gemm", 2, None, 14_000),
    ]
    assert table["cpu_ratio"].to_list() == [1.0, 0.5, None]
    assert table["gpu_ratio"].to_list() == [1.0, 1.0, 1.0]
    assert table["cpu_min_ns"][0] == 3_000


def test_a_type_takes_the_time_in_which_one_of_it_is_open() -> None:
    overview = tables_of(
        """
        main | mm------  mm--
        main |   mine-----
        side |      mm------
        """,
        steps((0, 20)),
    ).overview

    rows = {row["type"]: row for row in overview.to_dicts()}
    # mm: 0-8 and 5-13 of two threads, 10-14: 14 columns are covered
    assert (rows["Operator"]["calls"], rows["Operator"]["time_ns"]) == (3, 14_000)
    assert rows["Operator"]["ratio"] == pytest.approx(0.7)
    assert (rows["PythonUserDefined"]["time_ns"], rows["ProfileStep"]["time_ns"]) == (9_000, 20_000)
    assert overview["type"][0] == "ProfileStep"


def test_an_event_that_outlasts_the_steps_counts_for_what_lies_in_them() -> None:
    tables = tables_of("main |     mine-----------------", steps((0, 10)))

    (_, mine) = tables.overview.to_dicts()
    assert (mine["time_ns"], mine["ratio"]) == (6_000, 0.6)
    assert tables.userdefined["cpu_total_ns"].to_list() == [21_000]


def test_what_comes_after_the_last_step_is_left_out_and_said() -> None:
    marks = steps((0, 10), unfinished=(10, 20))

    tables = tables_of("main | mine--     mine--  late-", marks)

    assert tables.userdefined.select("name", "calls").rows() == [("mine", 1)]
    assert tables.overview["calls"].to_list() == [1, 1]
    (note,) = tables.notes
    assert note.startswith("2 events began after the last step")
    assert note in summary_text(tables)


def test_without_steps_the_recording_is_one() -> None:
    tables = tables_of("main | mine--  mm-", steps(unfinished=(0, 50)))

    assert tables.overview.select("type", "calls", "time_ns").rows()[0] == (
        "ProfileStep",
        1,
        100_000,
    )
    assert tables.notes == []


def test_computation_overlaps_communication() -> None:
    with_device = tables_of(
        """
        main | call call call
        gpu  |    gemm-----      gemm
        gpu2 |       nccl--------
        """,
        steps((0, 40)),
    ).distributed
    without = tables_of(
        """
        main | mm------
        side |     reduce---
        side |      mm--
        """,
        steps((0, 20)),
    ).distributed

    nested = tables_of(
        """
        main | mm--------------
        main |   reduce---
        side |    mm--
        """,
        steps((0, 20)),
    ).distributed

    # gemm 3-12 and 20-24, nccl 6-18; the operator inside the communication is no computation
    assert with_device.select("name", "time_ns").rows() == [
        ("ProfileStep", 40_000),
        ("Communication", 12_000),
        ("Computation", 13_000),
        ("Overlap", 6_000),
    ]
    assert without["time_ns"].to_list() == [20_000, 9_000, 8_000, 4_000]
    assert without["ratio"].to_list() == [1.0, 0.45, 0.4, 0.2]
    # mm 0-16 waits for its reduce 2-11; side computes 3-7 meanwhile
    assert nested["time_ns"].to_list() == [20_000, 9_000, 11_000, 4_000]


def test_each_block_of_memory_is_counted_once() -> None:
    spans = described("""
        main | mm--------  mine--
        main |   inner
    """)
    row = {name: place for place, name in enumerate(spans["name"])}
    blocks = pl.DataFrame(
        [
            (0, 1000, None, None, None, 1000, 5000),  # was there before
            (3_000, 64, None, 1, row["inner"], 1064, 5000),
            (4_000, 36, None, 1, row["mm"], 1100, 9000),
            (13_000, -64, None, 1, row["mine"], 1036, 9000),
            (20_000, -36, None, 1, None, 1000, 6000),
            (21_000, 8, 1, 1, row["mine"], 8, None),
        ],
        schema=NO_BLOCKS.schema,
        orient="row",
    )

    memory = make_tables(events_of(spans, steps((0, 30)), (0, 30)), blocks, {}).memory

    columns = ("place", "type", "name", "allocation_count", "free_count", "increased_bytes")
    assert memory.select(columns).rows() == [
        ("Place(cpu)", "Allocated", "mm", 2, 0, 100),
        ("Place(cpu)", "Allocated", None, 0, 1, -36),
        ("Place(cpu)", "Allocated", "mine", 0, 1, -64),
        ("Place(cpu)", "Reserved", "mm", 1, 0, 4000),
        ("Place(cpu)", "Reserved", None, 0, 1, -3000),
        ("Place(gpu:1)", "Allocated", "mine", 1, 0, 8),
    ]
    assert memory["peak_bytes"].to_list() == [1100, 1100, 1100, 9000, 9000, 8]


def test_kernels_lose_their_parameters_and_are_sorted() -> None:
    spans = described("""
        main | call call call
        gpu  |    gemm----  gemm  gemm--
    """)
    names = pl.Series(
        ["call", "gemm<int, 2>(float*)", "call", "call", "gemm<int, 2>(int)", "other"]
    )
    spans = spans.with_columns(name=names)
    events = make_events(spans, steps((0, 40)), LINKS, (0, 40_000))

    for key in (SortedKeys.CPUTotal, SortedKeys.GPUTotal, SortedKeys.GPUMin):
        kernel = make_tables(events, NO_BLOCKS, {}, sorted_by=key).kernel
        rows = kernel.select("name", "calls", "gpu_total_ns").rows()
        assert rows == [("gemm<int, 2>", 2, 12_000), ("other", 1, 6_000)]
    assert kernel["gpu_ratio"].sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (SortedKeys.CPUTotal, ["often", "long"]),
        (SortedKeys.CPUAvg, ["long", "often"]),
        (SortedKeys.CPUMax, ["long", "often"]),
        (SortedKeys.CPUMin, ["often", "long"]),
    ],
)
def test_rows_are_sorted_by_the_key(key: SortedKeys, expected: list[str]) -> None:
    drawing = "main | long-----  often  often  often"

    assert (
        tables_of(drawing, steps((0, 40)), sorted_by=key).userdefined["name"].to_list() == expected
    )


def test_threads_have_tables_of_their_own() -> None:
    drawing = """
        main | mm--      mine
        side |   mm----
    """

    tables = tables_of(drawing, steps((0, 20)), thread_sep=True)

    assert tables.operator.select("thread", "name", "cpu_ratio").rows() == [
        (100, "mm", 1.0),
        (101, "mm", 1.0),
    ]
    shown = summary_text(tables, time_unit="us")
    assert "Thread: 100" in shown
    assert "Thread: 101" in shown


def test_parts_of_a_step_that_no_event_tells_are_found_from_operators() -> None:
    spans = described("main | mm-- mm--   mm---  mm--")
    phases = ["forward", "forward", "backward", "forward"]
    spans = spans.with_columns(phase=pl.Series(phases))

    events = events_of(spans, steps((0, 20), (20, 30)), (0, 30))

    parts = events.rows.filter(pl.col("type").is_in([Type.Forward, Type.Backward]))
    assert parts.select("name", "start_ns", "end_ns").rows() == [
        ("Forward", 0, 9_000),
        ("Backward", 12_000, 17_000),
        ("Forward", 19_000, 23_000),
    ]
    inside = events.rows.with_row_index().filter(pl.col("name") == "mm")["parent"]
    assert [events.rows["name"][row] for row in inside] == [
        "Forward",
        "Forward",
        "Backward",
        "Forward",
    ]


def test_operations_are_counted_where_they_are_known() -> None:
    spans = described("""
        main | mm----------  mm--  mine
        main |   inner----
        main |     inner
    """)
    flops = pl.Series([None, 100, 40, None, None], dtype=pl.Int64)
    events = events_of(spans.with_columns(flops=flops), steps((0, 30)), (0, 30))

    tables = make_tables(events, NO_BLOCKS, {})

    # what is inside another that has a figure is a part of that
    assert tables.operator.select("level", "name", "flops").rows() == [
        (0, "mm", 100),
        (1, "inner", 100),
    ]


def test_operations_are_told_layer_by_layer_of_one_forward() -> None:
    spans = described("""
        main | load mm mm forward--------------------  backward--   forward---  mm
        main |  mm         layer---------  mm-----      mm--          mm-
        main |              mm---  inner-
    """)
    flops = {"mm": 5000, "inner": 0}
    told = pl.Series([flops.get(name) for name in spans["name"]], dtype=pl.Int64)
    tables = make_tables(
        events_of(spans.with_columns(flops=told), steps((0, 90)), (0, 90)), NO_BLOCKS, {}
    )

    shown = flops_text(tables).splitlines()[1:-1]

    # 5000 operations in 2, 5, 7 and 14 columns of 1000 ns; what loads data is no forward
    assert shown == [
        "mm latency: 2.0 us, FLOPs: 5.0 K, FLOPS: 2.5 G",
        "mm latency: 2.0 us, FLOPs: 5.0 K, FLOPS: 2.5 G",
        "forward latency: 27.0 us, FLOPs: 10.0 K, FLOPS: 370.37 M",
        "  layer latency: 14.0 us, FLOPs: 5.0 K, FLOPS: 357.14 M",
        "    mm latency: 5.0 us, FLOPs: 5.0 K, FLOPS: 1.0 G",
        "    inner latency: 6.0 us, FLOPs: 0, FLOPS: 0.0",
        "  mm latency: 7.0 us, FLOPs: 5.0 K, FLOPS: 714.29 M",
    ]


def test_the_text_tells_units_and_cuts_no_name() -> None:
    name = "a very long name " * 10
    spans = described("main | mine mine").with_columns(name=pl.Series([name, "other"]))
    tables = make_tables(events_of(spans, steps((0, 10)), (0, 10)), NO_BLOCKS, {})

    shown = summary_text(tables, time_unit="ns", row_limit=1)

    assert name in shown
    assert "Time unit: ns" in shown
    assert "4000.00 / 4000.00 / 4000.00 / 4000.00 / 40.00" in shown
    assert "1 more row; row_limit shows more" in shown
    assert "inf" not in shown


def test_nothing_recorded_is_no_error() -> None:
    tables = tables_of("", steps(unfinished=(0, 1)))

    assert tables.overview["type"].to_list() == ["ProfileStep"]
    assert "Operator Summary: there are no operators." in summary_text(tables)
