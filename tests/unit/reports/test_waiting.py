# SPDX-License-Identifier: Apache-2.0
"""Whoever waits at a terminal sees a bar, and nothing is left of it."""

from __future__ import annotations

import io
import re
import threading
from contextlib import closing

import pytest

from strobe.reports.waiting import Bar, counted, how_long, is_terminal, saying_nothing, waiting

TIMEOUT_SECONDS = 400
ERASED = re.compile(r"\x1b\[2K[^a-z]*$")


class Terminal(io.StringIO):
    """Tells when something was written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.was_written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        written = super().write(text)
        self.was_written.set()
        return written

    def wait_for(self, pattern: str) -> None:
        while not re.search(pattern, plain(self.getvalue())):
            assert self.was_written.wait(TIMEOUT_SECONDS)
            self.was_written.clear()


def plain(text: str) -> str:
    """What a person reads: without colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_a_line_is_shown_and_erased() -> None:
    terminal = Terminal()

    with waiting("summarising", stream=terminal, patience_seconds=0):
        terminal.wait_for(r"strobe: summarising .* \d+ s so far")

    assert ERASED.search(terminal.getvalue())


def test_it_says_how_far_the_work_is_and_how_long_it_will_take() -> None:
    terminal = Terminal()

    with waiting("exporting", stream=terminal, patience_seconds=0) as progress:
        progress("writing", 0.42)
        terminal.wait_for(r"strobe: writing .* 42% \d+ s left")


def test_the_share_never_falls() -> None:
    bar = Bar("exporting", io.StringIO())

    bar.tell("reading", 0.5)
    bar.tell("writing", 0.25)

    assert bar.now == ("writing", 0.5)


def test_what_is_counted_says_how_many_are_done() -> None:
    told: list[tuple[str, float]] = []

    seen = list(counted("abcd", "measuring", lambda *now: told.append(now)))

    assert seen == ["a", "b", "c", "d"]
    assert told == [("measuring", share) for share in (0.0, 0.25, 0.5, 0.75)]


def test_a_wait_inside_another_uses_its_line() -> None:
    terminal, other = Terminal(), Terminal()

    with waiting("analysing", stream=terminal, patience_seconds=0):
        with waiting("opening", stream=other, patience_seconds=0) as progress:
            progress("sorting", 0.25)
            terminal.wait_for("strobe: sorting .* 25%")
        terminal.was_written.clear()
        assert terminal.was_written.wait(TIMEOUT_SECONDS)

    assert other.getvalue() == ""
    assert plain(terminal.getvalue()).rindex("analysing") > plain(terminal.getvalue()).rindex("25%")


def test_a_process_that_another_waits_for_says_nothing() -> None:
    terminal = Terminal()

    with saying_nothing(), waiting("opening", stream=terminal, patience_seconds=0) as progress:
        progress("sorting", 0.25)

    assert terminal.getvalue() == ""


@pytest.mark.parametrize(
    ("seconds", "share", "expected"),
    [
        (7.4, 0.0, "7 s so far"),
        (10, 0.25, "30 s left"),
        (60, 0.25, "3 min 00 s left"),
        (3600, 0.5, "1 h 00 min left"),
    ],
)
def test_what_is_left_follows_from_what_is_done(
    seconds: float, share: float, expected: str
) -> None:
    assert how_long(seconds, share) == expected


def test_what_is_quick_shows_nothing() -> None:
    terminal = Terminal()

    with waiting("exporting", stream=terminal, patience_seconds=TIMEOUT_SECONDS) as progress:
        progress("exporting", 0.5)

    assert terminal.getvalue() == ""


def test_a_file_gets_no_line() -> None:
    file = io.StringIO()

    with waiting("exporting", stream=file, patience_seconds=0) as progress:
        progress("exporting", 0.5)

    assert file.getvalue() == ""


def test_a_stream_that_is_closed_is_no_terminal() -> None:
    with closing(io.StringIO()) as file:
        pass

    assert not is_terminal(file)
    assert not is_terminal(None)
