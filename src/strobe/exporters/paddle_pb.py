# SPDX-License-Identifier: Apache-2.0
"""The protobuf of Paddle's profiler (strobe.importers.paddle draws it): a tree for each thread.

Paddle's own reader refuses types above 14, which its writer has, so that these are written as
OperatorInner, which they are parts of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from strobe.exporters import _messages as wire
from strobe.exporters._messages import Rows
from strobe.exporters._paddle import VERSION, Content, read_content, read_inputs
from strobe.exporters._rows import number_texts
from strobe.exporters.files import new_file
from strobe.model.arrays import Bool, Int64
from strobe.model.attributes import SHAPES
from strobe.model.paddle import ON_DEVICE
from strobe.model.paddle import TracerEventType as Type
from strobe.store.tables import Tables

NAME = "paddle_pb"
SUFFIX = ".paddle_trace.pb"
DOC = "The protobuf of Paddle's profiler: for paddle.profiler.load_profiler_result"

Progress = Callable[[str, float], None]

_ROOT = "root node"
_LAUNCH = "launch"
_LAST_KNOWN = int(Type.PythonUserDefined)
_NODES_AT_ONCE = 1 << 15
_NEVER_NS = -1  # as an unsigned number the largest there is


def write(tables: Tables, path: Path, progress: Progress) -> None:
    """Write one file that Paddle can load."""
    _write(read_content(tables), path, all_types=False)
    progress("exporting", 1.0)


def write_all_types(tables: Tables, path: Path) -> None:
    """Write one file with all types as they are, for readers that know them."""
    _write(read_content(tables), path, all_types=True)


def _write(content: Content, path: Path, *, all_types: bool) -> None:
    with new_file(path) as file:
        file.write(_field(1, VERSION.encode()))
        file.write(wire.varint(2, np.array([content.span_index])).tobytes())
        file.writelines(_Trees(content, all_types=all_types).encode())
        for key, value in content.extra_info.items():
            file.write(_field(4, _field(1, key.encode()) + _field(2, value.encode())))


def _field(number: int, data: bytes) -> bytes:
    return wire.head(number, len(data)) + data


class _Trees:
    """The events as nodes: host events and one root for each lane, in the order of the file."""

    def __init__(self, content: Content, *, all_types: bool) -> None:
        self._content = content
        events = content.events
        self._type = events.column("type")
        if not all_types:
            above = self._type > _LAST_KNOWN
            self._type = np.where(above, int(Type.OperatorInner), self._type)
        self._parent = events.column("parent")
        self._start_ns = events.column("start_ns") + content.wall_ns
        self._end_ns = events.column("end_ns") + content.wall_ns
        self._names = number_texts(events.rows["name"].cast(pl.String))
        self._name_fields = wire.texts(1, [_ROOT, *self._names.texts])
        is_host = ~np.isin(self._type, (*ON_DEVICE, Type.CudaRuntime))
        self._host = np.flatnonzero(is_host)
        used = [*content.lane[~np.isin(self._type, ON_DEVICE)], *content.memory["lane"]]
        self._lanes = np.unique(np.array(used or [0], np.int64))
        self._tids = np.array([lane.tid for lane in content.lanes.lanes], np.int64)
        self._order()

    def _order(self) -> None:
        """Number the nodes: by lane, breadth first, each lane's root before all others."""
        depth = self._depths()
        lane = self._content.lane[self._host]
        order = np.lexsort((self._start_ns[self._host], depth[self._host], lane))
        self._host = self._host[order]
        tree = np.searchsorted(self._lanes, lane[order])
        # Node 0 of each tree is its root, so the k-th host event is node k + tree + 1 of all.
        self._node = np.full(len(self._type), -1)
        self._node[self._host] = np.arange(len(self._host)) + tree + 1
        counts = np.bincount(tree, minlength=len(self._lanes)) + 1
        self._first = np.cumsum(counts) - counts
        self._count = int(counts.sum())
        self._tree = np.repeat(np.arange(len(self._lanes)), counts)

    def _depths(self) -> Int64:
        depth = np.zeros(len(self._parent), np.int64)
        above = self._parent.copy()
        while (above >= 0).any():
            depth += above >= 0
            above = np.where(above >= 0, self._parent[above], -1)
        return depth

    def _node_of(self, row: Int64, lane: Int64) -> Int64:
        """Return the node that a row is, or that is around it; the lane's root for -1."""
        row = row.copy()
        for _ in range(len(self._parent)):
            other = (row >= 0) & (self._node[row] < 0)
            if not other.any():
                break
            row[other] = self._parent[row[other]]
        root = self._first[np.minimum(np.searchsorted(self._lanes, lane), len(self._lanes) - 1)]
        return np.where(row >= 0, self._node[row], root)

    def encode(self) -> Iterator[bytes]:
        """Return the trees one after the other."""
        parent, columns = self._parents(), self._columns()
        runtime, memory, inputs = self._runtime(), self._memory(), self._inputs()
        number = np.arange(self._count) - self._first[self._tree]
        runtime_at, memory_at, inputs_at = map(wire.begins, (runtime, memory, inputs))
        bounds = np.append(self._first, self._count).tolist()
        for place, lane in enumerate(self._lanes.tolist()):
            tree = [wire.varint(1, self._tids[[lane]]).tobytes()]
            # So many at a time that they stay in the cache.
            for first in range(bounds[place], bounds[place + 1], _NODES_AT_ONCE):
                last = min(first + _NODES_AT_ONCE, bounds[place + 1])
                nodes = wire.row_by_row(
                    [
                        wire.varint(1, number[first:last]),
                        wire.varint(2, parent[first:last]),
                        wire.message(3, self._host_events(columns, slice(first, last))),
                        wire.part(runtime, runtime_at, first, last),
                        wire.part(memory, memory_at, first, last),
                        wire.part(inputs, inputs_at, first, last),
                    ]
                )
                tree.append(wire.message(2, nodes).tobytes())
            yield _field(3, b"".join(tree))

    def _parents(self) -> Int64:
        parent = np.full(self._count, -1)
        lane = self._content.lane[self._host]
        node = self._node[self._host]
        around = self._node_of(self._parent[self._host], lane)
        # What is around in another lane's tree cannot be said here: the root is.
        mine = self._tree[around] == self._tree[node]
        around = np.where(mine, around, self._first[self._tree[node]])
        parent[node] = around - self._first[self._tree[node]]
        return parent

    def _columns(self) -> dict[str, Int64]:
        """Return the columns of the host events, node by node; a root has those of Paddle's."""
        node = self._node[self._host]
        values = {
            "code": np.zeros(self._count, np.int64),
            "type": np.full(self._count, int(Type.UserDefined)),
            "start": np.zeros(self._count, np.int64),
            "end": np.full(self._count, _NEVER_NS),
            "pid": np.zeros(self._count, np.int64),
            "tid": np.zeros(self._count, np.int64),
        }
        values["code"][node] = self._names.codes[self._host] + 1
        values["type"][node] = self._type[self._host]
        values["start"][node] = self._start_ns[self._host]
        values["end"][node] = self._end_ns[self._host]
        values["pid"][node] = self._content.pid[self._host]
        values["tid"][node] = self._tids[self._content.lane[self._host]]
        return values

    def _host_events(self, columns: dict[str, Int64], nodes: slice) -> Rows:
        code, *others = (column[nodes] for column in columns.values())
        fields = (wire.varint(2 + place, values) for place, values in enumerate(others))
        return wire.row_by_row([wire.chosen(self._name_fields, code), *fields])

    def _runtime(self) -> Rows:
        """Return the calls of a device's runtime, each with what it launched, node by node.

        What something else launched has a call without length of its own, made for it.
        """
        calls = np.flatnonzero(self._type == Type.CudaRuntime)
        device = np.flatnonzero(np.isin(self._type, ON_DEVICE))
        if not len(calls) and not len(device):
            return wire.nothing(self._count)
        launcher = self._parent[device]
        known = (launcher >= 0) & (self._type[launcher] == Type.CudaRuntime)
        made = device[~known]
        row = np.concatenate([calls, made])
        correlation = self._known("correlation", row)
        start_ns = np.concatenate([self._start_ns[calls], self._start_ns[self._parent[made]]])
        start_ns = np.where(self._parent[row] < 0, self._start_ns[row], start_ns)
        end_ns = np.concatenate([self._end_ns[calls], start_ns[len(calls) :]])
        call_of_row = np.full(len(self._type) + 1, -1)
        call_of_row[calls] = np.arange(len(calls))
        owner = np.where(known, call_of_row[launcher], 0)
        owner[~known] = len(calls) + np.arange(len(made))
        lane = self._content.lane[np.where(self._parent[row] >= 0, self._parent[row], row)]
        is_made = np.arange(len(row)) >= len(calls)
        lane = np.where(is_made & (self._parent[row] < 0), self._lanes[0], lane)
        events = wire.row_by_row(
            [
                wire.chosen(
                    wire.texts(1, [_LAUNCH, *self._names.texts]),
                    np.where(is_made, 0, self._names.codes[row].astype(np.int64) + 1),
                ),
                wire.varint(2, start_ns),
                wire.varint(3, end_ns),
                wire.varint(4, self._content.pid[row]),
                wire.varint(5, self._tids[lane]),
                wire.varint(6, correlation),
                wire.varint(7, np.zeros(len(row), np.int64)),
            ]
        )
        launched = self._launched(device, owner, len(row))
        nodes = wire.row_by_row([wire.message(1, events), launched])
        node = self._node_of(self._parent[row], lane)
        return _of_nodes(wire.message(4, nodes), node, self._count)

    def _known(self, column: str, rows: Int64) -> Int64:
        """Return a column of `spans` for some events, 0 where it is unknown."""
        every = self._content.read_details(0, len(self._type), column).to_series()
        numbers: Int64 = every.gather(rows).fill_null(0).to_numpy()
        return np.maximum(numbers, 0)

    def _launched(self, device: Int64, owner: Int64, owners: int) -> Rows:
        order = np.argsort(owner, kind="stable")
        device, owner = device[order], owner[order]
        zero = np.zeros(len(device), np.int64)
        detail = [wire.varint(number, zero) for number in range(1, 15)]
        detail += [wire.float32(number, zero.astype(np.float64)) for number in range(15, 18)]
        copy = [
            wire.varint(1, zero),
            *(wire.chosen(wire.texts(number, [""]), zero) for number in (2, 3, 4)),
        ]
        fill = [wire.varint(1, zero), wire.chosen(wire.texts(2, [""]), zero), wire.varint(3, zero)]
        details = [
            wire.message(9, wire.row_by_row(detail)),
            wire.message(10, wire.row_by_row(copy)),
            wire.message(11, wire.row_by_row(fill)),
        ]
        kind = self._type[device]
        events = wire.row_by_row(
            [
                wire.chosen(
                    wire.texts(1, self._names.texts), self._names.codes[device].astype(np.int64)
                ),
                wire.varint(2, kind),
                wire.varint(3, self._start_ns[device]),
                wire.varint(4, self._end_ns[device]),
                wire.varint(5, np.maximum(self._content.events.column("device")[device], 0)),
                wire.varint(6, zero),
                wire.varint(7, self._known("stream", device)),
                wire.varint(8, self._known("correlation", device)),
                *(
                    _where(kind == int(each), rows)
                    for each, rows in zip(ON_DEVICE, details, strict=True)
                ),
            ]
        )
        nodes = wire.message(2, wire.message(1, events))
        return wire.gathered(nodes, owner, owners)

    def _memory(self) -> Rows:
        memory = self._content.memory
        if memory.is_empty():
            return wire.nothing(self._count)
        row = self._content.events.rows_of(memory["span"].fill_null(-1).to_numpy())
        lane = memory["lane"].cast(pl.Int64).to_numpy()
        places = number_texts(memory["place"])
        sums = ("current_allocated", "current_reserved", "peak_allocated", "peak_reserved")
        events = wire.row_by_row(
            [
                wire.varint(1, memory["start_ns"].to_numpy() + self._content.wall_ns),
                wire.varint(2, memory["type"].to_numpy()),
                wire.varint(3, memory["address"].to_numpy()),
                wire.varint(4, memory["pid"].to_numpy()),
                wire.varint(5, self._tids[lane]),
                wire.varint(6, memory["bytes"].to_numpy()),
                wire.chosen(wire.texts(7, places.texts), places.codes.astype(np.int64)),
                *(wire.varint(8 + at, memory[name].to_numpy()) for at, name in enumerate(sums)),
            ]
        )
        node = self._node_of(row, lane)
        return _of_nodes(wire.message(5, wire.message(1, events)), node, self._count)

    def _inputs(self) -> Rows:
        """Return shapes and types of the inputs of operators, node by node."""
        rows, given = [], []
        for first in range(0, len(self._type), _NODES_AT_ONCE):
            last = min(first + _NODES_AT_ONCE, len(self._type))
            attributes = self._content.read_details(first, last, "attributes").to_series()
            has_shapes = attributes.str.contains(f'"{SHAPES}"').fill_null(False).to_numpy()
            has_shapes &= self._node[first:last] >= 0
            rows.append(first + np.flatnonzero(has_shapes))
            given.append(attributes.filter(pl.Series(has_shapes)))
        row = np.concatenate([np.zeros(0, np.int64), *rows])
        inputs = number_texts(pl.concat([pl.Series([], dtype=pl.String), *given]))
        found = [read_inputs(text) for text in inputs.texts]
        known = np.array([bool(shapes) for shapes, _ in found] or [False])[inputs.codes]
        row, code = row[known], inputs.codes[known]
        if not len(row):
            return wire.nothing(self._count)
        events = wire.row_by_row(
            [
                wire.varint(1, self._start_ns[row]),
                wire.chosen(
                    wire.texts(2, self._names.texts), self._names.codes[row].astype(np.int64)
                ),
                wire.varint(3, self._content.pid[row]),
                wire.varint(4, self._tids[self._content.lane[row]]),
                wire.chosen(wire.pieces(map(_shapes, found)), code.astype(np.int64)),
                wire.chosen(wire.texts(7, [""]), np.zeros(len(row), np.int64)),
                wire.varint(8, np.zeros(len(row), np.int64)),
            ]
        )
        return _of_nodes(wire.message(6, wire.message(1, events)), self._node[row], self._count)


def _shapes(inputs: tuple[dict[str, Any], dict[str, Any]]) -> bytes:
    """Return the fields 5 and 6 of an operator's supplement: {input: shapes}, {input: dtypes}."""
    shapes, dtypes = inputs
    keys = [_field(1, name.encode()) for name in shapes]
    lists = [
        _field(2, b"".join(_field(1, _sizes(shape)) for shape in each)) for each in shapes.values()
    ]
    types = [
        _field(2, b"".join(_field(1, str(dtype).encode()) for dtype in each))
        for each in dtypes.values()
    ]
    named = [_field(1, name.encode()) for name in dtypes]
    return _field(5, b"".join(keys + lists)) + _field(6, b"".join(named + types))


def _sizes(shape: list[int]) -> bytes:
    return wire.varint(1, np.array(shape, np.int64)).tobytes()


def _of_nodes(fields: Rows, node: Int64, nodes: int) -> Rows:
    """Return the fields of each node one after the other, in their order."""
    order = np.argsort(node, kind="stable")
    if (np.diff(node) >= 0).all():
        return wire.gathered(fields, node, nodes)
    begin = np.cumsum(fields.length) - fields.length
    length = fields.length[order]
    sorted_fields = Rows(fields.data[wire.spread(begin[order], length)], length)
    return wire.gathered(sorted_fields, node[order], nodes)


def _where(mask: Bool, rows: Rows) -> Rows:
    """Return the rows, empty where the mask is false."""
    kept = np.repeat(mask, rows.length)
    return Rows(rows.data[kept], np.where(mask, rows.length, 0))
