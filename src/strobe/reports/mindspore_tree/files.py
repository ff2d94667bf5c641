# SPDX-License-Identifier: Apache-2.0
"""Every file of the two trees: who writes it, which parameter asks for it, why it is not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from strobe.exporters.files import replacing
from strobe.model.threads import FILES as FILES_THREAD
from strobe.reports.mindspore_tree import info, loading, memory, operators, steps, timeline
from strobe.reports.mindspore_tree.run import Run

Writer = Callable[[Run], str | bytes | None]
Place = Literal["old", "new", "raw", "both"]
"""old: <output>/profiler; new: ASCEND_PROFILER_OUTPUT; raw: old, or FRAMEWORK beside new."""

_AT_ONCE = 2  # writers, which work mostly without the interpreter's lock
_NO_DEVICE = "it holds figures of an Ascend device, and none was recorded"
_NOTHING = "nothing was recorded"
_NO_OPERATORS = "no operators were recorded"
_NO_POINTS = (
    "operators do not tell which of them are of the forward and the backward (MindSpore's do in "
    "graph mode), none has the names that PROFILING_FP_START and PROFILING_BP_END give, or there "
    "are no steps"
)
_NO_MEMORY = "no memory was recorded"
_NO_ADDRESSES = "no framework told addresses of blocks, so none can be followed"
_NO_PIPELINE = (
    "MindData profiled no pipeline: its iterator must be made while recording; or what it saved is "
    "damaged"
)
_NO_FLOPS = "no framework told floating-point operations"
_NO_LOADING = "no data loading was recorded"
_NO_WAITS = "no wait for data was recorded"
_NO_SHAPES = "no operator told the shapes of its inputs"
_ONE_SHAPE = (
    "no operator's inputs changed their shapes from step to step, or shapes were not recorded"
)
_NOT_SUNK = "data was not sunk into a device"
_KILLED = "the program ended without stop(), and what a framework held until then is lost"
_LATER = "strobe does not write this file yet"


# Parameters whose files hold what the host did.
_OF_THE_HOST = ("op_time", "profile_framework")


@dataclass(frozen=True, kw_only=True)
class File:
    """One file. `name` has {rank} in it where the rank is part of the name."""

    name: str
    place: Place
    write: Writer | None
    """Returns the content, None where the recording has nothing for it."""
    option: str | None = None
    """The parameter that must be on; None where none must."""
    absent: str
    """Why it is not written although its option is on."""


def _written(
    name: str,
    place: Place,
    write: Writer,
    absent: str,
    option: str | None = None,
) -> File:
    return File(name=name, place=place, write=write, absent=absent, option=option)


def _absent(name: str, place: Place, absent: str, option: str | None = None) -> File:
    return File(name=name, place=place, write=None, absent=absent, option=option)


FILES = (
    _written("trace_view.json", "new", timeline.trace_view, _NOTHING),
    _written("step_trace_time.csv", "new", steps.step_trace_time, _NO_OPERATORS),
    _written(
        "operator_details.csv", "new", operators.operator_details, _NO_SHAPES, "record_shapes"
    ),
    _written("operator_memory.csv", "new", memory.operator_memory, _NO_ADDRESSES, "profile_memory"),
    _written("memory_record.csv", "new", memory.memory_record, _NO_MEMORY, "profile_memory"),
    _written("dataset.csv", "new", loading.dataset, _NO_LOADING, "profile_framework"),
    _written(
        "minddata_pipeline_raw_{rank}.csv",
        "both",
        loading.pipeline_raw,
        _NO_PIPELINE,
        "data_process",
    ),
    _written(
        "minddata_pipeline_summary_{rank}.csv",
        "both",
        loading.pipeline_summary_csv,
        _NO_PIPELINE,
        "data_process",
    ),
    _written(
        "minddata_pipeline_summary_{rank}.json",
        "both",
        loading.pipeline_summary,
        _NO_PIPELINE,
        "data_process",
    ),
    _written(
        "cpu_op_detail_info_{rank}.csv", "raw", operators.cpu_op_detail, _NO_OPERATORS, "op_time"
    ),
    _written("cpu_op_type_info_{rank}.csv", "raw", operators.cpu_op_type, _NO_OPERATORS, "op_time"),
    _written(
        "cpu_op_execute_timestamp_{rank}.txt",
        "raw",
        operators.cpu_op_execute_timestamp,
        _NO_OPERATORS,
        "op_time",
    ),
    _written("cpu_framework_{rank}.txt", "raw", operators.cpu_framework, _NO_OPERATORS, "op_time"),
    _written(
        "cpu_ms_memory_record_{rank}.txt",
        "raw",
        memory.cpu_memory_record,
        _NO_MEMORY,
        "profile_memory",
    ),
    _written(
        "pipeline_profiling_{rank}.json",
        "raw",
        loading.pipeline_profiling,
        _NO_PIPELINE,
        "data_process",
    ),
    _written(
        "minddata_cpu_utilization_{rank}.json",
        "raw",
        loading.cpu_utilization,
        _NO_PIPELINE,
        "data_process",
    ),
    _written(
        "dataset_iterator_profiling_{rank}.txt",
        "raw",
        loading.dataset_iterator,
        _NO_WAITS,
        "data_process",
    ),
    _written("step_trace_point_info_{rank}.json", "old", steps.step_trace_point_info, _NO_POINTS),
    _written("step_trace_raw_{rank}_detail_time.csv", "old", steps.step_trace_raw, _NO_POINTS),
    _written("framework_raw_{rank}.csv", "old", operators.framework_raw, _NO_OPERATORS, "op_time"),
    _written("ascend_timeline_display_{rank}.json", "old", timeline.trace_view, _NOTHING),
    _written(
        "ascend_timeline_summary_{rank}.json", "old", timeline.timeline_summary, _NO_OPERATORS
    ),
    _written(
        "output_timeline_data_{rank}.txt",
        "old",
        timeline.output_timeline_data,
        _NO_OPERATORS,
        "op_time",
    ),
    _written(
        "operator_memory_{rank}.csv",
        "old",
        memory.operator_memory_old,
        _NO_ADDRESSES,
        "profile_memory",
    ),
    _written("flops_{rank}.txt", "old", operators.flops, _NO_FLOPS, "aic_metrics"),
    _written("flops_summary_{rank}.json", "old", operators.flops_summary, _NO_FLOPS, "aic_metrics"),
    _written("dynamic_shape_info_{rank}.json", "old", operators.dynamic_shape_info, _ONE_SHAPE),
    _written("dataset_{rank}.csv", "old", loading.dataset, _NO_LOADING, "profile_framework"),
    _absent("aicore_intermediate_{rank}_detail.csv", "old", _NO_DEVICE),
    _absent("aicore_intermediate_{rank}_type.csv", "old", _NO_DEVICE),
    _absent("aicpu_intermediate_{rank}.csv", "old", _NO_DEVICE),
    _absent("device_queue_profiling_{rank}.txt", "old", _NOT_SUNK),
    _absent("minddata_aicpu_{rank}.txt", "old", _NOT_SUNK),
    _absent("hccl_raw_{rank}.csv", "old", _LATER, "profile_communication"),
    _absent("ascend_cluster_analyse_model-*_{rank}.csv", "old", _LATER),
    _absent("parallel_strategy_{rank}.json", "old", _LATER, "parallel_strategy"),
    _absent("rank_{rank}/memory_block.csv", "old", _LATER, "profile_memory"),
    _absent("rank_{rank}/task.csv", "old", _LATER, "profile_memory"),
    _absent("kernel_details.csv", "new", _NO_DEVICE),
    _absent("op_statistic.csv", "new", _NO_DEVICE),
    _absent("api_statistic.csv", "new", _NO_DEVICE),
    _absent("communication.json", "new", _LATER),
    _absent("communication_matrix.json", "new", _LATER),
    _absent("npu_module_mem.csv", "new", _NO_DEVICE, "profile_memory"),
    _absent("l2_cache.csv", "new", _NO_DEVICE, "l2_cache"),
    _absent("static_op_mem.csv", "new", _NO_DEVICE, "profile_memory"),
    _absent("hbm.csv", "new", _NO_DEVICE, "hbm_ddr"),
    _absent("pcie.csv", "new", _NO_DEVICE, "pcie"),
    _absent("nic.csv", "new", _NO_DEVICE, "sys_io"),
    _absent("roce.csv", "new", _NO_DEVICE, "sys_io"),
    _absent("hccs.csv", "new", _NO_DEVICE, "sys_interconnection"),
    _absent("data_preprocess.csv", "new", _NO_DEVICE),
    _absent("ascend_mindspore_profiler_{rank}.db", "new", _LATER, "export_type"),
    _absent("communication_analyzer.db", "new", _LATER, "export_type"),
)


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Where the files of one run go."""

    kind: Literal["profile", "profiler"]
    root: Path
    """`profile`: <worker>_<time>_ascend_ms; `profiler`: the folder of that name."""
    results: Path
    """The folder whose name ends in _ascend_ms; of `profile` it is the root."""


def write_tree(run: Run, tree: Tree, facts: info.Facts) -> dict[str, str]:
    """Write every file that the run has data for; return, for each file, what became of it.

    A file of an earlier analysis that this one does not write is removed.
    """
    told: dict[str, str] = {}
    places = {file: list(_paths(file, tree, run.rank)) for file in FILES}
    made = _make(run, tree, {file: paths for file, paths in places.items() if paths})
    for file, paths in places.items():
        name = file.name.format(rank=run.rank)
        if not paths:
            told[name] = "not collected: only Profiler's tree has it"
            continue
        if file not in made:
            for path in paths:
                path.unlink(missing_ok=True)
        told[name] = _fate(file, run, is_there=file in made, was_stopped=bool(facts.stopped_ns))
    told["profiler_metadata.json"] = "not collected: nothing was added"
    if facts.metadata:
        _put(tree.results / "profiler_metadata.json", info.profiler_metadata(facts))
        told["profiler_metadata.json"] = "written"
    told_of = info.profiler_info(run, facts, told)
    for folder in {tree.root, tree.results}:
        _put(folder / f"profiler_info_{run.rank}.json", told_of)
    if tree.kind == "profiler":
        (tree.root / "container").mkdir(exist_ok=True)
    return told


def _variant(file: File, tree: Tree) -> Writer:
    """Return who writes it: older versions had no column Preparing."""
    assert file.write is not None
    if tree.kind == "profiler" and file.write is steps.step_trace_time:
        return steps.step_trace_time_without_preparing
    return file.write


def _refused(file: File, run: Run) -> str | None:
    """Say which parameter does not ask for the file; None if all that must do."""
    option, given = file.option, run.parameters
    if option is None:
        return None
    if option == "export_type":
        return None if "db" in given.get(option, ()) else "export_type has no db"
    if given.get(option) in (None, False, "None"):  # the last: no metrics
        return f"{option} is off"
    if option in _OF_THE_HOST and "CPU" not in given.get("activities", ("CPU",)):
        return "activities has no CPU"
    return None


def _fate(file: File, run: Run, *, is_there: bool, was_stopped: bool) -> str:
    if is_there:
        return "written"
    refused = _refused(file, run)
    if refused is not None:
        return f"not collected: {refused}"
    reason = run.missing.get(file.option or "", file.absent)
    if file.write is not None and not was_stopped:
        reason = f"{reason}; {_KILLED}"
    return f"not collected: {reason}"


def _paths(file: File, tree: Tree, rank: int) -> Iterator[Path]:
    """Give where the file goes: nowhere, if a tree of this kind does not have it."""
    name = file.name.format(rank=rank)
    if file.place in ("new", "both"):
        yield tree.results / "ASCEND_PROFILER_OUTPUT" / name
    if tree.kind == "profiler" and file.place != "new":
        yield tree.root / name
    elif file.place == "raw":
        yield tree.root / "FRAMEWORK" / name


def _make(run: Run, tree: Tree, places: Mapping[File, list[Path]]) -> set[File]:
    """Write the files that are asked for at their places; return those that had content.

    What one writer writes is the same wherever it is, and is made once.
    """
    wanted: dict[Writer, list[File]] = {}
    for file in places:
        if file.write is not None and _refused(file, run) is None:
            wanted.setdefault(_variant(file, tree), []).append(file)

    def write(writer: Writer, files: list[File]) -> list[File]:
        content = writer(run)
        if content is None:
            return []
        first, *others = (path for file in files for path in places[file])
        _put(first, content)
        for path in others:
            _duplicate(first, path)
        return files

    _ = run.operators  # now, as nearly all need them, and not in both threads
    with ThreadPoolExecutor(_AT_ONCE, FILES_THREAD) as threads:
        try:
            made = threads.map(write, wanted, wanted.values())
        except RuntimeError:  # a program that ends starts no threads
            made = map(write, wanted, wanted.values())
        return {file for files in made for file in files}


def _duplicate(file: Path, path: Path) -> None:
    """Make the path one more name of a file, which takes no room, or a copy."""
    with replacing(path, through_links=False) as part:
        try:
            os.link(file, part)
        except OSError:  # there may be no links here
            shutil.copyfile(file, part)


def _put(path: Path, content: str | bytes) -> None:
    """Write it whole."""
    with replacing(path, through_links=False) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
