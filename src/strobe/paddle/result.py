# SPDX-License-Identifier: Apache-2.0
"""What load_profiler_result returns: trees of nodes, made when they are looked at."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from strobe.errors import UsageError
from strobe.model.paddle import SortedKeys, SummaryView, TracerEventType, TracerMemEventType
from strobe.paddle.summary import Shown
from strobe.paddle.trace_files import is_path, write_trace
from strobe.session.paddle import read_trace, recording_of, trace_of

if TYPE_CHECKING:
    from strobe.importers.paddle_trace import PaddleTrace
    from strobe.session.paddle import PaddleTables
    from strobe.session.recording import Recording

_NEVER_NS = (1 << 64) - 1


def load_profiler_result(filename: str | os.PathLike[str]) -> ProfilerResult:
    """Return what a file of Paddle's profiler holds: a .pb of Paddle 2.3 to 3.3, or a .json.

    Raises FormatError where there is none, or it is damaged.
    """
    if not is_path(filename):
        message = f"load_profiler_result({filename!r}): filename must be the path of a file"
        raise UsageError(message)
    path = Path(filename)
    return ProfilerResult(read_trace(path), path=path)


class ProfilerResult:
    """The events of a file or of a round, as Paddle's own result has them, and as tables."""

    def __init__(
        self,
        trace: PaddleTrace | None,
        *,
        path: Path | None = None,
        recording: Recording | None = None,
    ) -> None:
        self._read = trace
        self._path = path
        self._recording = recording

    @classmethod
    def of_recording(cls, recording: Recording) -> ProfilerResult:
        """Return the result of a round; its events are read when they are asked for."""
        return cls(None, recording=recording)

    @cached_property
    def _trace(self) -> PaddleTrace:
        return self._read if self._read is not None else trace_of(self.recording)

    @cached_property
    def recording(self) -> Recording:
        """The same as a strobe.Recording."""
        if self._recording is not None:
            return self._recording
        assert self._path is not None
        return recording_of(self._path, self._trace)

    def get_data(self) -> dict[int, HostPythonNode]:
        """Return the root of each thread's tree, by the thread's number."""
        return self._trees.roots()

    @cached_property
    def _trees(self) -> _Trees:
        return _Trees(self._trace)

    def get_extra_info(self) -> dict[str, str]:
        """Return use of the processor, and names of threads."""
        return dict(self._trace.extra_info)

    def get_version(self) -> str:
        """Return the version of the format."""
        return self._trace.version

    def get_span_index(self) -> int:
        """Return which round of the profiler it was, from 0."""
        return self._trace.span_index

    get_span_indx = get_span_index

    def get_device_property(self) -> dict[int, Any]:
        """Return what is known of each device, by its number."""
        found = self._trace.device_properties
        return {int(each.get("id", 0)): SimpleNamespace(**each) for each in found}

    def summary(
        self,
        sorted_by: SortedKeys = SortedKeys.CPUTotal,
        op_detail: bool = True,
        thread_sep: bool = False,
        time_unit: str = "ms",
        views: SummaryView | Collection[SummaryView] | None = None,
        row_limit: int = 100,
    ) -> PaddleTables:
        """Print the tables and return them, as Profiler.summary does."""
        how = Shown.of(sorted_by, op_detail, thread_sep, time_unit, views, row_limit)
        return how.show(self.recording)

    def save(self, path: str | os.PathLike[str], format: str = "json") -> None:
        """Write it as "json" or "pb"; raises UsageError, CaptureError."""
        write_trace("save", lambda: self.recording, path, format)


class HostPythonNode:
    """An event of a thread, or a call of a device's runtime; children_node and the like are lists.

    Nodes and lists are made when they are first looked at, and may be changed as Paddle's may.
    """

    def __init__(self, trees: _Trees, row: int, values: Mapping[str, Any]) -> None:
        self._trees = trees
        self._row = row
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return f"<HostPythonNode {self.name!r} {getattr(self.type, 'name', self.type)}>"

    def __getattr__(self, name: str) -> Any:
        """Return a list of nodes, made now."""
        if name not in _LISTS:
            message = f"a HostPythonNode has no attribute {name!r}"
            raise AttributeError(message)
        made = self._trees.inside(self._row, name)
        self.__dict__[name] = made
        return made


class DevicePythonNode(SimpleNamespace):
    """What ran on a device."""


class MemPythonNode(SimpleNamespace):
    """A block of memory that was allocated or freed."""


_LISTS = ("children_node", "runtime_node", "device_node", "mem_node")


class _Trees:
    """Who is in whom, as sorted columns: what is in a row is a slice of these."""

    def __init__(self, trace: PaddleTrace) -> None:
        import numpy as np

        self._trace = trace
        host = trace.host
        is_call = host.type == TracerEventType.CudaRuntime
        threads = np.concatenate([host.tid, trace.memory.tid])
        self._threads = np.unique(threads)
        # The root of a thread is a row after all others.
        count = len(host.name)
        root = count + np.searchsorted(self._threads, host.tid)
        parent = np.where(host.parent >= 0, host.parent, root)
        memory_root = count + np.searchsorted(self._threads, trace.memory.tid)
        memory = np.where(trace.memory.host >= 0, trace.memory.host, memory_root)
        rows = count + len(self._threads)
        self._slices = {
            "children_node": _slices(np.flatnonzero(~is_call), parent[~is_call], rows),
            "runtime_node": _slices(np.flatnonzero(is_call), parent[is_call], rows),
            "device_node": _slices(
                np.flatnonzero(trace.device.host >= 0),
                trace.device.host[trace.device.host >= 0],
                rows,
            ),
            "mem_node": _slices(np.arange(len(memory)), memory, rows),
        }
        self._makers = {
            "children_node": self._host,
            "runtime_node": self._host,
            "device_node": self._device,
            "mem_node": self._memory,
        }

    def roots(self) -> dict[int, HostPythonNode]:
        first = len(self._trace.host.name)
        return {
            thread: HostPythonNode(self, first + place, _ROOT)
            for place, thread in enumerate(self._threads.tolist())
        }

    def inside(self, row: int, name: str) -> list[Any]:
        order, begin = self._slices[name]
        make = self._makers[name]
        return [make(each) for each in order[begin[row] : begin[row + 1]].tolist()]

    def _host(self, row: int) -> HostPythonNode:
        trace, host = self._trace, self._trace.host
        inputs = trace.inputs[host.inputs[row]] if host.inputs[row] >= 0 else {}
        stack = int(host.callstack[row])
        return HostPythonNode(
            self,
            row,
            {
                "name": trace.names[host.name[row]],
                "type": _kind(int(host.type[row])),
                "start_ns": int(host.start_ns[row]),
                "end_ns": int(host.end_ns[row]),
                "process_id": int(host.pid[row]),
                "thread_id": int(host.tid[row]),
                "correlation_id": max(0, int(host.correlation[row])),
                "input_shapes": inputs.get("shapes", {}),
                "dtypes": inputs.get("dtypes", {}),
                "callstack": trace.names[stack] if stack >= 0 else "",
                "attributes": {},
                "op_id": int(host.op_id[row]),
            },
        )

    def _device(self, row: int) -> DevicePythonNode:
        trace, device = self._trace, self._trace.device
        more = {name: device.details[name][row].item() for name in _DETAILS}
        static = device.details["static_shared_memory"][row].item()
        shared = device.details["dynamic_shared_memory"][row].item() + static
        return DevicePythonNode(
            name=trace.names[device.name[row]],
            type=_kind(int(device.type[row])),
            start_ns=int(device.start_ns[row]),
            end_ns=int(device.end_ns[row]),
            device_id=int(device.device[row]),
            context_id=int(device.context[row]),
            stream_id=int(device.stream[row]),
            correlation_id=int(device.correlation[row]),
            shared_memory=shared,
            **more,
        )

    def _memory(self, row: int) -> MemPythonNode:
        memory = self._trace.memory
        return MemPythonNode(
            timestamp_ns=int(memory.time_ns[row]),
            addr=int(memory.address[row]),
            type=_memory_kind(int(memory.type[row])),
            process_id=int(memory.pid[row]),
            thread_id=int(memory.tid[row]),
            increase_bytes=int(memory.bytes[row]),
            place=self._trace.names[memory.place[row]],
            **{name: int(getattr(memory, name)[row]) for name in _SUMS},
        )


_SUMS = ("current_allocated", "current_reserved", "peak_allocated", "peak_reserved")
_DETAILS = (
    *("block_x", "block_y", "block_z", "grid_x", "grid_y", "grid_z", "registers_per_thread"),
    *("blocks_per_sm", "warps_per_sm", "occupancy", "num_bytes", "value"),
)
_ROOT = {
    "name": "root node",
    "type": TracerEventType.UserDefined,
    "start_ns": 0,
    "end_ns": _NEVER_NS,
    "process_id": 0,
    "thread_id": 0,
    "correlation_id": 0,
    "input_shapes": {},
    "dtypes": {},
    "callstack": "",
    "attributes": {},
    "op_id": 0,
}


def _slices(values: Any, owner: Any, owners: int) -> tuple[Any, Any]:
    """Return the values sorted by their owner, and where those of each owner begin."""
    import numpy as np

    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=owners)
    return values[order], np.append(0, np.cumsum(counts))


def _kind(number: int) -> TracerEventType | int:
    known = 0 <= number < len(TracerEventType)
    return TracerEventType(number) if known else number


def _memory_kind(number: int) -> TracerMemEventType | int:
    known = 0 <= number < len(TracerMemEventType)
    return TracerMemEventType(number) if known else number
