# SPDX-License-Identifier: Apache-2.0
"""Paddle's own formats hold what the tables hold, and Perfetto and VisualDL read them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import strobe
from drawing import lanes, make_tables
from drawing import spans as drawn
from strobe.exporters import paddle, paddle_pb
from strobe.importers import paddle as protobuf
from strobe.importers import paddle_json
from strobe.model.paddle import TracerEventType as Type
from strobe.store.tables import Tables


def silent(stage: str, share: float) -> None:
    assert stage
    assert 0 <= share <= 1


CATEGORIES = {
    "step": "annotation",
    "forward": "annotation",
    "matmul": "operator",
    "addmm": "operator",
    "launch": "runtime",
    "gemm": "kernel",
    "mine": "user",
}


def with_parents(spans: pl.DataFrame) -> pl.DataFrame:
    """As the file has them."""
    return spans.with_columns(parent_distance=pl.int_range(pl.len()) - pl.col("parent"))


def training(folder: Path) -> Tables:
    """Two steps of one thread; a kernel on a device; blocks of memory; one event after the steps.

    Columns are microseconds.
    """
    spans = drawn("""
        main | forward------  mine----     forward------  mine--   late-
        main |  matmul-----                 matmul-----
        main |   addmm---                    addmm---
        main |    launch                      launch
        gpu  |           gemm---                     gemm---
    """)
    known = {**CATEGORIES, "late": "user"}
    spans = with_parents(spans).with_columns(
        category=pl.col("name").replace_strict(known),
        phase=pl.when(pl.col("name").is_in(["forward", "matmul", "addmm"])).then(pl.lit("forward")),
        attributes=pl.when(pl.col("name") == "forward").then(pl.lit('{"phase":"forward"}')),
        device=pl.when(pl.col("name") == "gemm").then(pl.lit(0, dtype=pl.Int32)),
        stream=pl.when(pl.col("name") == "gemm").then(pl.lit(7, dtype=pl.Int64)),
        correlation=pl.when(pl.col("name").is_in(["gemm", "launch"])).then(
            pl.when(pl.col("start_ns") < 20_000).then(1).otherwise(2).cast(pl.Int64)
        ),
    )
    rows = {name: np.flatnonzero(spans["name"] == name) for name in CATEGORIES}
    links = pl.DataFrame({"kind": ["launch"] * 2, "source": rows["launch"], "target": rows["gemm"]})
    steps = pl.DataFrame(
        {
            "step": [4, 5, 6],
            "kind": ["step"] * 3,
            "start_ns": [0, 26_000, 52_000],
            "dur_ns": [26_000, 26_000, 10_000],
            "lane": pl.Series([0, 0, None], dtype=pl.Int32),
            "unfinished": [False, False, True],
        }
    )
    allocations = pl.DataFrame(
        {
            "start_ns": [4_000, 9_000],
            "bytes": [64, -64],
            "address": [4096, 4096],
            "pid": [7, 7],
            "tid": [7, 7],
            "lane": pl.Series([0, 0], dtype=pl.Int32),
            "span": pl.Series([int(rows["addmm"][0]), None], dtype=pl.Int64),
            "allocated_bytes": [1064, 1000],
        }
    )
    metadata = pl.DataFrame(
        {
            "key": ["start_ns", "end_ns", "start_wall_ns", "span_index", "Process Cpu Utilization"],
            "value": ["0", "62000", "1700000000000000000", "3", "0.500000"],
        }
    )
    threads = lanes((7, 7, "MainThread", 0, "p"), (7, 8, "device 0 stream 7", 0, "p"))
    return make_tables(
        folder,
        spans=spans,
        threads=threads,
        steps=steps,
        links=links,
        allocations=allocations,
        metadata=metadata,
    )


WALL_NS = 1_700_000_000_000_000_000


def test_the_json_is_exact_and_has_both_spellings_of_its_index(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    paddle.write(training(tmp_path), path, silent)

    content = json.loads(path.read_text(), parse_float=Decimal)
    assert content["span_index"] == content["span_indx"] == "3"
    assert content["schemaVersion"] == "1.0.2"
    assert content["baseTimeNanoseconds"] == WALL_NS
    assert content["ExtraInfo"]["Process Cpu Utilization"] == "0.500000"
    events = {(e["name"], e["ts"]): e for e in content["traceEvents"] if e["ph"] == "X"}
    matmul = events["matmul[11.000 us]", Decimal("1.000")]
    assert matmul["cat"] == "Operator"
    assert (matmul["pid"], matmul["tid"]) == (7, "7(C++)")
    assert matmul["args"] == {"start_time": "1.000 us", "end_time": "12.000 us"}
    assert events["ProfileStep#4[26.000 us]", Decimal("0.000")]["tid"] == "7(Python)"
    kernel = events["gemm[7.000 us]", Decimal("10.000")]
    assert (kernel["pid"], kernel["tid"], kernel["args"]["correlation id"]) == (0, 7, 1)
    assert not any(name.startswith("late") for name, _ in events)
    memory = [e for e in content["traceEvents"] if e["ph"] == "i"]
    assert [(e["cat"], e["ts"], e["args"]["increase_bytes"]) for e in memory] == [
        ("Allocate", Decimal("4.000"), 64),
        ("Free", Decimal("9.000"), -64),
    ]


@pytest.mark.parametrize("form", ["json", "pb"])
def test_what_was_written_is_read(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"trace.{form}"
    writer, reader = (paddle, paddle_json) if form == "json" else (paddle_pb, protobuf)

    writer.write(training(tmp_path), path, silent)  # type: ignore[attr-defined]
    trace = reader.read_trace(path)  # type: ignore[attr-defined]

    host, names = trace.host, trace.names
    rows = {
        (names[host.name[row]], int(host.start_ns[row]) - WALL_NS): row
        for row in range(len(host.name))
    }
    assert {name for name, _ in rows} == {
        *("ProfileStep#4", "ProfileStep#5", "forward", "matmul", "addmm", "launch", "mine"),
    }
    parent = {name: names[host.name[host.parent[row]]] for (name, _), row in rows.items()}
    assert parent["addmm"] == "matmul"
    assert parent["launch"] == "addmm"
    assert parent["mine"] == "ProfileStep#5"
    kinds = {name: Type(int(host.type[row])).name for (name, _), row in rows.items()}
    assert kinds["addmm"] == "OperatorInner"
    assert kinds["mine"] == "PythonUserDefined"
    matmul = rows["matmul", 1_000]
    assert int(host.end_ns[matmul]) - WALL_NS == 12_000
    device = trace.device
    assert [names[code] for code in device.name] == ["gemm", "gemm"]
    assert [names[host.name[row]] for row in device.host] == ["launch", "launch"]
    assert (device.end_ns - device.start_ns).tolist() == [7_000, 7_000]
    memory = trace.memory
    by_time = np.argsort(memory.time_ns)  # a tree has its root's blocks first
    assert memory.bytes[by_time].tolist() == [64, -64]
    assert memory.current_allocated[by_time].tolist() == [1064, 1000]
    assert names[host.name[memory.host[by_time[0]]]] == "addmm"
    assert trace.span_index == 3
    assert trace.extra_info["7"] == "MainThread"


def test_types_that_paddle_cannot_read_are_written_as_parts_of_operators(tmp_path: Path) -> None:
    spans = with_parents(
        drawn("""
        main | matmul---------
        main |   kernel---
    """)
    ).with_columns(
        category=pl.lit("operator"),
        type=pl.Series(["Operator", "DygraphKernelLaunch"]),
    )
    tables = make_tables(tmp_path, spans=spans, threads=lanes((1, 1, "a", 0, "p")))

    paddle_pb.write(tables, tmp_path / "theirs.pb", silent)
    paddle_pb.write_all_types(tables, tmp_path / "ours.pb")

    found = {
        name: sorted(protobuf.read_trace(tmp_path / f"{name}.pb").host.type.tolist())
        for name in ("theirs", "ours")
    }
    assert found["theirs"] == sorted([Type.ProfileStep, Type.Operator, Type.OperatorInner])
    assert found["ours"] == sorted([Type.ProfileStep, Type.Operator, Type.DygraphKernelLaunch])


@pytest.mark.parametrize("form", ["json", "pb"])
def test_shapes_of_inputs_are_kept(form: str, tmp_path: Path) -> None:
    inputs = {"shapes": [[2, 3], [], [3, 4]], "dtypes": ["float32", "", "int64"]}
    odd = {"shapes": "round"}
    spans = drawn("main | mm--  add--  mine").with_columns(
        category=pl.Series(["operator", "operator", "user"]),
        attributes=pl.Series([json.dumps(inputs), None, json.dumps(odd)]),
    )
    tables = make_tables(tmp_path, spans=spans, threads=lanes((1, 1, "a", 0, "p")))
    path = tmp_path / f"trace.{form}"
    writer, reader = (paddle, paddle_json) if form == "json" else (paddle_pb, protobuf)

    writer.write(tables, path, silent)  # type: ignore[attr-defined]
    trace = reader.read_trace(path)  # type: ignore[attr-defined]

    rows = {trace.names[code]: row for row, code in enumerate(trace.host.name.tolist())}
    assert trace.inputs[trace.host.inputs[rows["mm"]]] == {
        "shapes": {"input0": [[2, 3]], "input1": [[]], "input2": [[3, 4]]},
        "dtypes": {"input0": ["float32"], "input1": [""], "input2": ["int64"]},
    }
    assert trace.host.inputs[rows["add"]] == trace.host.inputs[rows["mine"]] == -1


def test_whatever_was_recorded_is_in_both(hostile: strobe.Recording, tmp_path: Path) -> None:
    paddle.write(hostile, tmp_path / "t.json", silent)
    paddle_pb.write(hostile, tmp_path / "t.pb", silent)

    spans = hostile.spans().collect()
    expected = Counter(spans.select("name", "dur_ns").iter_rows())
    for trace in (
        paddle_json.read_trace(tmp_path / "t.json"),
        protobuf.read_trace(tmp_path / "t.pb"),
    ):
        host = trace.host
        names = [trace.names[code] for code in host.name]
        found = Counter(zip(names, (host.end_ns - host.start_ns).tolist(), strict=True))
        del found[next(pair for pair in found if pair[0].startswith("ProfileStep#"))]
        assert found == expected


def test_perfetto_reads_it_without_complaint(
    hostile: strobe.Recording, tmp_path: Path, query: Any
) -> None:
    path = tmp_path / "trace.json"

    paddle.write(hostile, path, silent)

    count = hostile.spans().select(pl.len()).collect().item()
    assert query(path, "select count(*) from slice;") == [[str(count + 1)]]


def test_an_empty_recording_is_an_empty_trace(tmp_path: Path, query: Any) -> None:
    tables = make_tables(tmp_path, spans=drawn(""), threads=lanes())

    paddle.write(tables, tmp_path / "t.json", silent)
    paddle_pb.write(tables, tmp_path / "t.pb", silent)

    assert query(tmp_path / "t.json", "select name from slice;") == [["ProfileStep#0[0.000 us]"]]
    trace = protobuf.read_trace(tmp_path / "t.pb")
    assert [trace.names[code] for code in trace.host.name] == ["ProfileStep#0"]


SHOW = """
import json, sys
from visualdl.component.profiler.parser.event_node import load_profiler_json
from visualdl.component.profiler.profiler_data import ProfilerData
result = load_profiler_json(sys.argv[1])
data = ProfilerData("run", "worker", str(result.span_idx), result)
print(json.dumps({
    "views": data.get_views(),
    "model": data.get_model_perspective("us"),
    "operators": data.get_operator_table("op_name", None, "us"),
    "userdefined": data.get_userdefined_perspective("us"),
    "memory": data.get_memory_devices(),
}))
"""


def test_visualdl_shows_our_figures(tmp_path: Path) -> None:
    if importlib.util.find_spec("visualdl") is None:
        pytest.skip("VisualDL is not here: see requirements/consumers.txt")
    path = tmp_path / "host_time_1.paddle_trace.json"
    paddle.write(training(tmp_path), path, silent)

    shown = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SHOW, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout.splitlines()[-1])
    assert {"Overview", "Operator", "Memory"} <= set(found["views"])
    model = {row["name"]: row for row in found["model"]["cpu"]}
    assert (model["ProfileStep"]["calls"], model["ProfileStep"]["total_time"]) == (2, 52.0)
    assert (model["Forward"]["calls"], model["Forward"]["total_time"]) == (2, 26.0)
    assert model["Forward"]["ratio"] == 50.0
    (matmul,) = found["operators"]["events"]
    assert (matmul["name"], matmul["calls"], matmul["cpu_total_time"]) == ("matmul", 2, 22.0)
    assert matmul["gpu_total_time"] == 14.0
    (mine,) = found["userdefined"]["events"]
    assert (mine["name"], mine["calls"], mine["cpu_total_time"]) == ("mine", 2, 14.0)
    assert [place["device"] for place in found["memory"]] == ["Place(cpu)"]
