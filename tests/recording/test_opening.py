# SPDX-License-Identifier: Apache-2.0
"""A recording whose tables nobody has written yet, opened: operators first, then the rest."""

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strobe
from strobe.assemble import tables
from strobe.session.recording import Recording
from strobe.store.parquet import TableWriter

WAIT_S = 300.0


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording of three spans that no finalizer has touched, as where no process can be made."""
    with monkeypatch.context() as alone:
        alone.setattr(sys, "executable", "")
        with strobe.Profiler(output=tmp_path) as profiler:
            for _ in range(3):
                with strobe.span("work"):
                    pass
    assert not (profiler.recordings[0].path / "tables").exists()
    return profiler.recordings[0].path


class Gate:
    """Stands before the first table that is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

        def write(*arguments: Any) -> TableWriter:
            self.reached.set()
            assert self.opened.wait(WAIT_S)
            if error is not None:
                raise error
            return TableWriter(*arguments)

        monkeypatch.setattr(tables, "TableWriter", write)


@pytest.mark.parametrize("opened", [strobe.open, Recording])  # the latter is the profiler's
def test_operators_are_there_before_the_tables(
    opened: Callable[[Path], Recording], recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)

    recording = opened(recorded)
    early = recording.operators()
    was_written = (recorded / "tables").exists()
    gate.opened.set()
    tables = recording.directory

    assert not was_written
    assert early.select("name", "calls").rows() == [("work", 3)]
    assert tables == recorded / "tables"
    assert strobe.open(recorded).operators().equals(early)


def test_what_goes_wrong_later_is_raised_where_a_table_is_asked_for(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch, ValueError("no such thing"))
    gate.opened.set()

    recording = strobe.open(recorded)

    with pytest.raises(ValueError, match="no such thing"):
        recording.spans()
    assert [path.name for path in recorded.glob("tables*")] == []


def test_who_interrupts_waiting_does_not_wait_at_the_end(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            signal.raise_signal(signal.SIGINT)
            return super().wait(timeout)

    gate = Gate(monkeypatch)
    recording = strobe.open(recorded)
    threads = [thread for thread in threading.enumerate() if thread.name == "strobe tables"]
    monkeypatch.setattr(recording._opening, "_last", Interrupted())

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    with pytest.raises(KeyboardInterrupt):
        recording.spans()
    signal.signal(signal.SIGINT, before)
    gate.opened.set()
    for thread in threads:
        thread.join(WAIT_S)

    assert [path.name for path in recorded.glob("tables*")] == []
    monkeypatch.undo()
    assert strobe.open(recorded).spans().collect().height == 3
