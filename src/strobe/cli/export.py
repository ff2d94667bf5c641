# SPDX-License-Identifier: Apache-2.0
"""strobe export: a recording in a format that other tools open."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path

import typer

from strobe.cli._rank import PATH, RANK, RUN, open_rank
from strobe.cli._target import choose_target
from strobe.errors import CommandError
from strobe.exporters import NAMES, find_exporter
from strobe.reports.numbers import format_bytes
from strobe.reports.waiting import waiting
from strobe.store.inventory import size_bytes

Format = Enum("Format", {name: name for name in NAMES}, type=str)  # type: ignore[misc]


def export(
    path: Path = PATH,
    rank: int | None = RANK,
    run: int | None = RUN,
    form: Format = typer.Option(..., "--format", help="The format to write."),
    output: Path = typer.Option(
        None, "-o", "--output", help="Where to; by default beside the recording, by its name."
    ),
    force: bool = typer.Option(False, "--force", help="Overwrite what is there."),
) -> None:
    """Write a recording as a Chrome, Perfetto or Paddle trace, its tables as CSV or Parquet.

    --format strobe converts the file of another profiler to a recording, or copies a recording.

    Example: strobe export strobe_data --format perfetto -o trace.pftrace
    """
    exporter = find_exporter(form.value)
    recording = open_rank(path, rank, run)
    target = choose_target(recording.path, output, exporter.SUFFIX, force=force)
    try:
        _ = recording.directory  # made first if need be, which shows a line of its own
        with waiting("exporting") as progress:
            exporter.write(recording, target, progress)
    except OSError as error:
        message = f"export to {str(target)!r}: {error.strerror or error}"
        raise CommandError(message) from error
    size = size_bytes(target) if target.is_dir() else target.stat().st_size
    typer.echo(f"{os.fspath(target)} ({format_bytes(size)})")
