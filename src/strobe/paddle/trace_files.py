# SPDX-License-Identifier: Apache-2.0
"""Handlers that write each round in a format of Paddle's."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strobe.errors import CaptureError, UsageError
from strobe.session.handlers import Export
from strobe.session.paddle import FORMATS, export

if TYPE_CHECKING:
    from strobe.session.recording import Recording

_FOLDER = "profiler_log"
_SUFFIX = "paddle_trace"


class FolderError(CaptureError, RuntimeError):
    """A folder cannot be made; a RuntimeError, as Paddle's document has it."""


@dataclass(frozen=True)
class TraceFiles(Export):
    """Write each round into a folder: later and elsewhere, or at once when called."""

    suffix: str
    worker_name: str | None

    @property
    def prefix(self) -> str:
        """The worker's name, or that of this process: one that was forked has its own."""
        return self.worker_name or f"{socket.gethostname()}_{os.getpid()}"

    def __call__(self, profiler: Any) -> None:
        """Write the last round of a profiler now."""
        stamp = datetime.now().strftime("%Y_%m_%d_%H_%M_%S_%f")
        name = f"{self.prefix}_time_{stamp}.{_SUFFIX}.{self.suffix}"
        profiler.export(str(self.directory / name), self.suffix)


def export_chrome_tracing(dir_name: str, worker_name: str | None = None) -> TraceFiles:
    """Return an on_trace_ready handler: each round becomes a Chrome trace in the folder.

    The files are `<worker>_time_<when>.paddle_trace.json`; the worker's name is `<host>_<pid>`
    unless given. As on_trace_ready it is carried out by another process after the round; called
    with the profiler, at once.

    Makes the folder; raises RuntimeError where it cannot, UsageError for what is no path or name.
    """
    return _handler("export_chrome_tracing", dir_name, worker_name, "json")


def export_protobuf(dir_name: str, worker_name: str | None = None) -> TraceFiles:
    """Return an on_trace_ready handler: each round becomes `...paddle_trace.pb` in the folder.

    Otherwise as export_chrome_tracing.
    """
    return _handler("export_protobuf", dir_name, worker_name, "pb")


def default_handler() -> TraceFiles:
    """Return the handler of a profiler that is given none; the folder is made when it is used."""
    return TraceFiles(FORMATS["json"], Path(_FOLDER).absolute(), "json", None)


def folder_of_rounds() -> Path:
    """Return where rounds lie that a handler of the user's own takes: Paddle has no folder then.

    Where ./profiler_log cannot be written, it is that of the system's temporary folder.
    """
    folder = Path(_FOLDER).absolute()
    nearest = folder if folder.exists() else folder.parent
    if not os.access(nearest, os.W_OK | os.X_OK):
        with contextlib.suppress(OSError):  # there may be none: start() says so of ours
            return Path(tempfile.gettempdir()) / folder.name
    return folder


def is_path(value: object) -> bool:
    """Say whether this can be the path of a file or folder."""
    return isinstance(value, (str, os.PathLike)) and "\0" not in str(value) and bool(str(value))


def write_trace(call: str, recording: Callable[[], Recording], path: Any, form: str) -> None:
    """Write a recording, asked for when the rest is right, as "json" or "pb".

    Raises UsageError for another format and what is no path, CaptureError where it is not writable.
    """
    if form not in FORMATS:
        message = f"{call}(format={form!r}): format must be 'json' or 'pb'"
        raise UsageError(message)
    if not is_path(path):
        message = f"{call}({path!r}): path must be that of the file to write"
        raise UsageError(message)
    try:
        export(recording(), Path(path), form)
    except OSError as error:
        message = f"{call}({os.fspath(path)!r}): cannot be written ({error.strerror or error})"
        raise CaptureError(message) from error


def _handler(call: str, dir_name: Any, worker_name: Any, suffix: str) -> TraceFiles:
    if not is_path(dir_name):
        message = f"{call}({dir_name!r}): dir_name must be the path of a folder"
        raise UsageError(message)
    is_name = isinstance(worker_name, str) and not set(worker_name) & {"/", "\0"}
    if worker_name is not None and not is_name:
        message = f"{call}(worker_name={worker_name!r}): must be a str without '/', or None"
        raise UsageError(message)
    folder = Path(dir_name).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = (
            f"{call}({os.fspath(dir_name)!r}): the folder cannot be made ({error.strerror}); "
            "choose one that can be written"
        )
        raise FolderError(message) from error
    return TraceFiles(FORMATS[suffix], folder, suffix, worker_name)
