# SPDX-License-Identifier: Apache-2.0
"""Records of a log: in groups that fit into memory, by kind, and as columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from strobe.model.arrays import Int64, UInt8, UInt32, UInt64
from strobe.model.tables import CATEGORY_BITS
from strobe.store.log import RECORD, Records

_Integer = TypeVar("_Integer", np.int32, np.int64)
Parts = Sequence[Records]
"""Records as they lie in the log, chunk by chunk."""


def grouped(parts: Parts, most_rows: int) -> list[Parts]:
    """Return the parts in groups of at most so many records; a larger part is cut."""
    groups: list[list[Records]] = []
    room = 0
    for part in parts:
        for first in range(0, len(part), most_rows):
            piece = part[first : first + most_rows]
            if len(piece) > room:
                groups.append([])
                room = most_rows
            groups[-1].append(piece)
            room -= len(piece)
    return list(groups)


def by_kind(parts: Parts) -> dict[int, list[Records]]:
    """Return the records by kind, without copying parts that hold one kind, as most do."""
    found: dict[int, list[Records]] = defaultdict(list)
    for records in parts:
        kinds = np.ascontiguousarray(records["kind"])
        present = np.flatnonzero(np.bincount(kinds))
        for kind in present.tolist():
            if len(present) > 1:
                rows = np.flatnonzero(kinds == kind)
                chosen = np.take(_words(records), rows, axis=0).view(RECORD).reshape(-1)
            found[kind].append(records if len(present) == 1 else chosen)
    return found


def column(parts: Parts, name: str, dtype: str) -> NDArray[Any]:
    """Return a field of all records; one that these records lack is 0."""
    if not parts or name not in (parts[0].dtype.names or ()):
        return np.zeros(sum(map(len, parts)), dtype)
    return np.concatenate([records[name] for records in parts])


def times(parts: Parts, name: str) -> Int64:
    """Return a field of 64 bits as signed numbers."""
    found: Int64 = column(parts, name, "<u8").view(np.int64)
    return found


def codes(parts: Parts) -> UInt8:
    """Return the bytes of record_code()."""
    found: UInt8 = column(parts, "category", "u1").astype(np.uint8, copy=False)
    return found


def sources(parts: Parts) -> UInt8:
    """Return who made each record: places in SOURCES."""
    found: UInt8 = codes(parts) >> np.uint8(CATEGORY_BITS)
    return found


def look_up(table: NDArray[_Integer], ids: UInt32) -> NDArray[_Integer]:
    """Return table[id], or -1 if the table has no such id."""
    if len(ids) == 0 or int(ids.max()) < len(table):
        return table[ids]
    found = np.full(len(ids), -1, table.dtype)
    inside = ids < len(table)
    found[inside] = table[ids[inside]]
    return found


def distinct(numbers: UInt32) -> UInt32:
    """Return the distinct numbers; most often there is one, and nothing to sort."""
    return numbers[:1].copy() if (numbers == numbers[:1]).all() else np.unique(numbers)


def _words(records: Records) -> UInt64:
    """View each record as four words, which are copied faster than fields."""
    return np.ascontiguousarray(records).view("<u8").reshape(-1, 4)
