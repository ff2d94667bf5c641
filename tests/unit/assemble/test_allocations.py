# SPDX-License-Identifier: Apache-2.0
"""The table of allocations, where those who tell of them leave some out or mix them up."""

from __future__ import annotations

import numpy as np
import polars as pl

from drawing import SPILLS
from strobe.assemble.allocations import allocation_parts
from strobe.model.trace import Allocations, Held, Spans, Thread, Trace, concatenate


def table(
    events: list[tuple[int, int]], alive: list[tuple[int, int]]
) -> list[tuple[int, int, int, bool]]:
    """Events and blocks are (address, bytes); rows say address, bytes, allocated, and if seen."""
    zeros = np.zeros(len(events), np.int32)
    memory = Allocations(
        start_ns=np.arange(1, len(events) + 1),
        bytes=np.array([size for _, size in events], np.int64),
        address=np.array([address for address, _ in events], np.int64),
        device=zeros - 1,
        lane=zeros,
        reserved_bytes=np.full(len(events), -1, np.int64),
        owner_ns=np.arange(1, len(events) + 1),
    )
    held = [Held(pid=7, bytes=size, address=address) for address, size in alive]
    trace = Trace(threads=[Thread(7, 7, "main")], held=held)
    seen = pl.col("lane").is_not_null()
    found, spilled = (
        pl.concat(
            pl.DataFrame(part)
            for part in allocation_parts(memory, concatenate([], Spans), trace, spill)
        )
        .select("address", "bytes", "allocated_bytes", seen)
        .rows()
        for spill in SPILLS
    )
    assert spilled == found
    return found


def test_blocks_come_and_go() -> None:
    assert table([(10, 100), (20, 50), (10, -100), (10, 30)], alive=[(5, 8)]) == [
        (5, 8, 8, False),
        (10, 100, 108, True),
        (20, 50, 158, True),
        (10, -100, 58, True),
        (10, 30, 88, True),
    ]


def test_a_block_in_the_place_of_another_tells_that_this_one_is_gone() -> None:
    assert table([(5, 3), (5, 4)], alive=[(5, 8)]) == [
        (5, 8, 8, False),
        (5, -8, 0, False),
        (5, 3, 3, True),
        (5, -3, 0, False),
        (5, 4, 4, True),
    ]


def test_what_is_freed_is_as_large_as_what_was_allocated() -> None:
    assert table([(5, -2048), (6, -16)], alive=[(5, 8)]) == [
        (5, 8, 8, False),
        (5, -8, 0, True),
        (6, -16, -16, True),
    ]


def test_blocks_without_addresses_are_not_mixed_up() -> None:
    assert table([(-1, 100), (-1, 50), (-1, -100), (-1, 30)], alive=[]) == [
        (None, 100, 100, True),
        (None, 50, 150, True),
        (None, -100, 50, True),
        (None, 30, 80, True),
    ]
