# SPDX-License-Identifier: Apache-2.0
"""Events of Paddle's profiler as the columns that all importers return: what their names mean."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.importers._paddle_shapes import Calls, rows_of_calls
from strobe.importers.events import Allocations, Events
from strobe.importers.paddle_trace import EVENT_TYPES, MEMORY_TYPES, HostEvents, Trace
from strobe.model.arrays import Bool, Int8, Int32, Int64
from strobe.model.tables import CATEGORIES

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


def to_events(
    trace: Trace, calls: Calls | None = None, last: Sequence[Mapping[str, Any]] = ()
) -> Events:
    """Return a trace, and the shapes beside it, as the columns that all importers return.

    `last` are attributes of the last events of threads.
    """
    host, device = trace.host, trace.device
    category, text_of, texts = _describe(trace)
    for row, told in enumerate(last, len(host.name) - len(last)):
        text_of[row] = len(texts)
        texts.append(json.dumps({"type": "Communication", **told}))
    if calls is not None:
        text_of, texts = _with_shapes(trace, calls, text_of, texts)
    none = np.broadcast_to(np.int64(-1), len(host.name) + len(device.name))
    off_device, no_text = none[: len(host.name)], np.full(len(device.name), -1, np.int32)
    start_ns = _both(host.start_ns, device.start_ns)
    return Events(
        base_ns=0,
        names=trace.names,
        texts=texts,
        name=_both(host.name, device.name),
        category=category,
        start_ns=start_ns,
        dur_ns=_both(host.end_ns, device.end_ns) - start_ns,
        pid=_both(host.pid, device.device),
        tid=_both(host.tid, device.stream),
        sequence=none,
        forward_thread=none,
        correlation=_both(host.correlation, device.correlation),
        device=_both(off_device, device.device).astype(np.int32),
        stream=_both(off_device, device.stream),
        attributes=_both(text_of, no_text),
        allocations=_allocations(trace),
        threads=_threads(trace),
        skipped=_skipped(trace),
        notes=() if calls is None else _notes(trace),
    )


def _both(host: NDArray[_Number], device: NDArray[_Number]) -> NDArray[_Number]:
    return np.concatenate([host, device]) if len(device) else host


def _describe(trace: Trace) -> tuple[Int8, Int32, list[str]]:
    """Return category and attributes, by type and name; each pair of them is looked at once."""
    host, device = trace.host, trace.device
    key = _both(host.type, device.type) * (len(trace.names) + 1) + _both(host.name, device.name)
    distinct, place = _unique(key)
    texts: dict[str, int] = {}
    categories, codes = [], []
    for one in distinct.tolist():
        number, name = divmod(one, len(trace.names) + 1)
        kind = EVENT_TYPES[number] if 0 <= number < len(EVENT_TYPES) else str(number)
        category, attributes = _meaning(kind, trace.names[name])
        categories.append(CATEGORIES.index(category))
        codes.append(texts.setdefault(json.dumps(attributes), len(texts)))
    text_of = np.array(codes, np.int32)[place][: len(host.name)]
    for row in _training_runs(trace).tolist():
        told = {"type": "UserDefined", "ends": "step"}
        text_of[row] = texts.setdefault(json.dumps(told), len(texts))
    for phase, rows in _phases_of_programs(trace).items():
        told = {"type": "Operator", "phase": phase}
        text_of[rows] = texts.setdefault(json.dumps(told), len(texts))
    known = [json.loads(text) for text in texts]
    for row in np.flatnonzero(host.inputs >= 0).tolist():
        told = {**known[text_of[row]], **_flat(trace.inputs[host.inputs[row]])}
        text_of[row] = texts.setdefault(json.dumps(told), len(texts))
    return np.array(categories, np.int8)[place], text_of, list(texts)


def _with_shapes(
    trace: Trace, calls: Calls, text_of: Int32, texts: list[str]
) -> tuple[Int32, list[str]]:
    """Return the attributes with what operators were called with; each pair is put together once.

    `text_of` is written to.
    """
    rows, place = rows_of_calls(calls, trace.host, trace.names)
    key = text_of[rows].astype(np.int64) * (len(calls.texts) + 1) + place
    distinct, where = np.unique(key, return_inverse=True)
    codes = {text: code for code, text in enumerate(texts)}
    both = [divmod(one, len(calls.texts) + 1) for one in distinct.tolist()]
    merged = (json.dumps({**json.loads(texts[base]), **calls.texts[call]}) for base, call in both)
    found = np.array([codes.setdefault(text, len(codes)) for text in merged], np.int32)
    text_of[rows] = found[where.reshape(-1)]
    return text_of, list(codes)


def _unique(key: Int64) -> tuple[Int64, Int64]:
    """Return what np.unique() does, without sorting where numbers from 0 on are not too many."""
    if not len(key) or key.min() < 0 or key.max() >= _MANY:
        distinct, place = np.unique(key, return_inverse=True)
        return distinct, place.reshape(-1)
    present = np.zeros(int(key.max()) + 1, bool)
    present[key] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[key]


def _named(trace: Trace, holds: Callable[[str], Any]) -> Bool:
    """Return which rows have a name for which it holds."""
    return np.array([bool(holds(name)) for name in trace.names] or [False])[trace.host.name]


def _training_runs(trace: Trace) -> Int64:
    """Return the rows of the runs of static programs in which parameters were updated."""
    runs = np.flatnonzero(_named(trace, lambda name: name == _RUN))
    return runs[_first_inside(trace, runs, _named(trace, _OPTIMIZER.fullmatch)) < _NEVER]


def _first_inside(trace: Trace, runs: Int64, chosen: Bool) -> Int64:
    """Return when the first of the chosen events began in each run, on any thread."""
    begins = np.append(np.sort(trace.host.start_ns[chosen]), _NEVER)
    first = begins[np.searchsorted(begins, trace.host.start_ns[runs])]
    return np.where(first <= trace.host.end_ns[runs], first, _NEVER)


def _phases_of_programs(trace: Trace) -> dict[str, Int64]:
    """Return the rows of the operators of programs whose phase their names do not tell.

    In a program with its own backward it is forward until that begins; what was compiled from
    dygraph is run for the forward, and again inside a backward.
    """
    host = trace.host
    runs = np.flatnonzero(_named(trace, lambda name: name in (_RUN, _COMPILED_RUN)))
    runs = runs[np.argsort(host.start_ns[runs], kind="stable")]
    plain = _named(trace, lambda name: name.startswith(_PROGRAM) and not _tells(name))
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


def _tells(name: str) -> bool:
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
    found = {"shapes": shapes, "dtypes": dtypes, "inputs": list(inputs["shapes"])}
    return {name: value for name, value in found.items() if value}


def _meaning(kind: str, name: str) -> tuple[str, dict[str, Any]]:
    """Return the category, and the attributes: Paddle's type, and the phase if it tells one."""
    attributes: dict[str, Any] = {"type": kind}
    step = _STEP.fullmatch(name) if kind == "ProfileStep" else None
    if step:
        attributes["step_num"] = int(step[1])
    if kind in _PHASE:
        attributes["phase"] = _PHASE[kind]
    elif kind == "Operator" and _OPTIMIZER.fullmatch(name):
        attributes["phase"] = "optimizer"
    if kind in ("Operator", "OperatorInner", "UserDefined") and _BACKWARD.fullmatch(name):
        return "backward", attributes
    return _CATEGORY.get(kind, _OTHER), attributes


def _allocations(trace: Trace) -> Allocations:
    """Return what operators allocated and freed; what the allocator itself reserves is beside.

    Of the host's memory Paddle reserves none, and the figure that it writes means nothing.
    """
    memory = trace.memory
    chosen = np.flatnonzero(memory.type <= MEMORY_TYPES.index("Free"))
    devices = np.array([_device_of(name) for name in trace.names] or [-1], np.int32)
    device = devices[memory.place[chosen]]
    return Allocations(
        start_ns=memory.time_ns[chosen],
        bytes=memory.bytes[chosen],
        address=memory.address[chosen],
        device=device,
        pid=memory.pid[chosen],
        tid=memory.tid[chosen],
        allocated_bytes=memory.current_allocated[chosen],
        reserved_bytes=np.where(device < 0, -1, memory.current_reserved[chosen]),
    )


def held_before(trace: Trace) -> dict[int, dict[int, int]]:
    """Return the bytes that each process had in use before its first event: pid, device, bytes."""
    told = _allocations(trace)
    order = np.argsort(told.start_ns, kind="stable")
    whose = np.stack([told.pid[order], told.device[order]])
    first = order[np.unique(whose, axis=1, return_index=True)[1]]
    found: dict[int, dict[int, int]] = {}
    for row in first.tolist():
        level = int(told.allocated_bytes[row] - told.bytes[row])
        found.setdefault(int(told.pid[row]), {})[int(told.device[row])] = max(0, level)
    return found


def _device_of(place: str) -> int:
    """Return the number in `Place(gpu:0)`, -1 for the host."""
    match = _PLACE.fullmatch(place)
    if match is None or match[1] in _PINNED:
        return -1
    return int(match[2] or 0)


def _threads(trace: Trace) -> dict[tuple[int, int], str]:
    pids = trace.host.pid
    pid = int(pids[0]) if len(pids) else -1
    return {(pid, int(key)): name for key, name in trace.extra_info.items() if key.isdigit()}


def _notes(trace: Trace) -> tuple[str, ...]:
    """Return what the shapes lack."""
    found = ["Paddle does not tell the dtypes of what operators are given"]
    if any(name.startswith(_PROGRAM) for name in trace.names):
        found.append("nor the shapes of those in a static program")
    return ("; ".join(found),)


def _skipped(trace: Trace) -> dict[str, int]:
    kinds = [f"memory type {kind}" for kind in trace.memory.type[trace.memory.type > 1].tolist()]
    return dict(Counter(kinds))
