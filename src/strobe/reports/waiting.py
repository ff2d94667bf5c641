# SPDX-License-Identifier: Apache-2.0
"""A progress bar for people who wait at a terminal: none for what is quick, none in a pipe."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

Progress = Callable[[str, float], None]
_Item = TypeVar("_Item")

PATIENCE_SECONDS = 0.5
_BETWEEN_SECONDS = 0.1
# A terminal has one line for this. The first is the one in use.
_lines: list[Bar] = []


@contextmanager
def waiting(
    stage: str, *, stream: TextIO | None = None, patience_seconds: float = PATIENCE_SECONDS
) -> Iterator[Progress]:
    """Show on standard error what is being done while the block lasts, and how far it is.

    Gives a function (stage, share from 0 to 1) for those who know; the others see seconds. Inside
    another such block it is the line of that one which is used.
    """
    if _lines:
        around = _lines[0]
        before = around.now
        try:
            yield around.tell
        finally:
            around.now = before
        return
    out = sys.stderr if stream is None else stream
    if not is_terminal(out):
        yield lambda _stage, _share: None
        return
    bar = Bar(stage, out, patience_seconds)
    _lines.append(bar)
    over = threading.Event()
    thread = threading.Thread(target=_keep_fresh, args=(bar, over), daemon=True)
    with contextlib.suppress(RuntimeError):  # the interpreter is ending: no thread can be started
        thread.start()
    try:
        yield bar.tell
    finally:
        over.set()
        if thread.ident is not None:
            thread.join()
        _lines.remove(bar)
        bar.erase()


@contextmanager
def saying_nothing() -> Iterator[None]:
    """Show no bar while the block lasts: the process that started this one shows it."""
    silent = Bar("", sys.stderr)
    _lines.insert(0, silent)
    try:
        yield
    finally:
        _lines.remove(silent)


def _keep_fresh(bar: Bar, over: threading.Event) -> None:
    """Draw in a thread of its own, since work may say nothing for long."""
    while not over.wait(_BETWEEN_SECONDS):
        bar.draw()


def counted(items: Sequence[_Item], stage: str, progress: Progress) -> Iterator[_Item]:
    """Yield each, and say how many of them have been dealt with."""
    for number, item in enumerate(items):
        progress(stage, number / len(items))
        yield item


def is_terminal(stream: TextIO | None) -> bool:
    """Say whether a person may be looking at what is written there."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # it is closed
        return False


class Bar:
    """One line of a terminal: stage, bar, share and the time that is left.

    Rich is imported when the line is first drawn. One thread at a time may draw and erase.
    """

    now: tuple[str, float]
    """Stage and share."""

    def __init__(self, stage: str, out: TextIO, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.now = (stage, 0.0)
        self._out = out
        self._began = time.monotonic()
        self._patience_seconds = patience_seconds
        self._shown: RichProgress | None = None

    def tell(self, stage: str, share: float) -> None:
        """Say how far the work is; the share never falls."""
        self.now = (stage, min(1.0, max(share, self.now[1])))

    def draw(self) -> None:
        """Show the line as it is now, once the work has taken long enough."""
        seconds = time.monotonic() - self._began
        if seconds < self._patience_seconds:
            return
        if self._shown is None:
            self._shown = _new_line(self._out)
        stage, share = self.now
        self._shown.update(
            self._shown.task_ids[0],
            description=stage,
            completed=share,
            total=1.0 if share else None,
            left=how_long(seconds, share),
        )
        self._shown.refresh()

    def erase(self) -> None:
        """Leave nothing of it."""
        if self._shown is not None:
            self._shown.stop()
            self._shown = None


def _new_line(out: TextIO) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as RichProgress

    line = RichProgress(
        TextColumn("strobe: {task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        console=Console(file=out, force_jupyter=False),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    line.add_task("", total=None, left="")
    line.start()
    return line


def how_long(seconds: float, share: float) -> str:
    """Return the time that is left if the rest goes on as the work did so far."""
    if not share:
        return f"{seconds:.0f} s so far"
    minutes, rest = divmod(round(seconds * (1 - share) / share), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min left"
    return f"{minutes} min {rest:02} s left" if minutes else f"{rest} s left"
