# SPDX-License-Identifier: Apache-2.0
"""Counters of this process, of its children and of the system around them."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from strobe.sources.host import proc
from strobe.sources.host.rates import Counters
from strobe.sources.host.sampler import Group

_MOST_CHILDREN = 64
_HUNDREDTH_NS = 10_000_000  # of a second: 1 %


class Host:
    """Reads what Linux tells; what it does not is left out, and named in `absent`."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._files = proc.Files()
        self._cgroup = proc.cgroup_files(self._files.read("/proc/self/cgroup") or "")
        self._throttles = sorted(
            str(path)
            for path in Path("/sys/devices/system/cpu").glob(
                "cpu[0-9]*/thermal_throttle/core_throttle_count"
            )
        )
        self._disks = proc.disks()
        self._ticks: tuple[int, int] | None = None
        self._children: set[int] = set()
        self.left_out = 0

    def groups(self, *, hardware: bool) -> list[Group]:
        """Return what is to be looked at: memory alone, or all."""
        memory = [
            Group("resident memory", 0.1, self._look_at_memory, at_ends=True),
            Group("unique memory", 1.0, self._look_at_shares),
        ]
        if not hardware:
            return memory
        return [
            *memory,
            Group("this process", 0.1, self._look_at_process, at_ends=True),
            Group("the system", 0.5, self._look_at_system, at_ends=True),
            Group("child processes", 0.5, self._look_at_children),
            Group("the list of processes", 1.0, self._find_children),
        ]

    def absent(self, *, hardware: bool) -> list[str]:
        """Return what this machine does not tell."""
        files = {"unique memory": "/proc/self/smaps_rollup"}
        if hardware:
            files |= {"disk I/O of the process": "/proc/self/io"}
            files |= {"disk I/O of the system": "/proc/diskstats", "network": "/proc/net/dev"}
        found = [name for name, path in files.items() if not self._files.can_read(path)]
        if hardware and "cpu" not in self._cgroup:
            found.append("throttling by a cgroup")
        if hardware and not self._throttles:
            found.append("throttling by temperature")
        return found

    def close(self) -> None:
        """Close the files."""
        self._files.close()

    def _look_at_memory(self, _now_ns: int) -> None:
        statm = self._files.read("/proc/self/statm")
        if statm is not None:
            self._counters.value("process resident bytes", proc.resident_bytes(statm))

    def _look_at_shares(self, _now_ns: int) -> None:
        rollup = self._files.read("/proc/self/smaps_rollup")
        if rollup is not None:
            proportional, unique = proc.shares(rollup)
            self._counters.value("process proportional bytes", proportional)
            self._counters.value("process unique bytes", unique)

    def _look_at_process(self, now_ns: int) -> None:
        import resource

        rate = self._counters.rate
        rate("process cpu %", time.process_time_ns(), now_ns, _HUNDREDTH_NS)
        use = resource.getrusage(resource.RUSAGE_SELF)
        rate("process page faults/s", use.ru_minflt, now_ns)
        rate("process major page faults/s", use.ru_majflt, now_ns)
        rate("process context switches/s", use.ru_nvcsw + use.ru_nivcsw, now_ns)
        rate("process involuntary context switches/s", use.ru_nivcsw, now_ns)

    def _look_at_system(self, now_ns: int) -> None:
        rate, read = self._counters.rate, self._files.read
        io = read("/proc/self/io")
        if io is not None:
            told = proc.fields(io)
            rate("process disk read bytes/s", told.get("read_bytes", 0), now_ns)
            rate("process disk written bytes/s", told.get("write_bytes", 0), now_ns)
        stat = read("/proc/stat")
        if stat is not None:
            before, self._ticks = self._ticks, proc.busy_and_all(stat)
            if before is not None and self._ticks[1] > before[1]:
                busy, both = self._ticks[0] - before[0], self._ticks[1] - before[1]
                self._counters.value("system cpu %", max(0, busy) * 100 / both)
            rate("system context switches/s", proc.fields(stat).get("ctxt", 0), now_ns)
        available = proc.fields(read("/proc/meminfo") or "", scale=1024).get("MemAvailable")
        if available is not None:
            self._counters.value("system available bytes", available)
        diskstats = read("/proc/diskstats")
        if diskstats is not None:
            came, went = proc.disk_bytes(diskstats, self._disks)
            rate("system disk read bytes/s", came, now_ns)
            rate("system disk written bytes/s", went, now_ns)
        net_dev = read("/proc/net/dev")
        if net_dev is not None:
            came, went = proc.network_bytes(net_dev)
            rate("system network received bytes/s", came, now_ns)
            rate("system network sent bytes/s", went, now_ns)
        self._look_at_limits(now_ns)

    def _look_at_limits(self, now_ns: int) -> None:
        rate, read = self._counters.rate, self._files.read
        held = proc.throttled(read(self._cgroup["cpu"]) or "") if "cpu" in self._cgroup else None
        if held is not None:
            rate("cgroup throttled ms/s", held[0], now_ns, 1e6)
            rate("cgroup throttled periods/s", held[1], now_ns)
        used = read(self._cgroup["memory"]) if "memory" in self._cgroup else None
        if used is not None:
            self._counters.value("cgroup memory bytes", int(used))
        if self._throttles:
            counts = [int(read(path) or 0) for path in self._throttles]
            rate("system thermal throttles/s", sum(counts), now_ns)

    def _find_children(self, _now_ns: int) -> None:
        """Find all processes below this one: by their parents, since Linux need not list them."""
        parents: dict[int, int] = {}
        with os.scandir("/proc") as entries:
            pids = [entry.name for entry in entries if entry.name.isdecimal()]
        for pid in pids:
            stat = _read(f"/proc/{pid}/stat")
            if stat:
                parents[int(pid)] = proc.processor_ns(stat)[1]
        found: set[int] = set()
        waiting = [os.getpid()]
        while waiting:
            parent = waiting.pop()
            below = [child for child, its in parents.items() if its == parent]
            found.update(below)
            waiting += below
        self._children = found

    def _look_at_children(self, now_ns: int) -> None:
        children = sorted(self._children | _workers())
        self.left_out = max(self.left_out, len(children) - _MOST_CHILDREN)
        for pid in children[:_MOST_CHILDREN]:
            stat, statm = (_read(f"/proc/{pid}/{name}") for name in ("stat", "statm"))
            if not stat or not statm:
                self._children.discard(pid)
                self._counters.forget(f"child {pid} ")
                continue
            spent_ns, _ = proc.processor_ns(stat)
            self._counters.rate(f"child {pid} cpu %", spent_ns, now_ns, _HUNDREDTH_NS)
            self._counters.value(f"child {pid} resident bytes", proc.resident_bytes(statm))


def resident_bytes() -> int | None:
    """Return how much of this process is in memory now, None where that is not told."""
    statm = _read("/proc/self/statm")
    return None if statm is None else proc.resident_bytes(statm)


def unique_bytes() -> int | None:
    """Return how much of that is this process's alone, None where that is not told."""
    rollup = _read("/proc/self/smaps_rollup")
    return None if rollup is None else proc.shares(rollup)[1]


def _workers() -> set[int]:
    """Return the processes that multiprocessing has started, which need not be looked for."""
    process = sys.modules.get("multiprocessing.process")
    known = getattr(process, "_children", ())
    try:
        return {child.pid for child in list(known) if child.pid is not None}
    except (AttributeError, RuntimeError, ValueError):  # changed or closed meanwhile
        return set()


def _read(path: str) -> str | None:
    """Return the text of a short file of another process, which may have ended."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(file, 4096).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(file)
