# SPDX-License-Identifier: Apache-2.0
"""profiler_info and profiler_metadata: how the run was recorded, and which files came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from strobe.reports.mindspore_tree.run import Run


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the tables do not say."""

    strobe: str
    started_ns: int
    """Wall clock, as the next two; 0 where it is not known."""
    stopped_ns: int
    analysed_from_ns: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the user added."""


def profiler_metadata(facts: Facts) -> str:
    """What the user added."""
    return json.dumps(facts.metadata, indent=4)


def profiler_info(run: Run, facts: Facts, files: Mapping[str, str]) -> str:
    """How it was recorded, with the keys of all versions; what is not known is null.

    To be asked for when the other files have been written: then the analysis ends.
    """
    return json.dumps(_info(run, facts, files), indent=4)


def _info(run: Run, facts: Facts, files: Mapping[str, str]) -> dict[str, Any]:
    told, analysed_to_ns = run.facts, time.time_ns()
    world = int(told.get("mindspore_world_size", told.get("world_size", 1)))
    # MindSpore tells its mode where it is another one; nobody tells that of other frameworks.
    alone = "stand_alone" if world == 1 or "mindspore_path" in told else None
    return {
        "context_mode": told.get("mindspore_mode"),
        "rank_id": run.rank,
        "device_id": int(told.get("local_rank", run.rank)),
        "device_target": told.get("mindspore_device_target"),
        "ms_version": told.get("mindspore_version"),
        "cann_version": None,
        "jit_level": None,
        "parallel_mode": told.get("mindspore_parallel_mode", alone),
        "stage_num": int(told.get("mindspore_parallel_pipeline_stages", 1)),
        "rank_size": world,
        "profiling_start_time": facts.started_ns,
        "profiling_stop_time": facts.stopped_ns or None,
        "analyse_start_time": facts.analysed_from_ns,
        "analyse_end_time": analysed_to_ns,
        **dict.fromkeys(("export_start_time", "export_end_time", "all_export")),  # CANN's tools do
        "system_time": facts.started_ns,
        "system_cnt": None,
        "diff_time": 0,
        "graph_ids": [],
        "is_heterogeneous": False,
        "profiler_parameters": dict(run.parameters),
        "ms_profiler_info": {
            "rank_id": run.rank,
            "device_id": int(told.get("local_rank", run.rank)),
        },
        "cann_profiler_info": {},
        "analysis_cost_time": {
            "total_ms": (analysed_to_ns - facts.analysed_from_ns) / 1e6,
        },
        "strobe": {
            "version": facts.strobe,
            "not_collected": dict(run.missing),
            "files": dict(files),
        },
    }
