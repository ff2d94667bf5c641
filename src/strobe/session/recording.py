# SPDX-License-Identifier: Apache-2.0
"""The Recording: tables that are written on demand, with each analysis as a method."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strobe.cluster.job import Job, name_ranks
from strobe.errors import FormatError, StateError, UsageError
from strobe.record.messages import show
from strobe.session.opening import Make, Opening
from strobe.store import files, manifest, places, runs
from strobe.store.tables import Tables

if TYPE_CHECKING:
    import polars as pl

    from strobe.analysis.answers import Answers
    from strobe.assemble.tables import First, Progress
    from strobe.finalize.convert import Converted, Parsed
    from strobe.reports.summary import By
else:
    Answers = object  # its modules need Polars: see Recording.__getattr__


class _WithAnswers(type):
    """Adds the analyses to the class when one is first looked up, since they need Polars."""

    def __getattr__(cls, name: str) -> Any:
        if not name.startswith("_") and _add_answers(name):
            return getattr(cls, name)
        message = f"type object {cls.__name__!r} has no attribute {name!r}"
        raise AttributeError(message)

    def __dir__(cls) -> list[str]:
        _add_answers()
        return sorted(super().__dir__())


def _add_answers(name: str = "") -> bool:
    """Make each analysis a method of Recording; say whether `name` is one."""
    from strobe.analysis import answers

    for each in answers.NAMES:
        setattr(Recording, each, getattr(answers.Answers, each))
    return name in answers.NAMES


class Recording(Tables, Answers, metaclass=_WithAnswers):
    """The tables of one recording, and each analysis of them as a method.

    Tables that do not exist yet are written when one is first read. Nothing heavy is imported
    before that, since a profiler hands out its recordings inside the program that it records.
    """

    def __init__(self, path: Path, make: Make | None = None) -> None:
        self._path = path
        self._make = make

    def __repr__(self) -> str:
        return f"strobe.open({str(self._path)!r})"

    @property
    def path(self) -> Path:
        """The recording's directory, or the foreign file or folder that was opened."""
        return self._path

    @property
    def directory(self) -> Path:
        """Where the tables are; writes them first if they do not exist."""
        return self._opening.tables()

    @cached_property
    def _opening(self) -> Opening:
        if self._make is not None:
            return Opening(self._make, is_made=False)
        return Opening(self._finalize, is_made=places.is_finalized(self._path))

    def _finalize(self, progress: Progress, first: First) -> Path:
        from strobe.finalize.run import finalize

        return finalize(self._path, progress, first)

    def scan(self, table: str) -> pl.LazyFrame:
        """Return a table. `operators` is available before the others have been written."""
        early = self._opening.operators() if table == "operators" else None
        return super().scan(table) if early is None else early.lazy()

    def summary(
        self, *, by: By = "name", sort: str = "self", top: int = 20, width: int | None = None
    ) -> str:
        """Return a text for people: the steps and where their time goes, then the operators.

        `width` defaults to that of the terminal. With by="loader" and by="counter", waits for data
        and counters are shown instead of operators, and `sort` is ignored. Raises UsageError for an
        unknown `by` or `sort`.
        """
        from strobe.reports.summary import summary_text

        return summary_text(self, by=by, sort=sort, top=top, width=width)

    def memory_text(self, *, top: int = 15, width: int | None = None) -> str:
        """Return a text for people: memory over time, its peak, and who held it then."""
        from strobe.reports.memory import memory_text

        return memory_text(self, top=top, width=width)

    def _repr_html_(self) -> str:
        from strobe.reports.summary import summary_html

        return summary_html(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Recording if self._make is None else import_foreign), (self._path,)

    if not TYPE_CHECKING:  # type checkers see the base class Answers instead

        def __getattr__(self, name: str) -> Any:
            if not name.startswith("_"):
                _add_answers()
            return super().__getattribute__(name)  # raises as it did before

        def __dir__(self) -> list[str]:
            _add_answers()
            return sorted(super().__dir__())


def open_recording(
    path: str | os.PathLike[str], *, run: int | None = None
) -> Recording | Job[Recording]:
    """Open a recording, the ranks of one run as a Job, or a file of another profiler.

    If a folder holds several runs, the newest that has ended is opened and a line on standard error
    says which. `run` chooses another: 0 is the first of the folder, -1 the last, -2 the one before.
    Tables that do not exist yet, because the program has just stopped or was killed, are written
    first; those of a job when they are read. Tables of a foreign file go into the user's cache.
    Raises FormatError if strobe cannot read what is at `path`, or a newer strobe wrote it, and
    StateError if the program is still recording.
    """
    folder, found = _find(path)
    if not found:
        return import_foreign(folder)
    chosen = runs.Chosen(recordings={0: found[0]})
    if len(found) > 1 or run is not None:
        chosen = runs.choose(found, run)
    if run is None and len(found) > len(chosen.recordings):
        show(_say_which(folder, found, chosen))
    recordings = list(chosen.recordings.values())
    for recording in recordings:
        _refuse_running(path, recording)
    if len(recordings) > 1:
        around = Path(os.path.commonpath(recordings))
        ranks = {rank: Recording(each) for rank, each in chosen.recordings.items()}
        return Job(around, ranks, world_size=chosen.world_size)
    opened = Recording(recordings[0])
    if not places.is_finalized(opened.path):
        opened.scan("operators")  # now, so that errors show here
    return opened


class _Import:
    """Converts a foreign file or folder, and keeps its tables from being deleted meanwhile."""

    def __init__(self, path: Path, parsed: Parsed | None) -> None:
        self._path = path
        self._parsed = parsed
        self._converted: Converted | None = None

    def __call__(self, progress: Progress, first: First) -> Path:
        from strobe.finalize.convert import convert

        self._converted = convert(self._path, progress, first, self._parsed)
        return self._converted.tables


def import_foreign(path: Path, parsed: Parsed | None = None) -> Recording:
    """Open a file of another profiler; `parsed` saves reading it again. Raises FormatError."""
    imported = Recording(path, _Import(path, parsed))
    imported.scan("operators")  # now, so that errors show here
    return imported


def _find(path: str | os.PathLike[str]) -> tuple[Path, list[Path]]:
    """Return the absolute path, and the recordings in it; none if it may be foreign."""
    if not isinstance(path, (str, os.PathLike)):
        message = f"open(path={path!r}): path must be a str or a Path"
        raise UsageError(message)
    folder = Path(path)
    if not folder.exists():
        raise FormatError(path, "recording", "there is nothing at this path")
    if not folder.is_dir():
        return folder.absolute(), []
    found = places.find_recordings(folder.absolute())
    problem = files.oddity(folder / manifest.FILE_NAME)
    if not found and problem is not None:
        raise FormatError(path, manifest.FILE_NAME, problem)
    return folder.absolute(), found


def _refuse_running(path: str | os.PathLike[str], recording: Path) -> None:
    content = manifest.read(recording)
    if content.stop is not None or places.is_finalized(recording):
        return
    if manifest.is_alive(content.pid, content.process_start, content.host, content.boot):
        message = (
            f"open({os.fspath(path)!r}): process {content.pid} is still recording into it; "
            "call stop() there first"
        )
        raise StateError(message)


def _say_which(folder: Path, found: list[Path], chosen: runs.Chosen) -> str:
    which = "the newest"
    if chosen.is_running:
        which = "the newest, which is still being recorded"
    elif chosen.is_passed:
        which = "the newest that has ended"
    recordings = list(chosen.recordings.values())
    shown = Path(os.path.commonpath(recordings))
    if len(recordings) > 1:
        which = f"{name_ranks(chosen.recordings)} of {which}"
        others = set(found) - set(recordings)
        if any(
            other.is_relative_to(shown) for other in others
        ):  # then the folder does not identify the run
            shown = recordings[0]
    if chosen.left_out:
        which += f", without {name_ranks(chosen.left_out)}, still being recorded"
    name = str(shown.relative_to(folder))
    return (
        f"{len(found)} recordings in {str(folder)!r}: opening {which}, {name!r}; name another one "
        "to open it, or count back with run=-2 or --run -2 ('strobe info' lists them)"
    )
