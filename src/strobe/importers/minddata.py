# SPDX-License-Identifier: Apache-2.0
"""What MindData's profiling manager saves of a pipeline: queues and processor use, sampled.

pipeline_profiling_<rank>.json          {"op_info": [{"op_id": 0, "op_type": "BatchOp",
                                          "metrics": {"output_queue": {"length": 16, "size": [...]}}
minddata_cpu_utilization_<rank>.json    {"op_info": [{"op_id": 0, "metrics": {"sys_utilization":
                                          [...], "user_utilization": [...]}}], "time_stamp": [ms]}
window.json                             ms since when they count, where they are of more
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from strobe.errors import FormatError
from strobe.importers.columns import Values, to_trace
from strobe.model.trace import Trace
from strobe.store import files

NAME = "minddata"
_QUEUES, _USE = "pipeline_profiling_*.json", "minddata_cpu_utilization_*.json"
_WINDOW = "window.json"
_NEVER_MS = 1 << 62


def sniff(path: Path, _head: bytes) -> bool:
    """Say whether a path is such a directory; without times nothing can be read."""
    folder = _folder(path)
    return bool(files.list_folder(folder, _QUEUES) and files.list_folder(folder, _USE))


def _folder(path: Path) -> Path:
    """Return where the files are: in a folder of MindSpore's they are in one of their own."""
    inner = path / "FRAMEWORK"
    return inner if files.list_folder(inner, _QUEUES) else path


def read(path: Path) -> Trace:
    """Return the counters of one directory: queue and processor use of each of its operators.

    Their times are milliseconds of the monotonic clock. Raises FormatError for a damaged file.
    """
    path = _folder(path)
    queues, use = _load(path, _QUEUES), _load(path, _USE)
    names: list[str] = []
    columns: list[tuple[list[int], list[float]]] = []
    try:
        times = [int(ms) * 1_000_000 for ms in use.get("time_stamp", [])]
        labels = {
            each["op_id"]: f"{each['op_type'].removesuffix('Op')}(id={each['op_id']})"
            for each in queues.get("op_info", [])
        }
        for each in queues.get("op_info", []):
            queue = (each["metrics"] or {}).get("output_queue")  # EpochCtrl has none
            if queue is not None:
                names.append(f"MindData queue {labels[each['op_id']]}")
                columns.append((times, queue["size"]))
        for each in use.get("op_info", []):
            shares = each["metrics"] or {"user_utilization": [], "sys_utilization": []}
            both = zip(shares["user_utilization"], shares["sys_utilization"], strict=False)
            names.append(f"MindData cpu % {labels.get(each['op_id'], each['op_id'])}")
            columns.append((times, [user + system for user, system in both]))
        return to_trace(values=_values(names, columns, _begun_ns(path)))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise FormatError(path, "op_info", f"{type(error).__name__}: {error}") from None


def _values(
    names: list[str], columns: list[tuple[list[int], list[float]]], begun_ns: int
) -> Values:
    rows = [
        (code, time_ns, value)
        for code, column in enumerate(columns)
        for time_ns, value in zip(*column, strict=False)
        if time_ns >= begun_ns
    ]
    return Values(
        names=names,
        name=np.array([row[0] for row in rows], np.int32),
        start_ns=np.array([row[1] for row in rows], np.int64),
        value=np.array([row[2] for row in rows], np.float64),
    )


def read_window(
    path: Path, start_ns: int | None = None, end_ns: int | None = None
) -> dict[str, bytes]:
    """Return the files of one directory, by their names without the rank, cut to its window.

    What was sampled before the window, before `start_ns` or from `end_ns` on is left out of them,
    and so is a damaged file: a program may have been killed while it saved it. Their times are
    milliseconds, and so are the bounds.
    """
    begun_ms = max(_begun_ns(path), start_ns or 0) // 1_000_000
    ended_ms = _NEVER_MS if end_ns is None else end_ns // 1_000_000
    times: list[int] = []
    with contextlib.suppress(FormatError):
        times = _load(path, _USE).get("time_stamp", times)
    kept = slice(sum(ms < begun_ms for ms in times), sum(ms < ended_ms for ms in times))
    found = {}
    for file in files.list_folder(path):
        stem, _, rank = file.stem.rpartition("_")
        if not rank.isdecimal() or not files.is_regular(file):
            continue
        content = files.read_bytes(file)
        if file.suffix == ".txt":
            lines = content.splitlines(keepends=True)
            content = b"".join(line for line in lines if begun_ms <= _time_ms(line) < ended_ms)
        else:
            try:
                whole = _load(path, file.name)
            except FormatError:
                continue
            if kept != slice(0, len(times)):
                content = json.dumps(_cut(whole, kept, len(times))).encode()
        found[stem + file.suffix] = content
    return found


def read_busiest(
    paths: Iterable[Path], start_ns: int | None = None, end_ns: int | None = None
) -> dict[str, bytes]:
    """Return the files of that pipeline which handed out most batches: see read_window.

    The last one of those that are equal; {} where there is none.
    """
    found: dict[str, bytes] = {}
    for path in paths:
        window = read_window(path, start_ns, end_ns)
        if _batches(window) >= _batches(found):
            found = window
    return found


def _batches(window: Mapping[str, bytes]) -> int:
    """Return how many lines its iterator wrote: as many for each batch."""
    return window.get("dataset_iterator_profiling.txt", b"").count(b"\n")


def _time_ms(line: bytes) -> int:
    fields = line.split()
    return int(fields[4]) if len(fields) > 4 and fields[4].isdigit() else 0


def _cut(content: Any, kept: slice, samples: int) -> Any:
    """Return some of the samples; there are lists that have two of each."""
    if isinstance(content, dict):
        return {
            key: value if key == "children" else _cut(value, kept, samples)
            for key, value in content.items()
        }
    if not isinstance(content, list):
        return content
    if content and all(isinstance(value, (int, float)) for value in content):
        often, rest = divmod(len(content), samples)
        return content[kept.start * often : kept.stop * often] if not rest else content
    return [_cut(value, kept, samples) for value in content]


def _begun_ns(path: Path) -> int:
    try:
        return int(json.loads(files.read_text(path / _WINDOW))) * 1_000_000
    except (OSError, ValueError, TypeError, OverflowError):
        return 0


def _load(path: Path, pattern: str) -> dict[str, Any]:
    """Return the content of the file, {} where there is none: a pipeline need not be seen."""
    for file in files.list_folder(path, pattern):
        try:
            content = json.loads(files.read_bytes(file))
        except ValueError as error:
            raise FormatError(file, "the file", f"not JSON: {error}") from None
        if not isinstance(content, dict):
            raise FormatError(file, "the file", "not a JSON object")
        return content
    return {}
