# SPDX-License-Identifier: Apache-2.0
"""strobe: one profiler for neural-network training and inference, on any Python framework.

    import strobe

    with strobe.Profiler(output="out") as profiler:
        with strobe.span("forward"):
            ...
    print(profiler.recording.operators())

Importing strobe imports no numpy, no polars and no framework: what needs them is loaded when used.
"""

from __future__ import annotations

from strobe._version import __version__
from strobe.errors import (
    CaptureError,
    CommandError,
    FormatError,
    StateError,
    StrobeError,
    UsageError,
)
from strobe.record.recorder import counter, instant, span

TYPE_CHECKING = False  # importing typing would be most of what `import strobe` costs
if TYPE_CHECKING:
    from typing import Any

    from strobe.cluster.job import Job
    from strobe.record.schedule import State, schedule
    from strobe.session.handlers import export_chrome, export_perfetto
    from strobe.session.profiler import Profiler
    from strobe.session.recording import Recording
    from strobe.session.recording import open_recording as open
    from strobe.sources.watch import watch
del TYPE_CHECKING

__all__ = [
    "CaptureError",
    "CommandError",
    "FormatError",
    "Job",
    "Profiler",
    "Recording",
    "State",
    "StateError",
    "StrobeError",
    "UsageError",
    "__version__",
    "counter",
    "export_chrome",
    "export_perfetto",
    "instant",
    "open",
    "schedule",
    "span",
    "watch",
]

_LAZY = {
    "Job": ("strobe.cluster.job", "Job"),
    "Profiler": ("strobe.session.profiler", "Profiler"),
    "Recording": ("strobe.session.recording", "Recording"),
    "State": ("strobe.record.schedule", "State"),
    "export_chrome": ("strobe.session.handlers", "export_chrome"),
    "export_perfetto": ("strobe.session.handlers", "export_perfetto"),
    "open": ("strobe.session.recording", "open_recording"),
    "schedule": ("strobe.record.schedule", "schedule"),
    "watch": ("strobe.sources.watch", "watch"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        message = f"module 'strobe' has no attribute {name!r}"
        raise AttributeError(message)
    import importlib

    module, attribute = _LAZY[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
