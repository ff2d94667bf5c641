# SPDX-License-Identifier: Apache-2.0
"""A line for people who wait: none for less than a second, none in a file or pipe."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

Progress = Callable[[str, float], None]

_PATIENCE_SECONDS = 1.0
_BETWEEN_SECONDS = 0.2
_ERASE = "\r\x1b[K"


@contextmanager
def waiting(
    stage: str, *, stream: TextIO | None = None, patience_seconds: float = _PATIENCE_SECONDS
) -> Iterator[Progress]:
    """Say on standard error what is being done while the block lasts, and how far it is.

    Gives a function (stage, share from 0 to 1) for those who know; the others see seconds.
    """
    out = sys.stderr if stream is None else stream
    if out is None or not out.isatty():
        yield lambda _stage, _share: None
        return
    line = _Line(stage, out)
    over = threading.Event()
    thread = threading.Thread(target=line.show, args=(over, patience_seconds), daemon=True)
    thread.start()
    try:
        yield line.tell
    finally:
        over.set()
        thread.join()


class _Line:
    """One line of a terminal, written by a thread of its own: work may say nothing for long."""

    def __init__(self, stage: str, out: TextIO) -> None:
        self._stage = stage
        self._share: float | None = None
        self._out = out
        self._began = time.monotonic()

    def tell(self, stage: str, share: float) -> None:
        self._stage, self._share = stage, share

    def show(self, over: threading.Event, patience_seconds: float) -> None:
        shown = False
        pause = patience_seconds
        while not over.wait(pause):
            self._out.write(f"{_ERASE}strobe: {self._stage} {self._how_far()}")
            self._out.flush()
            shown, pause = True, _BETWEEN_SECONDS
        if shown:
            self._out.write(_ERASE)
            self._out.flush()

    def _how_far(self) -> str:
        seconds = time.monotonic() - self._began
        return f"{seconds:.0f} s" if self._share is None else f"{self._share:4.0%}"
