# SPDX-License-Identifier: Apache-2.0
"""What MindSpore's profiler writes on a CPU: a directory of text files, one row per operator.

cpu_op_execute_timestamp_<rank>.txt   full name;HostCpuOps;start_ns,dur_ms,0 start_ns,dur_ms,0 ...
cpu_op_detail_info_<rank>.csv         op_side,op_type,op_name,full_op_name,...,subgraph,pid
cpu_framework_<rank>.txt              op_type;op_name;graph;input_1:[3, 6];input_2:NoShape;
cpu_ms_memory_record_<rank>.txt       Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),...

and what strobe puts beside them:

graph_<n>.pb                          a graph that was compiled: see strobe.importers.anf
dispatch_inputs.json, ..._calls.bin   calls in PyNative mode: see strobe.importers.pynative

Only the first is needed. Times are of the wall clock; no threads are named.
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from strobe.errors import FormatError
from strobe.importers import anf, pynative
from strobe.importers.columns import AttributeTable, Blocks, Events, to_trace
from strobe.model import attributes as keys
from strobe.model.arrays import Float64, Int32, Int64
from strobe.model.interning import Interner
from strobe.model.tables import CATEGORIES
from strobe.model.trace import Trace
from strobe.store import files
from strobe.store.places import scratch_folder
from strobe.store.spill import Spill

NAME = "mindspore"
TIMES, DETAILS, INPUTS, MEMORY = (
    "cpu_op_execute_timestamp_*.txt",
    "cpu_op_detail_info_*.csv",
    "cpu_framework_*.txt",
    "cpu_ms_memory_record_*.txt",
)
GRAPHS = "graph_*.pb"
LANE = "MindSpore operators"

_OPERATOR, _COMMUNICATION = CATEGORIES.index("operator"), CATEGORIES.index("communication")
_COLLECTIVES = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast",
    "Reduce": "reduce",
    "AlltoAll": "all_to_all",
    "CollectiveGather": "gather",
    "CollectiveScatter": "scatter",
    "Barrier": "barrier",
    "Send": "send",
    "Receive": "recv",
}
# The operators that change parameters; what else is in their scope belongs to the optimizer too.
_UPDATE = re.compile(r"(Sparse|Fused|Resource)*(Apply[A-Z]|SGD|Adam|Lamb|Momentum)\w*")
_NUMBER = re.compile(r"-op\d+$")
_GRADIENTS = "Gradients/"
_THREE_NUMBERS = re.compile(r"([0-8]?[0-9]{1,18}(,|$)){3}")
_DIGITS = 6  # that a duration is written with
_PIECE, _LINES_AT_ONCE = 1 << 20, 1 << 16
_NUMBERS = msgspec.json.Decoder(list[int | float])


@dataclass
class _Trace:
    """What has been read: one row per time that an operator ran, by start."""

    full_names: list[str] = field(default_factory=list)
    which: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    start_ns: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    dur_ns: Int64 = field(default_factory=lambda: np.zeros(0, np.int64))
    pid: int = 0
    notes: list[str] = field(default_factory=list)


def sniff(path: Path, _head: bytes) -> bool:
    """Say whether a path is such a directory, or the folder that it is in."""
    return any(files.list_folder(folder, TIMES) for folder in (path, path / "FRAMEWORK"))


def read(path: Path) -> Trace:
    """Return the operators and the memory of one directory; it may hold none.

    A damaged row is left out, and the notes say so. Raises FormatError where nothing of the
    operators' times can be read.
    """
    trace = _Trace()
    _read_times(path, trace)
    types = _read_types(path, trace)
    table = AttributeTable()
    attributes_of = _describe(path, trace, types, table)
    names = sorted(set(types)) + sorted(set(scopes := _modules(trace.full_names)) - {*types, ""})
    places = {name: place for place, name in enumerate(names)} | {"": -1}
    kinds = [_COMMUNICATION if kind in _COLLECTIVES else _OPERATOR for kind in types]
    rows = len(trace.which)
    none = np.broadcast_to(np.int64(-1), rows)
    lane = _lanes(trace)
    threads = {
        (trace.pid, number): f"{LANE} {number + 1}" if number else LANE
        for number in np.unique(lane).tolist()
    }
    events = Events(
        names=names,
        name=np.array([places[kind] for kind in types], np.int32)[trace.which],
        category=np.array(kinds, np.int8)[trace.which],
        start_ns=trace.start_ns,
        dur_ns=trace.dur_ns,
        pid=np.full(rows, trace.pid, np.int64),
        tid=lane,
        correlation=none,
        device=none.astype(np.int32),
        stream=none,
        module=np.array([places[scope] for scope in scopes], np.int32)[trace.which],
        **table.columns(attributes_of),
    )
    blocks = _read_memory(path, trace, lane)
    return to_trace(events, blocks=blocks, threads=threads, notes=trace.notes)


def _files(path: Path, pattern: str) -> list[Path]:
    """Return the files of the kind, of which there is one."""
    folders = (path, path / "FRAMEWORK")
    return [file for folder in folders for file in files.list_folder(folder, pattern)]


def _lines(file: Path) -> Iterator[str]:
    """Yield the lines of a file, which may be larger than memory."""
    with files.open_regular(file) as content:
        for line in content:
            yield line.decode(errors="replace").rstrip("\r\n")


def _read_times(path: Path, trace: _Trace) -> None:
    spill = Spill(scratch_folder())
    starts, durations = spill.growing(np.int64), spill.growing(np.float64)
    ran: list[int] = []
    for file in _files(path, TIMES):
        damaged = 0
        for line in filter(None, _lines(file)):
            name, _, rest = line.rpartition(";HostCpuOps;")
            parts = [_times(part) for part in _split(rest)]
            if not name or None in parts:
                damaged += 1
                continue
            trace.full_names.append(name)
            ran.append(sum(len(part.starts) for part in parts if part))
            for part in filter(None, parts):
                starts.extend(part.starts)
                durations.extend(part.durations)
        if damaged and not trace.full_names:
            raise FormatError(file, "its first line", "not `name;HostCpuOps;start_ns,dur_ms,0 ...`")
        if damaged:
            trace.notes.append(f"{damaged} damaged lines of {file.name} are left out")
    order = np.argsort(starts.values(), kind="stable")
    trace.start_ns = starts.values()[order]
    trace.dur_ns = np.rint(durations.values()[order] * 1e6).astype(np.int64)
    trace.which = np.repeat(np.arange(len(ran), dtype=np.int32), ran)[order]


def _split(text: str) -> Iterator[str]:
    """Yield pieces of a line that may be very long, each with whole runs of its operator."""
    begin = 0
    while True:
        end = text.find(" ", begin + _PIECE) + 1 or len(text)
        yield text[begin:end]
        if end == len(text):
            return
        begin = end


class _Runs(NamedTuple):
    """When an operator ran, and for how many milliseconds."""

    starts: Int64
    durations: Float64


def _times(text: str) -> _Runs | None:
    """Return the starts and durations of `start_ns,dur_ms,0 ...`; None where it is damaged."""
    try:
        numbers = _NUMBERS.decode(f"[{text.replace(' ', ',').rstrip(',')}]")
    except msgspec.MsgspecError:
        return None
    starts, durations = np.array(numbers[::3]), np.array(numbers[1::3], np.float64)
    if not numbers or len(numbers) % 3 or starts.dtype != np.int64 or durations.min() < 0:
        return None
    return _Runs(starts, durations)


def _read_types(path: Path, trace: _Trace) -> list[str]:
    """Return the type of each operator, by its name where the file of types does not have it."""
    type_of: dict[str, str] = {}
    for file in _files(path, DETAILS):
        # Before Python 3.11, csv refuses a file with a NUL in it.
        rows = csv.DictReader(line.replace("\0", "?") for line in _lines(file))
        if not {"op_type", "full_op_name"} <= set(rows.fieldnames or ()):
            trace.notes.append(f"{file.name} cannot be read: types are taken from names")
            continue
        for row in rows:
            type_of[row["full_op_name"]] = row["op_type"] or ""
            if (row.get("pid") or "").isdigit():
                trace.pid = int(row["pid"])
    return [type_of.get(name) or _NUMBER.sub("", _last(name)) for name in trace.full_names]


def _last(full_name: str) -> str:
    return full_name.rpartition("/")[2]


def _describe(path: Path, trace: _Trace, types: list[str], table: AttributeTable) -> Int32:
    """Add what is known of all rows, and return the number of each row's."""
    inputs, input_of = _read_inputs(path, trace)
    numbers = Interner[str]()
    by_name = [
        -1 if phase is None else numbers[phase] for phase in _phases(trace.full_names, types)
    ]
    phase_of = np.array(by_name, np.int64)[trace.which]
    call_of, described = _read_calls(path, trace, types)
    if described:
        of_kind = np.array([numbers[kind.phase or pynative.BY_ORDER] for kind in described])
        phase_of = pynative.phases(phase_of, call_of, of_kind)
    graphs = _read_graphs(path, trace)
    more_keys = (call_of, phase_of) if described else ()
    first, places = _kinds(trace.which, input_of, *more_keys)
    phases = [*numbers, None]
    codes = []
    for row in first.tolist():
        operator, call, phase = trace.which[row], call_of[row], phases[phase_of[row]]
        name = trace.full_names[operator]
        known = {keys.FULL_NAME: name} | _given(inputs[input_of[row]], graphs.get(name, {}))
        if phase != pynative.BY_ORDER:
            known[keys.PHASE] = phase
        if call >= 0:
            known |= described[call].attributes()
        if types[operator] in _COLLECTIVES:
            known |= _collective(types[operator], known)
        codes.append(table.add(known))
    return np.array([*codes, -1], np.int32)[places]


def _kinds(*columns: Int32 | Int64) -> tuple[Int64, Int64]:
    """Return the first row of each kind, and the kind of each row: rows equal in all columns."""
    first = kind = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        both = kind * (int(column.max(initial=0)) + 2) + column
        _, first, kind = np.unique(both, return_index=True, return_inverse=True)
    return first, kind


def _read_calls(path: Path, trace: _Trace, types: list[str]) -> tuple[Int64, list[pynative.Call]]:
    """Return for each row the kind of call that made it, -1 for none, and the kinds."""
    none = np.full(len(trace.which), -1, np.int64)
    try:
        calls, kinds = pynative.read(path)
    except FormatError as error:
        trace.notes.append(f"what operators were given is left out: {error}")
        return none, []
    if not kinds:
        return none, []
    operators = list(zip(trace.full_names, types, strict=True))
    found = pynative.match(operators, trace.which, calls, kinds)
    is_bare = np.array(["/" not in name for name in trace.full_names], bool)[trace.which]
    unknown = int(np.count_nonzero(found[is_bare] < 0))
    if unknown:
        trace.notes.append(
            f"inputs of {unknown} of {np.count_nonzero(is_bare)} operators of PyNative mode are "
            "unknown"
        )
    return found, kinds


def _read_inputs(path: Path, trace: _Trace) -> tuple[list[str], Int64]:
    """Return what operators are given, as MindSpore wrote it, and the place of each row's in that.

    The last is "", for what it did not write. Inputs are listed in the order of the launches, by
    the last part of a name, which several operators may share: the n-th launch of that part is its
    n-th line.
    """
    lines, line_numbers = Interner[str](), array("q")
    for file in _files(path, INPUTS):
        line_numbers.extend(lines[line] for line in _lines(file) if line)
    line_of = np.array(line_numbers, np.int64)
    keys = {key: place for place, key in enumerate(dict.fromkeys(map(_last, trace.full_names)))}
    inputs: list[str] = []
    key_of: list[int] = []
    times = np.bincount(line_of)
    damaged = 0
    for line, place in lines.items():
        parts = line.split(";", 3)
        is_whole = len(parts) == 4
        damaged += 0 if is_whole else int(times[place])
        key_of.append(keys.get(parts[1], -1) if is_whole else -1)
        inputs.append(parts[-1])
    found, unclear = _nth(
        np.array([keys[_last(name)] for name in trace.full_names], np.int64)[trace.which],
        np.array(key_of, np.int64)[line_of],
    )
    if damaged:
        trace.notes.append(f"{damaged} damaged lines of inputs are left out")
    if unclear:
        trace.notes.append(f"shapes of {unclear} operators cannot be distinguished")
    return [*inputs, ""], np.append(line_of, len(inputs))[found]


def _nth(rows: Int64, lines: Int64) -> tuple[Int64, int]:
    """Return the line of each row, the n-th of a key for its n-th, and how many keys are unclear.

    Those are of another number of lines than of rows; their rows have line -1, as those that no
    line is of. A key of -1 is none.
    """
    size = max(rows.max(initial=-1), lines.max(initial=-1)) + 1
    ran, listed = np.bincount(rows, minlength=size), np.bincount(lines[lines >= 0], minlength=size)
    clear = np.append(ran == listed, False)
    by_key, launched = np.argsort(rows, kind="stable"), np.argsort(lines, kind="stable")
    found = np.full(len(rows), -1, np.int64)
    found[by_key[clear[rows[by_key]]]] = launched[clear[lines[launched]]]
    return found, int(np.count_nonzero((ran != listed) & (ran > 0) & (listed > 0)))


def _given(inputs: str, known: dict[str, Any]) -> dict[str, Any]:
    """Return shapes, and what the graph knows of them if it has as many inputs."""
    given = {key: value for key, value in known.items() if key != keys.DTYPES}
    if inputs:
        given[keys.SHAPES] = [
            _shape(text.partition(":")[2]) for text in inputs.rstrip(";").split(";")
        ]
        if len(known.get(keys.DTYPES, [])) == len(given[keys.SHAPES]):
            given[keys.DTYPES] = known[keys.DTYPES]
    return given


def _collective(kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a collective: its kernel on a CPU returns when all is done."""
    found: dict[str, Any] = {keys.COLLECTIVE: _COLLECTIVES[kind], keys.SYNCHRONOUS: True}
    shapes, dtypes = given.get(keys.SHAPES, []), given.get(keys.DTYPES, [])
    pairs = [pair for pair in zip(shapes, dtypes, strict=False) if pair[1] in anf.SIZES]
    if pairs:
        found[keys.DTYPE] = pairs[0][1]
        found[keys.BYTES] = sum(prod(shape) * anf.SIZES[dtype] for shape, dtype in pairs)
    return found


def _read_graphs(path: Path, trace: _Trace) -> dict[str, dict[str, Any]]:
    """Return what graphs know of operators by name, if all that have the name agree.

    Operators that run by themselves have such names too, of one part: Default/BiasAdd-op0.
    """
    alone = any("/" not in name for name in trace.full_names)
    found: dict[str, dict[str, Any]] = {}
    unclear: set[str] = set()
    for file in files.list_folder(path, GRAPHS):
        try:
            operators = anf.operators(file)
        except (FormatError, OSError) as error:
            trace.notes.append(str(error))
            continue
        unclear |= {name for name, facts in operators.items() if found.get(name, facts) != facts}
        found |= operators
    return {
        name: facts
        for name, facts in found.items()
        if name not in unclear and not (alone and name.count("/") < 2)
    }


def _shape(text: str) -> object:
    """Return `[3, 6]` as a list, `NoShape` as None, `TupleShape([3], NoShape)` as a list."""
    plain = re.sub(r"\w+Shape\(", "[", text).replace(")", "]").replace("NoShape", "null")
    try:
        return json.loads(plain)
    except ValueError:
        return text


def _modules(full_names: list[str]) -> list[str]:
    """Return the scope that each operator is in, "" for none; a gradient's is that of its forward.

    Gradients/Default/net-Net/0-Dense/Grad_MatMul/MatMul-op1 -> Default/net-Net/0-Dense
    """
    found = []
    for name in full_names:
        parts = name.removeprefix(_GRADIENTS).split("/")[:-1]
        if parts and parts[-1].startswith("Grad_"):
            parts.pop()
        found.append("/".join(parts) if parts[:1] == ["Default"] and len(parts) > 1 else "")
    return found


def _phases(full_names: list[str], types: list[str]) -> list[str | None]:
    """Return the phase of each operator if its name implies one, else None.

    Names have scopes only in graph mode. One without a bare name among them is of that mode, where
    what is neither a gradient nor an optimizer's is of the forward.
    """
    graph_mode = all("/" in name for name in full_names)
    pairs = list(zip(full_names, types, strict=True))
    scopes = {name.rpartition("/")[0] for name, kind in pairs if _UPDATE.fullmatch(kind)}
    scopes -= {"", "Default"}
    found: list[str | None] = []
    for name, kind in pairs:
        if name.startswith((_GRADIENTS, "recompute_")) or kind.endswith("Grad"):
            found.append("backward")
        elif _UPDATE.fullmatch(kind) or any(name.startswith(f"{scope}/") for scope in scopes):
            found.append("optimizer")
        elif name.count("/") < 2 and kind.startswith("Assign"):
            found.append(None)  # an optimizer's, but in no scope that says so
        elif name.startswith("Default/") and (graph_mode or name.count("/") > 1):
            found.append("forward")
        else:
            found.append(None)
    return found


def _lanes(trace: _Trace) -> Int64:
    """Return a lane for each row, such that none overlap: MindSpore names no threads.

    The rounding of a duration may make it reach into the next one, and is taken back.
    """
    start_ns, end_ns = trace.start_ns, trace.start_ns + trace.dur_ns
    rounding_ns = trace.dur_ns // 10 ** (_DIGITS - 1) + 1
    over_ns = end_ns[:-1] - start_ns[1:]
    rounded = np.flatnonzero((over_ns > 0) & (over_ns <= rounding_ns[:-1]))
    trace.dur_ns[rounded] -= over_ns[rounded]
    lane = np.zeros(len(start_ns), np.int64)
    end_ns = trace.start_ns + trace.dur_ns
    if (end_ns[:-1] <= start_ns[1:]).all():
        return lane
    ends: list[int] = []
    for row, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        free = next((number for number, last in enumerate(ends) if last <= start), len(ends))
        ends[free : free + 1] = [end]
        lane[row] = free
    return lane


def _read_memory(path: Path, trace: _Trace, lane: Int64) -> Blocks:
    """Return what changed of the memory in use; the blocks' addresses are unknown.

    MindSpore allocates what an operator needs before it launches it. So what was allocated while
    none ran is for the next one, if they ran one after the other. The file may begin with rows of
    sessions before.
    """
    tables = [np.zeros((0, 3), np.int64)]
    for file in _files(path, MEMORY):
        lines = itertools.islice(_lines(file), 1, None)
        damaged = 0
        while some := list(itertools.islice(lines, _LINES_AT_ONCE)):
            table, left_out = _numbers(some)
            tables.append(table)
            damaged += left_out
        if damaged:
            trace.notes.append(f"{damaged} damaged lines of {file.name} are left out")
    rows = np.concatenate(tables)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    change = np.diff(rows[:, 1], prepend=0)
    rows, change = rows[change != 0], change[change != 0]
    none = np.full(len(rows), -1, np.int64)
    return Blocks(
        start_ns=rows[:, 0],
        bytes=change,
        address=none,
        device=none.astype(np.int32),
        pid=none + 1 + trace.pid,
        tid=none + 1,
        allocated_bytes=rows[:, 1],
        reserved_bytes=rows[:, 2],
        owner_ns=_owner_ns(rows[:, 0], change, trace, lane),
    )


def _numbers(lines: list[str]) -> tuple[Int64, int]:
    """Return the first three numbers of each line, and how many lines are damaged."""
    if not lines:
        return np.zeros((0, 3), np.int64), 0
    try:
        return np.loadtxt(lines, np.int64, None, ",", usecols=(0, 1, 2), ndmin=2), 0
    except ValueError:
        whole = [line.split(",")[:3] for line in lines if _THREE_NUMBERS.match(line)]
        return np.array(whole, np.int64).reshape(-1, 3), len(lines) - len(whole)


def _owner_ns(times_ns: Int64, change: Int64, trace: _Trace, lane: Int64) -> Int64:
    if lane.any() or not len(lane):
        return times_ns
    following = np.searchsorted(trace.start_ns, times_ns)
    ended = np.append(0, trace.start_ns + trace.dur_ns)[following] <= times_ns
    starts = np.append(trace.start_ns, 0)[following]
    return np.where((change > 0) & ended, np.maximum(starts, times_ns), times_ns)
