# SPDX-License-Identifier: Apache-2.0
"""The one list of analyses, from which Recording's methods and --json are made.

An analysis is a function whose first parameter is Tables. It returns a frame, a dataclass of frames
and numbers, or None if the tables hold nothing about it.
"""

from __future__ import annotations

from strobe.analysis import breakdown as _breakdown
from strobe.analysis import completeness as _completeness
from strobe.analysis import counters as _counters
from strobe.analysis import flame as _flame
from strobe.analysis import flops as _flops
from strobe.analysis import functions as _functions
from strobe.analysis import loading as _loading
from strobe.analysis import memory as _memory
from strobe.analysis import operators as _operators
from strobe.analysis import phase_times as _phase_times
from strobe.analysis import steps as _steps


class Answers:
    """Each analysis as a method, for a class of Tables to inherit."""

    operators = _operators.operators
    operators_by = _operators.operators_by
    functions = _functions.functions
    flame = _flame.flame
    step_statistics = _steps.step_statistics
    step_breakdown = _steps.step_breakdown
    phases = _phase_times.phases
    breakdown = _breakdown.breakdown
    loaders = _loading.loaders
    workers = _loading.workers
    counter_summary = _counters.counter_summary
    flops_rate = _flops.flops_rate
    peak_allocated = _memory.peak_allocated
    memory_held = _memory.memory_held
    memory_timeline = _memory.memory_timeline
    completeness = _completeness.completeness


NAMES = tuple(name for name in vars(Answers) if not name.startswith("_"))
"""The names of all analyses."""
