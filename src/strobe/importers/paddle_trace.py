# SPDX-License-Identifier: Apache-2.0
"""What Paddle's profiler recorded, as its files hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strobe.model.arrays import Int32, Int64

EVENT_TYPES = (
    *("Operator", "Dataloader", "ProfileStep", "CudaRuntime", "Kernel", "Memcpy", "Memset"),
    *("UserDefined", "OperatorInner", "Forward", "Backward", "Optimization", "Communication"),
    *("PythonOp", "PythonUserDefined", "DygraphKernelLaunch", "StaticKernelLaunch"),
)
"""TracerEventType of Paddle 3.3.1; a later one may have more."""
MEMORY_TYPES = ("Allocate", "Free", "ReservedAllocate", "ReservedFree")


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
class PaddleTrace:
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
