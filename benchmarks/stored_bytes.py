# SPDX-License-Identifier: Apache-2.0
"""Bytes per event of `spans` as stored, for traces that other tools wrote (Chrome JSON, .gz too).

Complete events become rows as a finalized recording has them: nested per thread, correlation kept,
no arguments. Prints one JSON object: file -> rows, bytes per row, bytes per event of the source.
"""

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from strobe.model.nesting import nest
from strobe.store.frames import file_schema
from strobe.store.parquet import ROW_GROUP_ROWS, TableWriter


def load_events(path: Path) -> list[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else Path.open
    with opener(path, "rb") as file:
        content = json.load(file)
    events = content["traceEvents"] if isinstance(content, dict) else content
    return [event for event in events if event.get("ph") == "X"]


def stored_size(events: list[dict[str, Any]], folder: Path) -> int:
    threads: dict[tuple[str, str], int] = {}
    lanes = [
        threads.setdefault((str(event.get("pid")), str(event.get("tid"))), len(threads))
        for event in events
    ]
    start = np.array([round(float(event["ts"]) * 1000) for event in events], np.int64)
    dur = np.array([round(float(event.get("dur", 0)) * 1000) for event in events], np.int64)
    order = np.lexsort((-dur, start))
    lane, start, dur = np.array(lanes, np.int32)[order], start[order], dur[order]
    parent, self_ns = nest(lane, start, start + dur)
    arguments = [events[row].get("args") or {} for row in order]
    correlation = [args.get("correlation", args.get("External id")) for args in arguments]
    columns: dict[str, Any] = dict.fromkeys(file_schema("spans"))
    columns |= {
        "name": pl.Series([str(events[row]["name"]) for row in order]),
        "category": pl.Series([str(events[row].get("cat", "")) for row in order]),
        "start_ns": start,
        "dur_ns": dur,
        "covered_ns": dur - self_ns,
        "pid": lane.astype(np.int64),
        "tid": lane.astype(np.int64),
        "lane": lane,
        "correlation": pl.Series(
            [int(value) if str(value).isdigit() else None for value in correlation], dtype=pl.Int64
        ),
        "parent_distance": pl.Series(np.arange(len(parent)) - parent).set(
            pl.Series(parent < 0), None
        ),
        "unfinished": np.zeros(len(lane), bool),
    }
    path = folder / "spans.parquet"
    with TableWriter(path, file_schema("spans")) as writer:
        for first in range(0, len(lane), ROW_GROUP_ROWS):
            rows = slice(first, first + ROW_GROUP_ROWS)
            writer.append({k: v if v is None else v[rows] for k, v in columns.items()})
    return path.stat().st_size


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:]:
            events = load_events(Path(name))
            size = stored_size(events, Path(folder))
            results[Path(name).name] = {"rows": len(events), "bytes_per_row": size / len(events)}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
