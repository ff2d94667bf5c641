# SPDX-License-Identifier: Apache-2.0
"""strobe summary: where the time of a recording went."""

from __future__ import annotations

import gc
from enum import Enum
from pathlib import Path

import typer

from strobe.cli._rank import PATH, RANK, RUN, open_rank
from strobe.errors import CommandError
from strobe.reports.waiting import waiting
from strobe.session.recording import Recording

# What --json has besides the operators: key to the name of an analysis.
_QUESTIONS = {
    "steps": "step_statistics",
    "phases": "phases",
    "flops": "flops_rate",
    "peak_allocated": "peak_allocated",
    "functions": "functions",
    "completeness": "completeness",
}


class By(str, Enum):
    """What a row of the operator table is."""

    name = "name"
    thread = "thread"
    step = "step"
    module = "module"
    loader = "loader"
    counter = "counter"


def summary(
    path: Path = PATH,
    rank: int | None = RANK,
    run: int | None = RUN,
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
    # A tenth of the time of this command would go into looking for garbage among what it imports,
    # now and at the end of the interpreter.
    gc.disable()
    recording = open_rank(path, rank, run)
    _ = recording.directory  # made first if need be, which shows a line of its own
    with waiting("summarising"):
        text = _text(recording, by, sort, top, as_json=as_json, as_csv=as_csv)
    typer.echo(text, nl=False)
    gc.freeze()


def _text(recording: Recording, by: By, sort: str, top: int, *, as_json: bool, as_csv: bool) -> str:
    if not (as_json or as_csv):
        return recording.summary(by=by.value, sort=sort, top=top)
    from strobe.reports.json import answer, as_values, json_text
    from strobe.reports.text import sort_operators

    if by in (By.loader, By.counter):
        rows = recording.loaders() if by is By.loader else recording.counter_summary()
        return rows.write_csv() if as_csv else json_text({f"{by.value}s": as_values(rows)})
    rows = recording.operators() if by is By.name else recording.operators_by(by.value)
    rows = sort_operators(rows, sort)
    if as_csv:
        return rows.write_csv()
    content = answer(recording, _QUESTIONS)
    content["functions"] = content["functions"][:top]
    content["operators"] = as_values(rows.head(top))
    return json_text(content)
