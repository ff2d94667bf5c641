# SPDX-License-Identifier: Apache-2.0
"""The most memory in use."""

import polars as pl

from strobe.analysis.memory import peak_allocated
from strobe.store.tables import empty


def test_the_peak_is_the_most_of_each_process_and_device():
    rows = [
        {"pid": 2, "device": None, "allocated_bytes": 5},
        {"pid": 1, "device": 0, "allocated_bytes": 70},
        {"pid": 1, "device": None, "allocated_bytes": 10},
        {"pid": 1, "device": None, "allocated_bytes": 30},
        {"pid": 1, "device": None, "allocated_bytes": 20},
    ]
    allocations = pl.DataFrame(rows, schema_overrides={"device": pl.Int32})

    assert peak_allocated(allocations.lazy()).collect().rows() == [
        (1, None, 30),
        (1, 0, 70),
        (2, None, 5),
    ]


def test_without_allocations_there_is_no_peak():
    assert peak_allocated(empty("allocations").lazy()).collect().is_empty()
