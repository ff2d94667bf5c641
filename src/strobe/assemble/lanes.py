# SPDX-License-Identifier: Apache-2.0
"""Lanes as columns, and numbers of which some are unknown."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import polars as pl

from strobe.model.arrays import Int64
from strobe.model.interning import Interner
from strobe.model.trace import Thread


def known(numbers: Int64) -> pl.Series:
    """Return the numbers, null for what is negative."""
    return pl.Series(numbers).set(pl.Series(numbers < 0), None)


def lane_ids(threads: Sequence[Thread]) -> tuple[pl.Series, pl.Series]:
    """Return process and thread of each lane."""
    pids = pl.Series([thread.pid for thread in threads], dtype=pl.Int64)
    tids = pl.Series([thread.tid for thread in threads], dtype=pl.Int64)
    return pids, tids


def number_processes(threads: Sequence[Thread]) -> Int64:
    """Return a number for the process of each lane: a pid may have been used twice."""
    return _numbers([thread.process for thread in threads])


def number_threads(threads: Sequence[Thread]) -> Int64:
    """Return a number of the thread of each lane; one that nobody knows is one of its own."""
    return _numbers(
        [
            (thread.pid, place if thread.tid is None else thread.tid, thread.tid is None)
            for place, thread in enumerate(threads)
        ]
    )


def _numbers(keys: Sequence[Hashable]) -> Int64:
    numbers = Interner[Hashable]()
    return np.array([numbers[key] for key in keys], np.int64)
