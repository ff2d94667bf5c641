# SPDX-License-Identifier: Apache-2.0
"""Sequence numbers reach their spans, wherever a chunk ends between the two records."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from strobe.finalize.gather import gather
from strobe.store import layout
from strobe.store.log import RECORD, ProcessLog, Records

# kind, start_ns, dur_ns or sequence number, name, attributes or thread
ROWS = [
    (layout.KIND_SPAN, 1, 5, 1, 0),
    (layout.KIND_DETAIL, 10, 41, 2, 7),
    (layout.KIND_SPAN, 10, 3, 2, 0),
    (layout.KIND_DETAIL, 20, 42, 1, 7),  # its span was lost: the next is another's
    (layout.KIND_SPAN, 21, 3, 1, 0),
    (layout.KIND_INSTANT, 30, 0, 1, 0),
    (layout.KIND_DETAIL, 31, 43, 2, 8),
    (layout.KIND_SPAN, 31, 1, 2, 0),
]


def records() -> Records:
    table = np.zeros(len(ROWS), RECORD)
    for row, (kind, start_ns, second, name, attributes) in zip(table, ROWS, strict=True):
        row["kind"], row["start_ns"], row["dur_ns"] = kind, start_ns, second
        row["name"], row["attributes"] = name, attributes
    return table


@pytest.mark.parametrize("cuts", list(itertools.combinations(range(1, len(ROWS)), 2)))
def test_a_number_belongs_to_the_span_after_it(cuts: tuple[int, ...]) -> None:
    log = ProcessLog("host-1-2-3", records=np.split(records(), cuts), strings={1: "a", 2: "b"})

    spans = gather([log]).spans

    assert spans.sequence is not None
    assert spans.thread is not None
    assert spans.start_ns.tolist() == [1, 10, 21, 31]
    assert spans.sequence.tolist() == [-1, 41, -1, 43]
    assert spans.thread.tolist() == [-1, 7, -1, 8]
