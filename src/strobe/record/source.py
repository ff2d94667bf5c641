# SPDX-License-Identifier: Apache-2.0
"""What a source is: something besides strobe.span that records, such as a framework."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Protocol

from strobe.store import places
from strobe.store.places import CACHE_VARIABLE as CACHE_VARIABLE
from strobe.store.places import cache_folder as cache_folder


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """What is asked for of Python's calls; false if nothing is. `|` is the union."""

    traced: bool = False
    rate_hz: float = 0.0
    """How often stacks are sampled; 0: they are not."""
    include: tuple[str, ...] = ()
    """Modules whose functions are recorded, with all inside them; none: all modules."""
    exclude: tuple[str, ...] = ()
    min_ns: int = 0
    """Shorter calls are left out."""
    max_depth: int = 0
    """So are those that are nested deeper; 0: none are."""

    def __bool__(self) -> bool:
        """Say whether anything is asked for."""
        return self.traced or self.rate_hz > 0

    def __or__(self, other: Stacks) -> Stacks:
        """Return what either asks for: filters let pass what one of them does."""
        if not (self and other):
            return self or other
        both = bool(self.include and other.include)
        depths = (self.max_depth, other.max_depth)
        return Stacks(
            traced=self.traced or other.traced,
            rate_hz=max(self.rate_hz, other.rate_hz),
            include=tuple(dict.fromkeys(self.include + other.include)) if both else (),
            exclude=tuple(name for name in self.exclude if name in other.exclude),
            min_ns=min(self.min_ns, other.min_ns),
            max_depth=max(depths) if all(depths) else 0,
        )


@dataclass(frozen=True, kw_only=True)
class Wants:
    """What the profilers that record now ask of their sources; `|` is the union."""

    shapes: bool = False
    strides: bool = False
    flops: bool = False
    memory: bool = False
    modules: bool = False
    loading: bool = False
    memory_lines: bool = False
    hardware: bool = False
    hbm: bool = False
    pcie: bool = False
    sync: bool = False
    stacks: Stacks = Stacks()

    def __or__(self, other: Wants) -> Wants:
        """Return what either asks for."""
        names = [each.name for each in fields(self)]
        return Wants(**{name: getattr(self, name) | getattr(other, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a source recorded one window; kept in the recording."""

    source_class: Literal["A", "B"]
    path: str
    """By which of its ways."""
    reason: str
    """Why by that one."""
    missing: dict[str, str] = field(default_factory=dict)
    """What was asked for and could not be had: option to reason."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the finalizer must know."""
    own_ns: int | None = None
    """What recording took in the program's threads besides `costs_ns`; None if it is unknown what
    it took."""
    costs_ns: dict[str, float] = field(default_factory=dict)
    """What recording one row took there, by kind: see strobe.model.trace.Source."""
    costs_in_spans: dict[str, float] = field(default_factory=dict)
    """The same for rows that a framework's own profiler recorded, which nobody can time: as many
    times the cost of a span as in our benchmarks, which compare the sums with what they measure."""
    once_ns: int = 0
    """What starting and stopping took there; sources.active fills it in."""


def announce_trace(
    trace: Path,
    *,
    source: str,
    reader: str,
    anchor_name: str,
    anchors: list[tuple[int, int]],
    notes: list[str],
    threads: Mapping[int, int] | None = None,
    marks_ns: list[int] | None = None,
) -> None:
    """Tell the finalizer of a trace in the log that a framework's own profiler wrote.

    Arguments:
        reader: the importer that reads it, by its name or as finalize/foreign.py has it.
        anchor_name: of the marks in it that lay its clock beside ours, half of them of its start
            and half of its end.
        anchors: for each mark, a time of the recorder's clock before and after it began.
        notes: what limits it, for people.
        threads: the trace's number of a thread to the system's, where they differ.
        marks_ns: for each mark its time by the trace's clock, where no marks can be put into it.
    """
    facts = {
        "source": source,
        "reader": reader,
        "anchor_name": anchor_name,
        "anchors": anchors,
        "notes": notes,
        "threads": dict(threads or {}),
        "marks_ns": marks_ns,
    }
    trace.with_name(trace.name + places.FACTS).write_text(json.dumps(facts))


def announce_held(log: Path, source: str) -> None:
    """Tell the finalizer that a framework keeps events, which a program that is killed loses."""
    (log / f"{source}{places.HELD}").touch()


class Source(Protocol):
    """One source of this process. sources.active calls it, never two threads at once."""

    name: str
    framework: str
    """The module whose import brings it to life."""
    answers: frozenset[str]
    """The Profiler's options that it does something for."""

    def examine(self) -> dict[str, Any]:
        """Return what `strobe doctor` shows: the path that would be taken, the reason, and more.

        The framework is installed, and is not imported for it.
        """

    def attach(self) -> None:
        """The first profiler has been started, or the framework imported: get ready."""

    def detach(self) -> None:
        """The last profiler has been stopped: undo every patch."""

    def open(self, wants: Wants, log: Path) -> None:
        """Record into the log that is being written, or go on with other wants."""

    def close(self, log: Path, remaining: Wants | None) -> Report | None:
        """A window ends; `remaining` is what those still open want, None if there are none.

        Returns None where nothing was asked of this source.
        """
