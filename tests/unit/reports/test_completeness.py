# SPDX-License-Identifier: Apache-2.0
"""The line on a source: its rows, and what it cost as far as that is known."""

from __future__ import annotations

from typing import Any

from strobe.model.tables import COMPLETENESS
from strobe.reports.text import completeness_line


def line(**known: Any) -> str:
    return completeness_line({**dict.fromkeys(COMPLETENESS.schema), "source": "torch", **known})


def test_start_and_stop_are_apart_from_own_time() -> None:
    found = line(
        **{"asked": 12, "collected": 10, "dropped": 2, "unfinished": 1, "note": "by callback"},
        **{"own_ns": 3_000_000, "once_ns": 40_000_000, "drain_ns": 5_000_000},
    )

    assert found == (
        "torch: 10 of 12 records, 2 dropped, 1 unfinished; own time about 3.00 ms in the program's "
        "threads, 5.00 ms beside them; start and stop took 40.0 ms; by callback"
    )


def test_an_unknown_own_time_is_said_to_be_unknown() -> None:
    found = line(collected=10, unfinished=0, once_ns=40_000_000)

    assert found == "torch: 10 records, 0 unfinished; own time unknown; start and stop took 40.0 ms"


def test_a_file_of_another_tool_cost_us_nothing() -> None:
    assert line(collected=10, note="read from a.json") == "torch: 10 records; read from a.json"
