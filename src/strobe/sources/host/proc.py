# SPDX-License-Identifier: Apache-2.0
"""What Linux tells of processes and of itself, in bytes, nanoseconds and counts.

Each function takes the text of one file; a field that is not there is left out or 0.
"""

from __future__ import annotations

import os
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
TICK_NS = 1_000_000_000 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
_SECTOR_BYTES = 512
# Devices that are made of others, or of memory, would count twice.
_NOT_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr")


class Files:
    """Files that are read again and again, kept open: their content is made at each reading."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}
        self._was_read: dict[str, bool] = {}

    def read(self, path: str) -> str | None:
        """Return the text, None where it cannot be read."""
        try:
            file = self._open.get(path)
            if file is None:
                file = self._open[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            text = os.pread(file, 1 << 18, 0).decode("ascii", "replace")
        except OSError:
            self.forget(path)
            self._was_read[path] = False
            return None
        self._was_read[path] = True
        return text

    def can_read(self, path: str) -> bool:
        """Say whether a file could be read the last time; to make its content may take long."""
        if path not in self._was_read:
            self.read(path)
        return self._was_read[path]

    def forget(self, path: str) -> None:
        """Close a file that will not be read again."""
        file = self._open.pop(path, None)
        if file is not None:
            os.close(file)

    def close(self) -> None:
        """Close them all."""
        for path in list(self._open):
            self.forget(path)


def fields(text: str, scale: int = 1) -> dict[str, int]:
    """Return the lines `name: number ...` or `name number`, each number times `scale`."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.replace(":", " ", 1).partition(" ")
        number = rest.split(maxsplit=1)[:1]
        if number and number[0].isdecimal():
            found[name] = int(number[0]) * scale
    return found


def resident_bytes(statm: str) -> int:
    """Return the resident size of /proc/PID/statm."""
    return int(statm.split()[1]) * PAGE_BYTES


def shares(smaps_rollup: str) -> tuple[int, int]:
    """Return the proportional and the unique size of /proc/PID/smaps_rollup, in bytes."""
    sizes = fields(smaps_rollup, scale=1024)
    return sizes.get("Pss", 0), sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0)


def processor_ns(stat: str) -> tuple[int, int]:
    """Return the processor time and the parent of /proc/PID/stat."""
    after = stat.rpartition(")")[2].split()  # the name in parentheses may hold anything
    return (int(after[11]) + int(after[12])) * TICK_NS, int(after[1])


def busy_and_all(stat: str) -> tuple[int, int]:
    """Return the ticks of all processors in /proc/stat, at work and in all."""
    ticks = [int(word) for word in stat.partition("\n")[0].split()[1:9]]
    return sum(ticks) - sum(ticks[3:5]), sum(ticks)  # idle, and waiting for disks, are not work


def disks() -> frozenset[str]:
    """Return the names of whole disks: parts of disks are not listed in /sys/block."""
    names = (path.name for path in Path("/sys/block").glob("*"))
    return frozenset(name for name in names if not name.startswith(_NOT_DISKS))


def disk_bytes(diskstats: str, names: frozenset[str]) -> tuple[int, int]:
    """Return what was read from these disks and written, of /proc/diskstats."""
    read = written = 0
    for line in diskstats.splitlines():
        words = line.split()
        if len(words) > 9 and words[2] in names:
            read += int(words[5]) * _SECTOR_BYTES
            written += int(words[9]) * _SECTOR_BYTES
    return read, written


def network_bytes(net_dev: str) -> tuple[int, int]:
    """Return what was received and sent, of /proc/net/dev, without the loopback."""
    received = sent = 0
    for line in net_dev.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        words = numbers.split()
        if name.strip() != "lo" and len(words) > 8:
            received += int(words[0])
            sent += int(words[8])
    return received, sent


def throttled(cpu_stat: str) -> tuple[int, int] | None:
    """Return how long and how often a cgroup was held up; None where it has no limit."""
    told = fields(cpu_stat)
    if not told.get("nr_periods"):
        return None
    spent_ns = told.get("throttled_time", told.get("throttled_usec", 0) * 1000)
    return spent_ns, told.get("nr_throttled", 0)


def cgroup_files(cgroup: str) -> dict[str, str]:
    """Return where this process's cgroup tells of `cpu` and `memory`, by /proc/self/cgroup."""
    root = Path("/sys/fs/cgroup")
    found: dict[str, str] = {}
    for line in cgroup.splitlines():
        _, kinds, path = line.split(":", 2)
        for kind in ("cpu", "memory"):
            if kinds and kind not in kinds.split(","):
                continue
            folder = root / kind if kinds else root
            name = "cpu.stat" if kind == "cpu" else "memory.current"
            name = "memory.usage_in_bytes" if kinds and kind == "memory" else name
            # Inside a container the path is that of the host, and the root is our own.
            for place in (folder / path.lstrip("/"), folder):
                if (place / name).is_file():
                    found.setdefault(kind, str(place / name))
    return found
