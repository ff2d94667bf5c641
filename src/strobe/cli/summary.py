# SPDX-License-Identifier: Apache-2.0
"""strobe summary: where the time of a recording went."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path

import typer

from strobe.errors import CommandError
from strobe.session.recording import open_recording


class By(str, Enum):
    """What a row of the operator table is."""

    name = "name"
    thread = "thread"
    step = "step"


def summary(
    path: Path = typer.Argument(help="A recording, or a folder that holds one."),
    by: By = typer.Option(By.name, "--by", help="One row per name, or per thread or step too."),
    sort: str = typer.Option(
        "self", "--sort", help="Column: self, total, calls, mean, max, name..."
    ),
    top: int = typer.Option(20, "--top", min=1, help="How many rows of operators."),
    as_json: bool = typer.Option(
        False, "--json", help="Print JSON: steps, operators, completeness."
    ),
    as_csv: bool = typer.Option(False, "--csv", help="Print the operators as CSV, all rows."),
) -> None:
    """Say how long the steps took, where their time went, and which operators took it.

    Example: strobe summary strobe_data --by step --sort total --top 10
    """
    if as_json and as_csv:
        message = "--json and --csv: choose one"
        raise CommandError(message, exit_code=2)
    recording = open_recording(path)
    if not (as_json or as_csv):
        typer.echo(recording.summary(by=by.value, sort=sort, top=top), nl=False)
        return
    from strobe.reports.text import sort_operators

    rows = recording.operators() if by is By.name else recording.operators_by(by.value)
    rows = sort_operators(rows, sort)
    if as_csv:
        typer.echo(rows.write_csv(), nl=False)
        return
    content = {
        "steps": recording.step_statistics().to_dicts(),
        "operators": rows.head(top).to_dicts(),
        "completeness": recording.completeness().to_dicts(),
    }
    typer.echo(json.dumps(content, indent=1))
