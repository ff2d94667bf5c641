# SPDX-License-Identifier: Apache-2.0
"""Which errors tell that memory has run out; the texts are those that frameworks write."""

from __future__ import annotations

import pytest

from strobe.sources.host.out_of_memory import is_out_of_memory


class OutOfMemoryError(RuntimeError):
    """As torch.OutOfMemoryError, and its ancestors."""


class XlaRuntimeError(RuntimeError):
    """As JAX's."""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 400000000000000 bytes. Error code 12 (Cannot allocate "
            "memory)"
        ),
        XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 400000000000000 bytes."),
        MemoryError("(ResourceExhausted) Fail to alloc memory of 400000000000000 size"),
        RuntimeError("Allocate memory failed"),
        RuntimeError("Device(id:0) memory isn't enough and alloc failed, kernel name: Default/Mul"),
    ],
)
def test_these_do(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error", [None, RuntimeError("shape mismatch"), ValueError("out of memory"), KeyError("memory")]
)
def test_these_do_not(error: BaseException | None) -> None:
    assert not is_out_of_memory(error)
