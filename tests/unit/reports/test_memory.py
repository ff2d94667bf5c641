# SPDX-License-Identifier: Apache-2.0
"""Memory as text, of tables that were drawn by hand."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from drawing import make_tables, spans
from strobe.reports.memory import memory_text


def test_functions_are_shown_without_the_folder_of_their_file(tmp_path: Path) -> None:
    frame = {"name": "Net.forward", "file": "/srv/a (new) project/net.py", "line": 7}
    block = {"pid": 1, "tid": 1, "start_ns": 5, "bytes": 8, "address": 64, "allocated_bytes": 8}
    tables = make_tables(
        tmp_path,
        metadata=pl.DataFrame({"key": ["start_ns", "end_ns"], "value": ["0", "10"]}),
        spans=spans("main | mm---").with_columns(stack=pl.lit(0)),
        stacks=pl.DataFrame({"frame": [0]}),
        frames=pl.DataFrame([frame]),
        allocations=pl.DataFrame([block | {"span": 0}]),
    )

    text = memory_text(tables, top=5, width=100)

    assert "  Net.forward (net.py:7)  " in text
