# SPDX-License-Identifier: Apache-2.0
"""mindspore.Profiler and its analysis, during the training and after it."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

from strobe.errors import StateError, UsageError
from strobe.mindspore._names import AnalysisMode, as_member
from strobe.mindspore._profile import Lifecycle
from strobe.mindspore._settings import PROFILER, settle
from strobe.record.messages import show
from strobe.record.schedule import as_int
from strobe.session import mindspore_offline, mindspore_tree

__all__ = ["Profiler", "analyse"]


def analyse(
    profiler_path: str | os.PathLike[str],
    max_process_number: int = max(1, (os.cpu_count() or 2) // 2),
    pretty: bool = False,
    step_list: list[int] | None = None,
    data_simplification: bool = True,
) -> None:
    """Write the files of what was recorded at a path: one rank or several, some at once.

    The path may be the folder above `profiler`, above `rank_<n>`, above `*_ascend_ms`, or one of
    these. The program may have been killed. `pretty` puts line breaks into JSON; `step_list` keeps
    consecutive steps, counted from 1 over those that were collected; `data_simplification` deletes
    the raw log once the tables hold all of it, so that this can be done again.

    Raises TypeError or ValueError for arguments that cannot be right, FormatError where nothing of
    strobe.mindspore is, RuntimeError while the program still records.
    """
    for name, value in (("pretty", pretty), ("data_simplification", data_simplification)):
        _require_switch("analyse", name, value)
    if isinstance(max_process_number, bool) or not isinstance(max_process_number, int):
        message = f"analyse(max_process_number={max_process_number!r}): must be an int"
        raise TypeError(message)
    if max_process_number < 1:
        message = f"analyse(max_process_number={max_process_number!r}): must be 1 or more"
        raise ValueError(message)
    mindspore_offline.analyse(
        profiler_path,
        processes=max_process_number,
        pretty=pretty,
        step_list=step_list,
        data_simplification=data_simplification,
    )


class Profiler(Lifecycle):
    """Records into <output_path>/profiler, or rank_<n>/profiler of a job; analyse() makes files.

    Arguments: those that mindspore.Profiler has had in any version, by name, with the oldest
    defaults. stop() leaves raw data, from which analyse() here, or later offline_analyse(), makes
    the rest; what that takes is imported here, not when the training waits for it. Raises TypeError
    or ValueError for what cannot be right.
    """

    __signature__ = inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in PROFILER.items()
        ]
    )

    def __init__(self, **given: Any) -> None:
        settings = settle("Profiler", given, PROFILER)
        self._analysed: dict[Path, tuple[AnalysisMode, dict[str, Any]]] = {}
        """How each recording was analysed."""
        mindspore_tree.import_analysis()
        super().__init__(settings, "profiler", caller="Profiler", analyses=False)

    def analyse(
        self,
        offline_path: str | os.PathLike[str] | None = None,
        pretty: bool = False,
        step_list: list[int] | None = None,
        mode: str | AnalysisMode = "sync",
    ) -> None:
        """Stop if it still records, and write the files of what was recorded.

        In an on_trace_ready: those of the round that has ended, and the schedule goes on. Else of
        the rounds whose files it has not yet written so; where there are none, all of them again.
        With `mode="async"` it does not wait for them; they are there when the program ends. With
        `offline_path` it is offline_analyse(). Where nothing was recorded it says so, and where
        some rounds lack the steps of `step_list`; raises UsageError where all do.
        """
        _require_switch("Profiler.analyse", "pretty", pretty)
        chosen = as_member(AnalysisMode, mode, "Profiler.analyse", "mode")
        if offline_path is not None:
            self.offline_analyse(offline_path, pretty, step_list)
            return
        steps = mindspore_tree.check_steps(step_list)
        if self._recorder.is_started and not self._is_handled:
            self.stop()
        # A handler is called with one round after the other.
        paths = self._recorder.paths[-1:] if self._is_handled else self._recorder.paths
        if not paths:
            show(f"Profiler.analyse(): nothing was recorded: {self._why_nothing()}")
            return
        options = {
            "pretty": pretty,
            "step_list": steps,
            "data_simplification": self._settings.values["data_simplification"],
        }
        way = (chosen, options)
        refused: list[UsageError] = []
        for path in [path for path in paths if self._analysed.get(path) != way] or paths:
            if chosen is AnalysisMode.ASYNC_MODE:
                mindspore_offline.start_analysis([path], options)
            else:
                try:
                    mindspore_tree.analyse_recording(path, **options)
                except UsageError as error:  # this round does not have these steps
                    refused.append(error)
            self._analysed[path] = way
        if len(refused) == len(paths):
            raise refused[0]
        for problem in refused:
            show(f"Profiler.analyse(): of one of the rounds there are no files: {problem}")

    def _why_nothing(self) -> str:
        if self._settings.values["schedule"] is not None:
            return "the schedule did not come to it"
        return "start() was not called; the step or epoch that calls it may not have been reached"

    @classmethod
    def offline_analyse(
        cls,
        path: str | os.PathLike[str],
        pretty: bool = False,
        step_list: list[int] | None = None,
        data_simplification: bool = True,
    ) -> None:
        """Write the files of what was recorded at a path: see analyse()."""
        analyse(path, pretty=pretty, step_list=step_list, data_simplification=data_simplification)

    def op_analyse(self, op_name: str | list[str], device_id: int | None = None) -> str:
        """Return as JSON how often and how long the operators of some types ran, by their inputs.

        Raises RuntimeError where nothing was recorded, TypeError for a name that is no str or empty
        and a device that is no int.
        """
        names = [op_name] if isinstance(op_name, str) else op_name
        is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not op_name or not is_list:
            message = f"op_analyse(op_name={op_name!r}): must be a str, or a list of them"
            raise TypeError(message)
        if device_id is not None and as_int(device_id) is None:
            message = f"op_analyse(device_id={device_id!r}): must be an int, or None"
            raise TypeError(message)
        if not self._recorder.paths:
            message = "op_analyse() before anything was recorded; call stop() first"
            raise StateError(message)
        from strobe.reports.mindspore_tree.operators import find_operators

        run = mindspore_tree.gather(self._recorder.paths[-1])
        found: dict[str, Any] = find_operators(run, names)
        found["device_id"] = str(run.rank if device_id is None else device_id)
        return json.dumps(found)


def _require_switch(caller: str, name: str, value: object) -> None:
    if not isinstance(value, bool):
        message = f"{caller}({name}={value!r}): must be True or False"
        raise TypeError(message)
