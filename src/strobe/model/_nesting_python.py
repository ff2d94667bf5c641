# SPDX-License-Identifier: Apache-2.0
"""The Python twin of native/kernels.c: same arguments, same results, same messages, slower.

It stands in where the extension was not built, and the tests hold the two against each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strobe.model.arrays import Bool, Int32, Int64


def nest(
    lane: Int32,
    start_ns: Int64,
    end_ns: Int64,
    parent: Int64,
    self_ns: Int64,
    /,
) -> None:
    """Write each row's parent row (-1: none) and self time.

    native/kernels.c explains the method: `parent` doubles as the links of each lane's stack.
    """
    rows = len(lane)
    _check_columns("nest", rows, 32, lane=lane)
    _check_columns(
        "nest", rows, 64, start_ns=start_ns, end_ns=end_ns, parent=parent, self_ns=self_ns
    )
    _check_spans("nest", lane, start_ns, end_ns)
    later = (np.diff(start_ns) == 0) & (end_ns[1:] > end_ns[:-1])
    advice = "sort by start_ns, then by end_ns descending"
    _refuse("nest", later, f"starts with the row above it but ends later; {advice}", first=1)

    # Memory views hand out plain ints one by one: faster than an array, smaller than a list.
    starts, ends = start_ns.data, end_ns.data
    parents, selves = parent.data, self_ns.data
    tops: dict[int, int] = {}
    for row, (number, start, end) in enumerate(zip(lane.data, starts, ends, strict=True)):
        top = tops.get(number, -1)
        since = starts[top] if top >= 0 else 0
        while top >= 0 and ends[top] < end:
            until = min(ends[top], start)
            if until > since:
                selves[top] += until - since
                since = until
            top = parents[top]
        if top >= 0:
            selves[top] += start - since
        parents[row] = top
        selves[row] = 0
        tops[number] = row
    for top in tops.values():
        since = starts[top]
        while top >= 0:
            selves[top] += ends[top] - since
            since = ends[top]
            top = parents[top]


def cover(
    lane: Int32,
    start_ns: Int64,
    end_ns: Int64,
    name: Int32,
    covered_ns: Int64,
    /,
) -> None:
    """Write, per name, the time in which a span of that name is open, lane by lane."""
    rows = len(lane)
    _check_columns("cover", rows, 32, lane=lane, name=name)
    _check_columns("cover", rows, 64, start_ns=start_ns, end_ns=end_ns)
    _check_columns("cover", len(covered_ns), 64, covered_ns=covered_ns)
    _check_spans("cover", lane, start_ns, end_ns)
    _refuse("cover", name < 0, "has a negative name")
    _refuse("cover", name >= len(covered_ns), "has a name that covered_ns has no place for")

    covered_ns[:] = 0
    covered = covered_ns.data
    frontiers: dict[tuple[int, int], int] = {}
    views = (lane.data, name.data, start_ns.data, end_ns.data)
    for number, code, start, end in zip(*views, strict=True):
        since = max(start, frontiers.get((number, code), start))
        if end > since:
            covered[code] += end - since
            frontiers[number, code] = end


def number_paths(
    parent: Int64,
    code: Int32,
    path: Int64,
    above: Int64,
    last: Int32,
    /,
) -> None:
    """Write each row's path as a number, and of each number the path above and the last code."""
    rows = len(parent)
    _check_columns("number_paths", rows, 64, parent=parent, path=path, above=above)
    _check_columns("number_paths", rows, 32, code=code, last=last)
    _refuse("number_paths", code < 0, "has a negative name")
    below = parent >= np.arange(rows)
    _refuse("number_paths", below, "has a parent that is not above it")

    paths = path.data
    numbers: dict[tuple[int, int], int] = {}
    for row, (around, own) in enumerate(zip(parent.data, code.data, strict=True)):
        outer = -1 if around < 0 else paths[around]
        number = numbers.setdefault((outer, own), len(numbers))
        paths[row] = number
    for (outer, own), number in numbers.items():
        above[number] = outer
        last[number] = own


def innermost(parent: Int64, found: Int64, /) -> None:
    """Give each row in which `found` is negative what the nearest row around it has.

    Each pass looks twice as far up as the one before: passes grow with the depth's logarithm.
    """
    _check_columns("innermost", len(parent), 64, parent=parent, found=found)
    below = parent >= np.arange(len(parent))
    _refuse("innermost", below, "has a parent that is not above it")
    above = parent.copy()
    rows = np.flatnonzero((found < 0) & (parent >= 0))
    while len(rows):
        around = above[rows]
        nearest, further = found[around], above[around]
        found[rows], above[rows] = nearest, further
        rows = rows[(nearest < 0) & (further >= 0)]


def _check_columns(
    function: str, rows: int, bits: int, **columns: NDArray[np.signedinteger]
) -> None:
    for name, column in columns.items():
        if column.ndim != 1 or column.dtype != np.dtype(f"int{bits}"):
            message = f"{function}({name}=...): {name} must be a one-dimensional int{bits} buffer"
            raise ValueError(message)
        if len(column) != rows:
            message = f"{function}({name}=...): {name} has {len(column)} rows but lane has {rows}"
            raise ValueError(message)


def _check_spans(
    function: str,
    lane: Int32,
    start_ns: Int64,
    end_ns: Int64,
) -> None:
    _refuse(function, lane < 0, "has a negative lane")
    _refuse(function, end_ns < start_ns, "ends before it starts")
    # An int64 difference that overflowed comes out negative.
    _refuse(function, end_ns - start_ns < 0, "is longer than int64 nanoseconds can say")
    earlier = start_ns[1:] < start_ns[:-1]
    _refuse(function, earlier, "starts before the row above it; sort by start_ns", first=1)


def _refuse(function: str, wrong: Bool, what: str, first: int = 0) -> None:
    if wrong.any():
        message = f"{function}(): row {int(wrong.argmax()) + first} {what}"
        raise ValueError(message)
