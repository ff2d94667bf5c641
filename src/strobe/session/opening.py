# SPDX-License-Identifier: Apache-2.0
"""Tables that are being written while the first of them is looked at."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from strobe.model.threads import TABLES
from strobe.store import places

if TYPE_CHECKING:
    import polars as pl

    from strobe.finalize.build import Progress

_LOOK_AGAIN_S = 1.0


class Opening:
    """Finalizes a recording in a thread of its own, which the interpreter's end waits for.

    A table of operators needs a third of the time that all tables take, and is what most people
    look at first.
    """

    def __init__(self, recording: Path, progress: Progress) -> None:
        self._pid = os.getpid()
        self._recording = recording
        self._progress = progress
        self._operators: pl.DataFrame | None = None
        self._tables: Path | None = None
        self._error: Exception | None = None
        self._cancelled = False
        self._first, self._last = threading.Event(), threading.Event()
        thread = threading.Thread(target=self._run, name=TABLES)
        try:
            (self._run if places.is_finalized(recording) else thread.start)()
        except RuntimeError:  # no thread can be had
            self._run()

    def operators(self) -> pl.DataFrame | None:
        """Return the table of operators once it is known; None if only the tables have it."""
        self._wait_for(self._first)
        if self._operators is None and self._error is not None:
            raise self._error
        return self._operators

    def tables(self) -> Path:
        """Return the directory of all tables once they are written."""
        self._wait_for(self._last)
        if self._error is not None:
            raise self._error
        if self._tables is None:  # a child of fork, or who waited was interrupted
            from strobe.finalize.run import finalize

            self._tables = finalize(self._recording, self._progress)
        return self._tables

    def _run(self) -> None:
        try:
            from strobe.finalize.run import finalize

            self._tables = finalize(self._recording, self._tell, self._take)
        except _CancelledError:
            pass
        except Exception as error:  # raised where the tables are asked for
            self._error = error
        finally:
            self._first.set()
            self._last.set()

    def _take(self, operators: pl.DataFrame) -> None:
        self._operators = operators
        self._first.set()

    def _tell(self, stage: str, share: float) -> None:
        if self._cancelled:
            raise _CancelledError
        self._progress(stage, share)

    def _wait_for(self, event: threading.Event) -> None:
        """Wait; whoever interrupts it does not want to wait at the interpreter's end either."""
        try:
            while not event.wait(_LOOK_AGAIN_S):
                if os.getpid() != self._pid:  # a child of fork has no such thread
                    return
        except KeyboardInterrupt:
            self._cancelled = True
            raise


class _CancelledError(Exception):
    """Nobody waits for the tables any more."""
