# SPDX-License-Identifier: Apache-2.0
"""Python's calls as a source: hooks while a window wants them traced, a sampler while sampled."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from strobe.model.tables import record_code
from strobe.record import recorder
from strobe.record.clocks import counter_problem
from strobe.record.costs import least_ns
from strobe.record.source import Report, Stacks, Wants

# The functions of strobe itself are never recorded.
_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_CATEGORY = record_code("python", "python_calls")
# Of sys.monitoring. 2 is meant for profilers and comes last: cProfile takes no other, and fails
# where it is taken.
_TOOLS = (3, 4, 2)
_FALLBACK_HZ = 100.0
# A lower rate is worth a note if pauses grew by more than this share of the time.
_TELLING = 0.02
_RANGE = (0,) * 8
_PROBED = 2 * len(_RANGE) + 1


def _probe() -> None:
    """Make as many calls as _PROBED says, itself included, half of them of C functions."""
    for _ in _RANGE:
        _nothing()
        len(_RANGE)


def _nothing() -> None:
    pass


class PythonCallsSource:
    """Calls of Python and C functions, or samples of all threads' stacks (class A)."""

    name = "python_calls"
    framework = "python_calls"
    answers = frozenset({"with_stack"})

    def __init__(self) -> None:
        self._wants = Stacks()
        self._tool: int | None = None
        self._tracing = False
        self._sampling = False
        self._problem: str | None = None
        self._watches_forks = False
        self._call_ns = 0.0

    def examine(self) -> dict[str, Any]:
        """Return how calls would be recorded here."""
        problem = _problem()
        if problem is not None:
            return {"path": "none", "reason": problem}
        return {"path": _PATH, "reason": _REASON}

    def attach(self) -> None:
        """Nothing yet: the hooks come when a window asks for calls."""

    def detach(self) -> None:
        """Nothing is left that a window did not take with it."""
        self._stop()

    def open(self, wants: Wants, log: Path) -> None:  # noqa: ARG002
        """Record what is wanted from now on."""
        self._wants = stacks = wants.stacks
        if not stacks or _problem() is not None:
            return
        self._watch_forks()
        self._problem = None
        os.environ[recorder.STACKS_VARIABLE] = json.dumps(asdict(stacks))
        if stacks.traced:
            self._trace(stacks)
        rate_hz = stacks.rate_hz or (_FALLBACK_HZ if self._problem else 0.0)
        if rate_hz:
            if not self._sampling:
                recorder.core.sampler_forget()
            recorder.core.sampler_start(rate_hz, _OURS)
            self._sampling = True

    def close(self, log: Path, remaining: Wants | None) -> Report | None:
        """End what no open window wants any more; say how it went."""
        wants, problem = self._wants, _problem()
        if not wants:
            return None
        if problem is not None:
            return Report(source_class="A", path="none", reason=problem)
        was_tracing, was_sampling, failure = self._tracing, self._sampling, self._problem
        if remaining is not None and remaining.stacks:
            recorder.core.calls_keep()
            calls: dict[str, int] = {}
            samples = self._pause_sampling()
            self.open(remaining, log)
        else:
            calls, samples = self._stop()
        reasons, paths, facts = [], [], {}
        if was_tracing:
            paths.append(_PATH)
            reasons += [_REASON, *_hook_notes(calls)]
        if failure is not None:
            reasons.append(failure)
        if was_sampling:
            paths.append("sampling")
            facts = _rates(wants.rate_hz or _FALLBACK_HZ, samples)
            reasons += _sampler_notes(facts, samples)
        return Report(
            source_class="A",
            path=" and ".join(paths) or "none",
            reason="; ".join(reasons),
            missing={} if failure is None else {"with_stack": failure},
            facts={"metadata": facts, "own_cpu_ns": samples.get("own_ns", 0)},
            own_ns=0,
            costs_ns={"python": self._call_ns, "samples": 0.0},
        )

    def _trace(self, stacks: Stacks) -> None:
        if _monitoring is not None and self._tool is None:
            self._tool = _take_tool()
            if self._tool is None:
                names = ", ".join(str(_monitoring.get_tool(tool)) for tool in sorted(_TOOLS))
                self._problem = (
                    f"sampled, not traced: other tools ({names}) have all places in sys.monitoring"
                )
                return
        is_first = not self._tracing
        before_ns = least_ns(_probe) if is_first else 0.0
        recorder.core.calls_start(
            _OURS,
            stacks.include,
            stacks.exclude,
            stacks.min_ns,
            stacks.max_depth,
            _CATEGORY,
            counter_problem() is None,
            -1 if self._tool is None else self._tool,
        )
        self._tracing = True
        if is_first:
            self._call_ns = max(0.0, least_ns(_probe) - before_ns) / _PROBED

    def _stop(self) -> tuple[dict[str, int], dict[str, int]]:
        calls: dict[str, int] = {}
        if self._tracing:
            self._tracing = False
            calls = recorder.core.calls_stop()
        if self._tool is not None:
            _monitoring.free_tool_id(self._tool)
            self._tool = None
        samples = self._pause_sampling()
        self._sampling = False
        self._wants = Stacks()
        os.environ.pop(recorder.STACKS_VARIABLE, None)
        return calls, samples

    def follow_parent(self) -> None:
        """In a process that was started, not forked: record what the one that started it does."""
        try:
            told = json.loads(os.environ.get(recorder.STACKS_VARIABLE, ""))
            told |= {name: tuple(told[name]) for name in ("include", "exclude")}
            stacks = Stacks(**told)
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # of another version of strobe
        self.open(Wants(stacks=stacks), Path())
        if self._tracing:
            recorder.core.calls_after_fork()  # the parent will not say when it stops

    def _pause_sampling(self) -> dict[str, int]:
        return recorder.core.sampler_stop() if self._sampling else {}

    def _watch_forks(self) -> None:
        """Keep our thread out of forks: Python warns of threads that are there."""
        if self._watches_forks or not hasattr(os, "register_at_fork"):
            return
        self._watches_forks = True
        os.register_at_fork(
            before=self._pause_sampling,
            after_in_parent=self._go_on,
            after_in_child=self._go_on_as_child,
        )

    def _go_on(self) -> None:
        if self._sampling:
            recorder.core.sampler_restart()

    def _go_on_as_child(self) -> None:
        recorder.core.calls_after_fork()
        if self._sampling:
            recorder.core.sampler_forget()  # the parent's figures
        self._go_on()


_monitoring: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
_PATH = "sys.monitoring" if _monitoring is not None else "a profile function"
_REASON = f"every call of a Python or C function, in C, on Python {sys.version.split()[0]}"


def _problem() -> str | None:
    """Return why nothing of Python's calls can be recorded here, None where it can."""
    if hasattr(recorder.core, "calls_start"):
        return None
    return f"the {recorder.KIND} recorder cannot record calls ({recorder.REASON})"


def _take_tool() -> int | None:
    for tool in _TOOLS:
        if _monitoring.get_tool(tool) is None:
            _monitoring.use_tool_id(tool, "strobe")
            return tool
    return None


def _hook_notes(calls: dict[str, int]) -> list[str]:
    notes = []
    if calls.get("replaced"):
        notes.append(
            f"in {calls['replaced']} threads the program set a profile function of its own: calls "
            "are recorded up to there"
        )
    if calls.get("unmatched"):
        notes.append(f"{calls['unmatched']} calls ended that were not seen to begin")
    if "greenlet" in sys.modules:
        notes.append("calls that greenlet switches between have wrong durations")
    return notes


def _rates(rate_hz: float, samples: dict[str, int]) -> dict[str, Any]:
    elapsed = samples.get("elapsed_ns", 0) / 1e9
    return {
        "rate_hz": rate_hz,
        "achieved_hz": round(samples["rounds"] / elapsed, 2) if elapsed else None,
        "sampler_own_ns": samples.get("own_ns", 0),
        "sampler_wall_ns": samples.get("wall_ns", 0),
    }


def _sampler_notes(facts: dict[str, Any], samples: dict[str, int]) -> list[str]:
    """Return the rate asked for and the rate kept, what it took, and why it was not kept."""
    achieved_hz, wall_ns = facts["achieved_hz"], facts["sampler_wall_ns"]
    note = f"{achieved_hz or 0:g} of {facts['rate_hz']:g} samples per second were taken"
    if wall_ns:
        note += f", for {facts['sampler_own_ns'] / wall_ns:.2%} of one core's time"
    notes = [note]
    if wall_ns and samples["lowered_ns"] > _TELLING * wall_ns:
        notes.append(
            f"the rate was lowered from {facts['rate_hz']:g} to {achieved_hz or 0:g} per second: "
            "sampling may take 1 % of one core's time"
        )
    if samples.get("late"):
        notes.append(
            f"{samples['late']} of {samples['rounds']} times to sample passed before the thread "
            "with the interpreter's lock could be seen: their stacks are the ones seen then"
        )
    if samples.get("cut"):
        notes.append(f"of {samples['cut']} stacks the outermost calls are left out")
    if samples.get("unseen"):
        notes.append(f"{samples['unseen']} stacks are missing: there were too many threads")
    return notes


source = PythonCallsSource()
