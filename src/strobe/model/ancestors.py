# SPDX-License-Identifier: Apache-2.0
"""What the spans around a span say about it. `parent` is a row above, or -1 for none."""

from __future__ import annotations

import numpy as np

from strobe.model import nesting
from strobe.model.arrays import Bool, Int64


def innermost(marked: Bool, parent: Int64) -> Int64:
    """Return, for each row, the nearest marked one of itself and those around it; -1 for none."""
    found = np.full(len(marked), -1, np.int64)
    rows = np.flatnonzero(marked)
    found[rows] = rows
    if len(rows):
        nesting.look_up(parent, found)
    return found


def is_inside(marked: Bool, parent: Int64) -> Bool:
    """Return which rows have a marked one around them, themselves not counted."""
    # One more entry, False, for parent -1 to find.
    inside: Bool = np.append(innermost(marked, parent) >= 0, False)[parent]
    return inside
