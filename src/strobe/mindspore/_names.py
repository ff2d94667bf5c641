# SPDX-License-Identifier: Apache-2.0
"""The enums of mindspore.profiler; members of MindSpore's own are taken by their names."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from strobe.errors import UsageError


class ProfilerAction(Enum):
    """What a profiler does during one step."""

    NONE = 0
    WARM_UP = 1
    RECORD = 2
    RECORD_AND_SAVE = 3

    @staticmethod
    def get_by_value(value: object) -> ProfilerAction | None:
        """Return the action with this number, None if there is none."""
        return next((action for action in ProfilerAction if action.value == value), None)


class ProfilerActivity(Enum):
    """What is recorded: the host, an NPU, a GPU."""

    NPU = "NPU"
    GPU = "GPU"
    CPU = "CPU"


class ProfilerLevel(Enum):
    """How much an Ascend device tells; elsewhere all levels are the same."""

    LevelNone = "LevelNone"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


class AicoreMetrics(Enum):
    """Which counters of the AI Cores are read; ArithmeticUtilization tells FLOPs anywhere."""

    PipeUtilization = "PipeUtilization"
    ArithmeticUtilization = "ArithmeticUtilization"
    Memory = "Memory"
    MemoryL0 = "MemoryL0"
    MemoryUB = "MemoryUB"
    ResourceConflictRatio = "ResourceConflictRatio"
    L2Cache = "L2Cache"
    MemoryAccess = "MemoryAccess"
    AiCoreNone = "None"


class AnalysisMode(Enum):
    """Whether analyse() waits for its files."""

    SYNC_MODE = "sync"
    ASYNC_MODE = "async"


class ExportType(Enum):
    """In which form results are written."""

    Db = "db"
    Text = "text"


class HostSystem(Enum):
    """What of the host system an Ascend's tools record."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"


# The numbers that `aicore_metrics` had up to version 2.4; -1 is none.
OLD_METRICS = (
    *(AicoreMetrics.ArithmeticUtilization, AicoreMetrics.PipeUtilization, AicoreMetrics.Memory),
    *(AicoreMetrics.MemoryL0, AicoreMetrics.ResourceConflictRatio, AicoreMetrics.MemoryUB),
    AicoreMetrics.L2Cache,
)

_Kind = TypeVar("_Kind", bound=Enum)


def as_member(kind: type[_Kind], value: object, caller: str, parameter: str) -> _Kind:
    """Return the member that a value names; raises TypeError or UsageError."""
    name = value if isinstance(value, str) else getattr(value, "name", None)
    is_name = isinstance(name, str)
    for member in kind:
        if is_name and str(name).lower() in (member.name.lower(), str(member.value).lower()):
            return member
    known = ", ".join(str(member.value) for member in kind)
    message = f"{caller}({parameter}={value!r}): must be a member of {kind.__name__} ({known})"
    raise UsageError(message) if is_name else TypeError(message)


def as_members(kind: type[_Kind], value: object, caller: str, parameter: str) -> list[_Kind]:
    """Return the members that a list, or a single one, names; each once."""
    if isinstance(value, (str, Enum)):
        value = [value]
    if not isinstance(value, (list, tuple, set, frozenset)):
        message = f"{caller}({parameter}={value!r}): must be a list of members of {kind.__name__}"
        raise TypeError(message)
    return list(dict.fromkeys(as_member(kind, each, caller, parameter) for each in value))
