# SPDX-License-Identifier: Apache-2.0
"""The interface of mindspore.profiler over strobe: change the import, and the rest stays.

    from strobe.mindspore import Profiler, profile, schedule, tensorboard_trace_handler

MindSpore is not imported by it, and need not be there. Importing it does what MS_PROFILER_OPTIONS
in the environment says. It only maps names, arguments and errors.
"""

from __future__ import annotations

from strobe.mindspore._dynamic import DynamicProfilerMonitor
from strobe.mindspore._environment import EnvProfiler
from strobe.mindspore._handler import tensorboard_trace_handler
from strobe.mindspore._mstx import mstx
from strobe.mindspore._names import (
    AicoreMetrics,
    AnalysisMode,
    ExportType,
    HostSystem,
    ProfilerAction,
    ProfilerActivity,
    ProfilerLevel,
)
from strobe.mindspore._profile import Profile as profile
from strobe.mindspore._schedule import Schedule as schedule
from strobe.mindspore._settings import _ExperimentalConfig
from strobe.mindspore.profiler import Profiler, analyse

__all__ = [
    "AicoreMetrics",
    "AnalysisMode",
    "DynamicProfilerMonitor",
    "EnvProfiler",
    "ExportType",
    "HostSystem",
    "Profiler",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "analyse",
    "mstx",
    "profile",
    "schedule",
    "tensorboard_trace_handler",
]

EnvProfiler.init_profiler()
