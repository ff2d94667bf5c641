# SPDX-License-Identifier: Apache-2.0
"""Tables that are being written while the first of them is looked at."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from strobe.model.threads import TABLES

if TYPE_CHECKING:
    import polars as pl

    from strobe.assemble.tables import First, Progress

_LOOK_AGAIN_S = 1.0


class Make(Protocol):
    """Returns the directory of tables, made first if need be; hands out operators early."""

    def __call__(self, progress: Progress, first: First, /) -> Path:
        """Raise what keeps them from being made."""


class Opening:
    """Has tables made in a thread of its own, which the interpreter's end waits for.

    A table of operators needs a third of the time that all tables take, and is what most people
    look at first.
    """

    def __init__(self, make: Make, progress: Progress, *, is_made: bool) -> None:
        self._pid = os.getpid()
        self._make = make
        self._progress = progress
        self._operators: pl.DataFrame | None = None
        self._tables: Path | None = None
        self._error: Exception | None = None
        self._cancelled = False
        self._first, self._last = threading.Event(), threading.Event()
        thread = threading.Thread(target=self._run, name=TABLES)
        try:
            (self._run if is_made else thread.start)()
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
            self._tables = self._make(self._progress, lambda _operators: None)
        return self._tables

    def _run(self) -> None:
        try:
            self._tables = self._make(self._tell, self._take)
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
