# SPDX-License-Identifier: Apache-2.0
"""Shapes of Paddle's operators, from the file that lies beside a protobuf of strobe's own.

Paddle's profiler drops them, so that the file is of sources/paddle/supplements.cpp, which draws it.
A call is identified by thread and time: it belongs to the innermost event around it, and to the
launch of a kernel that follows in that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from strobe.errors import FormatError
from strobe.importers.paddle_trace import EVENT_TYPES, HostEvents
from strobe.model.arrays import Bool, Int64
from strobe.model.attributes import CONCRETE, INPUTS, SHAPES
from strobe.store import files

ENDING = ".shapes"
_CALL = np.dtype([("thread", "=u8"), ("time_ns", "=u8"), ("place", "=u8")])
_LAUNCH = " kernel launch"
_OPERATORS = tuple(EVENT_TYPES.index(name) for name in ("Operator", "OperatorInner"))
_TRANSPOSED = ("transpose_x", "transpose_y")
_FIRST = ("x", "input", "param")
"""Of the inputs, whose names Paddle sorts, what comes first in all operators that have it."""
_MOST_DEPTH = 100


@dataclass(frozen=True)
class Calls:
    """What operators were called with; one row each."""

    thread: Int64
    time_ns: Int64
    place: Int64
    """In `operators` and `texts`."""
    operators: list[str]
    texts: list[dict[str, Any]]
    """Attributes of a span: shapes, inputs, and what else decides how much is computed."""


def read_calls(trace: Path) -> Calls | None:
    """Return what lies beside a trace, None if nothing does; raises FormatError if damaged."""
    path = trace.with_name(trace.name + ENDING)
    if not os.path.lexists(path):
        return None
    content = files.read_bytes(path)
    end = 0 if content.startswith(b"\n") else content.find(b"\n\n") + 1
    lines, data = content[:end].splitlines(), content[end + 1 :]
    try:
        objects = [msgspec.json.decode(line, type=_Call) for line in lines]
        rows = np.frombuffer(data, _CALL)
    except (msgspec.MsgspecError, ValueError) as error:
        raise FormatError(path, "byte 0", f"no shapes of operators ({error})") from None
    place = rows["place"].astype(np.int64)
    if len(place) and not 0 <= int(place.min()) <= int(place.max()) < len(objects):
        raise FormatError(path, f"byte {end}", "a call of no known operator")
    return Calls(
        thread=rows["thread"].astype(np.int64),
        time_ns=rows["time_ns"].astype(np.int64),
        place=place,
        operators=[each.op for each in objects],
        texts=[_attributes(each) for each in objects],
    )


class _Call(msgspec.Struct):
    op: str
    inputs: dict[str, list[list[int]]]
    attributes: dict[str, Any]


def _attributes(call: _Call) -> dict[str, Any]:
    names = sorted(call.inputs, key=lambda name: (name not in _FIRST, name))
    given = [(name, shape) for name in names for shape in call.inputs[name]]
    found: dict[str, Any] = {SHAPES: [shape for _, shape in given]}
    found[INPUTS] = [name for name, _ in given]
    concrete = _concrete(call.attributes)
    return {**found, CONCRETE: concrete} if concrete else found


def _concrete(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes by the names that strobe.assemble.flops knows."""
    found = {name: attributes[name] for name in _TRANSPOSED if attributes.get(name)}
    algorithm, padding = attributes.get("padding_algorithm"), attributes.get("paddings")
    if "strides" not in attributes or attributes.get("data_format") not in (None, "NCHW", "NCDHW"):
        return found
    found |= {"stride": attributes["strides"], "dilation": attributes.get("dilations", 1)}
    if algorithm in ("SAME", "VALID"):
        found["padding"] = algorithm.lower()
    elif isinstance(padding, list) and len(padding) == len(attributes["strides"]):
        found["padding"] = padding
    return found


def rows_of_calls(calls: Calls, host: HostEvents, names: list[str]) -> tuple[Int64, Int64]:
    """Return events and, for each of these, the place of what it was called with."""
    launches = np.array([name.endswith(_LAUNCH) for name in names] or [False])[host.name]
    rows, places = [], []
    for thread in np.unique(calls.thread).tolist():
        mine = np.flatnonzero(calls.thread == thread)
        mine = mine[np.argsort(calls.time_ns[mine], kind="stable")]
        time_ns, place = calls.time_ns[mine], calls.place[mine]
        here = np.flatnonzero(host.tid == thread)
        here = here[np.argsort(host.start_ns[here], kind="stable")]
        if not len(here):
            continue
        around = _around(host, here, time_ns)
        launch = _launches(host, here[launches[here]], time_ns, around)
        said = _said_by(around, place, calls, host, names)
        rows += [around[said], launch[launch >= 0]]
        places += [place[said], place[launch >= 0]]
    none = np.empty(0, np.int64)
    return np.concatenate([none, *rows]), np.concatenate([none, *places])


def _around(host: HostEvents, here: Int64, time_ns: Int64) -> Int64:
    """Return the innermost event around each time, -1 for none; `here` is sorted by start."""
    last = np.searchsorted(host.start_ns[here], time_ns, side="right") - 1
    row = np.where(last >= 0, here[last], -1)
    for _ in range(_MOST_DEPTH):
        over = (row >= 0) & (host.end_ns[row] < time_ns)
        if not over.any():
            return row
        row[over] = host.parent[row[over]]
    return np.full(len(row), -1)


def _launches(host: HostEvents, launches: Int64, time_ns: Int64, around: Int64) -> Int64:
    """Return the launch that follows each time in the same event, and before the next call."""
    if not len(launches):
        return np.full(len(time_ns), -1)
    begins = host.start_ns[launches]
    found = np.searchsorted(begins, time_ns)
    row = launches[np.minimum(found, len(launches) - 1)]
    next_ns = np.append(time_ns[1:], np.iinfo(np.int64).max)
    fits = (found < len(launches)) & (host.parent[row] == around) & (host.start_ns[row] < next_ns)
    return np.where(fits & (around >= 0), row, -1)


def _said_by(around: Int64, place: Int64, calls: Calls, host: HostEvents, names: list[str]) -> Bool:
    """Return which calls say what the operator around them was given: its own, or the only one."""
    _, where, count = np.unique(around, return_inverse=True, return_counts=True)
    alone = count[where.reshape(-1)] == 1
    called = np.array([_plain(name) for name in calls.operators])[place]
    is_own = called == np.array([_plain(name) for name in names])[host.name[around]]
    first = np.zeros(len(around), bool)
    first[np.unique(np.where(is_own, around, -1), return_index=True)[1]] = True
    is_operator = (around >= 0) & np.isin(host.type[around], _OPERATORS)
    said: Bool = is_operator & (alone | (first & is_own))
    return said


def _plain(name: str) -> str:
    """Return `adam` of `adam_`, `adam_ dygraph` and the like."""
    return name.partition(" ")[0].removesuffix("_")
