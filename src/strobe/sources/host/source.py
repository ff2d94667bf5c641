# SPDX-License-Identifier: Apache-2.0
"""The host as a source: counters by a sampler, garbage collections, NVIDIA's devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from strobe.errors import CaptureError
from strobe.model import attributes as keys
from strobe.model.marks import OUT_OF_MEMORY
from strobe.model.tables import record_code
from strobe.record import recorder
from strobe.record.messages import show
from strobe.record.source import Report, Wants
from strobe.sources.host import process, sampler
from strobe.sources.host.garbage import Collections
from strobe.sources.host.lines import Lines
from strobe.sources.host.nvml import Nvml
from strobe.sources.host.out_of_memory import Hooks, count_held, describe_held, describe_lines
from strobe.sources.host.process import Host
from strobe.sources.host.rates import Counters
from strobe.sources.host.sampler import Sampler
from strobe.sources.host.sync import NO_DEVICE, Blocking

_Result = TypeVar("_Result")

_POINT = record_code("user", "host")

_RESERVE_BYTES = 8 << 20
"""Given back when memory has run out: to end a recording takes some, and Python itself may never
come back from an error that it has no memory to handle."""


class HostSource:
    """Looks at the machine while a window is open that asks for it."""

    name = "host"
    framework = ""
    answers = frozenset(
        {
            *("hardware", "hbm_ddr", "pcie", "sync_enable"),
            *("profile_memory", "memory_lines"),
        }
    )

    def __init__(self) -> None:
        self._wants: Wants | None = None
        self._missing: dict[str, str] = {}
        self._collections = Collections()
        self._blocking = Blocking()
        self._nvml: Nvml | None = None
        self._host: Host | None = None
        self._lines: Lines | None = None
        self._errors = Hooks(self._ran_out)
        self._reserve: bytearray | None = None
        self._files = 0
        self._sampler: Sampler | None = None
        self._counters = Counters()

    def examine(self) -> dict[str, Any]:
        """Return what this machine tells and what it does not."""
        host = Host(Counters())
        absent = host.absent(hardware=True)
        host.close()
        facts = {"path": "sampling", "reason": "asked for by hardware=True or profile_memory=True"}
        facts["not told here"] = ", ".join(absent) or "nothing"
        try:
            nvml = Nvml()
        except CaptureError as error:
            return {**facts, "devices": f"none: {error}"}
        try:
            return {**facts, "devices": ", ".join(nvml.names())}
        finally:
            nvml.close()

    def attach(self) -> None:
        """Nothing: what is looked at depends on the window."""

    def detach(self) -> None:
        """Stop, if that has not happened."""
        self._pause()

    def open(self, wants: Wants, log: Path) -> None:  # noqa: ARG002
        """Look at what is wanted."""
        if self._wants != wants:
            self._pause()
            self._resume(wants)

    def settle(self) -> None:
        """A window is to end: look once more, while it is open."""
        if self._sampler is not None:
            self._sampler.look_at_ends()

    def raised(self, error: BaseException) -> None:
        """An error leaves the block of a profiler."""
        self._errors.see(error)

    def close(self, log: Path, remaining: Wants | None) -> Report:
        """A window ends: report what has been looked at since the first one began."""
        report = self._report(log)
        if remaining != self._wants:
            self._pause()
            if remaining is not None:
                self._resume(remaining)
        return report

    def _resume(self, wants: Wants) -> None:
        self._wants = wants
        self._missing = {}
        self._counters = Counters()
        groups = self._device_groups(wants)
        if wants.hardware or wants.memory:
            if sys.platform.startswith("linux"):
                self._host = Host(self._counters)
                groups += self._host.groups(hardware=wants.hardware)
            else:
                self._missing["hardware"] = "only Linux tells of it"
        if wants.hardware:
            self._collections.attach()
        if wants.memory or wants.memory_lines:
            self._errors.attach()
            self._reserve = bytearray(b"-") * _RESERVE_BYTES
        if wants.memory_lines:
            self._lines = Lines(self._counters)
            groups.append(self._lines.group())
        if groups:
            self._sampler = Sampler(groups)
            self._sampler.look_at_ends()
            sampler.run(self._sampler)

    def _device_groups(self, wants: Wants) -> list[sampler.Group]:
        """Return what to look at of devices; what cannot be is missing."""
        asked = {"hbm_ddr": wants.hbm, "pcie": wants.pcie, "sync_enable": wants.sync}
        if not wants.hardware and not any(asked.values()):
            return []
        try:
            self._nvml = Nvml()
        except CaptureError as error:
            named = [option for option, is_asked in asked.items() if is_asked]
            self._missing |= dict.fromkeys(named, str(error))
            if wants.sync:
                self._missing["sync_enable"] = NO_DEVICE
            return []
        if wants.sync:
            problem = self._blocking.hold()
            if problem is not None:
                self._missing["sync_enable"] = problem
        return self._nvml.groups(
            self._counters, hardware=wants.hardware, hbm=wants.hbm, pcie=wants.pcie
        )

    def _pause(self) -> None:
        self._wants = None
        if self._sampler is not None:
            sampler.end(self._sampler)
            self._sampler = None
        self._collections.detach()
        self._errors.detach()
        self._reserve = None
        if self._lines is not None:
            self._lines.close()
            self._lines = None
        self._blocking.release()
        if self._host is not None:
            self._host.close()
            self._host = None
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _ran_out(self, error: BaseException) -> None:
        """Memory has run out: record and say who holds it, the cheapest first.

        Each part may fail, since there may be no memory for it: the others are there.
        """
        self._reserve = None
        kind, text = type(error).__name__, " ".join(str(error).split())[:300]
        resident, unique = (
            _attempt(tell) for tell in (process.resident_bytes, process.unique_bytes)
        )
        size = "" if resident is None else f", {resident / 1e6:,.1f} MB resident"
        size += "" if unique is None else f", {unique / 1e6:,.1f} MB of it this process's alone"
        show(f"out of memory ({kind}){size}")
        held = _attempt(count_held) or []
        for line in describe_held(held):
            show(line)
        facts = {keys.ERROR: kind, keys.MESSAGE: text, keys.RESIDENT: resident, keys.HELD: held}
        recorder.core.source_instant(OUT_OF_MEMORY, _POINT, unique_bytes=unique, **facts)
        if self._lines is not None:
            frugally = isinstance(error, MemoryError)
            moment = _attempt(partial(self._lines.keep, OUT_OF_MEMORY, frugally=frugally))
            for line in describe_lines(moment) if moment else ():
                show(line)
        show("strobe memory on the recording shows how it came to that")

    def _report(self, log: Path) -> Report:
        facts: dict[str, Any] = {}
        if self._lines is not None:
            self._files += 1
            facts["lines"] = f"lines-{os.getpid()}-{self._files}.json"
            self._lines.write(log / facts["lines"])
        told = ["nothing to look at"]
        if self._sampler is not None:
            own_ns, program_ns = self._sampler.own_cpu_ns, self._sampler.program_cpu_ns
            facts |= {"own_cpu_ns": own_ns, "metadata": {"program_cpu_ns": program_ns}}
            told = [f"{self._sampler.looks} looks, {own_ns / 1e6:.1f} ms of processor time"]
            if program_ns > 0:
                told[0] += f" ({own_ns / program_ns:.2%} of the program's {program_ns / 1e9:.1f} s)"
            told += [f"{name}: {problem}" for name, problem in self._sampler.problems.items()]
        if self._host is not None and self._wants is not None:
            absent = self._host.absent(hardware=self._wants.hardware)
            told += [f"not told here: {', '.join(absent)}"] if absent else []
            if self._host.left_out:
                told.append(f"{self._host.left_out} child processes were left out")
        told += self._lines.notes() if self._lines is not None else []
        missing = dict(self._missing)
        if self._nvml is not None:
            told += self._nvml.refused.values()
            refused = self._nvml.refused
            for option, function in (
                ("hbm_ddr", "nvmlDeviceGetUtilizationRates"),
                ("pcie", "nvmlDeviceGetPcieThroughput"),
            ):
                if function in refused:
                    missing[option] = refused[function]
        return Report(
            source_class="A",
            path="sampling",
            reason="; ".join(told),
            missing=missing,
            facts=facts,
            own_ns=0,
            costs_ns={"counters": 0.0},  # by the sampler's thread
        )


def _attempt(action: Callable[[], _Result]) -> _Result | None:
    """Return what comes of it, None where it fails: there may be no memory for it.

    The system's files, tracemalloc and a framework's own figures may be out of order too.
    """
    try:
        return action()
    except (MemoryError, OSError, RuntimeError, ValueError):
        return None


source = HostSource()
