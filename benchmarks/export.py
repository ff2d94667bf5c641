# SPDX-License-Identifier: Apache-2.0
"""Export N spans as Chrome JSON, compressed Chrome JSON and Perfetto trace, beside orjson and json.

A span is an event. Times are of whole exports, Parquet read and a new file written, the best of
some rounds: wall time, and CPU time of all threads. orjson and json encode dicts made before.
Prints one JSON object.
"""

import argparse
import importlib.util
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

import strobe
from strobe.exporters import _writing, chrome, perfetto
from strobe.store.tables import Tables

NAMES = [f"aten::operator_{number}" for number in range(200)]


def record(count: int, output: Path) -> Tables:
    """Record `count` spans, ten to a step and three deep; return their tables."""
    spans = [strobe.span(name) for name in NAMES]
    with strobe.Profiler(output=output) as profiler:
        for step in range(count // 10):
            with strobe.span("step"):
                for part in range(3):
                    with spans[(7 * step + part) % 200]:
                        with spans[(step + 3 * part) % 200]:
                            pass
                        with spans[(3 * step + part) % 200]:
                            pass
    return profiler.recording


def spent() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime


def measure(
    work: Callable[[], Any], rounds: int, events: int, target: Path | None = None
) -> dict[str, float]:
    wall, cpu = [], []
    for _ in range(rounds):
        if target is not None:
            target.unlink(missing_ok=True)  # removing an older file is not what is measured
        before = spent()
        work()
        after = spent()
        wall.append(after[0] - before[0])
        cpu.append(after[1] - before[1])
    return {"ns_per_event": min(wall) * 1e9 / events, "cpu_ns_per_event": min(cpu) * 1e9 / events}


def silent(stage: str, share: float) -> None:
    """Take progress and show none."""


def measure_exports(tables: Tables, folder: Path, rounds: int, events: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, exporter, file in (
        ("chrome", chrome, "trace.json"),
        ("chrome.gz", chrome, "trace.json.gz"),
        ("perfetto", perfetto, "trace.pftrace"),
    ):
        path = folder / file
        repeat = min(rounds, 3) if file.endswith(".gz") else rounds
        work = partial(exporter.write, tables, path, silent)
        measured = measure(work, repeat, events, target=path)
        found[name] = {**measured, "bytes_per_event": path.stat().st_size / events}
    return found


def measure_encoders(tables: Tables, events: int) -> dict[str, Any]:
    """How long general encoders take for the same events, on a sample of them."""
    sample = tables.scan("spans").head(min(events, 100_000)).collect()
    made = [
        {
            "ph": "X",
            "name": row["name"],
            "cat": row["category"],
            "ts": row["start_ns"] / 1000,
            "dur": row["dur_ns"] / 1000,
            "pid": row["pid"],
            "tid": row["tid"],
        }
        for row in sample.iter_rows(named=True)
    ]
    encoders: dict[str, Callable[[Any], Any]] = {"json": json.dumps}
    if importlib.util.find_spec("orjson") is not None:
        import orjson

        encoders["orjson"] = orjson.dumps
    return {
        name: measure(partial(encode, {"traceEvents": made}), 3, len(made))
        for name, encode in encoders.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tables = record(arguments.count, folder)
        events = tables.scan("spans").select(pl.len()).collect().item()
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        result = {
            "spans": events,
            "writers": _writing.KIND,
            **measure_exports(tables, folder, arguments.rounds, events),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "peak_before_mb": before_kb / 1024,
            "encoders": measure_encoders(tables, events),
        }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
