# SPDX-License-Identifier: Apache-2.0
"""What a profiler may be told, checked once."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from strobe.errors import UsageError
from strobe.record.clocks import CLOCKS, Clock
from strobe.record.schedule import Schedule, as_schedule
from strobe.record.source import Report, Stacks, Wants

MAX_BYTES = 4 << 30
# Four of the largest rounds: one that is recorded, one of which the tables are being written, and
# two to look at.
MAX_TOTAL_BYTES = 4 * MAX_BYTES
MAX_MEMORY_BYTES = 256 << 20
STACK_RATE_HZ = 100.0
_MOST_HZ = 1000

# Where strobe.watch is, which is imported by those who use it.
_WATCH = "strobe.sources.watch"
# Options that ask something of a source.
ASKED_OF_SOURCES = (
    *("record_shapes", "with_flops", "with_modules", "profile_memory", "data_process"),
    *("activities", "with_stack", "memory_lines", "hardware", "hbm_ddr", "pcie", "sync_enable"),
)


_MANY = (Collection, type(None))
_SWITCHES = (
    *("with_flops", "with_modules", "profile_memory", "data_process"),
    *("memory_lines", "hardware", "hbm_ddr", "pcie"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of Profiler; raises UsageError for one that cannot be right."""

    schedule: Any = None
    on_trace_ready: Callable[[Any], object] | None = None
    output: str | os.PathLike[str] = "./strobe_data"
    name: str | None = None
    activities: Any = None
    max_seconds: float | None = None
    max_bytes: int = MAX_BYTES
    max_total_bytes: int | None = MAX_TOTAL_BYTES
    max_memory_bytes: int = MAX_MEMORY_BYTES
    ranks: Sequence[int] | None = None
    clock: Clock = "monotonic"
    record_shapes: bool | Literal["strides"] = False
    with_flops: bool = False
    with_modules: bool = False
    profile_memory: bool = False
    memory_lines: bool = False
    with_stack: bool | Literal["sample"] = False
    stack_rate_hz: float = STACK_RATE_HZ
    stack_include: Sequence[str] = ()
    stack_exclude: Sequence[str] = ()
    stack_min_us: float = 0
    stack_max_depth: int | None = None
    data_process: bool = False
    hardware: bool = False
    hbm_ddr: bool = False
    pcie: bool = False
    sync_enable: bool | None = None

    def __post_init__(self) -> None:
        as_schedule(self.schedule)
        if self.on_trace_ready is not None and not callable(self.on_trace_ready):
            self._refuse("on_trace_ready", "must be a callable that takes the profiler, or None")
        if not isinstance(self.output, (str, os.PathLike)) or not os.fspath(self.output):
            self._refuse("output", "must be the path of a folder")
        _ = self.folder  # now, before the program goes elsewhere
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            self._refuse("name", "must be a str that is not empty, or None")
        if self.clock not in CLOCKS:
            self._refuse("clock", f"must be one of {', '.join(CLOCKS)}")
        if self.max_seconds is not None and not _is_positive(self.max_seconds, (int, float)):
            self._refuse("max_seconds", "must be a number above 0, or None")
        for name in ("max_bytes", "max_memory_bytes"):
            if not _is_positive(getattr(self, name), (int,)):
                self._refuse(name, "must be an int above 0")
        total = self.max_total_bytes
        if total is not None and not _is_positive(total, (int,)):
            self._refuse("max_total_bytes", "must be an int above 0, or None")
        if self.ranks is not None and not _are_ranks(self.ranks):
            self._refuse("ranks", "must be a list of ints of 0 or more, or None")
        if isinstance(self.activities, str) or not isinstance(self.activities, _MANY):
            self._refuse("activities", "must be a list of activities, or None")
        if not isinstance(self.record_shapes, bool) and self.record_shapes != "strides":
            self._refuse("record_shapes", "must be True, False or 'strides'")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                self._refuse(name, "must be True or False")
        self._check_stack()

    def _check_stack(self) -> None:
        if not isinstance(self.with_stack, bool) and self.with_stack != "sample":
            self._refuse("with_stack", "must be True, False or 'sample'")
        rate = self.stack_rate_hz
        if not _is_positive(rate, (int, float)) or rate > _MOST_HZ:
            self._refuse("stack_rate_hz", f"must be a number above 0 and up to {_MOST_HZ}")
        for name in ("stack_include", "stack_exclude"):
            if not _are_names(getattr(self, name)):
                self._refuse(name, "must be a list of names of modules")
        if self.stack_min_us != 0 and not _is_positive(self.stack_min_us, (int, float)):
            self._refuse("stack_min_us", "must be a number of 0 or more")
        if self.stack_max_depth is not None and not _is_positive(self.stack_max_depth, (int,)):
            self._refuse("stack_max_depth", "must be an int above 0, or None")

    def _refuse(self, name: str, rule: str) -> None:
        message = f"Profiler({name}={getattr(self, name)!r}): {name} {rule}"
        raise UsageError(message)

    @functools.cached_property
    def folder(self) -> Path:
        """The output folder, absolute: as it was meant when given, wherever the program goes."""
        return Path(self.output).absolute()

    @property
    def states(self) -> Schedule:
        """The schedule as a function of the step."""
        return as_schedule(self.schedule)

    @property
    def wants(self) -> Wants:
        """What is asked of the sources."""
        return Wants(
            shapes=bool(self.record_shapes),
            strides=self.record_shapes == "strides",
            flops=self.with_flops,
            memory=self.profile_memory,
            modules=self.with_modules,
            loading=self.data_process,
            memory_lines=self.memory_lines,
            hardware=self.hardware,
            hbm=self.hbm_ddr,
            pcie=self.pcie,
            sync=self.sync_enable is True,
            stacks=self._stacks,
        )

    @property
    def _stacks(self) -> Stacks:
        if not self.with_stack:
            return Stacks()
        sampled = self.with_stack == "sample"
        return Stacks(
            traced=not sampled,
            rate_hz=self.stack_rate_hz if sampled else 0.0,
            include=tuple(self.stack_include),
            exclude=tuple(self.stack_exclude),
            min_ns=round(self.stack_min_us * 1000),
            max_depth=self.stack_max_depth or 0,
        )

    def unanswered(
        self, reports: Mapping[str, Report], answers: Mapping[str, Set[str]]
    ) -> dict[str, str]:
        """Return what no source has collected: option to reason.

        `answers` has the options that each source does something for. What one cannot give is not
        missing if another does.
        """
        found: dict[str, str] = {}
        for name in filter(self._asks_for, ASKED_OF_SOURCES):
            asked = [source for source, options in answers.items() if name in options]
            reasons = [_reason(reports[source], name) for source in asked if source in reports]
            if name == "data_process" and _WATCH in sys.modules:
                continue
            if not reasons or None not in reasons:
                told = [reason for reason in reasons if reason]
                found[name] = "; ".join(told) or "no imported framework tells it"
        return found

    def _asks_for(self, name: str) -> bool:
        value = getattr(self, name)
        if name == "activities":
            devices = [getattr(each, "name", each) for each in value or ()]
            return any(str(device).upper() != "CPU" for device in devices)
        return value not in (None, False)


def _reason(report: Report, option: str) -> str | None:
    """Return why a source did not collect what an option asks for; None if it did."""
    return report.reason if report.path == "none" else report.missing.get(option)


def _is_positive(value: object, kinds: tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool) and value > 0  # type: ignore[operator]


def _are_names(value: object) -> bool:
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and all(isinstance(name, str) and name for name in value)
    )


def _are_ranks(value: object) -> bool:
    return isinstance(value, Sequence) and all(type(rank) is int and rank >= 0 for rank in value)
