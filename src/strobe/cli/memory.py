# SPDX-License-Identifier: Apache-2.0
"""strobe memory: how much was in use over time, and who held it when it was most."""

from __future__ import annotations

from pathlib import Path

import typer

from strobe.cli._rank import PATH, RANK, RUN, open_rank
from strobe.reports.waiting import waiting


def memory(
    path: Path = PATH,
    rank: int | None = RANK,
    run: int | None = RUN,
    top: int = typer.Option(15, "--top", min=1, help="How many owners and lines."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON: peaks, owners, lines."),
) -> None:
    """Draw memory over time, and say who held it when most was in use.

    What a framework allocated needs --memory of strobe run, lines of Python need --memory-lines.

    Example: strobe memory strobe_data --top 10
    """
    recording = open_rank(path, rank, run)
    _ = recording.directory  # made first if need be, which shows a line of its own
    with waiting("summing up"):
        if as_json:
            from strobe.reports.json import answer, as_values, json_text

            questions = {"peak_allocated": "peak_allocated", "held": "memory_held"}
            lines = as_values(recording.memory_lines())
            text = json_text({**answer(recording, questions), "lines": lines})
        else:
            text = recording.memory_text(top=top)
    typer.echo(text, nl=False)
