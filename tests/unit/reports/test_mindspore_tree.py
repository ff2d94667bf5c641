# SPDX-License-Identifier: Apache-2.0
"""Contents of MindSpore's files, from tables that are written by hand."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from strobe.analysis.memory import name_owners
from strobe.reports.mindspore_tree import loading, memory, operators, steps, timeline
from strobe.reports.mindspore_tree.files import FILES, Tree, write_tree
from strobe.reports.mindspore_tree.info import Facts
from strobe.reports.mindspore_tree.run import Run, clip
from strobe.store.frames import empty

WALL_NS = 1_000_000_000_000


def spans(*rows: dict[str, Any]) -> pl.DataFrame:
    defaults = {"category": "operator", "pid": 9, "tid": 8, "lane": 0, "unfinished": False}
    whole = [{"self_ns": row["dur_ns"], **defaults, **row} for row in rows]
    schema = empty("spans").schema
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in whole], schema=schema)


def operator(name: str, start_ns: int, dur_ns: int, **rest: Any) -> dict[str, Any]:
    told = {key: rest.pop(key) for key in ("shapes", "dtypes") if key in rest}
    text = json.dumps(told) if told else None
    return {"name": name, "start_ns": start_ns, "dur_ns": dur_ns, "attributes": text, **rest}


def step_table(*bounds: tuple[int, int]) -> pl.DataFrame:
    rows = [
        (number, "step", start, end - start, None, 0, False)
        for number, (start, end) in enumerate(bounds)
    ]
    return pl.DataFrame(rows, schema=empty("steps").schema, orient="row")


def make(*rows: dict[str, Any], **rest: Any) -> Run:
    given: dict[str, Any] = {
        "spans": spans(*rows),
        "steps": step_table(),
        "allocations": name_owners(empty("allocations"), empty("spans")),
        "instants": empty("instants"),
        "batches": empty("batches"),
        "facts": {"start_ns": "0", "end_ns": "9000", "start_wall_ns": str(WALL_NS)},
        "parameters": {},
        "missing": {},
        "lanes": {0: "main"},
    }
    return Run(**{**given, **rest})


def table(text: str | None) -> list[dict[str, str]]:
    assert text is not None
    return list(csv.DictReader(text.splitlines()))


TWO_STEPS = (
    operator("MatMul", 1000, 400, full_name="Default/a/MatMul-op0", phase="forward"),
    operator("MatMul", 1600, 200, full_name="Gradients/a/MatMul-op1", phase="backward"),
    operator("SGD", 1900, 100, full_name="Default/SGD-op0", phase="optimizer"),
    operator("MatMul", 2500, 300, full_name="Default/a/MatMul-op0", phase="forward"),
    operator("MatMul", 3000, 500, full_name="Gradients/a/MatMul-op1", phase="backward"),
)


def test_steps_are_in_ticks_of_ten_nanoseconds_with_their_average() -> None:
    run = make(*TWO_STEPS, steps=step_table((500, 2000), (2000, 4000)))

    assert steps.step_trace_raw(run) == (
        "step_num,start_point,end_point,total,fp_point,bp_point,iteration_interval,fp_and_bp,tail\n"
        "1,50,200,150,100,180,50,80,20\n"
        "2,200,400,200,250,350,50,100,50\n"
        "-,200,400,200,250,350,50,100,50\n"
    )
    assert json.loads(steps.step_trace_point_info(run) or "") == {
        "fp_start": "Default/a/MatMul-op0",
        "bp_end": "Gradients/a/MatMul-op1",
    }


def test_collectives_of_a_step_follow_it() -> None:
    def exchange(name: str, start_ns: int, dur_ns: int) -> dict[str, Any]:
        return operator(
            name, start_ns, dur_ns, full_name=f"Default/x/{name}", category="communication"
        )

    rows = (*TWO_STEPS, exchange("AllReduce-op1", 1850, 60), exchange("AllReduce-op1", 3500, 100))
    run = make(
        *sorted((*rows, exchange("AllGather-op0", 3700, 40)), key=lambda row: row["start_ns"]),
        steps=step_table((500, 2000), (2000, 4000)),
        first_step=3,
    )

    found = [line.split(",") for line in (steps.step_trace_raw(run) or "").splitlines()]
    assert [line[0] for line in found] == ["step_num", "3", "4", "-"]
    reduce, gather = "stream_0_0_AllReduce-op1", "stream_0_1_AllGather-op0"
    assert [line[9:] for line in found] == [
        [
            *(reduce, f"{reduce}_start_point", f"{reduce}_end_point"),
            *(gather, f"{gather}_start_point", f"{gather}_end_point"),
        ],
        ["6", "185", "191", "0", "0", "0"],  # the first step has no AllGather
        ["10", "350", "360", "4", "370", "374"],
        ["10", "350", "360", "4", "370", "374"],
    ]


def test_steps_that_were_not_collected_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no step 2 of 1 collected steps"):
        clip({"steps": step_table((0, 10))}, [1, 2])
    with pytest.raises(ValueError, match="no steps were collected"):
        clip({"steps": step_table()}, [1])


def test_names_of_the_environment_say_where_forward_and_backward_meet() -> None:
    names = {"fp_start": "Gradients/a/MatMul-op1", "bp_end": "Default/SGD-op0"}
    run = make(*TWO_STEPS, steps=step_table((500, 2000), (2000, 4000)), parameters=names)

    assert json.loads(steps.step_trace_point_info(run) or "") == names
    assert (steps.step_trace_raw(run) or "").splitlines()[1:-1] == [
        "1,50,200,150,160,200,110,40,0"  # the second step has no SGD
    ]
    elsewhere = make(*TWO_STEPS, steps=step_table((500, 2000)), parameters={"fp_start": "Conv"})
    assert steps.step_trace_point_info(elsewhere) is None


def test_an_inference_has_no_backward() -> None:
    run = make(TWO_STEPS[0], TWO_STEPS[3], steps=step_table((500, 2000), (2000, 4000)))

    assert (steps.step_trace_raw(run) or "").splitlines()[:2] == [
        "step_num,start_point,end_point,total,fp_point,iteration_interval,fp",
        "1,50,200,150,100,50,100",
    ]
    assert json.loads(steps.step_trace_point_info(run) or "") == {
        "fp_start": "Default/a/MatMul-op0"
    }
    training = make(TWO_STEPS[0], TWO_STEPS[2], steps=step_table((500, 2000)))
    assert steps.step_trace_raw(training) is None  # its backward is not known
    assert steps.step_trace_raw(make(*TWO_STEPS)) is None  # nor are steps


def test_step_times_are_microseconds() -> None:
    run = make(*TWO_STEPS, steps=step_table((500, 2000)))

    (row,) = table(steps.step_trace_time(run))
    assert (row["Computing"], row["Free"], row["Preparing"]) == ("0.700", "0.800", "0.500")
    assert "Preparing" not in table(steps.step_trace_time_without_preparing(run))[0]
    (whole,) = table(steps.step_trace_time(make(*TWO_STEPS)))
    assert (whole["Step"], whole["Computing"], whole["Free"]) == ("0", "1.500", "7.500")
    assert steps.step_trace_time(make()) is None


def test_operators_are_counted_in_milliseconds() -> None:
    run = make(*TWO_STEPS, steps=step_table((500, 2000), (2000, 4000)))

    detail = {row["full_op_name"]: row for row in table(operators.cpu_op_detail(run))}
    assert detail["Default/a/MatMul-op0"] == {
        "op_side": "Host",
        "op_type": "MatMul",
        "op_name": "MatMul-op0",
        "full_op_name": "Default/a/MatMul-op0",
        "op_occurrences": "2",
        "op_total_time(ms)": "0.000700",
        "op_avg_time(ms)": "0.00035",
        "total_proportion": "0.466667",
        "subgraph": "Default",
        "pid": "9",
    }
    kinds = {row["op_type"]: row for row in table(operators.cpu_op_type(run))}
    assert kinds["MatMul"]["execution_frequency(per-step)"] == "2"
    assert kinds["SGD"]["execution_frequency(per-step)"] == "0.5"
    assert (operators.cpu_op_execute_timestamp(run) or "").splitlines()[0] == (
        "Default/a/MatMul-op0;HostCpuOps;1000000001000,0.0004,8 1000000002500,0.0003,8 "
    )
    assert operators.cpu_op_detail(make()) is None


def test_a_name_of_several_lines_is_one_row_in_every_file() -> None:
    run = make(operator('my "op",\r\n2', 0, 1000))

    ran = operators.cpu_op_execute_timestamp(run)
    assert ran == 'my "op", 2;HostCpuOps;1000000000000,0.001,8 \n'
    assert operators.cpu_framework(run) == 'my "op", 2;my "op", 2;0;\n'
    (row,) = csv.DictReader(io.StringIO(operators.cpu_op_detail(run) or "", newline=""))
    assert row["full_op_name"] == 'my "op",\r\n2'


def test_time_of_nested_operators_counts_once() -> None:
    outer = operator("aten::linear", 0, 1000, self_ns=400)
    inner = operator("aten::addmm", 200, 600)

    run = make(outer, inner, operator("allreduce", 1000, 500, category="communication"))
    found = table(operators.cpu_op_type(run))

    assert [(row["op_type"], row["percent"]) for row in found] == [
        ("aten::linear", "0.266667"),
        ("aten::addmm", "0.4"),
        ("allreduce", "0.333333"),
    ]
    summary = json.loads(timeline.timeline_summary(run) or "")
    assert (summary["total_time"], summary["num_of_ops"], summary["op_exe_times"]) == (0.0015, 3, 3)


def test_shapes_are_told_in_four_ways() -> None:
    shapes = [[2, 3], None, []]
    run = make(
        operator("Add", 0, 10, shapes=shapes, dtypes=["Float32"], full_name="Default/Add-op0")
    )

    assert (
        operators.cpu_framework(run) == "Add;Add-op0;0;input_1:[2, 3];input_2:NoShape;input_3:[];\n"
    )
    assert operators.operator_details(run) == 'Name,Input Shapes\nDefault/Add-op0,"2,3;;"\n'
    (row,) = table(operators.framework_raw(run))
    assert json.loads(row["op_info"])["Input_0"] == {
        "format": "DefaultFormat",
        "data_type": "Float32",
        "shape": [2, 3],
    }
    assert operators.dynamic_shape_info(run) is None
    assert operators.find_operators(run, ["Add", "Mul"])["Mul"] == []


def test_what_is_no_tensor_has_no_shape() -> None:
    types = ["float", "Scalar", "", "long int"]
    run = make(operator("aten::add", 0, 10, shapes=[[2], [], [], []], dtypes=types))

    assert (operators.cpu_framework(run) or "").split(";")[3:] == [
        *("input_1:[2]", "input_2:NoShape", "input_3:NoShape", "input_4:[]", "\n")
    ]


def test_shapes_that_change_between_steps_are_dynamic() -> None:
    run = make(
        operator("Add", 100, 10, shapes=[[2]], full_name="Default/Add-op0"),
        operator("Add", 1100, 30, shapes=[[3]], full_name="Default/Add-op0"),
        steps=step_table((0, 1000), (1000, 2000)),
    )

    found = json.loads(operators.dynamic_shape_info(run) or "")

    assert found == {
        "Add": [
            {
                "Default/Add-op0": {
                    "op_exe_time": [1e-05, 3e-05],
                    "op_shape": ["[[2]]", "[[3]]"],
                    "op_exe_occurrences": 2,
                }
            }
        ],
        "op_type": {"Add": [1e-05, 3e-05]},
    }


def test_a_size_that_a_graph_leaves_open_is_dynamic() -> None:
    """MindSpore 2.10 tells [-1, 8] for inputs that set_inputs declared with None."""
    relu = operator("ReLU", 100, 10, shapes=[[-1, 8]], full_name="Default/ReLU-op0")

    found = json.loads(operators.dynamic_shape_info(make(relu, steps=step_table((0, 1000)))) or "")

    assert found["op_type"] == {"ReLU": [1e-05]}
    assert found["ReLU"][0]["Default/ReLU-op0"]["op_shape"] == ["[[-1, 8]]"]
    assert operators.dynamic_shape_info(make(relu)) is None  # no steps, no times of steps


def test_operations_are_divided_by_the_time_they_took() -> None:
    run = make(
        operator("aten::mm", 0, 1000, flops=4_000_000), operator("aten::add", 0, 500, flops=1_000)
    )

    assert table(operators.flops(run)) == [
        {
            "full_kernel_name": "aten::mm",
            "MFLOPs(10^6 cube)": "4.000000",
            "GFLOPS(10^9 cube)": "4000.000000",
            "MFLOPs(10^6 vector)": "0",
            "GFLOPS(10^9 vector)": "0",
        },
        {
            "full_kernel_name": "aten::add",
            "MFLOPs(10^6 cube)": "0",
            "GFLOPS(10^9 cube)": "0",
            "MFLOPs(10^6 vector)": "0.001000",
            "GFLOPS(10^9 vector)": "2.000000",
        },
    ]
    assert json.loads(operators.flops_summary(run) or "") == {
        "cube_FLOPs": 4.0,
        "cube_FLOPS": 4000.0,
        "vec_FLOPs": 0.001,
        "vec_FLOPS": 2.0,
    }


def test_the_timeline_has_exact_times_as_text() -> None:
    run = make(
        operator("Mul", 1_234_567, 1_001, full_name="Default/net/Mul-op0"),
        {"name": 'say "hi"', "start_ns": 0, "dur_ns": 5, "category": "user"},
        {"name": "construct", "start_ns": 9, "dur_ns": 5, "category": "python"},
        steps=step_table((0, 2_000_000)),
    )

    trace = json.loads(timeline.trace_view(run) or "")

    layers = {each["pid"]: each["args"]["name"] for each in trace if each["name"] == "process_name"}
    drawn = {
        (layers[each["pid"]], each["name"]): (each["ts"], each["dur"])
        for each in trace
        if each["ph"] == "X"
    }
    assert drawn[("CPU OP", "Default/net/Mul-op0")] == ("1000001234.567", "1.001")
    assert drawn[("MindSpore", 'say "hi"')] == ("1000000000.000", "0.005")
    assert drawn[("MindSpore", "ProfilerStep#0")] == ("1000000000.000", "2000.000")
    assert drawn[("Scope Layer", "net")] == ("1000001234.567", "1.001")
    assert "Overlap Analysis" not in layers.values()
    exchange = operator("AllReduce", 0, 2_000_000, category="communication")
    both = json.loads(timeline.trace_view(make(*run.spans.to_dicts(), exchange)) or "")
    assert {
        each["name"]: each["dur"] for each in both if each["pid"] == 5 and each["ph"] == "X"
    } == {
        "Computing": "1.001",
        "Communication": "2000.000",
        "Communication(Not Overlapped)": "764.432",
    }
    kinds = {each["name"]: each["cat"] for each in trace if each["ph"] == "X"}
    assert kinds["construct"] == "python_function"
    assert timeline.trace_view(make()) is None
    assert (timeline.output_timeline_data(run) or "").splitlines()[1] == (
        "Default/net/Mul-op0,0,1000001234.567,0.001001"
    )
    assert json.loads(timeline.timeline_summary(run) or "")["max_scope_name_num"] == 2


def test_marks_alone_are_a_timeline() -> None:
    schema = empty("instants").schema
    mark = {"name": "here", "start_ns": 5, "pid": 9, "tid": 7, "lane": 0}
    instants = pl.DataFrame([{name: mark.get(name) for name in schema}], schema=schema)

    trace = json.loads(timeline.trace_view(make(instants=instants)) or "")

    found = {each["name"]: each for each in trace}
    assert found["thread_name"]["tid"] == found["here"]["tid"] == 7
    assert found["thread_name"]["args"] == {"name": "main"}
    assert found["process_name"]["args"] == {"name": "MindSpore"}
    assert found["here"]["ts"] == "1000000000.005"


def test_threads_with_large_numbers_keep_their_names() -> None:
    large = {"tid": 1_501_302_722, "lane": 0, "category": "user"}
    run = make(*({"name": "x", "start_ns": at, "dur_ns": 10, **large} for at in (0, 5)))

    trace = json.loads(timeline.trace_view(run) or "")

    assert {
        each["tid"]: each["args"]["name"] for each in trace if each["name"] == "thread_name"
    } == {1_501_302_722: "main", 1_601_302_722: "main (overlap 1)"}


def test_ranges_of_other_domains_are_left_out() -> None:
    ranges = [
        {"name": name, "start_ns": 0, "dur_ns": 5, "category": "user", "attributes": text}
        for name, text in (("a", '{"domain":"one"}'), ("b", '{"domain":"two"}'), ("c", None))
    ]

    def drawn(**parameters: list[str]) -> set[str]:
        trace = json.loads(timeline.trace_view(make(*ranges, parameters=parameters)) or "")
        return {each["name"] for each in trace if each["ph"] == "X"}

    assert drawn() == {"a", "b", "c"}
    assert drawn(mstx_domain_include=["one"], mstx_domain_exclude=["one"]) == {"a", "c"}
    assert drawn(mstx_domain_exclude=["one"]) == {"b", "c"}


def test_blocks_are_followed_from_their_allocation_to_their_end() -> None:
    columns = ("start_ns", "bytes", "address", "device", "pid", "span", "allocated_bytes")
    rows = [
        (100, 2048, 1, None, 9, 0, 2048),
        (200, 1024**2, 2, 1, 9, 0, 1024**2),
        (400, -2048, 1, None, 9, None, 0),
        (500, 2048, 1, None, 9, 0, 2048),
        (600, 3 * 1024**3 + 512, 3, None, 9, 0, 3 * 1024**3 + 2560),
    ]
    whole = [dict(zip(columns, row, strict=True)) for row in rows]
    schema = empty("allocations").schema
    allocations = pl.DataFrame(
        [{name: row.get(name) for name in schema} for row in whole], schema=schema
    )
    work = operator("aten::empty", 0, 900)
    run = make(work, allocations=name_owners(allocations, spans(work)))

    found = table(memory.operator_memory(run))

    assert [(row["Size(KB)"], row["Duration(us)"], row["Device Type"]) for row in found] == [
        ("2", "0.300", "CPU"),
        ("1024", "N/A", "NPU:1"),
        ("2", "N/A", "CPU"),
        ("3145728.5", "N/A", "CPU"),
    ]
    assert (memory.operator_memory_old(run) or "").splitlines()[1].endswith(",CPU,")
    assert [row["Total Allocated(MB)"] for row in table(memory.memory_record(run))][1] == "1.000000"
    assert (memory.cpu_memory_record(run) or "").splitlines()[1] == "1000000000100,2048,,2048"
    assert memory.operator_memory(make(work)) is None


def test_waits_for_data_of_any_loader_are_batches() -> None:
    waits = [
        {"name": "enumerate(Loader)#it", "start_ns": start, "dur_ns": 3_000_000}
        for start in (0, 5_000_000)
    ]
    run = make(*({**wait, "category": "data_loading"} for wait in waits))

    assert (loading.dataset_iterator(run) or "").splitlines()[3:] == [
        *("0 1 2 0 8", "0 2 2 3 8", "0 0 2 3 8")
    ]
    assert table(loading.dataset(run)) == [
        {
            "Operation": "enumerate(Loader)",
            "Stage": "it",
            "Occurrences": "2",
            "Avg. time (us)": "3000.000",
            "Custom Info": "",
        }
    ]
    assert loading.pipeline_raw(run) is None


def test_waits_that_have_no_span_are_batches_too() -> None:
    schema = empty("batches").schema
    asked = [
        {"loader": "Loader", "start_ns": 0, "wait_ns": 2_000_000},
        {"loader": "Inner", "start_ns": 0, "wait_ns": 1_000_000, "outer": 0},
    ]
    batches = pl.DataFrame(
        [{name: row.get(name) for name in schema} for row in asked], schema=schema
    )
    fetch = {"name": "fetch", "start_ns": 0, "dur_ns": 1_000_000, "category": "data_loading"}
    run = make(fetch, batches=batches)
    last = {"name": "enumerate(Loader)#it", "start_ns": 5_000_000, "dur_ns": 3_000_000}

    found_none = make({**last, "category": "data_loading"}, batches=batches)
    for each in (run, found_none):
        assert (loading.dataset_iterator(each) or "").splitlines() == [
            "0 1 1 0 2",
            "0 2 1 2 2",
            "0 0 1 2 2",
        ]
    assert (loading.dataset(run) or "").splitlines()[1:] == [
        *("enumerate(Loader),wait,1,2000.000,", "fetch,,1,1000.000,")
    ]


def test_figures_of_a_pipeline_are_those_of_mindspore() -> None:
    """Samples as MindData takes them, and what MindSpore 2.10 computes of them."""
    stages = [
        (0, "BatchOp", 2, [1], [13, 13, 1]),
        (1, "MapOp", 2, [2], [0, 0, 0]),
        (2, "GeneratorOp", 1, [], [0, 0, 0]),
    ]
    queues = {
        "sampling_interval": 10,
        "op_info": [
            {
                **{"op_id": number, "op_type": kind, "num_workers": workers, "children": children},
                "metrics": {"output_queue": {"length": 16, "size": sizes}},
            }
            for number, kind, workers, children, sizes in stages
        ],
    }
    idle = {"user_utilization": [0, 30, 0], "sys_utilization": [0, 0, 30]}
    use = {"op_info": [{"op_id": number, "metrics": idle} for number in range(3)]}
    lines = b"0 1 1 0 7\n0 2 1 12 7\n0 0 1 12 7\n1 16 1 0 7\n0 1 2 0 9\n0 2 2 3 9\n0 0 2 1 9\n"
    pipeline = {
        "pipeline_profiling.json": json.dumps(queues).encode(),
        "minddata_cpu_utilization.json": json.dumps(use).encode(),
        "dataset_iterator_profiling.txt": lines,
    }
    run = make(pipeline=pipeline)

    assert (loading.pipeline_raw(run) or "").splitlines() == [
        "op_id,op_type,num_workers,output_queue_size,output_queue_average_size,"
        "output_queue_length,output_queue_usage_rate,sample_interval,parent_id,children_id",
        '0,BatchOp,2,"[13, 13, 1]",9.0,16,0.5625,10,,[1]',
        '1,MapOp,2,"[0, 0, 0]",0.0,16,0.0,10,0,[2]',
        '2,GeneratorOp,1,"[0, 0, 0]",0.0,16,0.0,10,1,',
    ]
    assert (loading.pipeline_summary_csv(run) or "").splitlines()[:14] == [
        "op_ids,0,1,2",
        "op_names,Batch,Map,Generator",
        "pipeline_ops,Batch(id=0),Map(id=1),Generator(id=2)",
        "num_workers,2,2,1",
        "queue_average_size,9.0,0.0,0.0",
        "queue_utilization_pct,56.25,0.0,0.0",
        "queue_empty_freq_pct,0.0,100.0,100.0",
        "children_ids,[1],[2],[]",
        "parent_id,-1,0,1",
        "avg_cpu_pct,20.0,20.0,20.0",
        "per_pipeline_time,1.0",  # without the first batch
        "per_push_queue_time,0.0",
        "per_batch_time,3.0",
        "avg_cpu_pct_per_worker,10.0,10.0,20.0",
    ]
    summary = json.loads(loading.pipeline_summary(run) or "")
    assert (summary["children_ids"], summary["per_batch_time"]) == ([[1], [2], []], [3.0])
    assert json.loads(loading.pipeline_profiling(run) or "") == queues
    assert json.loads(loading.cpu_utilization(run) or "") == use
    assert loading.dataset_iterator(run) == lines.decode()


def test_what_is_not_asked_for_is_told_by_its_parameter(tmp_path: Path) -> None:
    parameters = {"aic_metrics": "None", "export_type": ["text"], "op_time": True}
    run = make(operator("aten::mm", 0, 1000, flops=4_000_000), parameters=parameters)
    facts = Facts(strobe="0", started_ns=0, stopped_ns=1, analysed_from_ns=0)

    told = write_tree(run, Tree(kind="profiler", root=tmp_path, results=tmp_path / "ms"), facts)

    assert told["flops_0.txt"] == "not collected: aic_metrics is off"
    assert told["ascend_mindspore_profiler_0.db"] == "not collected: export_type has no db"
    assert told["operator_memory.csv"] == "not collected: profile_memory is off"
    assert told["profiler_metadata.json"] == "not collected: nothing was added"
    written = {path.name for path in tmp_path.rglob("*.*") if "profiler_info" not in path.name}
    assert written == {name for name, fate in told.items() if fate == "written"}
    info = json.loads((tmp_path / "profiler_info_0.json").read_text())
    assert info["profiler_parameters"] == parameters
    assert info["strobe"]["files"] == told
    assert {name for name in info if name.endswith(("_time", "_export"))} == {
        *(f"{what}_{end}_time" for what in ("analyse", "export") for end in ("start", "end")),
        *("profiling_start_time", "profiling_stop_time", "system_time", "diff_time"),
        *("analysis_cost_time", "all_export"),
    }

    device = make(*TWO_STEPS, parameters={"op_time": True, "activities": ["NPU"]})
    told = write_tree(device, Tree(kind="profile", root=tmp_path, results=tmp_path), facts)
    assert told["cpu_op_detail_info_0.csv"] == "not collected: activities has no CPU"
    assert told["dataset.csv"] == "not collected: profile_framework is off"


def test_files_have_different_names_and_reasons() -> None:
    names = [file.name for file in FILES]
    assert len(names) == len(set(names))
    assert all(file.absent for file in FILES)


def test_every_file_has_a_row_on_its_page() -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "mindspore-files.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    told = {name: row for row in rows for name in re.findall(r"`([^`]+\.\w+)`", row.split("|")[1])}

    assert set(told) == {
        *("profiler_info_*.json", "profiler_metadata.json"),
        *(file.name.replace("{rank}", "*") for file in FILES),
    }
    for file in FILES:
        parameter = told[file.name.replace("{rank}", "*")].split("|")[3]
        assert (f"`{file.option}`" in parameter) if file.option else parameter.strip() == ""
