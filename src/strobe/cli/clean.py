# SPDX-License-Identifier: Apache-2.0
"""strobe clean: delete old recordings, after showing what they take."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from strobe.cli._waiting import waiting
from strobe.errors import CommandError
from strobe.reports.numbers import format_bytes
from strobe.reports.text import recordings_table
from strobe.store import inventory, places


def clean(
    path: Path = typer.Argument(
        Path("strobe_data"), help="A recording, or a folder of recordings."
    ),
    older_than: float = typer.Option(
        7.0, "--older-than", min=0.0, help="Delete what is older than this many days."
    ),
    yes: bool = typer.Option(False, "--yes", help="Delete without asking."),
    as_json: bool = typer.Option(
        False, "--json", help="Print JSON; deletes only together with --yes."
    ),
) -> None:
    """Show the recordings that are old enough and their sizes, then delete them if you agree.

    A recording that its program still writes, or whose log another one needs, stays.

    Example: strobe clean strobe_data --older-than 30
    """
    if not path.is_dir():
        message = f"clean {str(path)!r}: there is no such folder"
        raise CommandError(message)
    with waiting("measuring"):
        rows = [inventory.describe(found) for found in places.find_recordings(path)]
    old = [row for row in rows if row["age_days"] >= older_than and _may_go(row)]
    if not as_json:
        _show(old, len(rows) - len(old))
    if old and (yes or (not as_json and _agreed())):
        with waiting("deleting") as progress:
            for number, row in enumerate(old):
                progress("deleting", number / len(old))
                shutil.rmtree(row["path"])
                row["state"] = "deleted"
    if as_json:
        typer.echo(json.dumps(old, indent=1))


def _may_go(row: dict[str, Any]) -> bool:
    log = Path(row["path"]) / places.LOG
    return row["state"] != "recording" and not places.is_needed(log)


def _show(old: list[dict[str, Any]], others: int) -> None:
    if not old:
        typer.echo(f"nothing to delete ({others} recordings stay)")
        return
    Console().print(recordings_table(old))
    total = format_bytes(sum(row["size_bytes"] for row in old))
    typer.echo(f"{len(old)} recordings, {total} in all; {others} others stay")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        typer.echo("nothing deleted: add --yes to delete them")
        return False
    return typer.confirm("Delete them?")
