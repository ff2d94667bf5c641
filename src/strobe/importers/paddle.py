# SPDX-License-Identifier: Apache-2.0
"""The protobuf of Paddle's profiler (2.3 to 3.3): a tree of events for each thread.

    NodeTreesProto
      1 version  2 span_index  3 thread_trees  4 extra_info  5 device_property
        ThreadNodeTreeProto
          1 thread_id  2 host_nodes, breadth first, the first one a root that is no event
            HostTraceEventNodeProto
              1 id  2 parentid  3 the event  4 runtime_nodes  5 mem_nodes  6 op_supplement_nodes

The file says of some types that they do not exist: Paddle writes numbers that its own reader
refuses. Here a type is a number.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.errors import FormatError
from strobe.importers._paddle_exchanges import NAME as EXCHANGE
from strobe.importers._paddle_exchanges import describe, find_exchanges
from strobe.importers._paddle_shapes import Calls, read_calls, rows_of_calls
from strobe.importers.events import Allocations, Events, Int8, Int32, Int64
from strobe.importers.wire import Found, Kind, Ranges, WireFile
from strobe.model.tables import CATEGORIES

EVENT_TYPES = (
    *("Operator", "Dataloader", "ProfileStep", "CudaRuntime", "Kernel", "Memcpy", "Memset"),
    *("UserDefined", "OperatorInner", "Forward", "Backward", "Optimization", "Communication"),
    *("PythonOp", "PythonUserDefined", "DygraphKernelLaunch", "StaticKernelLaunch"),
)
"""TracerEventType of Paddle 3.3.1; a later one may have more."""
_Number = TypeVar("_Number", np.int32, np.int64)
_MOST_TYPE = 1 << 20
_MOST_DEPTH = 100
_MANY = 1 << 22
_NEVER = np.iinfo(np.int64).max
MEMORY_TYPES = ("Allocate", "Free", "ReservedAllocate", "ReservedFree")

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


@dataclass(frozen=True)
class HostEvents:
    """Events of threads; one row each, in the order of the file. Numbers are as Paddle wrote them.

    A node that is only the root of its thread's tree is not among them.
    """

    name: Int32
    """Place in `names`, as `callstack`."""
    type: Int64
    start_ns: Int64
    end_ns: Int64
    pid: Int64
    tid: Int64
    parent: Int64
    """Row, -1 for none."""
    op_id: Int64
    callstack: Int32
    inputs: Int32
    """Place in `inputs` of the trace, -1 for none."""
    correlation: Int64
    """Of a call of the runtime, else -1."""


@dataclass(frozen=True)
class DeviceEvents:
    """What ran on devices; `details` are the other numbers that Paddle has of it, by name."""

    name: Int32
    type: Int64
    start_ns: Int64
    end_ns: Int64
    device: Int64
    context: Int64
    stream: Int64
    correlation: Int64
    host: Int64
    """Row of the call of the runtime that launched it."""
    details: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class MemoryEvents:
    """Allocations; `place` is a place in `names`."""

    time_ns: Int64
    type: Int64
    address: Int64
    pid: Int64
    tid: Int64
    bytes: Int64
    place: Int32
    current_allocated: Int64
    current_reserved: Int64
    peak_allocated: Int64
    peak_reserved: Int64
    host: Int64
    """Row of the event that was open, -1 for none."""


@dataclass(frozen=True)
class Trace:
    """All that a file holds."""

    version: str
    span_index: int
    names: list[str]
    inputs: list[dict[str, Any]]
    """Shapes and dtypes of an operator's inputs, by their names."""
    host: HostEvents
    device: DeviceEvents
    memory: MemoryEvents
    extra_info: dict[str, str]
    device_properties: list[dict[str, Any]]

    def window(self) -> tuple[int, int]:
        """Return when the first event began and the last one ended; (0, 0) if there are none."""
        times = (
            *(self.host.start_ns, self.host.end_ns, self.device.start_ns, self.device.end_ns),
            self.memory.time_ns,
        )
        every = np.concatenate(times)
        return (int(every.min()), int(every.max())) if len(every) else (0, 0)


def read(path: Path) -> Events:
    """Return the events of a file.

    Raises FormatError where it is damaged or no such file, OSError where it cannot be read.
    """
    trace, exchanges = _with_exchanges(path, read_trace(path))
    return to_events(trace, read_calls(path), exchanges)


def read_trace(path: Path) -> Trace:
    """Return all that is in a file, as read() does."""
    file = WireFile(path)
    version, index, trees = file.columns(file.whole, [(1, "bytes"), (2, "varint"), (3, "count")])
    text = file.texts(version)[0]
    if not re.fullmatch(r"\d+(\.\d+){0,3}", text):
        reason = "no profile of Paddle's (it begins with its version)"
        raise FormatError(path, "byte 0", reason)
    if not trees[0]:
        raise FormatError(path, "byte 0", "no profile of Paddle's (there are no threads in it)")
    names = _Names(file)
    nodes = _find_nodes(file)
    host, inputs = _host(file, nodes, names)
    runtime = _runtime(file, nodes, names)
    return Trace(
        version=text,
        span_index=int(index[0]),
        device=_device(file, nodes.calls.ranges, names, first=len(host.name)),
        memory=_memory(file, nodes, names),
        host=_join(host, runtime),
        names=names.texts,
        inputs=inputs,
        extra_info=_pairs(file, file.find(file.whole, 4).ranges),
        device_properties=_properties(file),
    )


class _Names:
    """The texts of a file, each once."""

    def __init__(self, file: WireFile) -> None:
        self._file = file
        self._places: dict[bytes, int] = {}

    def number(self, ranges: Ranges) -> Int32:
        data, places = self._file.data, self._places
        code, first = self._file.number(ranges)
        pairs = zip(ranges.begin[first].tolist(), ranges.end[first].tolist(), strict=True)
        found = [
            places.setdefault(data[begin:end] if begin >= 0 else b"", len(places))
            for begin, end in pairs
        ]
        numbers: Int32 = np.array(found, np.int32)[code]
        return numbers

    @property
    def texts(self) -> list[str]:
        return [text.decode(errors="replace") for text in self._places]


@dataclass(frozen=True)
class _Nodes:
    """The nodes of all trees."""

    tree: Int64
    number: Int64
    above: Int64
    """Number of the node around it, negative for a root."""
    event: Ranges
    row: Int64
    """Of its event among the events, -1 for a root."""
    calls: Found
    memory: Found
    supplements: Found


def _find_nodes(file: WireFile) -> _Nodes:
    found = file.find(file.find(file.whole, 3).ranges, 2)
    number, above, event, *counts = file.columns(
        found.ranges,
        [
            *((1, "varint"), (2, "varint"), (3, "bytes")),
            *((4, "count"), (5, "count"), (6, "count")),
        ],
    )
    is_event = (above >= 0) & (event.begin >= 0)
    row = np.where(is_event, np.cumsum(is_event) - 1, -1)
    inside = (_inside(file, found.ranges, *pair) for pair in zip(counts, (4, 5, 6), strict=True))
    return _Nodes(found.parent, number, above, event, row, *inside)


def _inside(file: WireFile, nodes: Ranges, count: Int64, field: int) -> Found:
    """Return what is in the nodes that have some of it: most have nothing but their event."""
    rows = np.flatnonzero(count)
    found = file.find(nodes[rows], field)
    return Found(rows[found.parent], found.ranges)


def _inner(file: WireFile, within: Ranges) -> Ranges:
    """Return the first field of each message: the event in a node."""
    ranges: Ranges = file.columns(within, [(1, "bytes")])[0]
    return ranges.or_empty()


def _host(file: WireFile, nodes: _Nodes, names: _Names) -> tuple[HostEvents, list[dict[str, Any]]]:
    """Return the events, and the inputs of operators."""
    chosen = np.flatnonzero(nodes.row >= 0)
    text, kind, start_ns, end_ns, pid, tid = file.columns(
        nodes.event[chosen], [(1, "bytes"), *((number, "varint") for number in range(2, 7))]
    )
    _check_times(file, start_ns, end_ns)
    parent = _parents(nodes.tree, nodes.number, nodes.above)[chosen]
    name = names.number(text)
    op_id, callstack, place, inputs = _supplements(file, nodes, names, len(chosen))
    host = HostEvents(
        name=name,
        type=np.clip(kind, -1, _MOST_TYPE),
        start_ns=start_ns,
        end_ns=end_ns,
        pid=pid,
        tid=tid,
        parent=np.append(nodes.row, -1)[parent],
        op_id=op_id,
        callstack=callstack,
        inputs=place,
        correlation=np.full(len(chosen), -1),
    )
    return host, inputs


def _check_times(file: WireFile, start_ns: Int64, end_ns: Int64) -> None:
    wrong = np.flatnonzero((start_ns < 0) | (end_ns < start_ns))
    if len(wrong):
        where = f"event {wrong[0]}"
        raise FormatError(file.path, where, "it ends before it begins, or is of no known time")


def _parents(tree: Int64, number: Int64, above: Int64) -> Int64:
    """Return the place of the node above each in the same tree, which comes first; -1 for none."""
    count = len(number)
    first = np.searchsorted(tree, np.arange(tree.max(initial=0) + 1))[tree]
    if (number == np.arange(count) - first).all():  # as Paddle does it
        return np.where((above >= 0) & (above < number), first + above, -1)
    distinct, code = count, np.concatenate([number, np.minimum(above, count)])
    if not ((number >= 0) & (number < count)).all():  # Paddle numbers them from 0
        values, code = np.unique(np.concatenate([number, above]), return_inverse=True)
        distinct = len(values)
    key, wanted = tree * (distinct + 1) + code[:count], tree * (distinct + 1) + code[count:]
    order = np.argsort(key, kind="stable")
    place = np.minimum(np.searchsorted(key[order], wanted), max(0, count - 1))
    found = order[place]
    return np.where((key[found] == wanted) & (found < np.arange(count)), found, -1)


def _supplements(
    file: WireFile, nodes: _Nodes, names: _Names, rows: int
) -> tuple[Int64, Int32, Int32, list[dict[str, Any]]]:
    """Return what Paddle recorded of operators beside their times, for each event."""
    op_id = np.zeros(rows, np.int64)
    callstack = np.full(rows, -1, np.int32)
    place = np.full(rows, -1, np.int32)
    row = nodes.row[nodes.supplements.parent]
    found = nodes.supplements.ranges[row >= 0]
    row = row[row >= 0]
    if not len(row):
        return op_id, callstack, place, []
    shapes, dtypes, stack, number = file.columns(
        _inner(file, found), [(5, "bytes"), (6, "bytes"), (7, "bytes"), (8, "varint")]
    )
    op_id[row] = number
    callstack[row] = names.number(stack)
    inputs = [
        {"shapes": one, "dtypes": other}
        for one, other in zip(
            _maps(file, shapes, _shape_lists), _maps(file, dtypes, _text_lists), strict=True
        )
    ]
    place[row] = np.arange(len(inputs))
    return op_id, callstack, place, inputs


def _maps(file: WireFile, within: Ranges, read_values: Any) -> list[dict[str, Any]]:
    """Return the maps {name: list}: names are field 1, lists field 2, in the same order."""
    within = within.or_empty()
    keys, values = file.find(within, 1), file.find(within, 2)
    texts, lists = file.texts(keys.ranges), read_values(file, values.ranges)
    found: list[dict[str, Any]] = [{} for _ in range(len(within))]
    key_rows, value_rows = _grouped(keys.parent, texts), _grouped(values.parent, lists)
    for row, mine in key_rows.items():
        found[row] = dict(zip(mine, value_rows.get(row, []), strict=False))
    return found


def _grouped(parent: Int64, values: Sequence[Any]) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row, value in zip(parent.tolist(), values, strict=True):
        found.setdefault(row, []).append(value)
    return found


def _shape_lists(file: WireFile, within: Ranges) -> list[list[list[int]]]:
    shapes = file.find(within, 1)
    parent, sizes = file.numbers(shapes.ranges, 1)
    by_shape = _grouped(parent, sizes.tolist())
    each = [by_shape.get(row, []) for row in range(len(shapes.ranges))]
    by_list = _grouped(shapes.parent, each)
    return [by_list.get(row, []) for row in range(len(within))]


def _text_lists(file: WireFile, within: Ranges) -> list[list[str]]:
    found = file.find(within, 1)
    by_list = _grouped(found.parent, file.texts(found.ranges))
    return [by_list.get(row, []) for row in range(len(within))]


def _runtime(file: WireFile, nodes: _Nodes, names: _Names) -> HostEvents:
    """Return the calls of a device's runtime."""
    text, start_ns, end_ns, pid, tid, correlation = file.columns(
        _inner(file, nodes.calls.ranges),
        [(1, "bytes"), *((number, "varint") for number in range(2, 7))],
    )
    _check_times(file, start_ns, end_ns)
    count = len(start_ns)
    return HostEvents(
        name=names.number(text),
        type=np.full(count, EVENT_TYPES.index("CudaRuntime")),
        start_ns=start_ns,
        end_ns=end_ns,
        pid=pid,
        tid=tid,
        parent=nodes.row[nodes.calls.parent],
        op_id=np.zeros(count, np.int64),
        callstack=np.full(count, -1, np.int32),
        inputs=np.full(count, -1, np.int32),
        correlation=correlation,
    )


def _join(host: HostEvents, calls: HostEvents) -> HostEvents:
    if not len(calls.name):
        return host
    mine, others = vars(host), vars(calls)
    return HostEvents(**{name: np.concatenate([mine[name], others[name]]) for name in mine})


_KERNEL = (
    *("block_x", "block_y", "block_z", "grid_x", "grid_y", "grid_z", "dynamic_shared_memory"),
    *("static_shared_memory", "registers_per_thread", "local_memory_per_thread"),
    *("local_memory_total", "queued", "submitted", "completed"),
)
_KERNEL_FLOATS = ("blocks_per_sm", "warps_per_sm", "occupancy")


def _device(file: WireFile, calls: Ranges, names: _Names, *, first: int) -> DeviceEvents:
    """Return what the calls of a runtime, whose rows begin with `first`, have launched."""
    found = file.find(calls, 2)
    text, *numbers, kernel, copy, fill = file.columns(
        _inner(file, found.ranges),
        [
            (1, "bytes"),
            *((number, "varint") for number in range(2, 9)),
            *((number, "bytes") for number in (9, 10, 11)),
        ],
    )
    kind, start_ns, end_ns, device, context, stream, correlation = numbers
    _check_times(file, start_ns, end_ns)
    details = dict(
        zip(
            (*_KERNEL, *_KERNEL_FLOATS),
            file.columns(
                kernel.or_empty(),
                [
                    *((place + 1, "varint") for place in range(len(_KERNEL))),
                    *((place + 15, "float") for place in range(len(_KERNEL_FLOATS))),
                ],
            ),
            strict=True,
        )
    )
    copied, *kinds = file.columns(copy.or_empty(), [(1, "varint"), *_texts_of(2, 3, 4)])
    filled, memory_kind, value = file.columns(
        fill.or_empty(), [(1, "varint"), (2, "bytes"), (3, "varint")]
    )
    details |= {"num_bytes": copied + filled, "value": value}
    kind_names = ("copy_kind", "src_kind", "dst_kind", "memory_kind")
    details |= {
        name: names.number(each)
        for name, each in zip(kind_names, (*kinds, memory_kind), strict=True)
    }
    return DeviceEvents(
        name=names.number(text),
        type=np.clip(kind, -1, _MOST_TYPE),
        start_ns=start_ns,
        end_ns=end_ns,
        device=device,
        context=context,
        stream=stream,
        correlation=correlation,
        host=first + found.parent,
        details=details,
    )


def _texts_of(*numbers: int) -> list[tuple[int, Kind]]:
    return [(number, "bytes") for number in numbers]


def _memory(file: WireFile, nodes: _Nodes, names: _Names) -> MemoryEvents:
    *numbers, place, allocated, reserved, peak_allocated, peak_reserved = file.columns(
        _inner(file, nodes.memory.ranges),
        [
            *((number, "varint") for number in range(1, 7)),
            (7, "bytes"),
            *((number, "varint") for number in range(8, 12)),
        ],
    )
    time_ns, kind, address, pid, tid, size = numbers
    return MemoryEvents(
        time_ns=time_ns,
        type=kind,
        address=address,
        pid=pid,
        tid=tid,
        bytes=size,
        place=names.number(place),
        current_allocated=allocated,
        current_reserved=reserved,
        peak_allocated=peak_allocated,
        peak_reserved=peak_reserved,
        host=nodes.row[nodes.memory.parent],
    )


def _pairs(file: WireFile, within: Ranges) -> dict[str, str]:
    key, value = file.columns(within, [(1, "bytes"), (2, "bytes")])
    return dict(zip(file.texts(key), file.texts(value), strict=True))


_PROPERTIES = (
    *("total_global_memory", "compute_major", "compute_minor", "max_threads_per_block"),
    *("max_threads_per_multiprocessor", "regs_per_block", "regs_per_multiprocessor", "warp_size"),
    *("shared_memory_per_block", "shared_memory_per_multiprocessor", "sm_count"),
    "shared_memory_per_block_optin",
)


def _properties(file: WireFile) -> list[dict[str, Any]]:
    found = file.find(file.whole, 5).ranges
    number, text, *others = file.columns(
        found,
        [(1, "varint"), (2, "bytes"), *((place + 3, "varint") for place in range(12))],
    )
    names = file.texts(text)
    return [
        {
            "id": int(number[row]),
            "name": names[row],
            **{key: int(column[row]) for key, column in zip(_PROPERTIES, others, strict=True)},
        }
        for row in range(len(found))
    ]


def _with_exchanges(path: Path, trace: Trace) -> tuple[Trace, list[dict[str, Any]]]:
    """Return a trace with what DataParallel exchanged as its last events, and their attributes."""
    host = trace.host
    rows, begin_ns = find_exchanges(host, trace.names)
    if not len(rows):
        return trace, []
    none = np.full(len(rows), -1)
    exchanged = HostEvents(
        name=np.full(len(rows), len(trace.names), np.int32),
        type=np.full(len(rows), EVENT_TYPES.index("Communication")),
        start_ns=begin_ns,
        end_ns=host.end_ns[rows],
        pid=host.pid[rows],
        tid=host.tid[rows],
        parent=rows,
        op_id=np.zeros(len(rows), np.int64),
        callstack=none.astype(np.int32),
        inputs=none.astype(np.int32),
        correlation=none,
    )
    told = describe(path, host, trace.names, begin_ns)
    joined = replace(trace, host=_join(host, exchanged), names=[*trace.names, EXCHANGE])
    return joined, told


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


def _named(trace: Trace, holds: Callable[[str], Any]) -> NDArray[np.bool_]:
    """Return which rows have a name for which it holds."""
    return np.array([bool(holds(name)) for name in trace.names] or [False])[trace.host.name]


def _training_runs(trace: Trace) -> Int64:
    """Return the rows of the runs of static programs in which parameters were updated."""
    runs = np.flatnonzero(_named(trace, lambda name: name == _RUN))
    return runs[_first_inside(trace, runs, _named(trace, _OPTIMIZER.fullmatch)) < _NEVER]


def _first_inside(trace: Trace, runs: Int64, chosen: NDArray[np.bool_]) -> Int64:
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


def _are_inside(host: HostEvents, rows: Int64, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
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
