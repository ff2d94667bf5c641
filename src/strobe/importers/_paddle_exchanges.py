# SPDX-License-Identifier: Apache-2.0
"""What paddle.DataParallel exchanges in a backward, for which Paddle has no event on a CPU.

Its reducer works inside the accumulation of a gradient: it makes room for a bucket of gradients
(`empty`), divides them by the number of ranks (`scale`), and has them summed. So the exchange is
from the end of the division to the end of the accumulation, with the copies back to the gradients.
What the buckets are lies in a file beside the trace, where the program had one such model.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from strobe.errors import FormatError
from strobe.importers.paddle_trace import HostEvents
from strobe.model.arrays import Bool, Int64
from strobe.model.attributes import COLLECTIVE, SYNCHRONOUS
from strobe.store import files

ENDING = ".buckets"
NAME = "DataParallel all_reduce"
_ACCUMULATION = "Global_GradNodeAccumulation"
_ROOM = "empty kernel launch"
_DIVISION = "scale kernel launch"
_BACKWARD = "backward"


def find_exchanges(host: HostEvents, names: list[str]) -> tuple[Int64, Int64]:
    """Return the accumulations in which something is exchanged, by start, and when it begins."""
    accumulations = _named(host, names, _ACCUMULATION)
    above = host.parent
    inside = (above >= 0) & np.append(accumulations, False)[above]
    roomy = np.unique(above[inside & _named(host, names, _ROOM)])
    divided = np.flatnonzero(inside & _named(host, names, _DIVISION))
    divided = divided[np.isin(above[divided], roomy)]
    rows, where = np.unique(above[divided], return_inverse=True)
    begin_ns = np.zeros(len(rows), np.int64)
    np.maximum.at(begin_ns, where.reshape(-1), host.end_ns[divided])
    order = np.argsort(begin_ns, kind="stable")
    return rows[order], begin_ns[order]


def describe(
    trace: Path, host: HostEvents, names: list[str], begin_ns: Int64
) -> list[dict[str, Any]]:
    """Return the attributes of each exchange: with group, bytes and dtype where they are known."""
    told: list[dict[str, Any]] = [{COLLECTIVE: "all_reduce", SYNCHRONOUS: True}] * len(begin_ns)
    buckets = _read_buckets(trace)
    if not buckets:
        return told
    runs = np.flatnonzero(_named(host, names, _BACKWARD))
    runs = runs[np.argsort(host.start_ns[runs], kind="stable")]
    of_run = np.searchsorted(host.start_ns[runs], begin_ns, side="right") - 1
    for run in np.unique(of_run).tolist():
        rows = np.flatnonzero(of_run == run)
        if len(rows) == len(buckets):  # else some were before the window, or after it
            for row, bucket in zip(rows.tolist(), buckets, strict=True):
                told[row] = {**told[row], **bucket}
    return told


def _read_buckets(trace: Path) -> list[dict[str, Any]]:
    path = trace.with_name(trace.name + ENDING)
    if not os.path.lexists(path):
        return []
    try:
        found: list[dict[str, Any]] = json.loads(files.read_text(path))
    except ValueError as error:
        raise FormatError(path, "byte 0", f"no buckets of gradients ({error})") from None
    return found


def _named(host: HostEvents, names: list[str], wanted: str) -> Bool:
    return np.array([name == wanted for name in names] or [False])[host.name]
