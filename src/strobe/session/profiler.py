# SPDX-License-Identifier: Apache-2.0
"""The Profiler: a window on the process's recorder that becomes a recording."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from strobe._version import __version__
from strobe.errors import CaptureError, StateError, UsageError
from strobe.finalize import process as finalizer
from strobe.record import clocks, recorder, windows
from strobe.session import ending
from strobe.store import manifest, places

if TYPE_CHECKING:
    from strobe.session.recording import Recording


class Profiler:
    """Records the spans of this process and of its children between start() and stop().

    `output` is the folder in which each start() makes one recording; `name` begins the recording's
    name (by default the script's). stop() returns at once: another process writes the tables.
    Several profilers may record at the same time. A program that ends without stop(), in whatever
    way, leaves a recording that open() completes.

    `clock="tsc"` takes times from the processor's counter, which makes a span cheaper; where the
    counter is not proven constant the monotonic clock is used, with a line that says so.
    """

    def __init__(
        self,
        output: str | os.PathLike[str] = "./strobe_data",
        name: str | None = None,
        *,
        clock: clocks.Clock = "monotonic",
    ) -> None:
        if not isinstance(output, (str, os.PathLike)) or not os.fspath(output):
            message = f"Profiler(output={output!r}): output must be the path of a folder"
            raise UsageError(message)
        if name is not None and (not isinstance(name, str) or not name):
            message = f"Profiler(name={name!r}): name must be a str that is not empty, or None"
            raise UsageError(message)
        if clock not in clocks.CLOCKS:
            message = f"Profiler(clock={clock!r}): clock must be one of {', '.join(clocks.CLOCKS)}"
            raise UsageError(message)
        self._clock_problem = clocks.counter_problem() if clock == "tsc" else None
        self._clock = clock if self._clock_problem is None else "monotonic"
        if self._clock_problem:
            ending.show(f"clock='tsc' cannot be had ({self._clock_problem}): monotonic it is")
        self._output = Path(output)
        self._name = name or _script_name()
        self._path: Path | None = None
        self._manifest: manifest.Manifest | None = None
        self._own_ns = 0

    def __repr__(self) -> str:
        """Say where it records to, and whether it does."""
        state = "recording" if self._is_recording() else "stopped"
        return f"strobe.Profiler(output={str(self._output)!r}, name={self._name!r})  # {state}"

    def start(self) -> None:
        """Start recording.

        Raises StateError while this profiler records, and CaptureError when the output folder
        cannot be written.
        """
        if self._is_recording():
            message = (
                f"start() while recording into {str(self._path)!r}; call stop() first, or make a "
                "second Profiler"
            )
            raise StateError(message)
        began_ns = time.perf_counter_ns()
        recording_id = manifest.new_id()
        path = self._output.absolute() / _recording_name(self._name, recording_id)
        try:
            path.mkdir(parents=True)
            log = windows.open_window(path, recording_id, counter=self._clock == "tsc")
            start = manifest.Anchor.now(recorder.core.clock_ns)
            try:
                content = self._describe(recording_id, path, log, start)
                manifest.write(path, content)
            except OSError:
                windows.close_window(recording_id)
                raise
        except OSError as error:
            places.remove_log(path / places.LOG)
            shutil.rmtree(path, ignore_errors=True)
            message = (
                f"Profiler(output={str(self._output)!r}): cannot be recorded into "
                f"({error.strerror or error}); choose a folder that can be written"
            )
            raise CaptureError(message) from error
        self._path, self._manifest = path, content
        ending.add(recording_id, self)
        ending.announce(path)
        self._own_ns = time.perf_counter_ns() - began_ns

    def stop(self) -> None:
        """Stop recording and return at once; the tables are written by another process.

        Raises StateError when this profiler does not record. What goes wrong while stopping is
        shown, not raised.
        """
        if not self._is_recording() or self._manifest is None or self._path is None:
            message = "stop() while not recording; call start() first"
            raise StateError(message)
        began_ns = time.perf_counter_ns()
        stop = manifest.Anchor.now(recorder.core.clock_ns)
        ending.remove(self._manifest.id)
        stats = windows.close_window(self._manifest.id)
        own_ns = self._own_ns + time.perf_counter_ns() - began_ns
        self._manifest = self._manifest.stopped(stop, own_ns=own_ns, stats=stats)
        try:
            manifest.write(self._path, self._manifest)
        except OSError as error:
            fate = "can be opened once this program has ended" if self._path.exists() else "is lost"
            ending.show(f"the recording {str(self._path)!r} {fate} ({error.strerror})")
            return
        if stats["dropped"]:
            ending.show(f"{stats['dropped']} records could not be written and are lost")
        if finalizer.launch(self._path, recorder.core.spawn_detached):
            ending.expect_tables(self._path)

    @property
    def recording(self) -> Recording:
        """The recording of the last stop(), its tables written now if they are not yet.

        Raises StateError before the first start() and while recording.
        """
        from strobe.session.recording import open_recording

        if self._path is None:
            message = "recording before start(); record something first"
            raise StateError(message)
        if self._is_recording():
            message = "recording while still recording; call stop() first"
            raise StateError(message)
        return open_recording(self._path)

    def __enter__(self) -> Profiler:
        """Start recording."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop recording, unless the block did, or this is a forked child of the starter."""
        if self._is_recording():
            self.stop()

    def _describe(
        self, recording_id: str, path: Path, log: Path, start: manifest.Anchor
    ) -> manifest.Manifest:
        near = log.is_relative_to(self._output.absolute())
        return manifest.Manifest(
            id=recording_id,
            name=self._name,
            strobe=__version__,
            recorder=recorder.KIND,
            host=socket.gethostname(),
            boot=manifest.boot_id(),
            pid=os.getpid(),
            process_start=manifest.process_start(os.getpid()) or 0,
            log=os.path.relpath(log, path) if near else str(log),
            start=start,
            clock=windows.current_clock(),
            span_cost_ns=max(0.0, recorder.core.calibrate()),
            metadata={
                "python": sys.version.split()[0],
                "recorder_reason": recorder.REASON,
                **({"clock_problem": self._clock_problem} if self._clock_problem else {}),
                "output": str(self._output),
            },
        )

    def _is_recording(self) -> bool:
        return self._manifest is not None and ending.is_running(self._manifest.id)


def _script_name() -> str:
    script = Path(sys.argv[0]).stem if sys.argv and sys.argv[0] else ""
    return re.sub(r"[^\w.-]+", "_", script).strip("._-")[:64] or "python"


def _recording_name(name: str, recording_id: str) -> str:
    plain = re.sub(r"[^\w.-]+", "_", name).strip(".")[:100] or "recording"
    host = re.sub(r"[^\w-]+", "_", socket.gethostname())
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return f"{plain}-{stamp}-{host}-{os.getpid()}-{recording_id[:8]}"
