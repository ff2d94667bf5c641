# SPDX-License-Identifier: Apache-2.0
"""Whoever waits at a terminal sees a line, and nothing is left of it."""

from __future__ import annotations

import io
import re
import threading

from strobe.cli._waiting import waiting

TIMEOUT_SECONDS = 400


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


def test_a_line_is_shown_and_erased() -> None:
    terminal = Terminal()

    with waiting("summarising", stream=terminal, patience_seconds=0):
        assert terminal.was_written.wait(TIMEOUT_SECONDS)

    text = terminal.getvalue()
    assert re.match(r"\r\x1b\[Kstrobe: summarising \d+ s", text)
    assert text.endswith("\r\x1b[K")


def test_it_says_how_far_the_work_is() -> None:
    terminal = Terminal()

    with waiting("exporting", stream=terminal, patience_seconds=0) as progress:
        progress("exporting", 0.42)
        while "exporting  42%" not in terminal.getvalue():
            assert terminal.was_written.wait(TIMEOUT_SECONDS)
            terminal.was_written.clear()


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
