# SPDX-License-Identifier: Apache-2.0
"""Events of Paddle's profiler as the columns that all importers return: what their names mean."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.importers import columns
from strobe.importers._paddle_shapes import Calls, rows_of_calls
from strobe.importers.columns import AttributeTable, Blocks, Events
from strobe.importers.paddle_trace import EVENT_TYPES, MEMORY_TYPES, HostEvents, PaddleTrace
from strobe.model import attributes as keys
from strobe.model.arrays import Bool, Int8, Int32, Int64
from strobe.model.paddle import PROCESS_USE, SYSTEM_USE
from strobe.model.tables import CATEGORIES
from strobe.model.trace import Trace

_Number = TypeVar("_Number", np.int32, np.int64)
_MOST_DEPTH = 100
_MANY = 1 << 22
_NEVER = np.iinfo(np.int64).max

_CATEGORY = {
    **dict.fromkeys(("Operator", "OperatorInner", "PythonOp"), "operator"),
    **dict.fromkeys(("DygraphKernelLaunch", "StaticKernelLaunch"), "operator"),
    "CudaRuntime": "runtime",
    "Kernel": "kernel",
    "Memcpy": "copy",
    "Memset": "copy",
    "Communication": "communication",
}
_OTHER = "annotation"
_PHASE = {
    "Dataloader": "data_loading",
    "Forward": "forward",
    "Backward": "backward",
    "Optimization": "optimizer",
}
_PROGRAM = "pd_op."
_PROGRAM_BACKWARD = re.compile(r"pd_op\.\w+_grad_?")
_BACKWARD = re.compile(rf"(Global|Local)_\w*GradNode\w*|{_PROGRAM_BACKWARD.pattern}|backward")
"""What computes gradients, in dygraph and in a static program."""
_OPTIMIZER = re.compile(
    r"pd_op\.(adadelta|adagrad|adam|adamax|adamw|asgd|fused_adam|lamb|merged_adam|merged_momentum|"
    r"momentum|nadam|radam|rmsprop|rprop|sgd)_?"
)
"""What updates parameters in a static program; in dygraph an event of Python's is around it."""
_RUN = "StandaloneExecutor::run"
_COMPILED_RUN = "interpreter_core_run"
"""A static program, and a part of one that was compiled from dygraph, in the thread that runs it;
its operators may be on others."""
_STEP = re.compile(r"ProfileStep#(\d{1,18})")
_PLACE = re.compile(r"Place\((\w+)(?::(\d+))?\)")
_PINNED = ("cpu", "gpu_pinned", "xpu_pinned")


def to_trace(
    trace: PaddleTrace, calls: Calls | None = None, last: Sequence[Mapping[str, Any]] = ()
) -> Trace:
    """Return a file of Paddle's, and the shapes beside it, as what all importers return.

    `last` are attributes of the last events of threads.
    """
    host, device = trace.host, trace.device
    table = AttributeTable()
    category, attributes_of = _describe(trace, table)
    for row, exchanged in enumerate(last, len(host.name) - len(last)):
        attributes_of[row] = table.add({keys.TYPE: "Communication", **exchanged})
    if calls is not None:
        _add_shapes(trace, calls, attributes_of, table)
    off_device = np.full(len(host.name), -1, np.int64)
    start_ns = _both(host.start_ns, device.start_ns)
    events = Events(
        names=trace.names,
        name=_both(host.name, device.name),
        category=category,
        start_ns=start_ns,
        dur_ns=_both(host.end_ns, device.end_ns) - start_ns,
        pid=_both(host.pid, device.device),
        tid=_both(host.tid, device.stream),
        correlation=_both(host.correlation, device.correlation),
        device=_both(off_device, device.device).astype(np.int32),
        stream=_both(off_device, device.stream),
        **table.columns(attributes_of),
    )
    info = trace.extra_info
    used = {key: info[key] for key in (PROCESS_USE, SYSTEM_USE) if key in info}
    return columns.to_trace(
        events,
        blocks=_blocks(trace),
        threads=_threads(trace),
        metadata={"span_index": trace.span_index, **used},
        skipped=_skipped(trace),
        notes=() if calls is None else _notes(trace),
    )


def _both(host: NDArray[_Number], device: NDArray[_Number]) -> NDArray[_Number]:
    return np.concatenate([host, device]) if len(device) else host


def _describe(trace: PaddleTrace, table: AttributeTable) -> tuple[Int8, Int32]:
    """Return category and attributes, by type and name; each pair of them is looked at once."""
    host, device = trace.host, trace.device
    key = _both(host.type, device.type) * (len(trace.names) + 1) + _both(host.name, device.name)
    distinct, place = _unique(key)
    categories, codes = [], []
    for one in distinct.tolist():
        number, name = divmod(one, len(trace.names) + 1)
        kind = EVENT_TYPES[number] if 0 <= number < len(EVENT_TYPES) else str(number)
        category, attributes = _meaning(kind, trace.names[name])
        categories.append(CATEGORIES.index(category))
        codes.append(table.add(attributes))
    attributes_of = np.array(codes, np.int32)[place]
    for row in _training_runs(trace).tolist():
        attributes_of[row] = table.add({keys.TYPE: "UserDefined", keys.ENDS: "step"})
    for phase, rows in _phases_of_programs(trace).items():
        attributes_of[rows] = table.add({keys.TYPE: "Operator", keys.PHASE: phase})
    for row in np.flatnonzero(host.inputs >= 0).tolist():
        inputs = _flat(trace.inputs[host.inputs[row]])
        attributes_of[row] = table.add({**table[attributes_of[row]], **inputs})
    return np.array(categories, np.int8)[place], attributes_of


def _add_shapes(
    trace: PaddleTrace, calls: Calls, attributes_of: Int32, table: AttributeTable
) -> None:
    """Add what operators were called with to their attributes; each pair is put together once."""
    rows, place = rows_of_calls(calls, trace.host, trace.names)
    key = attributes_of[rows].astype(np.int64) * (len(calls.texts) + 1) + place
    distinct, where = np.unique(key, return_inverse=True)
    both = [divmod(one, len(calls.texts) + 1) for one in distinct.tolist()]
    found = [table.add({**table[base], **calls.texts[call]}) for base, call in both]
    attributes_of[rows] = np.array(found, np.int32)[where.reshape(-1)]


def _unique(key: Int64) -> tuple[Int64, Int64]:
    """Return what np.unique() does, without sorting where numbers from 0 on are not too many."""
    if not len(key) or key.min() < 0 or key.max() >= _MANY:
        distinct, place = np.unique(key, return_inverse=True)
        return distinct, place.reshape(-1)
    present = np.zeros(int(key.max()) + 1, bool)
    present[key] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[key]


def _named(trace: PaddleTrace, holds: Callable[[str], Any]) -> Bool:
    """Return which rows have a name for which it holds."""
    return np.array([bool(holds(name)) for name in trace.names] or [False])[trace.host.name]


def _training_runs(trace: PaddleTrace) -> Int64:
    """Return the rows of the runs of static programs in which parameters were updated."""
    runs = np.flatnonzero(_named(trace, lambda name: name == _RUN))
    return runs[_first_inside(trace, runs, _named(trace, _OPTIMIZER.fullmatch)) < _NEVER]


def _first_inside(trace: PaddleTrace, runs: Int64, chosen: Bool) -> Int64:
    """Return when the first of the chosen events began in each run, on any thread."""
    begins = np.append(np.sort(trace.host.start_ns[chosen]), _NEVER)
    first = begins[np.searchsorted(begins, trace.host.start_ns[runs])]
    return np.where(first <= trace.host.end_ns[runs], first, _NEVER)


def _phases_of_programs(trace: PaddleTrace) -> dict[str, Int64]:
    """Return the rows of the operators of programs whose phase their names do not tell.

    In a program with its own backward it is forward until that begins; what was compiled from
    dygraph is run for the forward, and again inside a backward.
    """
    host = trace.host
    runs = np.flatnonzero(_named(trace, lambda name: name in (_RUN, _COMPILED_RUN)))
    runs = runs[np.argsort(host.start_ns[runs], kind="stable")]
    plain = _named(trace, lambda name: name.startswith(_PROGRAM) and not _names_its_phase(name))
    rows = np.flatnonzero(plain & (host.type == EVENT_TYPES.index("Operator")))
    if not len(runs) or not len(rows):
        return {}
    of_run = np.searchsorted(host.start_ns[runs], host.start_ns[rows], side="right") - 1
    inside = (of_run >= 0) & (host.end_ns[rows] <= host.end_ns[runs[of_run]])
    rows, of_run = rows[inside], of_run[inside]
    gradient_ns = _first_inside(trace, runs, _named(trace, _PROGRAM_BACKWARD.fullmatch))
    backward = _are_inside(host, runs, _named(trace, _BACKWARD.fullmatch))
    is_forward = (host.start_ns[rows] < gradient_ns[of_run]) & ~backward[of_run]
    return {"forward": rows[is_forward], "backward": rows[backward[of_run]]}


def _names_its_phase(name: str) -> bool:
    return bool(_BACKWARD.fullmatch(name) or _OPTIMIZER.fullmatch(name))


def _are_inside(host: HostEvents, rows: Int64, chosen: Bool) -> Bool:
    """Return whether any of the events around each row is a chosen one."""
    parent, chosen = np.append(host.parent, -1), np.append(chosen, False)
    found = np.zeros(len(rows), bool)
    above = rows
    for _ in range(_MOST_DEPTH):
        above = np.where(above >= 0, parent[above], -1)
        found |= (above >= 0) & chosen[above]
    return found


def _flat(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return shapes and dtypes as other frameworks have them: input after input."""
    shapes = [shape for each in inputs["shapes"].values() for shape in each]
    dtypes = [dtype for each in inputs["dtypes"].values() for dtype in each]
    found = {keys.SHAPES: shapes, keys.DTYPES: dtypes, keys.INPUTS: list(inputs["shapes"])}
    return {name: value for name, value in found.items() if value}


def _meaning(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """Return the category, and the attributes: Paddle's type, and the phase if it names one."""
    attributes: dict[str, Any] = {keys.TYPE: kind}
    step = _STEP.fullmatch(name) if kind == "ProfileStep" else None
    if step:
        attributes[keys.STEP] = int(step[1])
    if kind in _PHASE:
        attributes[keys.PHASE] = _PHASE[kind]
    elif kind == "Operator" and _OPTIMIZER.fullmatch(name):
        attributes[keys.PHASE] = "optimizer"
    if kind in ("Operator", "OperatorInner", "UserDefined") and _BACKWARD.fullmatch(name):
        return "backward", attributes
    return _CATEGORY.get(kind, _OTHER), attributes


def _blocks(trace: PaddleTrace) -> Blocks:
    """Return what operators allocated and freed; what the allocator itself reserves is beside.

    Of the host's memory Paddle reserves none, and the figure that it writes means nothing.
    """
    memory = trace.memory
    chosen = np.flatnonzero(memory.type <= MEMORY_TYPES.index("Free"))
    devices = np.array([_device_of(name) for name in trace.names] or [-1], np.int32)
    device = devices[memory.place[chosen]]
    return Blocks(
        start_ns=memory.time_ns[chosen],
        bytes=memory.bytes[chosen],
        address=memory.address[chosen],
        device=device,
        pid=memory.pid[chosen],
        tid=memory.tid[chosen],
        allocated_bytes=memory.current_allocated[chosen],
        reserved_bytes=np.where(device < 0, -1, memory.current_reserved[chosen]),
    )


def _device_of(place: str) -> int:
    """Return the number in `Place(gpu:0)`, -1 for the host."""
    match = _PLACE.fullmatch(place)
    if match is None or match[1] in _PINNED:
        return -1
    return int(match[2] or 0)


def _threads(trace: PaddleTrace) -> dict[tuple[int, int], str]:
    pids = trace.host.pid
    pid = int(pids[0]) if len(pids) else -1
    return {(pid, int(key)): name for key, name in trace.extra_info.items() if key.isdigit()}


def _notes(trace: PaddleTrace) -> tuple[str, ...]:
    """Return what the shapes lack."""
    found = ["Paddle does not tell the dtypes of what operators are given"]
    if any(name.startswith(_PROGRAM) for name in trace.names):
        found.append("nor the shapes of those in a static program")
    return ("; ".join(found),)


def _skipped(trace: PaddleTrace) -> dict[str, int]:
    numbers = trace.memory.type[trace.memory.type > MEMORY_TYPES.index("Free")].tolist()
    known = dict(enumerate(MEMORY_TYPES))
    kinds = [known.get(number, f"memory type {number}") for number in numbers]
    return dict(Counter(kinds))
