# SPDX-License-Identifier: Apache-2.0
"""strobe clean: delete old recordings, after showing what they take."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

from strobe.cli._waiting import waiting
from strobe.errors import CommandError
from strobe.reports.numbers import format_bytes
from strobe.store import inventory, places

_DELETED = "deleted"
_IN_USE = "its tables are being written, or its log is still needed"


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

    A recording that its program still writes, whose tables are being written or whose log another
    one needs stays.

    Example: strobe clean strobe_data --older-than 30
    """
    if not path.is_dir():
        message = f"clean {str(path)!r}: there is no such folder"
        raise CommandError(message)
    with waiting("measuring"):
        rows = inventory.describe(places.find_recordings(path))
    old = [row for row in rows if row["age_days"] >= older_than and _may_go(row)]
    if not as_json:
        _show(old, len(rows) - len(old))
    if old and (yes or (not as_json and _agreed())):
        _delete(path, old)
        if not as_json:
            _show_spared(old)
    if as_json:
        typer.echo(json.dumps(old, indent=1))


def _delete(folder: Path, old: list[dict[str, Any]]) -> None:
    with waiting("deleting") as progress:
        for left in places.find_deleted(folder):
            places.remove_deleted(left)
        for number, row in enumerate(old):
            progress("deleting", number / len(old))
            try:
                gone = places.remove_recording(Path(row["path"]))
            except OSError as error:
                message = f"clean {row['path']!r}: cannot be deleted ({error.strerror})"
                raise CommandError(message) from None
            row["state"] = _DELETED if gone else _IN_USE


def _may_go(row: dict[str, Any]) -> bool:
    log = Path(row["path"]) / places.LOG
    return row["state"] != "recording" and not places.is_needed(log)


def _show(old: list[dict[str, Any]], others: int) -> None:
    if not old:
        typer.echo(f"nothing to delete ({others} recordings stay)")
        return
    from rich.console import Console

    from strobe.reports.text import recordings_table

    Console().print(recordings_table(old))
    total = format_bytes(sum(row["size_bytes"] for row in old))
    typer.echo(f"{len(old)} recordings, {total} in all; {others} others stay")


def _show_spared(old: list[dict[str, Any]]) -> None:
    for row in old:
        if row["state"] == _IN_USE:
            typer.echo(f"{row['name']} stays: {_IN_USE}")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        typer.echo("nothing deleted: add --yes to delete them")
        return False
    return typer.confirm("Delete them?")
