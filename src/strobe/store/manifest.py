# SPDX-License-Identifier: Apache-2.0
"""strobe.json: what the recording process says of a recording, at its start and at its stop."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from strobe.errors import FormatError
from strobe.store import files
from strobe.store.layout import FORMAT_VERSION
from strobe.store.upgrade import upgrade

FILE_NAME = "strobe.json"
_ID = re.compile(r"[0-9a-f]{16}")
_MOST_NS = 1 << 62
_REPORT_TEXTS = ("source_class", "path", "reason")
_REPORT_TIMES = {
    "own_ns": int | None,
    "once_ns": int | None,
    "costs_ns": dict[str, float] | None,
    "costs_in_spans": dict[str, float] | None,
}
IMPORTED = "none"
"""The recorder of what another tool's file was made into."""


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """One instant on three clocks: the records', the system's monotonic one, and wall time."""

    clock_ns: int
    monotonic_ns: int
    wall_ns: int

    @classmethod
    def now(cls, clock_ns: Callable[[], int]) -> Anchor:
        """Read all three, the outer ones twice so that they meet in the middle."""
        clock, monotonic = clock_ns(), time.monotonic_ns()
        wall_ns = time.time_ns()
        monotonic += time.monotonic_ns()
        clock += clock_ns()
        return cls(clock_ns=clock // 2, monotonic_ns=monotonic // 2, wall_ns=wall_ns)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Who recorded, where the log is, and the window. `stop` is None until the recording stops.

    `log` is relative to the recording: "log", or "../<recording>/log" of one that it shared.
    """

    id: str
    name: str
    strobe: str
    recorder: str
    host: str
    boot: str
    pid: int
    process_start: int
    log: str
    start: Anchor
    stop: Anchor | None = None
    format: int = FORMAT_VERSION
    clock: str = "monotonic"
    window: int = 0
    first_step: int = 0
    ended_with_step: bool = False
    max_seconds: float | None = None
    missing: dict[str, str] = field(default_factory=dict)
    exports: list[dict[str, Any]] = field(default_factory=list)
    span_cost_ns: float = 0.0
    costs_ns: dict[str, float] = field(default_factory=dict)
    """What recording one row took, by kind: see strobe.record.costs."""
    stats: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    wants: dict[str, Any] = field(default_factory=dict)
    """What was asked of sources: see strobe.record.source.Wants."""
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """How each source recorded: see strobe.record.source.Report."""
    threads: dict[str, str] = field(default_factory=dict)
    """Python's names of the threads that ran at the stop, by their numbers."""

    def stopped(self, stop: Anchor, *, once_ns: int, stats: dict[str, int]) -> Manifest:
        """Return the manifest of the recording once it has stopped."""
        return replace(self, stop=stop, stats={**stats, "start_stop_ns": once_ns})


def process_start(pid: int) -> int | None:
    """Return the clock tick at which a process of this host started, None when there is none.

    A zombie is none: it has ended, and nobody has asked how.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


@cache
def own_start(pid: int) -> int:
    """Return the clock tick at which this process, whose number is `pid`, started; 0 if unknown."""
    return process_start(pid) or 0


@cache
def boot_id() -> str:
    """Return what tells one boot of this host from another, "" where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def is_id(text: str) -> bool:
    """Say whether a text may be the id of a recording."""
    return _ID.fullmatch(text) is not None


def new_id() -> str:
    """Return an id that no other recording has."""
    return files.random_bytes(8).hex()


def is_alive(pid: int, start: int, host: str, boot: str) -> bool | None:
    """Say whether the process still runs; None when that cannot be known from here."""
    if host != socket.gethostname() or boot != boot_id():
        return None if host != socket.gethostname() else False
    if start:
        return process_start(pid) == start
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write(recording: Path, manifest: Manifest, calls: files.Calls | None = None) -> None:
    """Write the manifest so that a reader sees the old one or the new one, whole."""
    path = recording / FILE_NAME
    content = (json.dumps(asdict(manifest), indent=1) + "\n").encode()
    try:
        files.write_whole(path, content, calls)
    except OSError:
        if not files.is_regular(path):
            raise
        # The disk is full, but the old one's block is there.
        with path.open("r+b") as file:
            file.write(content)
            file.truncate()


def read(recording: Path) -> Manifest:
    """Return the manifest; raises FormatError when it is missing, damaged or of a newer format."""
    path = recording / FILE_NAME
    try:
        content = json.loads(files.read_text(path))
    except FileNotFoundError:
        raise FormatError(recording, FILE_NAME, "not there, so this is no recording") from None
    except OSError as error:
        raise FormatError(path, "content", f"cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise FormatError(path, "content", f"not JSON ({error})") from None
    except RecursionError:
        raise FormatError(path, "content", "nested too deeply for a manifest") from None
    content = upgrade(path, content)
    for name in ("start", "stop"):
        content[name] = _read_anchor(path, name, content.get(name))
    known = {each.name: each for each in fields(Manifest)}
    for name, value in content.items():
        if name not in known:
            raise FormatError(path, name, "unknown in a manifest of this format")
        _check(path, known[name], value)
    missing = [
        name
        for name, each in known.items()
        if name not in content and each.default is MISSING and each.default_factory is MISSING
    ]
    if missing:
        raise FormatError(path, "content", f"not a manifest: it lacks {', '.join(missing)}")
    return Manifest(**content)


def _read_anchor(path: Path, name: str, value: object) -> Anchor | None:
    if value is None and name == "stop":
        return None
    names = {each.name for each in fields(Anchor)}
    if not isinstance(value, dict) or value.keys() != names:
        raise FormatError(path, name, f"must have {', '.join(sorted(names))}")
    for each, time_ns in value.items():
        if not _fits(time_ns, int) or not -_MOST_NS < time_ns < _MOST_NS:
            raise FormatError(path, f"{name}.{each}", f"{time_ns!r:.80} is not a time")
    return Anchor(**value)


def _check(path: Path, declared: Field[Any], value: Any) -> None:
    """Raise FormatError where a value is not what the manifest has under this name."""
    name = declared.name
    if not _fits(value, _types()[name]):
        raise FormatError(path, name, f"{value!r:.80} is not of type {declared.type}")
    if name == "id" and not is_id(value):
        raise FormatError(path, name, f"{value!r:.80} is not the id of a recording")
    for report in value.values() if name == "sources" else ():
        texts = all(isinstance(report.get(each), str) for each in _REPORT_TEXTS)
        if not texts or not isinstance(report.get("facts"), dict):
            reason = f"a report must have {', '.join(_REPORT_TEXTS)} and facts"
            raise FormatError(path, name, reason)
        for each, declared_type in _REPORT_TIMES.items():
            if not _fits(report.get(each), declared_type):
                raise FormatError(path, f"{name}.{each}", f"{report[each]!r:.80} is not a time")


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(Manifest)


def _fits(value: object, declared: Any) -> bool:
    """Say whether a value of a JSON file is of a declared type; there a bool is no number."""
    origin, inner = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(each, inner[1]) for each in value.values())
    if origin is list:
        return isinstance(value, list) and all(_fits(each, inner[0]) for each in value)
    if declared is Any:
        return True
    if isinstance(value, bool):
        return declared is bool
    return isinstance(value, (int, float) if declared is float else declared)
