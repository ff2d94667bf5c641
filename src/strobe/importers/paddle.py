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

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from strobe.errors import FormatError
from strobe.importers._paddle_exchanges import NAME as EXCHANGE
from strobe.importers._paddle_exchanges import describe, find_exchanges
from strobe.importers._paddle_shapes import read_calls
from strobe.importers.paddle_events import to_trace
from strobe.importers.paddle_trace import (
    EVENT_TYPES,
    DeviceEvents,
    HostEvents,
    MemoryEvents,
    PaddleTrace,
)
from strobe.importers.wire import Found, Kind, Ranges, WireFile
from strobe.model.arrays import Int32, Int64
from strobe.model.interning import Interner
from strobe.model.trace import Trace

NAME = "paddle"
_HEAD = re.compile(rb"\n[\x01-\x14]\d+(\.\d+){0,3}\x10")
"""The version, and then the index."""
_MOST_TYPE = 1 << 20


def sniff(_path: Path, head: bytes) -> bool:
    """Say whether a file that begins so is one of Paddle's."""
    return _HEAD.match(head) is not None


def read(path: Path) -> Trace:
    """Return a file.

    Raises FormatError where it is damaged or no such file, OSError where it cannot be read.
    """
    return read_parsed(path, read_trace(path))


def read_parsed(path: Path, parsed: PaddleTrace) -> Trace:
    """Return what read() does, of a file that read_trace() has parsed already."""
    trace, exchanges = _with_exchanges(path, parsed)
    return to_trace(trace, read_calls(path), exchanges)


def read_trace(path: Path) -> PaddleTrace:
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
    return PaddleTrace(
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
        self._places = Interner[bytes]()

    def number(self, ranges: Ranges) -> Int32:
        data, places = self._file.data, self._places
        code, first = self._file.number(ranges)
        pairs = zip(ranges.begin[first].tolist(), ranges.end[first].tolist(), strict=True)
        found = [places[data[begin:end] if begin >= 0 else b""] for begin, end in pairs]
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


def _with_exchanges(path: Path, trace: PaddleTrace) -> tuple[PaddleTrace, list[dict[str, Any]]]:
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
