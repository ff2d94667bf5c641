# SPDX-License-Identifier: Apache-2.0
"""Sequence numbers reach their spans: the lane has the first of a block, the record the rest."""

from __future__ import annotations

import numpy as np

from strobe.finalize.gather import gather
from strobe.store import layout
from strobe.store.log import RECORD, ProcessLog, Records

# kind, start_ns, lane, window
ROWS = [
    (layout.KIND_SPAN, 1, 0, 0),
    (layout.KIND_SPAN, 10, 2, 41),
    (layout.KIND_INSTANT, 15, 0, 0),
    (layout.KIND_SPAN, 20, 3, 7),
    (layout.KIND_SPAN, 30, 1, 0),
    (layout.KIND_SPAN, 40, 9, 5),  # its lane's definition was lost
]
LANES = {
    0: {"tid": 100, "thread": "main", "context": 0},
    1: {"tid": 101, "thread": "other", "context": 0},
    2: {"of": 0, "sequence": 0, "thread": 7},
    3: {"of": 1, "sequence": 3 << 16, "thread": 8},
}


def records() -> Records:
    table = np.zeros(len(ROWS), RECORD)
    for row, (kind, start_ns, lane, window) in zip(table, ROWS, strict=True):
        row["kind"], row["start_ns"], row["lane"], row["window"] = kind, start_ns, lane, window
        row["name"] = 1
    return table


def test_a_number_is_that_of_the_lane_and_that_of_the_record() -> None:
    log = ProcessLog("host-1-2-3", records=[records()], strings={1: "a"}, lanes=LANES)

    gathered = gather([log])

    spans = gathered.spans
    assert spans.sequence is not None
    assert spans.thread is not None
    assert spans.start_ns.tolist() == [1, 10, 20, 30, 40]
    assert spans.sequence.tolist() == [-1, 41, (3 << 16) + 7, -1, -1]
    assert spans.thread.tolist() == [-1, 7, 8, -1, -1]
    assert [gathered.lanes[lane]["tid"] for lane in spans.lane] == [100, 100, 101, 101, None]
    assert len(gathered.lanes) == 3
