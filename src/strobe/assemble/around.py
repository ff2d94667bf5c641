# SPDX-License-Identifier: Apache-2.0
"""The nearest span around a span of which something holds, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.model.ancestors import innermost
from strobe.model.arrays import Bool, Int64
from strobe.store.spill import Spill

_Number = TypeVar("_Number", np.int8, np.int64)


def split_parents(
    found: NDArray[_Number], parent: Int64, part: slice, none: int
) -> tuple[Int64, NDArray[_Number]]:
    """Return the parents of rows that are in the same part, and what was found of the others.

    The former count from the part's first row, -1 for none. `none` is what is found for no parent.
    """
    above = parent[part]
    inside = np.maximum(above - part.start, -1)
    earlier = np.flatnonzero((above >= 0) & (inside < 0))
    before = np.full(len(above), none, found.dtype)
    before[earlier] = found[above[earlier]]
    return inside, before


def innermost_of(marked: Callable[[slice], Bool], parent: Int64, spill: Spill) -> Int64:
    """Return, for each row, the nearest marked row among itself and those around it; -1 for none.

    `marked` tells which of some rows are.
    """
    found: Int64 = spill.empty(len(parent), np.int64)
    for part in spill.parts(len(parent)):
        inside, before = split_parents(found, parent, part, -1)
        rows = np.where(marked(part), np.arange(part.start, part.stop), before)
        found[part] = np.append(rows, -1)[innermost(rows >= 0, inside)]
    return found
