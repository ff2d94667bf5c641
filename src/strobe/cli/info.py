# SPDX-License-Identifier: Apache-2.0
"""strobe info: what a recording is, and how complete."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import typer

from strobe.cli._rank import PATH, RANK, RUN, open_rank
from strobe.reports.numbers import format_bytes, format_count, format_ns
from strobe.reports.waiting import counted, waiting
from strobe.session.recording import Recording
from strobe.store import files, inventory, places


def info(
    path: Path = PATH,
    rank: int | None = RANK,
    run: int | None = RUN,
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of text."),
) -> None:
    """Say what a recording holds and what is missing from it; list those of a folder.

    A recording whose tables were not written yet (its program was killed, or has just stopped) is
    completed first.

    Example: strobe info strobe_data
    """
    found = places.find_recordings(path) if path.is_dir() else []
    if len(found) > 1 and rank is None and run is None:
        _list(path, found, as_json=as_json)
        return
    facts = _facts(open_rank(path, rank, run))
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    _print(facts)


def _facts(recording: Recording) -> dict[str, Any]:
    metadata = dict(recording.metadata().collect().iter_rows())
    threads = recording.threads().collect()
    start_ns, end_ns = int(metadata["start_ns"]), int(metadata["end_ns"])
    return {
        "path": str(recording.path),
        "name": metadata["name"],
        "recorded": inventory.local_time(int(metadata["start_wall_ns"])),
        "duration_ns": end_ns - start_ns,
        "host": metadata["host"],
        "pid": int(metadata["pid"]),
        "processes": int(metadata["processes"]),
        "threads": threads.select("process", "tid").n_unique(),
        "spans": _count(recording, "spans"),
        "instants": _count(recording, "instants"),
        "counters": _count(recording, "counters"),
        "size_bytes": inventory.size_bytes(recording.path),
        "recorder": _recorder(metadata),
        "python": metadata.get("python"),
        "strobe": metadata["strobe"],
        "format": int(metadata["format"]),
        "finalizer_failure": _failure(recording.path),
        "completeness": recording.completeness().to_dicts(),
    }


def _recorder(metadata: dict[str, str]) -> str:
    importer = metadata.get("importer")
    return metadata["recorder"] if importer is None else f"another profiler's, read by {importer}"


def _failure(recording: Path) -> str | None:
    """Return what the finalizer could not do, an export say; None where all went well."""
    try:
        lines = files.read_text(recording / places.FAILURE, errors="replace").strip().splitlines()
    except OSError:
        return None
    return lines[-1] if lines else None


def _count(recording: Recording, table: str) -> int:
    import polars as pl

    frame: pl.LazyFrame = getattr(recording, table)()
    return int(frame.select(pl.len()).collect().item())


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console

    from strobe.reports.text import completeness_line, facts_table

    console = Console()
    hidden = ("completeness", "finalizer_failure")
    known = {key: value for key, value in facts.items() if value not in (None, "")}
    shown = {key: value for key, value in known.items() if key not in hidden}
    shown["duration"] = format_ns(shown.pop("duration_ns"))
    shown["size"] = format_bytes(shown.pop("size_bytes"))
    for name in ("spans", "instants", "counters"):
        shown[name] = format_count(shown[name])
    console.print(facts_table("recording", shown))
    if facts["finalizer_failure"]:
        failure = f"the finalizer failed: {facts['finalizer_failure']}"
        console.print(failure, markup=False, highlight=False)
    for source in facts["completeness"]:
        console.print(completeness_line(source), markup=False, highlight=False)


def _list(folder: Path, found: list[Path], *, as_json: bool) -> None:
    with waiting("measuring") as progress:
        rows = inventory.describe(counted(found, "measuring", progress))
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    from strobe.reports.text import recordings_text

    typer.echo(recordings_text(rows, folder))
    typer.echo(f"{len(rows)} recordings at {time.strftime('%H:%M:%S')}; name one for more")
