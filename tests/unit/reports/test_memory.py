# SPDX-License-Identifier: Apache-2.0
"""Memory as text, of tables that were drawn by hand."""

from __future__ import annotations

import polars as pl

from strobe.reports.memory import Memory, memory_text
from strobe.store.tables import empty

PLACE = "Net.forward (/srv/a (new) project/net.py:7)"


def test_functions_are_shown_without_the_folder_of_their_file() -> None:
    whose = {"pid": [1], "device": [None], "start_ns": [5], "owner": ["mm"], "module": [None]}
    both = pl.DataFrame(
        {**whose, "function": [PLACE], "bytes": [8], "blocks": [1], "share": [1.0]},
        schema_overrides={"device": pl.Int32, "module": pl.String},
    ).with_columns(held_bytes="bytes", allocated_bytes="bytes")
    memory = Memory(
        start_ns=0,
        end_ns=10,
        timeline=both,
        held=both,
        counters=empty("counters"),
        lines=empty("memory_lines"),
        instants=empty("instants"),
    )

    text = memory_text(memory, top=5, width=100)

    assert "  Net.forward (net.py:7)  " in text
