# SPDX-License-Identifier: Apache-2.0
"""Files about data loading: MindData's own where it ran, and what is computed of them."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from strobe.analysis.minddata import Stage, advise, batch_times, linked, read_stages
from strobe.reports.mindspore_tree.run import Run, as_csv, as_json

_QUEUES, _USE, _BATCHES = (
    "pipeline_profiling.json",
    "minddata_cpu_utilization.json",
    "dataset_iterator_profiling.txt",
)

# How sources name the wait for a batch.
_PREFIX = "enumerate("
_WAIT = pl.col("name").cast(pl.String).str.starts_with(_PREFIX)


def _loaded(run: Run, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run.pipeline.get(name, b"{}"))
    return content


def _stages(run: Run) -> list[Stage]:
    return read_stages(_loaded(run, _QUEUES), _loaded(run, _USE))


def pipeline_profiling(run: Run) -> str | None:
    """MindData's queues as it saved them."""
    return as_json(_loaded(run, _QUEUES), run) if _QUEUES in run.pipeline else None


def cpu_utilization(run: Run) -> str | None:
    """Processor use as MindData saved it."""
    return as_json(_loaded(run, _USE), run) if _USE in run.pipeline else None


def dataset_iterator(run: Run) -> str | None:
    """Four lines a batch as MindData saved them; of other loaders the three that are known.

    type extra batch value time: 0 1 pushing, 0 2 the batch, 0 0 the pipeline, in ms; 1 the queue.
    """
    if _BATCHES in run.pipeline:
        return run.pipeline[_BATCHES].decode(errors="replace")
    lines = []
    for batch, (start_ns, dur_ns) in enumerate(_waits(run).iter_rows(), 1):
        end_ms = (start_ns + dur_ns) // 1_000_000
        for extra, value in ((1, 0), (2, dur_ns // 1_000_000), (0, dur_ns // 1_000_000)):
            lines.append(f"0 {extra} {batch} {value} {end_ms}\n")
    return "".join(lines) or None


def _waits(run: Run) -> pl.DataFrame:
    """Return when the program waited for a batch, and how long.

    Where batches are known, only what had one: the last wait of a loop finds that there is none.
    """
    asked = run.batches.filter(pl.col("outer").is_null()).select("start_ns", dur_ns="wait_ns")
    if not asked.is_empty():
        return asked
    return _loading(run).filter(_WAIT).select("start_ns", "dur_ns")


def _loading(run: Run) -> pl.DataFrame:
    """Return what loading did, and waits for it, which a framework may call annotations."""
    told = pl.col("category").cast(pl.String) == "data_loading"
    return run.spans.filter((told | _WAIT) & ~pl.col("unfinished"))


def pipeline_raw(run: Run) -> str | None:
    """One row per operator of the pipeline that has a queue, and one for the last; see linked."""
    header = (
        *("op_id", "op_type", "num_workers", "output_queue_size", "output_queue_average_size"),
        *("output_queue_length", "output_queue_usage_rate", "sample_interval", "parent_id"),
        "children_id",
    )
    interval = _loaded(run, _QUEUES).get("sampling_interval")
    rows = [
        (
            *(stage.id, f"{stage.name}Op", stage.workers),
            "" if stage.sizes is None else json.dumps(stage.sizes),
            *(stage.mean_size, stage.capacity),
            None if stage.full_percent is None else stage.full_percent / 100,
            *(interval, stage.parent, json.dumps(stage.children) if stage.children else None),
        )
        for stage in linked(_stages(run))
    ]
    return as_csv(header, rows) if rows else None


def pipeline_summary(run: Run) -> str | None:
    """The figures of each operator, and what they mean, as JSON."""
    content = _summary(run)
    return None if content is None else as_json(content, run)


def pipeline_summary_csv(run: Run) -> str | None:
    """The same, a row per figure."""
    content = _summary(run)
    if content is None:
        return None
    (first, values), *rest = content.items()
    return as_csv((first, *values), [(key, *values) for key, values in rest])


def _summary(run: Run) -> dict[str, list[Any]] | None:
    stages = _stages(run)
    if not stages or _USE not in run.pipeline:
        return None
    lines = run.pipeline.get(_BATCHES, b"").decode(errors="replace").splitlines()
    times = batch_times(lines)
    advice = advise(stages)
    content: dict[str, list[Any]] = {
        "op_ids": [stage.id for stage in stages],
        "op_names": [stage.name for stage in stages],
        "pipeline_ops": [stage.label for stage in stages],
        "num_workers": [stage.workers for stage in stages],
        "queue_average_size": [_or_none(stage.mean_size) for stage in stages],
        "queue_utilization_pct": [_or_none(stage.full_percent) for stage in stages],
        "queue_empty_freq_pct": [_or_none(stage.empty_percent) for stage in stages],
        "children_ids": [stage.children for stage in stages],
        "parent_id": [-1 if stage.parent is None else stage.parent for stage in stages],
        "avg_cpu_pct": [_or_none(stage.cpu_percent) for stage in stages],
        "per_pipeline_time": [_or_none(times["pipeline"])],
        "per_push_queue_time": [_or_none(times["push"])],
        "per_batch_time": [_or_none(times["batch"])],
        "avg_cpu_pct_per_worker": [_or_none(stage.cpu_percent_per_worker) for stage in stages],
    }
    if advice.cpu:
        content["cpu_analysis_details"] = advice.cpu
    if advice.queues:
        content["queue_analysis_details"] = advice.queues
    if advice.bottleneck:
        content["bottleneck_warning"] = [advice.bottleneck]
        content["bottleneck_suggestion"] = [advice.suggestion]
    return content


def _or_none(value: float | None) -> float:
    """MindSpore's way to say that there is none."""
    return -1 if value is None else round(value, 3)


def dataset(run: Run) -> str | None:
    """One row per kind of work that data loading did, and of waits for it; microseconds."""
    header = ("Operation", "Stage", "Occurrences", "Avg. time (us)", "Custom Info")
    work = _loading(run).select(pl.col("name").cast(pl.String), "dur_ns")
    if not work["name"].str.starts_with(_PREFIX).any():
        loader = pl.col("loader").cast(pl.String)
        waits = run.batches.filter(pl.col("outer").is_null()).select(
            name=pl.format("{}{})#wait", pl.lit(_PREFIX), loader), dur_ns="wait_ns"
        )
        work = pl.concat([waits, work])
    means = work.group_by("name", maintain_order=True).agg(
        calls=pl.len(), mean_ns=pl.mean("dur_ns")
    )
    rows = []
    for name, calls, mean_ns in means.iter_rows():
        operation, _, stage = name.partition("#")
        rows.append((operation, stage, calls, f"{mean_ns / 1000:.3f}", ""))
    return as_csv(header, rows) if rows else None
