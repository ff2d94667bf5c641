# SPDX-License-Identifier: Apache-2.0
"""strobe memory: how much was in use over time, and who held it when it was most."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from strobe.cli._waiting import waiting
from strobe.session.recording import open_recording


def memory(
    path: Path = typer.Argument(help="A recording, or a folder that holds one."),
    top: int = typer.Option(15, "--top", min=1, help="How many owners and lines."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON: peaks, owners, lines."),
) -> None:
    """Draw memory over time, and say who held it when most was in use.

    What a framework allocated needs --memory of strobe run, lines of Python need --memory-lines.

    Example: strobe memory strobe_data --top 10
    """
    recording = open_recording(path)
    _ = recording.tables_path  # made first if need be, which shows a line of its own
    with waiting("summing up"):
        if as_json:
            content = {
                "peak_allocated": recording.peak_allocated().to_dicts(),
                "held": recording.memory_held().to_dicts(),
                "lines": recording.memory_lines().collect().to_dicts(),
            }
            text = json.dumps(content, indent=1) + "\n"
        else:
            text = recording.memory_text(top=top)
    typer.echo(text, nl=False)
