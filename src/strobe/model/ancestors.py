# SPDX-License-Identifier: Apache-2.0
"""What the spans around a span say about it. `parent` is a row above, or -1 for none."""

from __future__ import annotations

import numpy as np

from strobe.model.arrays import Bool, Int64


def innermost(marked: Bool, parent: Int64) -> Int64:
    """Return, for each row, the nearest marked row among itself and those around it; -1 for none.

    Each pass looks twice as far up as the one before: passes grow with the depth's logarithm.
    """
    if not marked.any():
        return np.full(len(marked), -1, np.int64)
    nobody = len(marked)  # one row more than there are, so that -1 needs no case of its own
    found = np.append(np.where(marked, np.arange(nobody), -1), -1)
    above = np.append(np.where(parent < 0, nobody, parent), nobody)
    while (above != nobody).any():
        found = np.where(found < 0, found[above], found)
        above = above[above]
    return found[:-1]


def is_inside(marked: Bool, parent: Int64) -> Bool:
    """Return which rows have a marked one around them, themselves not counted."""
    around = np.append(innermost(marked, parent), -1)
    inside: Bool = around[parent] >= 0
    return inside
