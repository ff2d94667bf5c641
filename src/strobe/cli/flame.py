# SPDX-License-Identifier: Apache-2.0
"""strobe flame: where the time went, stack by stack."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

import typer

from strobe.cli._rank import PATH, RANK, RUN, open_rank
from strobe.cli._target import choose_target
from strobe.errors import CommandError
from strobe.reports.flame import FORMATS
from strobe.reports.numbers import format_bytes, format_ns
from strobe.reports.waiting import waiting

Format = Enum("Format", {name: name for name in FORMATS}, type=str)  # type: ignore[misc]


def flame(
    path: Path = PATH,
    rank: int | None = RANK,
    run: int | None = RUN,
    form: Format = typer.Option(
        "html", "--format", help="A page, collapsed stacks in nanoseconds, or speedscope's format."
    ),
    output: Path = typer.Option(
        None, "-o", "--output", help="Where to; by default beside the recording, by its name."
    ),
    force: bool = typer.Option(False, "--force", help="Overwrite what is there."),
) -> None:
    """Draw a flame graph of Python's calls, with the operators that they called.

    The page needs no network and nothing else: click to zoom, type to search. Record with
    with_stack=True or `strobe run --stack`; a recording without it gives a graph of its spans.

    Example: strobe flame strobe_data -o flame.html

    Example: strobe flame strobe_data --format speedscope
    """
    suffix, make = FORMATS[form.value]
    recording = open_rank(path, rank, run)
    target = choose_target(recording.path, output, suffix, force=force)
    _ = recording.directory  # made first if need be, which shows a line of its own
    with waiting("drawing"):
        graph = recording.flame()
        text = make(graph, recording.path.name)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"flame to {str(target)!r}: {error.strerror or error}"
        raise CommandError(message) from error
    size = format_bytes(target.stat().st_size)
    typer.echo(f"{os.fspath(target)} ({size}; {format_ns(graph.total_ns)} in all threads)")
