# SPDX-License-Identifier: Apache-2.0
"""One recording while it is made: a window on the recorder and a manifest that says so."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from strobe._version import __version__
from strobe.errors import CaptureError
from strobe.finalize import process as finalizer
from strobe.record import costs, recorder, windows
from strobe.record.messages import show
from strobe.record.ranks import Place
from strobe.session import ending
from strobe.session.handlers import Export
from strobe.session.options import Options
from strobe.session.program import describe_program, program_name
from strobe.sources import active as sources
from strobe.store import manifest, references

_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Destination:
    """Where a round goes and what becomes of it, for an interface with its own tree of files."""

    path: Path
    """The recording's directory, which is not there yet."""
    exports: list[dict[str, Any]]
    """What the finalizer is to write besides the tables."""
    finalize: bool = True
    """False: only the log is left when it ends."""


class Round:
    """A recording from its first instant to its last."""

    def __init__(
        self,
        path: Path,
        options: Options,
        content: manifest.Manifest,
        once_ns: int,
        *,
        finalize: bool,
        is_bounded: bool,
    ) -> None:
        self.path = path
        self._finalize = finalize
        self._is_bounded = is_bounded
        self._options = options
        self.window = content.window
        self._content = content
        self._once_ns = once_ns

    def age_seconds(self) -> float:
        """Return how long it has been recording."""
        now_ns: int = recorder.core.clock_ns()
        return (now_ns - self._content.start.clock_ns) / 1e9

    def close(self, *, with_step: bool, metadata: Mapping[str, Any]) -> dict[str, str]:
        """End it and hand it to the finalizer; what goes wrong is shown, not raised.

        `with_step`: it ends where a step does. Returns what was asked of frameworks and could not
        be had, option to reason.
        """
        recorder.core.put_usage()
        stop = manifest.Anchor.now(recorder.core.clock_ns)
        answers = sources.answers()
        reports = sources.close_window(self._content.id)
        began_ns = time.perf_counter_ns()
        stats = windows.close_window(self._content.id)
        once_ns = self._once_ns + time.perf_counter_ns() - began_ns
        stopped = self._content.stopped(stop, once_ns=once_ns, stats=stats)
        missing = self._options.unanswered(reports, answers)
        stopped = replace(
            stopped,
            ended_with_step=with_step,
            metadata={**stopped.metadata, **metadata},
            missing={**stopped.missing, **missing},
            sources={name: asdict(report) for name, report in reports.items()},
            threads={str(thread.native_id): thread.name for thread in threading.enumerate()},
        )
        try:
            manifest.write(self.path, stopped, recorder.core)
        except OSError as error:
            fate = "can be opened once this program has ended" if self.path.exists() else "is lost"
            show(f"the recording {str(self.path)!r} {fate} ({error.strerror})")
            return missing
        if stats["dropped"]:
            ending.announce_loss(stats["dropped"], _cause_of_loss(stats))
        if self._finalize:
            self._hand_over()
        return missing

    def _hand_over(self) -> None:
        max_total_bytes = self._options.max_total_bytes if self._is_bounded else None
        exports = self._content.exports
        if finalizer.launch(self.path, exports, recorder.core, max_total_bytes):
            ending.expect_tables(self.path)
        elif max_total_bytes is not None and not exports:
            # No process can be made, and what nobody asked for by name must not fill the disk.
            ending.delete_beside(self.path, max_total_bytes)
        if max_total_bytes is not None:
            ending.announce_deletions(max_total_bytes)


def open_round(
    options: Options,
    *,
    place: Place,
    clock_problem: str | None,
    first_step: int,
    destination: Destination | None = None,
) -> Round:
    """Start a recording; raises CaptureError when the output folder cannot be written."""
    began_ns = time.perf_counter_ns()
    recording_id = manifest.new_id()
    path = destination.path if destination else _choose_path(options, place, recording_id)
    counter = options.clock == "tsc" and clock_problem is None
    try:
        _make_folder(path)
        log = windows.open_window(
            path,
            recording_id,
            counter=counter,
            max_log_bytes=options.max_bytes,
            max_ring_bytes=options.max_memory_bytes,
        )
        try:
            start = manifest.Anchor.now(recorder.core.clock_ns)
            recorder.core.put_usage()
            content = _describe(options, place, path, log, start, recording_id)
            content = replace(content, first_step=first_step)
            if destination:
                content = replace(content, exports=destination.exports)
            if clock_problem:
                content.metadata["clock_problem"] = clock_problem
            manifest.write(path, content, recorder.core)
        except OSError:
            windows.close_window(recording_id)
            raise
    except OSError as error:
        references.discard_log(path / references.LOG, recording_id)
        shutil.rmtree(path, ignore_errors=True)
        message = (
            f"Profiler(output={str(options.output)!r}): cannot be recorded into "
            f"({error.strerror or error}); choose a folder that can be written"
        )
        raise CaptureError(message) from error
    ending.announce(path)
    once_ns = time.perf_counter_ns() - began_ns  # sources count their own time
    sources.open_window(recording_id, options.wants, log)
    finalize = destination.finalize if destination else True
    # A tree of files is what the program asked for: it is not deleted.
    return Round(path, options, content, once_ns, finalize=finalize, is_bounded=destination is None)


def _describe(
    options: Options,
    place: Place,
    path: Path,
    log: Path,
    start: manifest.Anchor,
    recording_id: str,
) -> manifest.Manifest:
    handler = options.on_trace_ready
    costs_ns = costs.measure()
    exports = []
    if isinstance(handler, Export):
        exports.append({"format": handler.format, "directory": str(handler.directory)})
        if handler.prefix is not None:
            exports[-1]["prefix"] = handler.prefix
    return manifest.Manifest(
        id=recording_id,
        name=options.name or _script_name(),
        strobe=__version__,
        recorder=recorder.KIND,
        host=_host(),
        boot=manifest.boot_id(),
        pid=os.getpid(),
        process_start=manifest.own_start(os.getpid()),
        log=references.name_log(log, path),
        start=start,
        clock=windows.current_clock(),
        window=next(_numbers) & 0xFFFF,
        max_seconds=options.max_seconds,
        span_cost_ns=costs_ns.get("user", 0.0),
        costs_ns=costs_ns,
        wants=asdict(options.wants),
        exports=exports,
        metadata={
            "python": sys.version.split()[0],
            "recorder_reason": recorder.REASON,
            "output": str(options.output),
            **_count_cores(),
            **describe_program(),
            **{key: value for key, value in vars(place).items() if value is not None},
        },
    )


def _cause_of_loss(stats: Mapping[str, int]) -> str:
    """Say why records are lost: an error, or else the bound, which is no error of the log's."""
    number = stats["failed_errno"]
    return os.strerror(number) if number else f"max_bytes={stats['max_bytes']} is reached"


def _make_folder(path: Path) -> None:
    try:
        recorder.core.make_folder(str(path))
    except FileNotFoundError:
        path.mkdir(parents=True)


def _count_cores() -> dict[str, int]:
    """Return how many cores the machine has, and how many this process may run on."""
    allowed = getattr(os, "sched_getaffinity", None)  # not on macOS
    usable = {"usable_cores": len(allowed(0))} if allowed is not None else {}
    return {"cores": os.cpu_count() or 0, **usable}


def _choose_path(options: Options, place: Place, recording_id: str) -> Path:
    """Return a new directory's path: in the job's folder for a process that is one of many."""
    name = _plain(options.name or _script_name(), 100) or "recording"
    host = re.sub(r"[^\w-]+", "_", _host())
    stamp = time.strftime("%Y%m%d-%H%M%S")
    unique = f"{stamp}-{host}-{os.getpid()}-{recording_id[:8]}"
    if place.rank is None:
        return options.folder / f"{name}-{unique}"
    return options.folder / _plain(f"{name}-{place.job}", 200) / f"rank{place.rank:05d}-{unique}"


@functools.cache
def _host() -> str:
    return socket.gethostname()


def _script_name() -> str:
    return _plain(program_name(), 64) or "python"


def _plain(text: str, most: int) -> str:
    return re.sub(r"[^\w.-]+", "_", text).strip("._-")[:most]
