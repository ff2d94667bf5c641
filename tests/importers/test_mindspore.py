# SPDX-License-Identifier: Apache-2.0
"""The files of MindSpore's profilers: as MindSpore 2.10.0 wrote them, cut small, and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flat_trace import Flat, read_flat
from strobe.errors import FormatError
from strobe.importers import minddata, mindspore
from strobe.model.tables import CATEGORIES

LAYER = "Default/network-WithLossCell/_backbone-Net/0-Dense"
TIMES = f"""\
Gradients/{LAYER}/Grad_MatMul/MatMul-op0;HostCpuOps;1794789063141264468,0.010265,0 \
1794789063143264468,0.0098,0
{LAYER}/MatMul-op0;HostCpuOps;1794789063140733731,0.047661,0 1794789063142599385,0.030215,0
Default/optimizer-SGD/AssignAdd-op0;HostCpuOps;1794789063141368482,0.00677,0
Default/optimizer-SGD/SGD-op0;HostCpuOps;1794789063141400810,9.5e-05,0
Expand/_Muls/Mul-op0;HostCpuOps;1794789063141139833,0.003766,0
Default/AllReduce-op0;HostCpuOps;1794789063141500000,1.72652,0
"""
DETAILS = f"""\
op_side,op_type,op_name,full_op_name,op_occurrences,op_total_time(ms),op_avg_time(ms),\
total_proportion,subgraph,pid
Host,MatMul,MatMul-op0,{LAYER}/MatMul-op0,2,0.077876,0.038938,0.1,Default,12717
Host,SGD,SGD-op0,Default/optimizer-SGD/SGD-op0,1,9.5e-05,9.5e-05,0.01,Default,12717
"""
INPUTS = """\
MatMul;MatMul-op0;331296151;input_1:[3, 6];input_2:[5, 6];input_3:NoShape;input_4:NoShape;
;;331296151;
Mul;Mul-op0;331296151;input_1:[3, 2];input_2:[];
MatMul;MatMul-op0;331296151;input_1:[3, 2];input_2:[2, 5];input_3:TupleShape(NoShape, [4]);
MatMul;MatMul-op0;331296151;input_1:[9, 6];
MatMul;MatMul-op0;331296151;input_1:[3, 9];
SGD;SGD-op0;331296151;input_1:[2];
SGD;SGD-op0;331296151;input_1:[2];
"""
MEMORY = """\
Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),Total Active(Byte)
1794789063140720622,2560,1073741824,2560
1794789063140827070,3072,1073741824,3072
1794789063140858096,3072,1073741824,3072
1794789063141204008,2048,1073741824,2048
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cpu_op_execute_timestamp_0.txt").write_text(TIMES)
    (tmp_path / "cpu_op_detail_info_0.csv").write_text(DETAILS)
    (tmp_path / "cpu_framework_0.txt").write_text(INPUTS)
    (tmp_path / "cpu_ms_memory_record_0.txt").write_text(MEMORY)
    return tmp_path


def rows(events: Flat) -> list[tuple[str, int, int]]:
    """Name, start after the first, and duration."""
    starts = events.start_ns - events.start_ns.min()
    names = [events.names[code] for code in events.name]
    return list(zip(names, starts.tolist(), events.dur_ns.tolist(), strict=True))


def attributes(events: Flat) -> list[dict[str, object]]:
    return events.told()


def test_operators_come_by_time(folder: Path) -> None:
    events = read_flat(mindspore, folder)

    assert rows(events) == [
        ("MatMul", 0, 47661),
        ("Mul", 406102, 3766),
        ("MatMul", 530737, 10265),
        ("AssignAdd", 634751, 6770),
        ("SGD", 667079, 95),
        ("AllReduce", 766269, 1726520),
        ("MatMul", 1865654, 30215),
        ("MatMul", 2530737, 9800),
    ]
    assert events.base_ns + events.start_ns[0] == 1794789063140733731
    kinds = [CATEGORIES[code] for code in events.category]
    assert kinds == ["operator"] * 5 + ["communication"] + ["operator"] * 2
    assert attributes(events)[5]["collective"] == "all_reduce"
    assert set(events.pid) == {12717}


def test_names_tell_phase_and_layer(folder: Path) -> None:
    events = read_flat(mindspore, folder)

    assert events.module is not None
    words = [each["phase"] for each in attributes(events)]
    assert words[:6] == ["forward", None, "backward", "optimizer", "optimizer", "forward"]
    layers = [events.names[code] if code >= 0 else None for code in events.module]
    assert layers[:6] == [LAYER, None, LAYER, *["Default/optimizer-SGD"] * 2, None]


def test_in_pynative_mode_no_phase_is_made_up(tmp_path: Path) -> None:
    lines = ["MatMul;HostCpuOps;10,0.001,0", "Default/BiasAdd-op0;HostCpuOps;2000,0.001,0"]
    (tmp_path / "cpu_op_execute_timestamp_0.txt").write_text("\n".join(lines))

    events = read_flat(mindspore, tmp_path)

    assert [each["phase"] for each in attributes(events)] == [None, None]
    assert [events.names[code] for code in events.name] == ["MatMul", "BiasAdd"]


def test_calls_tell_inputs_and_phases_in_pynative_mode(tmp_path: Path) -> None:
    """Names as MindSpore 2.10.0 has them: a Muls runs a Mul, a Reshape runs nothing."""
    lines = [
        "MatMul;HostCpuOps;10,0.000001,0 50,0.000001,0",
        "Mul;HostCpuOps;20,0.000001,0 40,0.000001,0",
        "Default/RealDiv-op0;HostCpuOps;45,0.000001,0",
        "Default/SGD-op0;HostCpuOps;60,0.000001,0",
        "Cast;HostCpuOps;5,0.000001,0 70,0.000001,0",
    ]
    (tmp_path / "cpu_op_execute_timestamp_0.txt").write_text("\n".join(lines))
    pair = [[[3, 6], "float32"], [[6, 5], "float32"]]
    kinds: list[list[object]] = [
        ["MatMul", pair, None, None, False],
        ["Mul", [[[3, 5], "float32"], ["several", [[[2], "int64"], None]]], None, None, False],
        ["Reshape", [[[3, 5], "float32"], None], None, "backward", False],
        ["Muls", [[[3, 5], "float32"], None], None, "backward", False],
        ["MatMul", pair, None, "backward", False],
        ["Cast", [[[1], "int32"]], None, None, False],
    ]
    (tmp_path / "dispatch_inputs.json").write_text(json.dumps(kinds))
    np.array([0, 1, 2, 3, 4, 5], np.int32).tofile(tmp_path / "dispatch_calls.bin")

    events = read_flat(mindspore, tmp_path)
    found = attributes(events)

    assert events.notes == ("inputs of 2 of 6 operators of PyNative mode are unknown",)
    assert [(each["full_name"], each.get("phase", "by order")) for each in found] == [
        ("Cast", None),  # one call and two launches: nobody knows whose
        ("MatMul", "by order"),
        ("Mul", "by order"),
        ("Mul", "backward"),
        ("Default/RealDiv-op0", "backward"),  # between two calls of the backward
        ("MatMul", "backward"),
        ("Default/SGD-op0", "optimizer"),
        ("Cast", None),
    ]
    assert found[0].get("shapes") is None
    assert found[1]["shapes"] == [[3, 6], [6, 5]]
    assert found[2]["shapes"] == [[3, 5], [[2], None]]
    assert found[2]["dtypes"] == ["float32", ["int64", None]]
    assert found[3]["shapes"] == [[3, 5], None]


def field(number: int, value: int | str | bytes) -> bytes:
    """One field of a protobuf message; a number is below 128, a length below 16384."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    content = value.encode() if isinstance(value, str) else value
    key = (number << 3 | 2) & 127
    high = [key | 128, number >> 4] if number > 15 else [key]
    return bytes([*high, len(content) & 127 | 128, len(content) >> 7]) + content


def test_graphs_tell_types_groups_and_strategies(tmp_path: Path) -> None:
    name = "Default/net/AllReduce-op0"
    lines = [f"{name};HostCpuOps;10,0.001,0", "Default/net/MatMul-op0;HostCpuOps;5,0.000001,0"]
    (tmp_path / "cpu_op_execute_timestamp_0.txt").write_text("\n".join(lines))
    inputs = "MatMul;MatMul-op0;1;input_1:[3, 5];input_2:[5, 2];input_3:NoShape;\n"
    inputs += "AllReduce;AllReduce-op0;1;input_1:[3, 5];\n"
    (tmp_path / "cpu_framework_0.txt").write_text(inputs)
    half = field(2, field(1, 10))  # a tensor's type: of float16
    strategy = field(2, b"".join(field(18, field(18, field(3, n))) for n in (2, 1)))
    product = field(1, field(1, "x")) + field(1, field(1, "cst1")) + field(1, field(1, "cst2"))
    product += field(2, "1") + field(5, field(1, "in_strategy") + strategy) + field(6, half)
    total = field(1, field(1, "1")) + field(2, "2") + field(8, name)
    total += field(5, field(1, "group") + field(2, field(7, "pair")))
    constants = field(5, field(1, "cst1") + field(2, field(8, field(2, 10))))
    constants += field(5, field(1, "cst2") + field(2, field(1, 1) + field(2, 1)))
    graph = field(1, product + field(8, "Default/net/MatMul-op0")) + field(1, total)
    graph += field(3, field(1, "x") + field(2, half)) + constants
    content = field(4, graph)
    (tmp_path / "graph_0.pb").write_bytes(content)

    first, second = attributes(read_flat(mindspore, tmp_path))

    assert first["dtypes"] == ["float16", "float16", None]
    assert first["strategy"] == [[2], [1]]
    assert second["group"] == "pair"
    assert (second["collective"], second["bytes"], second["dtype"]) == ("all_reduce", 30, "float16")

    (tmp_path / "graph_1.pb").write_bytes(content.replace(b"pair", b"rest"))
    first, second = attributes(read_flat(mindspore, tmp_path))
    assert first["dtypes"] == ["float16", "float16", None]
    assert "group" not in second  # which of the two it was is not known

    (tmp_path / "graph_1.pb").write_bytes(content[:-1])
    assert any("graph_1.pb" in note for note in read_flat(mindspore, tmp_path).notes)


def test_inputs_belong_to_launches_in_their_order(folder: Path) -> None:
    events = read_flat(mindspore, folder)

    shapes = [each.get("shapes") for each in attributes(events)]
    assert shapes == [
        [[3, 6], [5, 6], None, None],
        [[3, 2], []],
        [[3, 2], [2, 5], [None, [4]]],
        None,
        None,  # told twice for one launch
        None,
        [[9, 6]],
        [[3, 9]],
    ]
    assert events.notes == ("shapes of 1 operators cannot be distinguished",)


def test_memory_is_what_changed(folder: Path) -> None:
    times = folder / "cpu_op_execute_timestamp_0.txt"
    times.write_text(TIMES.replace("1.72652", "0.01"))  # one after the other

    told = read_flat(mindspore, folder).allocations

    assert told.bytes.tolist() == [2560, 512, -1024]
    assert told.allocated_bytes.tolist() == [2560, 3072, 2048]
    assert told.address.tolist() == [-1, -1, -1]
    assert told.owner_ns is not None
    # The first is for the MatMul that begins next, the second for the Mul; the third is freed.
    assert (told.owner_ns - told.start_ns).tolist() == [13109, 312763, 0]


def test_what_overlaps_has_a_lane_of_its_own(folder: Path) -> None:
    lines = "A;HostCpuOps;0,0.01,0 20000,0.01,0\nB;HostCpuOps;5000,0.02,0\nC;HostCpuOps;26000,1,0"
    (folder / "cpu_op_execute_timestamp_0.txt").write_text(lines)

    events = read_flat(mindspore, folder)

    assert [name for name, _, _ in rows(events)] == ["A", "B", "A", "C"]
    assert events.tid.tolist() == [0, 1, 0, 1]
    assert events.thread_names == {
        (12717, 0): "MindSpore operators",
        (12717, 1): "MindSpore operators 2",
    }


def test_a_rounded_duration_does_not_overlap(tmp_path: Path) -> None:
    # 24.58746 ms, written with six digits
    lines = "A;HostCpuOps;0,24.5875,0\nB;HostCpuOps;24587460,0.01,0"
    (tmp_path / "cpu_op_execute_timestamp_0.txt").write_text(lines)

    events = read_flat(mindspore, tmp_path)

    assert events.tid.tolist() == [0, 0]
    assert events.dur_ns.tolist() == [24587460, 10000]


def test_a_session_without_operators_is_empty(tmp_path: Path) -> None:
    events = read_flat(mindspore, tmp_path)

    assert len(events.start_ns) == len(events.allocations.bytes) == 0


def test_damaged_lines_are_left_out_and_told(folder: Path) -> None:
    for file, line in [
        ("cpu_op_execute_timestamp_0.txt", "Default/Cut-op0;HostCpuOps;17947,0.1"),
        ("cpu_framework_0.txt", "MatMul;Ma"),
        ("cpu_ms_memory_record_0.txt", "17947890631"),
    ]:
        with (folder / file).open("a") as end:
            end.write(line)
    (folder / "cpu_op_detail_info_0.csv").write_bytes(b"\xff\xfe\x00")

    events = read_flat(mindspore, folder)

    assert len(rows(events)) == 8
    assert len(events.allocations.bytes) == 3
    assert rows(events)[0] == ("MatMul", 0, 47661)
    assert len(events.notes) == 5  # and of the inputs that are told twice


@pytest.mark.parametrize("content", ["\x00\x01", "{}", "a;HostCpuOps;", "a;b;1,2,3"])
def test_what_is_no_such_file_is_refused(folder: Path, content: str) -> None:
    (folder / "cpu_op_execute_timestamp_0.txt").write_text(content)

    with pytest.raises(FormatError, match="HostCpuOps"):
        read_flat(mindspore, folder)


QUEUES = {
    "op_info": [
        {
            "children": [1],
            "metrics": {"output_queue": {"length": 16, "size": [0, 2]}},
            "num_workers": 2,
            "op_id": 0,
            "op_type": "BatchOp",
        },
        {"metrics": {}, "num_workers": 1, "op_id": 1, "op_type": "GeneratorOp"},
        {"metrics": None, "num_workers": 0, "op_id": 2, "op_type": "EpochCtrlOp"},
    ],
    "sampling_interval": 20,
}
USE = {
    "op_info": [
        {"metrics": {"sys_utilization": [0, 3], "user_utilization": [1, 40]}, "op_id": 0},
        {"metrics": {"sys_utilization": [0, 0], "user_utilization": [0, 0]}, "op_id": 1},
    ],
    "time_stamp": [17943157, 17943204],
}


def test_a_pipeline_is_counters(tmp_path: Path) -> None:
    (tmp_path / "pipeline_profiling_0.json").write_text(json.dumps(QUEUES))
    (tmp_path / "minddata_cpu_utilization_0.json").write_text(json.dumps(USE))

    read = read_flat(minddata, tmp_path)

    found = read.counters
    names = [read.names[code] for code in found.name]
    values = zip(names, found.start_ns.tolist(), found.value.tolist(), strict=True)
    assert list(values) == [
        ("MindData queue Batch(id=0)", 17943157000000, 0),
        ("MindData queue Batch(id=0)", 17943204000000, 2),
        ("MindData cpu % Batch(id=0)", 17943157000000, 1),
        ("MindData cpu % Batch(id=0)", 17943204000000, 43),
        ("MindData cpu % Generator(id=1)", 17943157000000, 0),
        ("MindData cpu % Generator(id=1)", 17943204000000, 0),
    ]
    assert found.value.dtype == np.float64

    (tmp_path / "window.json").write_text("17943158")
    found = read_flat(minddata, tmp_path).counters
    assert set(found.start_ns.tolist()) == {17943204000000}


@pytest.mark.parametrize("content", ["{", "[]", '{"op_info": [{}]}', '{"op_info": 3}'])
def test_a_damaged_pipeline_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "pipeline_profiling_0.json").write_text(content)

    with pytest.raises(FormatError):
        minddata.read(tmp_path)


def test_files_of_a_pipeline_are_cut_to_their_window(tmp_path: Path) -> None:
    queue = {"children": [1], "metrics": {"output_queue": {"length": 16, "size": [3, 4, 5]}}}
    use = {"time_stamp": [100, 200, 300], "device_info": {"idle": [1, 1, 2, 2, 3, 3]}}
    (tmp_path / "pipeline_profiling_0.json").write_text(json.dumps({"op_info": [queue]}))
    (tmp_path / "minddata_cpu_utilization_0.json").write_text(json.dumps(use))
    (tmp_path / "dataset_iterator_profiling_0.txt").write_text("0 0 1 5 150\n0 0 2 6 250\n")

    whole = minddata.read_window(tmp_path)
    step = minddata.read_window(tmp_path, 150_900_000, 250_900_000)
    (tmp_path / "window.json").write_text("200")
    cut = minddata.read_window(tmp_path)

    assert json.loads(whole["minddata_cpu_utilization.json"]) == use
    assert json.loads(cut["minddata_cpu_utilization.json"]) == {
        "time_stamp": [200, 300],
        "device_info": {"idle": [2, 2, 3, 3]},
    }
    kept = json.loads(cut["pipeline_profiling.json"])["op_info"][0]
    assert (kept["children"], kept["metrics"]["output_queue"]["size"]) == ([1], [4, 5])
    assert cut["dataset_iterator_profiling.txt"] == b"0 0 2 6 250\n"
    assert json.loads(step["minddata_cpu_utilization.json"])["time_stamp"] == [200]
    assert json.loads(step["pipeline_profiling.json"])["op_info"][0]["metrics"] == {
        "output_queue": {"length": 16, "size": [4]}
    }
    assert step["dataset_iterator_profiling.txt"] == b"0 0 1 5 150\n"  # got when the step began


@pytest.mark.parametrize("damaged", ["pipeline_profiling", "minddata_cpu_utilization"])
def test_half_a_file_of_a_pipeline_is_left_out(tmp_path: Path, damaged: str) -> None:
    names = ("pipeline_profiling", "minddata_cpu_utilization")
    for name in names:
        content = '{"op_info": [' if name == damaged else '{"time_stamp": [100]}'
        (tmp_path / f"{name}_0.json").write_text(content)

    for bounds in ((None, None), (0, 50_000_000)):
        (kept,) = minddata.read_window(tmp_path, *bounds)
        assert kept == f"{next(name for name in names if name != damaged)}.json"


def test_of_several_pipelines_the_busiest_is_told(tmp_path: Path) -> None:
    for number, batches in enumerate((1, 3, 2)):
        folder = tmp_path / f"minddata-1-{number}"
        folder.mkdir()
        lines = "".join(f"0 0 {batch} 5 {batch}00\n" for batch in range(1, batches + 1))
        (folder / "dataset_iterator_profiling_0.txt").write_text(lines)
    folders = sorted(tmp_path.iterdir())

    assert minddata.read_busiest([]) == {}
    assert minddata.read_busiest(folders)["dataset_iterator_profiling.txt"].count(b"\n") == 3
    first = minddata.read_busiest(folders, 0, 200_000_000)
    assert first == {"dataset_iterator_profiling.txt": b"0 0 1 5 100\n"}
