# SPDX-License-Identifier: Apache-2.0
"""For `strobe run --mindspore`: MindSpore's own names of its profiler become ours."""

from __future__ import annotations

import sys
from typing import Any

import strobe.mindspore as ours
from strobe.session.hook import when_imported

_NAMES = {
    "mindspore": ("Profiler",),
    "mindspore.profiler": tuple(name for name in ours.__all__ if name != "analyse"),
    "mindspore.profiler.profiler": ("Profiler", "tensorboard_trace_handler", "analyse"),
    "mindspore.profiler.dynamic_profiler": ("DynamicProfilerMonitor",),
    "mindspore.train.callback": ("DynamicProfilerMonitor",),
}


def install() -> None:
    """Put our names into MindSpore, now or when it is imported."""
    when_imported("mindspore", _replace)


def _replace() -> None:
    for module_name, names in _NAMES.items():
        module: Any = sys.modules.get(module_name)
        for name in names:
            if module is not None and hasattr(module, name):
                setattr(module, name, getattr(ours, name))


install()
