# SPDX-License-Identifier: Apache-2.0
"""strobe analyse: the files of what strobe.mindspore recorded, later or elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from strobe.errors import CommandError
from strobe.reports.waiting import waiting


def analyse(
    path: Path = typer.Argument(help="The folder above `profiler`, `rank_*` or `*_ascend_ms`."),
    processes: int = typer.Option(
        max(1, (os.cpu_count() or 2) // 2), "--processes", min=1, help="Ranks at once."
    ),
    pretty: bool = typer.Option(False, "--pretty", help="Line breaks in JSON files."),
    steps: str | None = typer.Option(
        None, "--steps", metavar="FIRST:LAST", help="Only these of the collected steps, from 1."
    ),
    keep_raw: bool = typer.Option(False, "--keep-raw", help="Do not delete the raw log."),
) -> None:
    """Write the files of MindSpore's profiler from what strobe.mindspore recorded.

    The program may have only called stop(), failed or been killed. It can be done again, with
    other steps.

    Example: strobe analyse profiler_data --steps 2:4
    """
    from strobe.session import mindspore_offline

    with waiting("analysing") as progress:
        trees = mindspore_offline.analyse(
            path,
            processes=processes,
            pretty=pretty,
            step_list=_read_steps(steps),
            data_simplification=not keep_raw,
            progress=progress,
        )
    for tree in trees:
        typer.echo(os.fsencode(tree))  # a path need not be Unicode


def _read_steps(text: str | None) -> list[int] | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    last = last if colon else first
    if not first.isdecimal() or not last.isdecimal() or not 0 < int(first) <= int(last):
        message = f"analyse --steps {text!r}: must be numbers from 1 on, as in 2:4"
        raise CommandError(message, exit_code=2)
    return list(range(int(first), int(last) + 1))
