# SPDX-License-Identifier: Apache-2.0
"""Analysing what strobe.mindspore recorded: at any path, several recordings at once, outside."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from strobe._version import __version__
from strobe.errors import FormatError, StateError, StrobeError, UsageError
from strobe.finalize.process import command, environment
from strobe.record.messages import show
from strobe.reports.waiting import Bar, Progress, is_terminal, saying_nothing
from strobe.session import ending
from strobe.session.mindspore_tree import (
    DONE,
    RAW,
    analyse_recording,
    as_folder,
    check_steps,
    simplifies,
)
from strobe.store import places

_PATIENCE_SECONDS = 600.0
_BETWEEN_SECONDS = 0.1
_VERB = "_analyse"


def find(path: str | os.PathLike[str]) -> list[Path]:
    """Return the recordings of strobe.mindspore at a path, which may be any folder of a tree.

    Raises TypeError, UsageError or FormatError where there are none, StateError for an Ascend's own
    data.
    """
    if not isinstance(path, (str, os.PathLike)):
        message = f"profiler_path={path!r}: must be a str or a Path"
        raise TypeError(message)
    if not os.fspath(path):
        message = "profiler_path='': must not be empty; it would be the folder that you are in"
        raise UsageError(message)
    folder = as_folder(path)
    if not folder.is_dir():
        reason = "it is a file" if folder.exists() else "there is nothing at this path"
        raise FormatError(path, "path", f"{reason}; give the folder above `profiler`")
    above = [around / RAW for around in folder.parents[:2]]
    beside = sorted(each for raw in above for each in raw.glob("*") if places.is_recording(each))
    found = places.find_in_trees(folder) or beside
    if not found:
        _refuse_device(folder)
        reason = "no data of strobe.mindspore in it, nor in the folders below (FRAMEWORK/*)"
        raise FormatError(path, "path", reason)
    return found


def _refuse_device(folder: Path) -> None:
    """Raise StateError where there is only what CANN's own tools wrote."""
    for found in sorted(folder.glob("**/PROF_*_*_*")):
        beside = [*found.parent.glob("profiler_info*.json"), *found.glob("*/info.json*")]
        cann, mindspore = _told(beside, "cann_version", "version"), _told(beside, "ms_version")
        message = (
            f"{str(found)!r}: its layout, of CANN {cann} and MindSpore {mindspore}, cannot be read "
            f"by strobe {__version__}; analyse it with the MindSpore that wrote it"
        )
        raise StateError(message)


def _told(files: list[Path], *keys: str) -> str:
    """Return the first value that one of the files has under one of the keys."""
    for file in files:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            content = json.loads(file.read_text())
            for key in keys:
                if content.get(key):
                    return str(content[key])
    return "of unknown version"


def analyse(
    path: str | os.PathLike[str],
    *,
    processes: int,
    pretty: bool = False,
    step_list: object = None,
    data_simplification: bool = True,
    progress: Progress = lambda _stage, _share: None,
) -> list[Path]:
    """Make the files of all recordings at a path, several at once, and return their trees.

    Raises what analyse_recording does; with several recordings the others are made first, and if
    more than one fails it is a UsageError or a StateError.
    """
    options: dict[str, Any] = {
        "pretty": pretty,
        "step_list": check_steps(step_list),
        "data_simplification": data_simplification,
    }
    found = find(path)
    if len(found) == 1:
        return [analyse_recording(found[0], **options)]
    failures: list[StrobeError] = []
    if processes == 1:
        made = [_analyse_here(recording, options, failures) for recording in found]
    else:
        made = _analyse_at_once(found, processes, options, failures, progress)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        is_usage = all(isinstance(failure, UsageError) for failure in failures)
        raise (UsageError if is_usage else StateError)("; ".join(map(str, failures)))
    return [tree for tree in made if tree]


def start_analysis(found: list[Path], options: Mapping[str, Any]) -> None:
    """Make the files of recordings outside this process, which waits for them when it ends."""
    for recording in found:
        process = _start(recording, options)
        ending.finish_with(functools.partial(_wait_for, process, recording))


def _wait_for(process: subprocess.Popen[str], recording: Path) -> None:
    """At the end of the program: wait for the files, but not for ever."""
    failures: list[StrobeError] = []
    try:
        _show_until_done(process, seconds=_PATIENCE_SECONDS)
        _hear(process, failures)
    except subprocess.TimeoutExpired:
        late = f"not after {_PATIENCE_SECONDS:.0f} s; it goes on without this program"
        failures.append(StateError(late))
    for failure in failures:
        show(f"the files of {str(recording)!r} are not complete: {failure}")


def _show_until_done(process: subprocess.Popen[str], seconds: float) -> None:
    """Show a bar until a process that prints one line has ended; raises TimeoutExpired."""
    if not is_terminal(sys.stderr):
        process.wait(seconds)
        return
    bar = Bar("writing the profiler's files", sys.stderr)
    deadline = time.monotonic() + seconds
    try:
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, seconds)
            bar.draw()
            time.sleep(_BETWEEN_SECONDS)
    finally:
        bar.erase()


def _analyse_here(
    recording: Path, options: Mapping[str, Any], failures: list[StrobeError]
) -> Path | None:
    try:
        return analyse_recording(recording, **options)
    except StrobeError as error:
        failures.append(error)
        return None


def _analyse_at_once(
    found: list[Path],
    processes: int,
    options: Mapping[str, Any],
    failures: list[StrobeError],
    progress: Progress,
) -> list[Path | None]:
    """Give each recording to a process of its own; they are no copies of this one."""
    trees: list[Path | None] = []
    for start in range(0, len(found), processes):
        running = [_start(recording, options) for recording in found[start : start + processes]]
        for process in running:
            trees.append(_hear(process, failures))
            progress("analysing", len(trees) / len(found))
    return trees


def _start(recording: Path, options: Mapping[str, Any]) -> subprocess.Popen[str]:
    asked = json.dumps({"recording": str(recording), **options})
    started = command(_VERB, asked)
    return subprocess.Popen(started, stdout=subprocess.PIPE, text=True, env=environment())


def _hear(
    process: subprocess.Popen[str], failures: list[StrobeError], seconds: float | None = None
) -> Path | None:
    """Return the tree that a process made; what went wrong is added to the failures."""
    told = json.loads(
        process.communicate(timeout=seconds)[0].strip() or '{"error": "the analysis failed"}'
    )
    if "error" in told:
        kind = UsageError if told.get("is_usage") else StateError
        failures.append(kind(told["error"]))
        return None
    return Path(told["tree"])


def main(arguments: Sequence[str]) -> None:
    """Analyse one recording and print where its tree is, as JSON.

    Raises UsageError for arguments that are not those of _start.
    """
    options = _read_order(arguments)
    if "root" in options:
        options["root"] = Path(options["root"])
    try:
        with saying_nothing():
            tree = analyse_recording(Path(options.pop("recording")), **options)
    except StrobeError as error:
        print(json.dumps({"error": str(error), "is_usage": isinstance(error, UsageError)}))
        return
    print(json.dumps({"tree": str(tree)}))


def _read_order(arguments: Sequence[str]) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        order = json.loads(arguments[0] if len(arguments) == 1 else "")
        if isinstance(order, dict) and "recording" in order:
            return order
    message = (
        f"{_VERB} {' '.join(arguments)}: needs one JSON object with a recording; strobe starts it "
        "by itself, use strobe analyse"
    )
    raise UsageError(message)


def expect(recording: Path) -> None:
    """Let the program not end before the files of a recording have been made."""
    ending.finish_with(functools.partial(_complete_outside, recording))


def _complete_outside(recording: Path) -> None:
    """Have it done by a process: one that is ending cannot import what it takes."""
    if recording.is_dir() and not (recording / DONE).exists():
        options = {"again": False, "data_simplification": simplifies(recording)}
        _wait_for(_start(recording, options), recording)
