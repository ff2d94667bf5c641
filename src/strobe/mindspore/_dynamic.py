# SPDX-License-Identifier: Apache-2.0
"""DynamicProfilerMonitor: a JSON file says, while the training runs, which steps are recorded."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strobe.errors import StrobeError
from strobe.mindspore._handler import tensorboard_trace_handler
from strobe.mindspore._names import AicoreMetrics, ExportType, ProfilerActivity
from strobe.mindspore._profile import Lifecycle
from strobe.mindspore._settings import PROFILER, settle
from strobe.record.messages import show
from strobe.record.ranks import find_place

FILE_NAME = "profiler_config.json"
DEFAULTS: dict[str, Any] = {
    "start_step": -1,
    "stop_step": -1,
    "aic_metrics": "AiCoreNone",
    "profiler_level": "Level0",
    "analyse": False,
    "analyse_mode": -1,
    "activities": ["CPU", "NPU"],
    "export_type": ["text"],
    "profile_memory": False,
    "mstx": False,
    "parallel_strategy": False,
    "with_stack": False,
    "data_process": False,
    "l2_cache": False,
    "record_shapes": False,
    "sys_io": False,
    "sys_interconnection": False,
    "data_simplification": True,
    "prof_path": "./",
    "mstx_domain_include": [],
    "mstx_domain_exclude": [],
    "host_sys": [],
}
# Numbers that older files have for names.
_METRICS = (
    *(AicoreMetrics.PipeUtilization, AicoreMetrics.ArithmeticUtilization, AicoreMetrics.Memory),
    *(AicoreMetrics.MemoryL0, AicoreMetrics.MemoryUB, AicoreMetrics.ResourceConflictRatio),
    *(AicoreMetrics.L2Cache, AicoreMetrics.MemoryAccess),
)
_ACTIVITIES: tuple[list[Any], ...] = (
    [ProfilerActivity.CPU, ProfilerActivity.NPU],
    [ProfilerActivity.CPU],
    [ProfilerActivity.NPU],
)
_EXPORTS: tuple[list[Any], ...] = (
    [ExportType.Text],
    [ExportType.Db],
    [ExportType.Text, ExportType.Db],
)
_NOT_PARAMETERS = ("start_step", "stop_step", "analyse", "analyse_mode", "prof_path", "is_valid")


class DynamicProfilerMonitor:
    """Records the steps start_step to stop_step, both included, of <cfg_path>/profiler_config.json.

    The file may be changed at any time; a new pair of steps that lie ahead makes a new recording.
    It is looked at every `poll_interval` seconds by a thread, so that a step without news costs
    nothing. Give it to Model.train as a callback, or call step() after each step. Results go to
    <output_path>/rank<R>_start<a>_stop<b>. `analyse` true, or `analyse_mode` 0 or 1, has the files
    made outside the program. What is wrong with the file is said, and the training goes on.

    Raises TypeError or ValueError for a cfg_path or poll_interval that cannot be right.
    """

    def __new__(cls, *_arguments: Any, **_keywords: Any) -> DynamicProfilerMonitor:
        """Make a callback of MindSpore's if it has been imported."""
        callback: Any = sys.modules.get("mindspore.train.callback")
        if callback is not None and not issubclass(cls, callback.Callback):
            cls = type(cls.__name__, (cls, callback.Callback), {"__module__": cls.__module__})
        made: DynamicProfilerMonitor = object.__new__(cls)
        return made

    def __init__(
        self,
        cfg_path: str | os.PathLike[str] | None = None,
        output_path: str | os.PathLike[str] = "./dyn_profile_data",
        poll_interval: int = 2,
        **_ignored: Any,
    ) -> None:
        if not isinstance(cfg_path, (str, os.PathLike)):
            message = f"DynamicProfilerMonitor(cfg_path={cfg_path!r}): must be a folder's path"
            raise TypeError(message)
        if isinstance(poll_interval, bool) or not isinstance(poll_interval, (int, float)):
            message = f"DynamicProfilerMonitor(poll_interval={poll_interval!r}): must be a number"
            raise TypeError(message)
        if poll_interval <= 0:
            message = f"DynamicProfilerMonitor(poll_interval={poll_interval!r}): must be above 0"
            raise ValueError(message)
        self._file = Path(cfg_path).absolute() / FILE_NAME
        self._output = Path(output_path).absolute()
        self._news: Mapping[str, Any] | None = None
        self._plan: Mapping[str, Any] | None = None
        self._profiler: Lifecycle | None = None
        self._step = 0
        self._offer_defaults()
        self._seen: tuple[int, ...] = ()
        self._look()
        self._over = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(poll_interval,), name="strobe config", daemon=True
        )
        watcher.start()

    def step(self) -> None:
        """End a step of a loop by hand."""
        self._step += 1
        if self._news is not None or self._plan is not None:
            self._end_step(self._step)

    def step_begin(self, run_context: Any) -> None:
        """For Model.train: a step begins."""
        if self._news is None and self._plan is None:
            return
        self._begin_step(run_context.original_args().cur_step_num)

    def step_end(self, run_context: Any) -> None:
        """For Model.train: a step has ended."""
        if self._profiler is not None:
            self._stop_after(run_context.original_args().cur_step_num)

    on_train_step_begin = step_begin
    on_train_step_end = step_end

    def on_train_end(self, _run_context: Any) -> None:
        """For Model.train: it is over, and so is what was recorded."""
        self._stop()

    end = on_train_end

    def close(self) -> None:
        """Stop recording and looking at the file."""
        self._over.set()
        self._stop()

    def _end_step(self, ended: int) -> None:
        """In a loop by hand a step begins where the one before ends."""
        if self._profiler is not None:
            self._stop_after(ended)
        self._begin_step(ended + 1)

    def _begin_step(self, step: int) -> None:
        news, self._news = self._news, None
        if news is not None and self._profiler is None:
            self._plan = news if self._is_ahead(news, step) else None
        plan = self._plan
        if plan is not None and self._profiler is None and step == plan["start_step"]:
            self._start(plan)

    def _is_ahead(self, plan: Mapping[str, Any], step: int) -> bool:
        start, stop = plan["start_step"], plan["stop_step"]
        if start < 0 or stop < 0:
            return False
        if stop < start or start < step:
            show(f"{FILE_NAME}: steps {start} to {stop} do not lie ahead of step {step}")
            return False
        return True

    def _stop_after(self, step: int) -> None:
        if self._plan is not None and step >= self._plan["stop_step"]:
            self._stop()

    def _start(self, plan: Mapping[str, Any]) -> None:
        try:
            self._profiler = self._make(plan)
        except (StrobeError, OSError, TypeError, ValueError) as error:
            show(f"{FILE_NAME}: {error}; the training goes on unrecorded")
            self._plan = None

    def _make(self, plan: Mapping[str, Any]) -> Lifecycle:
        given = {key: value for key, value in plan.items() if key not in _NOT_PARAMETERS}
        given = {key: value for key, value in given.items() if value != DEFAULTS.get(key)}
        given |= {"data_process": plan["data_process"], "aicore_metrics": -1}
        output = self._output if plan["prof_path"] == "./" else Path(plan["prof_path"])
        name = f"rank{_rank()}_start{plan['start_step']}_stop{plan['stop_step']}"
        analyses = bool(plan["analyse"]) or plan["analyse_mode"] in (0, 1)
        handler = tensorboard_trace_handler(output / name, analyse_flag=analyses)
        settings = settle(FILE_NAME, {**given, "on_trace_ready": handler}, PROFILER)
        return Lifecycle(settings, "profile", caller=FILE_NAME, analyses=analyses)

    def _stop(self) -> None:
        profiler, self._profiler, self._plan = self._profiler, None, None
        if profiler is None:
            return
        try:
            profiler.stop()
        except StrobeError as error:
            show(f"{FILE_NAME}: {error}")

    def _offer_defaults(self) -> None:
        """Write the file if there is none, for people to change."""
        if _rank() or self._file.exists():
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(json.dumps(DEFAULTS, indent=4))
        except OSError as error:
            show(f"{str(self._file)!r} cannot be written ({error.strerror})")

    def _watch(self, seconds: float) -> None:
        while not self._over.wait(seconds):
            self._look()

    def _look(self) -> None:
        """Read the file if it is another than the last time."""
        try:
            found = self._file.stat()
        except OSError:
            return
        version = (found.st_mtime_ns, found.st_ino, found.st_size)
        if version == self._seen:
            return
        try:
            self._news = _read(json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            show(f"{str(self._file)!r} is not obeyed: {error}")
        self._seen = version


def _read(content: object) -> dict[str, Any]:
    """Return the whole configuration; raises TypeError or ValueError for a wrong one."""
    if not isinstance(content, dict):
        message = "it must be a JSON object"
        raise TypeError(message)
    found = {**DEFAULTS, **content}
    for key in ("start_step", "stop_step", "analyse_mode"):
        if isinstance(found[key], bool) or not isinstance(found[key], int):
            message = f"{key}={found[key]!r} must be an integer"
            raise TypeError(message)
    for key, names in (
        ("aic_metrics", _METRICS),
        ("activities", _ACTIVITIES),
        ("export_type", _EXPORTS),
    ):
        number = found[key]
        if isinstance(number, int) and not isinstance(number, bool):
            if not -1 <= number < len(names):
                message = f"{key}={number!r} must be below {len(names)}"
                raise ValueError(message)
            found[key] = DEFAULTS[key] if number < 0 else names[number]
    known = {**PROFILER, **DEFAULTS, "is_valid": False}
    unknown = [key for key in found if key not in known]
    for key in unknown:
        show(f"{FILE_NAME}: unknown key {key!r} is left out")
        del found[key]
    return found


def _rank() -> int:
    return find_place().rank or 0
