# SPDX-License-Identifier: Apache-2.0
"""DynamicProfilerMonitor: a JSON file says, while the training runs, which steps are recorded."""

from __future__ import annotations

import inspect
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any

from strobe.errors import StrobeError, UsageError
from strobe.mindspore._handler import tensorboard_trace_handler
from strobe.mindspore._recorder import Recorder
from strobe.mindspore._settings import PROFILER, check_names, settle, suggest
from strobe.model.threads import CONFIG
from strobe.record.messages import show
from strobe.session.mindspore_tree import as_folder
from strobe.session.place import find_place

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
# What the numbers mean that older files have for names.
_NUMBERED: dict[str, dict[int, Any]] = {
    "profiler_level": {-1: "LevelNone", 0: "Level0", 1: "Level1", 2: "Level2"},
    "aic_metrics": {
        **{-1: "AiCoreNone", 0: "PipeUtilization", 1: "ArithmeticUtilization", 2: "Memory"},
        **{3: "MemoryL0", 4: "MemoryUB", 5: "ResourceConflictRatio", 6: "L2Cache"},
        **{7: "MemoryAccess"},
    },
    "activities": {0: ["CPU", "NPU"], 1: ["CPU"], 2: ["NPU"]},
    "export_type": {0: ["text"], 1: ["db"], 2: ["text", "db"]},
}
_NOT_PARAMETERS = ("start_step", "stop_step", "analyse", "analyse_mode", "prof_path")
_Plan = Mapping[str, Any]


class DynamicProfilerMonitor:
    """Records the steps start_step to stop_step, both included, of <cfg_path>/profiler_config.json.

    The file may be changed at any time; a new pair of steps that lie ahead makes a new recording.
    It is looked at every `poll_interval` seconds by a thread, so that a step without news costs
    nothing. Give it to Model.train as a callback, which counts steps from 1, or call step() after
    each step of a loop, whose first one is step 0. Results go to
    <output_path>/rank<R>_start<a>_stop<b>. `analyse` true, or `analyse_mode` 0 or 1, has the files
    made outside the program. What is wrong with the file is said, and the training goes on.

    Raises TypeError or ValueError for arguments that cannot be right.
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
        poll_interval: float = 2,
        **unknown: Any,
    ) -> None:
        caller = "DynamicProfilerMonitor"
        check_names(caller, unknown, ("cfg_path", "output_path", "poll_interval"))
        for name, path in (("cfg_path", cfg_path), ("output_path", output_path)):
            if not isinstance(path, (str, os.PathLike)):
                message = f"{caller}({name}={path!r}): must be a folder's path"
                raise TypeError(message)
        if isinstance(poll_interval, bool) or not isinstance(poll_interval, (int, float)):
            message = f"{caller}(poll_interval={poll_interval!r}): must be a number of seconds"
            raise TypeError(message)
        if not 0 < poll_interval < threading.TIMEOUT_MAX:
            message = f"{caller}(poll_interval={poll_interval!r}): must be seconds above 0"
            raise UsageError(message)
        self._file = as_folder(cfg_path or "") / FILE_NAME
        self._output = as_folder(output_path)
        self._news: deque[_Plan] = deque(maxlen=1)
        """What the file says since it changed: put there by the thread that looks."""
        self._plan: _Plan | None = None
        self._last_steps = (-1, -1)
        self._recorder: Recorder | None = None
        self._step = 0
        self._seen: tuple[int, ...] = ()
        self._doubted: tuple[int, ...] = ()
        self._offer_defaults()
        self._look()
        self._over = threading.Event()
        watcher = threading.Thread(
            target=self._watch, args=(poll_interval,), name=CONFIG, daemon=True
        )
        watcher.start()

    __signature__ = inspect.Signature([*inspect.signature(__init__).parameters.values()][1:])

    def step(self) -> None:
        """End a step of a loop by hand, in which the next one begins here."""
        if self._news or self._plan is not None:
            self._end_step(self._step)
        self._step += 1

    def step_begin(self, run_context: Any) -> None:
        """For Model.train: a step begins."""
        if self._news or self._plan is not None:
            self._begin_step(run_context.original_args().cur_step_num)

    def step_end(self, run_context: Any) -> None:
        """For Model.train: a step has ended."""
        if self._recorder is not None:
            self._stop_after(run_context.original_args().cur_step_num)

    on_train_step_begin = step_begin
    on_train_step_end = step_end

    def on_train_end(self, _run_context: Any) -> None:
        """For Model.train: it is over, and so is what was recorded."""
        if self._recorder is None and self._plan is not None:
            show(f"{FILE_NAME}: the training ended before step {self._plan['start_step']}")
        self._stop()

    end = on_train_end

    def close(self) -> None:
        """Stop recording and looking at the file."""
        self._over.set()
        self._stop()

    def _end_step(self, ended: int) -> None:
        if self._recorder is not None:
            self._recorder.step()
            self._stop_after(ended)
        self._begin_step(ended + 1)

    def _begin_step(self, step: int) -> None:
        if self._recorder is not None:
            return  # what the file says meanwhile is for afterwards
        if self._news:
            self._take(self._news.popleft(), step)
        plan = self._plan
        if plan is not None and step >= plan["start_step"]:  # steps that are sunk come in one go
            self._start(plan)

    def _take(self, plan: _Plan, step: int) -> None:
        """Plan for what the file says, unless these steps have been dealt with."""
        steps = start, stop = plan["start_step"], plan["stop_step"]
        if self._plan is None and steps == self._last_steps:
            return
        self._plan, self._last_steps = None, steps
        if 0 <= start < step:
            show(f"{FILE_NAME}: steps {start} to {stop} do not lie ahead of step {step}")
        elif start >= step:
            self._plan = plan

    def _stop_after(self, step: int) -> None:
        if self._plan is not None and step >= self._plan["stop_step"]:
            self._stop()

    def _start(self, plan: _Plan) -> None:
        try:
            self._recorder = self._make(plan)
        except (StrobeError, OSError) as error:
            show(f"{FILE_NAME}: {error}; the training goes on unrecorded")
            self._plan = None

    def _make(self, plan: _Plan) -> Recorder:
        output = self._output if plan["prof_path"] == "./" else as_folder(plan["prof_path"])
        name = f"rank{_rank()}_start{plan['start_step']}_stop{plan['stop_step']}"
        analyses = plan["analyse"] or plan["analyse_mode"] in (0, 1)
        handler = tensorboard_trace_handler(output / name, analyse_flag=analyses)
        settings = settle(FILE_NAME, {**_arguments(plan), "on_trace_ready": handler}, PROFILER)
        recorder = Recorder(settings, kind="profile", analyses=analyses)
        recorder.start()
        return recorder

    def _stop(self) -> None:
        if self._recorder is None:
            return
        recorder, self._recorder, self._plan = self._recorder, None, None
        try:
            recorder.stop()
        except StrobeError as error:
            show(f"{FILE_NAME}: {error}")

    def _offer_defaults(self) -> None:
        """Write the file if there is none, for people to change; all at once, for other ranks."""
        if _rank() or self._file.exists():
            return
        part = self._file.with_suffix(f".{os.getpid()}.part")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(DEFAULTS, indent=4))
            part.replace(self._file)
        except OSError as error:
            show(f"{str(self._file)!r} cannot be written ({error.strerror})")

    def _watch(self, seconds: float) -> None:
        while not self._over.wait(seconds):
            self._look()

    def _look(self) -> None:
        """Read the file if it is another than the last time."""
        try:
            found = self._file.stat()
            version = (found.st_mtime_ns, found.st_ino, found.st_size)
            if version == self._seen:
                return
            content = json.loads(self._file.read_text(encoding="utf-8"))
        except OSError:
            return
        except (ValueError, RecursionError) as error:
            if self._doubted != version:
                self._doubted = version  # it may be half written: see next time
                return
            self._refuse(f"it is not JSON ({error})")
        else:
            try:
                self._news.append(_read(content))
            except (TypeError, ValueError) as error:
                self._refuse(str(error))
        self._seen = version

    def _refuse(self, reason: str) -> None:
        show(f"{str(self._file)!r} is not obeyed: {reason}")


def _read(content: object) -> _Plan:
    """Return the whole configuration; raises TypeError or ValueError for a wrong one."""
    if not isinstance(content, dict):
        message = "it must be a JSON object"
        raise TypeError(message)
    found = {**DEFAULTS, **content}
    found.pop("is_valid", None)  # MindSpore's own mark
    for key in [key for key in found if key not in DEFAULTS]:
        show(f"{FILE_NAME}: unknown key {key!r} is left out; {suggest(key, DEFAULTS)}")
        del found[key]
    for key, kind, rule in (
        ("start_step", int, "an integer"),
        ("stop_step", int, "an integer"),
        ("analyse_mode", int, "-1, 0 or 1"),
        ("analyse", bool, "true or false"),
        ("prof_path", str, "a folder's path"),
    ):
        if type(found[key]) is not kind:
            message = f"{key}={found[key]!r} must be {rule}"
            raise TypeError(message)
    start, stop = found["start_step"], found["stop_step"]
    if start >= 0 and stop < start:
        message = f"stop_step={stop} must be start_step={start} or more"
        raise ValueError(message)
    if found["analyse_mode"] not in (-1, 0, 1):
        message = f"analyse_mode={found['analyse_mode']} must be -1, 0 or 1"
        raise ValueError(message)
    for key, names in _NUMBERED.items():
        if type(found[key]) is int:
            if found[key] not in names:
                message = f"{key}={found[key]!r} must be from {min(names)} to {max(names)}"
                raise ValueError(message)
            found[key] = names[found[key]]
    settle(FILE_NAME, _arguments(found), PROFILER)
    return found


def _arguments(plan: _Plan) -> dict[str, Any]:
    """Return what Profiler is given: of the defaults only those that are not its own."""
    given = {key: value for key, value in plan.items() if key not in _NOT_PARAMETERS}
    given = {key: value for key, value in given.items() if value != DEFAULTS.get(key)}
    return {**given, "data_process": plan["data_process"], "aicore_metrics": -1}


def _rank() -> int:
    return find_place().rank or 0
