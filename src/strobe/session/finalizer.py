# SPDX-License-Identifier: Apache-2.0
"""What the finalizer process does for one recording: its tables, and the files asked for."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

from strobe.finalize.process import Order, rounds_waiting
from strobe.finalize.run import finalize
from strobe.store import manifest, rounds
from strobe.store.tables import Tables


def carry_out(order: Order) -> None:
    """Finalize a recording and write the files that its program asked for.

    If the program's rounds take more than they may, the oldest are deleted first.
    """
    if not order.recording.is_dir():
        return  # it was deleted while it waited
    if order.bound is not None:
        rounds.make_room(order.bound, order.recording, rounds_waiting(order.bound))
    write_exports(order.recording, finalize(order.recording), order.exports)
    if order.bound is not None:  # one that failed stays: it may be completed later
        rounds.add(order.bound, order.recording)


def write_exports(recording: Path, tables: Path, exports: list[dict[str, Any]]) -> None:
    """Write what the profiler's on_trace_ready declared; a file that is there already stays."""
    from strobe.exporters import find_exporter

    content = manifest.read(recording)
    for wanted in exports:
        if wanted["format"] == "mindspore":
            _write_tree(recording)
            continue
        exporter = find_exporter(wanted["format"])
        folder = Path(wanted["directory"])
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{wanted['prefix']}_time_{_when(content)}" if "prefix" in wanted else recording.name
        target = folder / f"{name}{exporter.SUFFIX}"
        if not target.exists():
            exporter.write(Tables(tables), target, lambda _stage, _share: None)


def _write_tree(recording: Path) -> None:
    from strobe.session.mindspore_tree import complete

    complete(recording)


def _when(content: manifest.Manifest) -> str:
    """Return when a recording ended, local time to the microsecond."""
    wall_ns = (content.stop or content.start).wall_ns
    return datetime.fromtimestamp(wall_ns / 1e9).strftime("%Y_%m_%d_%H_%M_%S_%f")
