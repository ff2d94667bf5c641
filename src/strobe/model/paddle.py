# SPDX-License-Identifier: Apache-2.0
"""The words of Paddle's profiler: kinds of events, their numbers in its files, and no more."""

from __future__ import annotations

from enum import Enum, IntEnum


class TracerEventType(IntEnum):
    """What an event is. The numbers are those of Paddle's files."""

    Operator = 0
    Dataloader = 1
    ProfileStep = 2
    CudaRuntime = 3
    Kernel = 4
    Memcpy = 5
    Memset = 6
    UserDefined = 7
    OperatorInner = 8
    Forward = 9
    Backward = 10
    Optimization = 11
    Communication = 12
    PythonOp = 13
    PythonUserDefined = 14
    DygraphKernelLaunch = 15
    StaticKernelLaunch = 16


class TracerMemEventType(IntEnum):
    """What happened to a block of memory."""

    Allocate = 0
    Free = 1
    ReservedAllocate = 2
    ReservedFree = 3


class SortedKeys(Enum):
    """By what the rows of a table are sorted: the largest first, of the minima the smallest."""

    CPUTotal = 0
    CPUAvg = 1
    CPUMax = 2
    CPUMin = 3
    GPUTotal = 4
    GPUAvg = 5
    GPUMax = 6
    GPUMin = 7


class SummaryView(Enum):
    """One of the tables of a summary."""

    DeviceView = 0
    OverView = 1
    ModelView = 2
    DistributedView = 3
    KernelView = 4
    OperatorView = 5
    MemoryView = 6
    MemoryManipulationView = 7
    UDFView = 8


ON_DEVICE = (TracerEventType.Kernel, TracerEventType.Memcpy, TracerEventType.Memset)
MODEL = (
    TracerEventType.Dataloader,
    TracerEventType.Forward,
    TracerEventType.Backward,
    TracerEventType.Optimization,
)
"""The parts of a step, in the order of the model table."""
OF_PYTHON = (
    TracerEventType.ProfileStep,
    *MODEL,
    TracerEventType.PythonOp,
    TracerEventType.PythonUserDefined,
)
"""What Paddle draws on the track of a thread that it calls Python."""

PROCESS_USE = "Process Cpu Utilization"
SYSTEM_USE = "System Cpu Utilization"
"""Under which names a recording's metadata, and Paddle's files, have the use of the processor."""
