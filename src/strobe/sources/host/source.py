# SPDX-License-Identifier: Apache-2.0
"""The host as a source: counters by a sampler, garbage collections, NVIDIA's devices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from strobe.errors import CaptureError
from strobe.record.source import Report, Wants
from strobe.sources.host import sampler
from strobe.sources.host.garbage import Collections
from strobe.sources.host.nvml import Nvml
from strobe.sources.host.process import Host
from strobe.sources.host.rates import Counters
from strobe.sources.host.sampler import Sampler
from strobe.sources.host.sync import NO_DEVICE, Blocking


class HostSource:
    """Looks at the machine while a window is open that asks for it."""

    name = "host"
    framework = ""
    answers = frozenset({"hardware", "hbm_ddr", "pcie", "sync_enable", "profile_memory"})

    def __init__(self) -> None:
        self._wants: Wants | None = None
        self._missing: dict[str, str] = {}
        self._collections = Collections()
        self._blocking = Blocking()
        self._nvml: Nvml | None = None
        self._host: Host | None = None
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

    def close(self, log: Path, remaining: Wants | None) -> Report:  # noqa: ARG002
        """A window ends: report what has been looked at since the first one began."""
        report = self._report()
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
        if groups:
            self._sampler = Sampler(groups)
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
        self._blocking.release()
        if self._host is not None:
            self._host.close()
            self._host = None
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None

    def _report(self) -> Report:
        facts: dict[str, Any] = {"collected": self._counters.count}
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
            source_class="A", path="sampling", reason="; ".join(told), missing=missing, facts=facts
        )


source = HostSource()
