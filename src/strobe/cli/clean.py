# SPDX-License-Identifier: Apache-2.0
"""strobe clean: delete old recordings, after showing what they take."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import typer

from strobe.errors import CommandError, FormatError
from strobe.reports.numbers import format_bytes
from strobe.reports.waiting import counted, waiting
from strobe.store import inventory, places, references

_DELETED = "deleted"
_IN_USE = "its tables are being written, or its log is still needed"
_LEFT_OVER = "left over from a deletion that was cut short"


def clean(
    path: Path = typer.Argument(
        Path("strobe_data"), help="A recording, or a folder of recordings."
    ),
    older_than: float = typer.Option(
        7.0, "--older-than", min=0.0, help="Delete what is older than this many days."
    ),
    yes: bool = typer.Option(False, "--yes", help="Delete without asking."),
    force: bool = typer.Option(
        False, "--force", help="Delete also what a program on another host may still be recording."
    ),
    as_json: bool = typer.Option(
        False, "--json", help="Print JSON; deletes only together with --yes."
    ),
) -> None:
    """List the recordings that are old enough and their sizes, then delete them if you agree.

    Only folders that hold a readable manifest of strobe are deleted, and links are not followed. A
    recording stays while its program writes it, while its tables are being written, and while
    another one needs its log. One that was begun on another host and never stopped may still be
    recorded there: it stays too, unless you add --force.

    Example: strobe clean strobe_data --older-than 30
    """
    if not path.is_dir():
        message = f"clean {str(path)!r}: there is no such folder"
        raise CommandError(message)
    folder = path.resolve()
    with waiting("measuring") as progress:
        found = places.find_recordings(folder)
        rows = inventory.describe(counted(found, "measuring", progress))
        left = inventory.describe(places.find_deleted(folder))
    old = _deletable([row for row in rows if row["age_days"] >= older_than], force=force)
    chosen = [*old, *(row | {"state": _LEFT_OVER} for row in left if row["readable"])]
    if not as_json:
        _show(folder, chosen, len(rows) - len(old))
        _show_perhaps_recording(folder, rows, older_than, force=force)
    if chosen and (yes or (not as_json and _agreed())):
        _delete(chosen)
        if not as_json:
            _show_spared(chosen)
    if as_json:
        typer.echo(json.dumps(chosen, indent=1))
    if any(row["state"].startswith("cannot be deleted") for row in chosen):
        raise typer.Exit(1)


def _deletable(rows: list[dict[str, Any]], *, force: bool) -> list[dict[str, Any]]:
    """Return the rows of what nobody records into, and what nobody needs who stays."""
    may_record = (True,) if force else (True, None)
    chosen = [row for row in rows if row["readable"] and row["records"] not in may_record]
    needed = {row["path"]: _needed_by(Path(row["path"])) for row in chosen}
    while True:
        going = {os.path.realpath(row["path"]) for row in chosen}
        kept = [row for row in chosen if needed[row["path"]] <= going]
        if len(kept) == len(chosen):
            return kept
        chosen = kept


def _needed_by(recording: Path) -> set[str]:
    return set(map(str, references.needed_by(recording / references.LOG)))


def _delete(chosen: list[dict[str, Any]]) -> None:
    """Delete them; one whose log another one needs is tried again after that one."""
    with waiting("deleting") as progress:
        waits, tried = list(chosen), -1
        while waits and len(waits) != tried:
            tried = len(waits)
            for number, row in enumerate(waits):
                progress("deleting", 1 - (tried - number) / len(chosen))
                row["state"] = _delete_one(Path(row["path"]), row["state"])
            waits = [row for row in waits if row["state"] == _IN_USE]


def _delete_one(path: Path, state: str) -> str:
    """Delete one, and return its new state."""
    try:
        if state == _LEFT_OVER:
            places.remove_deleted(path)
            return _DELETED
        return _DELETED if places.remove_recording(path) else _IN_USE
    except FormatError as error:
        return f"cannot be deleted ({error.reason})"
    except OSError as error:
        return f"cannot be deleted ({error.strerror})"


def _show(folder: Path, chosen: list[dict[str, Any]], others: int) -> None:
    if not chosen:
        typer.echo(f"nothing to delete ({others} recordings stay)")
        return
    from strobe.reports.text import recordings_text

    typer.echo(recordings_text(chosen, folder))
    total = format_bytes(sum(row["size_bytes"] for row in chosen))
    typer.echo(f"{len(chosen)} recordings, {total} in all; {others} others stay")


def _show_perhaps_recording(
    folder: Path, rows: list[dict[str, Any]], older_than: float, *, force: bool
) -> None:
    kept = [row for row in rows if row["records"] is None and row["age_days"] >= older_than]
    if kept and not force:
        from strobe.reports.text import recordings_text

        typer.echo("these stay, because they may still be recorded elsewhere; --force takes them:")
        typer.echo(recordings_text(kept, folder))


def _show_spared(chosen: list[dict[str, Any]]) -> None:
    for row in chosen:
        if row["state"] != _DELETED:
            typer.echo(f"{row['name']} stays: {row['state']}")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        typer.echo("nothing deleted: add --yes to delete them")
        return False
    return typer.confirm("Delete them?")
