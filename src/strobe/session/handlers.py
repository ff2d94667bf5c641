# SPDX-License-Identifier: Apache-2.0
"""What is to become of a finished round besides keeping it: declarations for the finalizer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strobe.errors import UsageError


@dataclass(frozen=True)
class Export:
    """Write each round in another format into a folder; the finalizer does it, not the program."""

    format: str
    directory: Path

    @property
    def prefix(self) -> str | None:
        """What a file of this process is named: this and when the round ended.

        None: it is named as its recording.
        """
        return None

    def __call__(self, _profiler: Any) -> None:
        """Do nothing: on_trace_ready handlers are callables, and this one is carried out later."""


def export_chrome(directory: str | os.PathLike[str]) -> Export:
    """Return an on_trace_ready handler: each round becomes a Chrome trace in `directory`.

    The finalizer writes `<recording>.json.gz` there; step() and stop() do not wait for it.
    """
    return _export("chrome", directory)


def export_perfetto(directory: str | os.PathLike[str]) -> Export:
    """Return an on_trace_ready handler: each round becomes a Perfetto trace in `directory`.

    The finalizer writes `<recording>.pftrace` there; step() and stop() do not wait for it.
    """
    return _export("perfetto", directory)


def _export(kind: str, directory: str | os.PathLike[str]) -> Export:
    if not isinstance(directory, (str, os.PathLike)) or not os.fspath(directory):
        message = f"export_{kind}({directory!r}): directory must be the path of a folder"
        raise UsageError(message)
    return Export(kind, Path(directory).absolute())
