# SPDX-License-Identifier: Apache-2.0
"""The arguments of `profile` and `Profiler`: checked, and translated into strobe's."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from strobe.errors import UsageError
from strobe.mindspore._handler import tensorboard_trace_handler
from strobe.mindspore._names import (
    OLD_METRICS,
    AicoreMetrics,
    ExportType,
    HostSystem,
    ProfilerActivity,
    ProfilerLevel,
    as_member,
    as_members,
)
from strobe.mindspore._schedule import Schedule, as_states
from strobe.session.mindspore_tree import as_folder


class _ExperimentalConfig:
    """What else an Ascend may be asked for; read when a profiler is made.

    Raises TypeError for a parameter that it does not have.
    """

    def __init__(
        self,
        profiler_level: Any = ProfilerLevel.Level0,
        aic_metrics: Any = AicoreMetrics.AiCoreNone,
        l2_cache: bool = False,
        mstx: bool = False,
        data_simplification: bool = True,
        export_type: Any = None,
        mstx_domain_include: list[str] | None = None,
        mstx_domain_exclude: list[str] | None = None,
        sys_io: bool = False,
        sys_interconnection: bool = False,
        host_sys: Any = None,
        **unknown: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in EXPERIMENTAL}
        check_names("_ExperimentalConfig", unknown, EXPERIMENTAL)
        self.__dict__.update(given)


EXPERIMENTAL: dict[str, Any] = {
    name: parameter.default
    for name, parameter in inspect.signature(_ExperimentalConfig).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD
}

_NPU = "it is told by an Ascend device, and MindSpore does not run on one here"
_NOT_ASKED = "strobe does not ask an Ascend device for it yet"
# What an Ascend device alone tells.
_OF_DEVICE = ("l2_cache", "sys_io", "sys_interconnection", "host_sys")
# What no source of strobe gives: parameter to reason.
_UNSERVED = {
    "parallel_strategy": "strobe does not write parallel_strategy_*.json yet",
    "profile_communication": "strobe does not write hccl_raw_*.csv yet; its own tables have it",
    "host_stack": "stacks are told with with_stack=True",
    "optypes_not_deal": "operators of all types are told",
    "ascend_job_id": "strobe does not read what the tools of an Ascend device wrote",
}
# Variables that name the operators at which the forward begins and the backward ends.
_POINTS = {"fp_start": "PROFILING_FP_START", "bp_end": "PROFILING_BP_END"}
PROFILE: dict[str, Any] = {
    "activities": None,
    "with_stack": False,
    "profile_memory": False,
    "data_process": False,
    "parallel_strategy": False,
    "start_profile": True,
    "hbm_ddr": False,
    "pcie": False,
    "sync_enable": True,
    "schedule": None,
    "on_trace_ready": None,
    "experimental_config": None,
    "record_shapes": False,
}
# Every parameter that a version of Profiler has had, with the default of the oldest.
PROFILER: dict[str, Any] = {
    **{name: value for name, value in PROFILE.items() if name != "experimental_config"},
    **EXPERIMENTAL,
    "output_path": "./data",
    "profile_communication": False,
    "data_process": True,
    "parallel_strategy": True,
    "op_time": True,
    "profile_framework": "all",
    "aicore_metrics": 0,
    "timeline_limit": 500,
    "host_stack": True,
    "optypes_not_deal": "Variable",
    "ascend_job_id": "",
}
# How one of the two is given what only the other has as a parameter.
_ELSEWHERE = {
    **dict.fromkeys(PROFILER, "only Profiler has it"),
    **{name: f"write experimental_config=_ExperimentalConfig({name}=...)" for name in EXPERIMENTAL},
    "output_path": "write on_trace_ready=tensorboard_trace_handler(...) with the folder in it",
    "experimental_config": "what is in it are parameters of Profiler itself",
}
_NOT_SWITCHES = {
    *("activities", "schedule", "on_trace_ready", "experimental_config", "profiler_level"),
    *("aic_metrics", "export_type", "mstx_domain_include", "mstx_domain_exclude", "host_sys"),
    *("output_path", "profile_framework", "aicore_metrics", "timeline_limit"),
    *("optypes_not_deal", "ascend_job_id"),
}
_FRAMEWORK = ("all", "time", "memory", None)
# Where MindSpore makes the handlers that only its own profilers can call.
_THEIR_HANDLERS = "mindspore.profiler.profiler"


@dataclass(frozen=True)
class Settings:
    """What a profiler was told."""

    values: Mapping[str, Any]
    """Every parameter, enums as their members."""
    named: frozenset[str]
    """Those that the user gave."""

    def missing(self, *, several_ranks: bool) -> dict[str, str]:
        """Return what was named and cannot be had from anybody here: parameter to reason."""
        of_device = _NOT_ASKED if device_target() == "Ascend" else _NPU
        reasons = {**_UNSERVED, **dict.fromkeys(_OF_DEVICE, of_device)}
        found = {
            name: reason
            for name, reason in reasons.items()
            if name in self.named and self.values.get(name)
        }
        if not several_ranks:
            found.pop("profile_communication", None)  # there is none
        served = (AicoreMetrics.AiCoreNone, AicoreMetrics.ArithmeticUtilization)
        if self.values["aic_metrics"] not in served and self.is_named("with_flops"):
            found[self.metrics_name] = of_device
        if ExportType.Db in self.values["export_type"]:
            found["export_type"] = "strobe does not write the database yet; text is written"
        return found

    @property
    def metrics_name(self) -> str:
        """The parameter by which the user chose the metrics: the older name, or the newer."""
        return "aic_metrics" if "aic_metrics" in self.named else "aicore_metrics"

    @property
    def options(self) -> dict[str, Any]:
        """The same for strobe.Profiler, without output and handler."""
        values = self.values
        schedule = values["schedule"]
        return {
            "schedule": None if schedule is None else as_states(schedule),
            "activities": values["activities"] if "activities" in self.named else None,
            "record_shapes": values["record_shapes"],
            "with_flops": values["aic_metrics"] is AicoreMetrics.ArithmeticUtilization,
            "profile_memory": values["profile_memory"],
            "with_stack": values["with_stack"],
            "data_process": values["data_process"],
            "hbm_ddr": values["hbm_ddr"],
            "pcie": values["pcie"],
        }

    @property
    def described(self) -> dict[str, Any]:
        """The values as JSON has them, and what files depend on besides."""
        plain = {
            name: _plain(value)
            for name, value in self.values.items()
            if name not in ("on_trace_ready", "experimental_config")
        }
        return {
            "op_time": True,
            "profile_framework": "all",
            "profile_communication": False,
            **plain,
            "is_set_schedule": self.values["schedule"] is not None,
            **{key: os.environ[name] for key, name in _POINTS.items() if os.environ.get(name)},
        }

    def is_named(self, option: str) -> bool:
        """Say whether the user gave what became this option of strobe.Profiler."""
        if option == "with_flops":
            return bool(self.named & {"aic_metrics", "aicore_metrics"})
        return option in self.named


def check_names(
    caller: str,
    given: Iterable[str],
    known: Iterable[str],
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raise TypeError for a name that is not known, with the one that may be meant.

    `elsewhere` says of names that others know how they are given.
    """
    for name in given:
        if name not in known:
            hint = elsewhere.get(name) or suggest(name, known)
            message = f"{caller}() has no parameter {name!r}; {hint}"
            raise TypeError(message)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return what to say to somebody who wrote a name that is not known."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1)
    return f"do you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"


def settle(caller: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> Settings:
    """Check the arguments of a profiler; raises TypeError or ValueError."""
    check_names(caller, given, known, _ELSEWHERE)
    values = {**EXPERIMENTAL, **known, **given}
    named = {name for name, value in given.items() if value is not None}
    config = given.get("experimental_config")
    if config is not None:
        named |= _read_config(caller, config, values)
    for name, value in values.items():
        if name not in _NOT_SWITCHES and not isinstance(value, bool):
            message = f"{caller}({name}={value!r}): must be True or False"
            raise TypeError(message)
    _settle_enums(caller, values, named)
    _check_rest(caller, values)
    _check_activities(caller, values)
    return Settings(values, frozenset(named))


def _read_config(caller: str, config: object, values: dict[str, Any]) -> set[str]:
    """Take over what a config of ours or of MindSpore's says; return what the user named in it."""
    if not hasattr(config, "profiler_level"):
        message = f"{caller}(experimental_config={config!r}): must be an _ExperimentalConfig"
        raise TypeError(message)
    found = {name: getattr(config, name, default) for name, default in EXPERIMENTAL.items()}
    values.update(found)
    return {name for name, value in found.items() if value != EXPERIMENTAL[name]}


def _settle_enums(caller: str, values: dict[str, Any], named: set[str]) -> None:
    def member(kind: Any, name: str, default: Any) -> None:
        value = values[name]
        values[name] = default if value is None else as_member(kind, value, caller, name)

    def members(kind: Any, name: str, default: Any) -> None:
        value = values[name]
        values[name] = default if value is None else as_members(kind, value, caller, name)

    member(ProfilerLevel, "profiler_level", ProfilerLevel.Level0)
    if "aic_metrics" in named or "aicore_metrics" not in values:
        member(AicoreMetrics, "aic_metrics", AicoreMetrics.AiCoreNone)
    else:
        values["aic_metrics"] = _old_metrics(caller, values["aicore_metrics"])
    members(ExportType, "export_type", [ExportType.Text])
    members(HostSystem, "host_sys", [])
    members(ProfilerActivity, "activities", [ProfilerActivity.CPU, ProfilerActivity.NPU])


def _old_metrics(caller: str, value: object) -> AicoreMetrics:
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"{caller}(aicore_metrics={value!r}): must be an int from -1 to 6"
        raise TypeError(message)
    if not -1 <= value < len(OLD_METRICS):
        message = f"{caller}(aicore_metrics={value!r}): must be from -1 (none) to 6"
        raise UsageError(message)
    return AicoreMetrics.AiCoreNone if value < 0 else OLD_METRICS[value]


def _check_rest(caller: str, values: dict[str, Any]) -> None:
    def refuse(name: str, rule: str, kind: type[Exception]) -> None:
        message = f"{caller}({name}={values[name]!r}): {rule}"
        raise kind(message)

    for name in ("schedule", "on_trace_ready"):
        if values[name] is not None and not callable(values[name]):
            refuse(name, "must be callable, or None", TypeError)
    if getattr(values["on_trace_ready"], "__module__", None) == _THEIR_HANDLERS:
        rule = "is MindSpore's; import tensorboard_trace_handler from strobe.mindspore too"
        refuse("on_trace_ready", rule, TypeError)
    if values["on_trace_ready"] is tensorboard_trace_handler:  # as an example of MindSpore's has it
        values["on_trace_ready"] = tensorboard_trace_handler()
    for name in ("mstx_domain_include", "mstx_domain_exclude"):
        domains = values[name] = values[name] or []
        if not isinstance(domains, list) or not all(isinstance(each, str) for each in domains):
            refuse(name, "must be a list of str", TypeError)
    if "output_path" not in values:
        return  # the rest are Profiler's own
    path = values["output_path"]
    if not isinstance(path, (str, os.PathLike)) or not isinstance(os.fspath(path), str):
        refuse("output_path", "must be the path of a folder", TypeError)
    if not os.fspath(path) or "\0" in os.fspath(path):
        refuse("output_path", "must be the path of a folder, not empty, without a 0", UsageError)
    limit = values["timeline_limit"]
    if isinstance(limit, bool) or not isinstance(limit, int):
        refuse("timeline_limit", "must be an int, in megabytes", TypeError)
    if limit <= 0:
        refuse("timeline_limit", "must be above 0", UsageError)
    if values["profile_framework"] not in _FRAMEWORK:
        refuse("profile_framework", "must be 'all', 'time', 'memory' or None", UsageError)
    for name in ("optypes_not_deal", "ascend_job_id"):
        if not isinstance(values[name], str):
            refuse(name, "must be a str", TypeError)


def _check_activities(caller: str, values: Mapping[str, Any]) -> None:
    """What the host is to tell needs the host among the activities."""
    activities = values["activities"]
    for name in ("with_stack", "profile_memory", "record_shapes"):
        if values[name] and ProfilerActivity.CPU not in activities:
            message = f"{caller}({name}=True): activities must include ProfilerActivity.CPU"
            raise UsageError(message)
    needs_device = values["profile_memory"] and device_target() == "Ascend"
    if needs_device and ProfilerActivity.NPU not in activities:
        message = f"{caller}(profile_memory=True): on Ascend activities must be CPU and NPU"
        raise UsageError(message)


def device_target() -> str | None:
    """Return what MindSpore runs on, None where it has not been imported."""
    context = sys.modules.get("mindspore.context")
    return None if context is None else str(context.get_context("device_target"))


def old_output(settings: Settings) -> Path:
    """Return the output folder of Profiler: what was named, what the environment says, ./data."""
    told = os.environ.get("MS_DIAGNOSTIC_DATA_PATH", "")
    path = settings.values["output_path"]
    return as_folder(told if told and "output_path" not in settings.named else path)


def _plain(value: Any) -> Any:
    if isinstance(value, Schedule):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return repr(value)
    return getattr(value, "value", value)
