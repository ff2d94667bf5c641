# SPDX-License-Identifier: Apache-2.0
"""Writes tables in a thread, and hands out the first of them early."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from strobe.model.threads import TABLES
from strobe.reports.waiting import waiting

if TYPE_CHECKING:
    import polars as pl

    from strobe.assemble.tables import First, Progress

_LOOK_AGAIN_S = 0.1
_FIRST_STAGE = "opening"


class Make(Protocol):
    """Writes the tables if they do not exist and returns their directory."""

    def __call__(self, progress: Progress, first: First, /) -> Path:
        """Pass the table of operators to `first` early; raises what prevents writing the tables."""


class Opening:
    """Writes tables in a thread of its own, which the interpreter waits for at its end.

    The table of operators takes a third of the time of all tables, and most people look at it
    first.
    """

    def __init__(self, make: Make, *, is_made: bool) -> None:
        self._pid = os.getpid()
        self._make = make
        self._now = (_FIRST_STAGE, 0.0)
        self._operators: pl.DataFrame | None = None
        self._tables: Path | None = None
        self._error: Exception | None = None
        self._cancelled = False
        self._first, self._last = threading.Event(), threading.Event()
        thread = threading.Thread(target=self._run, name=TABLES)
        try:
            (self._run if is_made else thread.start)()
        except RuntimeError:  # no thread can be started
            self._run()

    def operators(self) -> pl.DataFrame | None:
        """Return the table of operators once it is known; None if it must be read from its file."""
        self._wait_for(self._first)
        if self._operators is None and self._error is not None:
            raise self._error
        return self._operators

    def tables(self) -> Path:
        """Return the directory of all tables once they are written."""
        self._wait_for(self._last)
        if self._error is not None:
            raise self._error
        if self._tables is None:  # in a child of fork, or after an interrupted wait
            with waiting(_FIRST_STAGE) as progress:
                self._tables = self._make(progress, lambda _operators: None)
        return self._tables

    def _run(self) -> None:
        try:
            self._tables = self._make(self._tell, self._take)
        except _CancelledError:
            pass
        except Exception as error:  # raised to whoever asks for the tables
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
        self._now = (stage, share)

    def _wait_for(self, event: threading.Event) -> None:
        """Wait for an event. After Ctrl-C, the end of the interpreter does not wait either."""
        if event.is_set():
            return
        try:
            with waiting(_FIRST_STAGE) as progress:
                while not event.wait(_LOOK_AGAIN_S):
                    if os.getpid() != self._pid:  # a child of fork has no such thread
                        return
                    progress(*self._now)
        except KeyboardInterrupt:
            self._cancelled = True
            raise


class _CancelledError(Exception):
    """The user interrupted the wait for the tables."""
