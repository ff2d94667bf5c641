# SPDX-License-Identifier: Apache-2.0
"""tensorboard_trace_handler: where the results of each round go."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strobe.errors import UsageError
from strobe.session.mindspore_tree import as_folder


@dataclass(frozen=True)
class TraceHandler:
    """An on_trace_ready that is carried out outside the program."""

    folder: Path | None
    """None for that of the profiler."""
    worker: str
    analyses: bool

    def __call__(self, profiler: Any) -> None:
        """For a handler of the user's that calls this one: write the round into this folder too."""
        profiler._write_into(self)


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str] | None = None,
    worker_name: str | None = None,
    analyse_flag: bool = True,
    async_mode: bool = False,
) -> TraceHandler:
    """Return a handler: each round becomes <worker>_<pid>_<time>_ascend_ms in `dir_name`.

    Without it they go to the output_path of Profiler, and ./data of `profile`.
    `analyse_flag=False` leaves raw data for analyse(). Results are written outside the program, so
    `async_mode` changes nothing. Raises TypeError or ValueError.
    """
    if dir_name is not None and not isinstance(dir_name, (str, os.PathLike)):
        message = f"tensorboard_trace_handler(dir_name={dir_name!r}): must be a path, or None"
        raise TypeError(message)
    if worker_name is not None and not isinstance(worker_name, str):
        message = f"tensorboard_trace_handler(worker_name={worker_name!r}): must be a str, or None"
        raise TypeError(message)
    if worker_name is not None and not (0 < len(worker_name) < 226 and "/" not in worker_name):
        message = (
            f"tensorboard_trace_handler(worker_name={worker_name!r}): must have 1 to 225 "
            "characters, and no /"
        )
        raise UsageError(message)
    for name, value in (("analyse_flag", analyse_flag), ("async_mode", async_mode)):
        if not isinstance(value, bool):
            message = f"tensorboard_trace_handler({name}={value!r}): must be True or False"
            raise TypeError(message)
    worker = worker_name or socket.gethostname()
    return TraceHandler(as_folder(dir_name) if dir_name else None, worker, analyse_flag)
