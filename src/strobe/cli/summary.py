# SPDX-License-Identifier: Apache-2.0
"""strobe summary: where the time of a recording went."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path

import typer

from strobe.cli._waiting import waiting
from strobe.errors import CommandError
from strobe.session.recording import Recording, open_recording


class By(str, Enum):
    """What a row of the operator table is."""

    name = "name"
    thread = "thread"
    step = "step"
    module = "module"
    loader = "loader"
    counter = "counter"


def summary(
    path: Path = typer.Argument(help="A recording, or a folder that holds one."),
    by: By = typer.Option(
        By.name,
        "--by",
        help="One row per name, or per thread, step or module too; loader: waits for data; "
        "counter: counters, hardware's among them.",
    ),
    sort: str = typer.Option(
        "self", "--sort", help="Column: self, total, calls, mean, max, name..."
    ),
    top: int = typer.Option(20, "--top", min=1, help="How many rows of operators."),
    as_json: bool = typer.Option(
        False, "--json", help="Print JSON: steps, phases, operators, completeness..."
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
    _ = recording.tables_path  # made first if need be, which shows a line of its own
    with waiting("summarising"):
        text = _text(recording, by, sort, top, as_json=as_json, as_csv=as_csv)
    typer.echo(text, nl=False)


def _text(recording: Recording, by: By, sort: str, top: int, *, as_json: bool, as_csv: bool) -> str:
    if not (as_json or as_csv):
        return recording.summary(by=by.value, sort=sort, top=top)
    if by in (By.loader, By.counter):
        table = recording.loaders() if by is By.loader else recording.counter_summary()
        shown = {f"{by.value}s": table.to_dicts()}
        return table.write_csv() if as_csv else json.dumps(shown, indent=1) + "\n"
    from strobe.reports.text import sort_operators

    rows = recording.operators() if by is By.name else recording.operators_by(by.value)
    rows = sort_operators(rows, sort)
    if as_csv:
        return rows.write_csv()
    rate = recording.flops_rate()
    content = {
        "steps": recording.step_statistics().to_dicts(),
        "phases": recording.phases().to_dicts(),
        "flops": None if rate is None else asdict(rate),
        "peak_allocated": recording.peak_allocated().to_dicts(),
        "operators": rows.head(top).to_dicts(),
        "functions": recording.functions().head(top).to_dicts(),
        "completeness": recording.completeness().to_dicts(),
    }
    return json.dumps(content, indent=1) + "\n"
