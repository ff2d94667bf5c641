# SPDX-License-Identifier: Apache-2.0
"""Parents, self times and covered time, drawn by hand and against an instant-by-instant oracle."""

from __future__ import annotations

import importlib
from collections import Counter
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import spans
from strobe.model import nesting

Row = tuple[int, int, int, int]  # lane, start, end, name

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 8), st.integers(0, 2)),
    max_size=12,
).map(
    lambda rows: sorted(
        ((lane, start, start + length, name) for lane, start, length, name in rows),
        key=lambda row: (row[1], -row[2]),
    )
)


@pytest.fixture(scope="module", params=["_kernels", "_nesting_python"])
def kernels(request: pytest.FixtureRequest) -> ModuleType:
    name = f"strobe.model.{request.param}"
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{name} is not built")


def columns(rows: list[Row]) -> list[np.ndarray]:
    lane, start, end, name = zip(*rows, strict=True) if rows else ((), (), (), ())
    kinds = (np.int32, np.int64, np.int64, np.int32)
    return [np.array(c, k) for c, k in zip((lane, start, end, name), kinds, strict=True)]


def nest(kernels: ModuleType, rows: list[Row]) -> tuple[list[int], list[int]]:
    lane, start, end, _ = columns(rows)
    # Whatever lay in the result's memory before must not shine through.
    parent, self_ns = np.full(len(rows), 77), np.full(len(rows), 77)
    kernels.nest(lane, start, end, parent, self_ns)
    return parent.tolist(), self_ns.tolist()


def cover(kernels: ModuleType, rows: list[Row], names: int = 3) -> list[int]:
    covered = np.full(names, 77)
    kernels.cover(*columns(rows), covered)
    return covered.tolist()


def parent_by_definition(rows: list[Row], i: int) -> int:
    lane, start, end, _ = rows[i]
    containing = [
        j for j in range(i) if rows[j][0] == lane and rows[j][1] <= start and rows[j][2] >= end
    ]
    return max(containing, default=-1)


def self_by_definition(rows: list[Row]) -> list[int]:
    owners: Counter[int] = Counter()
    for instant in range(20):
        latest = {lane: i for i, (lane, a, b, _) in enumerate(rows) if a <= instant < b}
        owners.update(latest.values())
    return [owners[i] for i in range(len(rows))]


def covered_by_definition(rows: list[Row]) -> list[int]:
    instants = {(name, lane, t) for lane, a, b, name in rows for t in range(a, b)}
    counts = Counter(name for name, _, _ in instants)
    return [counts[name] for name in range(3)]


def drawn(drawing: str) -> list[tuple[str, str | None, int]]:
    """Return (name, parent's name, self columns) of each drawn row."""
    table = spans(drawing)
    names = table["name"].to_list()
    parents = [None if p is None else names[p] for p in table["parent"]]
    return list(zip(names, parents, (table["self_ns"] // 1000).to_list(), strict=True))


def test_self_time_excludes_children_but_not_their_children_twice():
    assert drawn("""
        main | a-----------
        main |   b------
        main |     c--
    """) == [("a", None, 5), ("b", "a", 4), ("c", "b", 3)]


def test_siblings_have_the_same_parent():
    assert drawn("""
        main | a---------  d
        main |   b-  c--
    """) == [("a", None, 5), ("b", "a", 2), ("c", "a", 3), ("d", None, 1)]


def test_a_span_that_outlives_the_one_it_started_in_is_not_its_child():
    assert drawn("""
        main | a------
        main |     b------
    """) == [("a", None, 4), ("b", None, 7)]


def test_overlap_inside_a_parent_gives_time_back_to_the_parent_only_after_both():
    # a: columns 0, 1 and 10; b: 2 and 3; x: 4 to 9
    assert drawn("""
        main | a----------
        main |   b----
        main |     x-----
    """) == [("a", None, 3), ("b", "a", 2), ("x", "a", 6)]


def test_a_short_late_span_gives_time_back_to_the_latest_one_still_open():
    # b has columns 2 to 9, outlives a, and is interrupted by c
    assert drawn("""
        main | a-----
        main |   b-------
        main |     c-
    """) == [("a", None, 2), ("b", None, 6), ("c", "b", 2)]


def test_lanes_do_not_see_each_other():
    assert drawn("""
        main   | a--------
        worker |   b---
        main   |     c-
    """) == [("a", None, 7), ("b", None, 4), ("c", "a", 2)]


def test_the_lower_of_two_equal_spans_is_inside_the_upper():
    assert drawn("""
        main | a---
        main | b---
    """) == [("a", None, 0), ("b", "a", 4)]


def test_a_span_that_begins_where_another_ends_is_its_neighbour():
    assert drawn("""
        main | a---
        main |     b--
    """) == [("a", None, 4), ("b", None, 3)]


def test_a_zero_length_span_has_a_parent_and_no_self_time(kernels):
    rows = [(0, 0, 10, 0), (0, 4, 4, 0), (0, 10, 10, 0), (0, 11, 11, 0)]

    parent, self_ns = nest(kernels, rows)

    assert parent == [-1, 0, 0, -1]
    assert self_ns == [10, 0, 0, 0]


def test_no_rows_give_no_rows(kernels):
    assert nest(kernels, []) == ([], [])
    assert cover(kernels, []) == [0, 0, 0]


def test_times_may_be_negative_and_far_apart(kernels):
    lowest, highest = -(2**63), 2**63 - 1

    parent, self_ns = nest(kernels, [(0, lowest, lowest + 5, 0), (0, highest - 5, highest, 0)])

    assert parent == [-1, -1]
    assert self_ns == [5, 5]


def test_a_deep_staircase_and_deep_nesting_are_as_cheap_as_flat_spans():
    # Each would take 1e10 steps if a row looked at all open ones.
    n = 100_000
    lane, up = np.zeros(n, np.int32), np.arange(n, dtype=np.int64)

    _, staircase = nesting.nest(lane, up, up + n)
    parent, nested = nesting.nest(lane, up, 2 * n - up)

    assert staircase.tolist() == [1] * (n - 1) + [n]
    assert parent.tolist() == list(range(-1, n - 1))
    assert nested.tolist() == [2] * (n - 1) + [2]


@given(rows=ROWS)
def test_parent_is_the_nearest_earlier_row_that_contains_the_row(kernels, rows):
    parent, _ = nest(kernels, rows)

    assert parent == [parent_by_definition(rows, i) for i in range(len(rows))]


@given(rows=ROWS)
def test_self_time_counts_the_instants_in_which_a_row_is_the_latest_started(kernels, rows):
    _, self_ns = nest(kernels, rows)

    assert self_ns == self_by_definition(rows)


@given(rows=ROWS)
def test_self_times_of_a_lane_sum_to_its_busy_time(kernels, rows):
    _, self_ns = nest(kernels, rows)

    for lane in range(3):
        busy = {t for number, a, b, _ in rows if number == lane for t in range(a, b)}
        mine = [s for s, row in zip(self_ns, rows, strict=True) if row[0] == lane]
        assert sum(mine) == len(busy)


@given(rows=ROWS)
def test_cover_counts_the_instants_in_which_a_name_is_open(kernels, rows):
    assert cover(kernels, rows) == covered_by_definition(rows)


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(0, 300))
def test_kernel_and_twin_agree_on_larger_tables(seed, n):
    kernel = pytest.importorskip("strobe.model._kernels", reason="it was not built")
    twin = importlib.import_module("strobe.model._nesting_python")
    draw = np.random.default_rng(seed)
    start, length = draw.integers(-(10**12), 10**12, n), draw.integers(0, 10**12, n)
    order = np.lexsort((-(start + length), start))
    lane, name = draw.integers(0, 5, n), draw.integers(0, 3, n)
    rows = list(zip(lane, start[order], (start + length)[order], name, strict=True))

    assert nest(kernel, rows) == nest(twin, rows)
    assert cover(kernel, rows) == cover(twin, rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 0, 5, 0), (-1, 1, 2, 0)], "row 1 has a negative lane"),
        ([(0, 0, 5, 0), (0, 3, 2, 0)], "row 1 ends before it starts"),
        ([(0, 4, 5, 0), (0, 3, 9, 0)], "row 1 starts before the row above it"),
        ([(0, -(2**62), 2**62, 0)], "row 0 is longer than int64 nanoseconds can say"),
    ],
)
def test_bad_rows_are_refused(kernels, rows, message):
    with pytest.raises(ValueError, match=message):
        nest(kernels, rows)
    with pytest.raises(ValueError, match=message):
        cover(kernels, rows)


def test_rows_with_the_same_start_must_come_longest_first(kernels):
    with pytest.raises(ValueError, match="row 1 starts with the row above it but ends later"):
        nest(kernels, [(0, 0, 5, 0), (1, 0, 6, 0)])


def test_a_name_without_a_place_is_refused(kernels):
    with pytest.raises(ValueError, match="row 0 has a negative name"):
        cover(kernels, [(0, 0, 5, -1)])
    with pytest.raises(ValueError, match="row 0 has a name that covered_ns has no place for"):
        cover(kernels, [(0, 0, 5, 3)])


def test_columns_of_other_lengths_and_dtypes_are_refused(kernels):
    lane, times = np.zeros(2, np.int32), np.zeros(2, np.int64)
    out = np.zeros(2, np.int64)

    with pytest.raises(ValueError, match="end_ns has 1 rows but lane has 2"):
        kernels.nest(lane, times, times[:1], out, times.copy())
    with pytest.raises(ValueError, match="self_ns has 3 rows but lane has 2"):
        kernels.nest(lane, times, times, out, np.zeros(3, np.int64))
    with pytest.raises(ValueError, match="lane must be a one-dimensional int32 buffer"):
        kernels.nest(times, times, times, out, times.copy())
    with pytest.raises(ValueError, match="start_ns must be a one-dimensional int64 buffer"):
        kernels.nest(lane, times.astype(np.float64), times, out, times.copy())
    with pytest.raises(ValueError, match="end_ns must be a one-dimensional int64 buffer"):
        kernels.nest(lane, times, times.reshape(1, 2), out, times.copy())


def test_the_kernel_refuses_results_it_cannot_write_safely():
    kernel = pytest.importorskip("strobe.model._kernels", reason="it was not built")
    lane, times, out = np.zeros(2, np.int32), np.zeros(2, np.int64), np.zeros(2, np.int64)

    with pytest.raises(ValueError, match="self_ns must not share memory with parent"):
        kernel.nest(lane, times, times, out, out)
    with pytest.raises(ValueError, match="parent must not share memory with end_ns"):
        kernel.nest(lane, out, times, times, out)
    with pytest.raises(BufferError, match="not writable"):
        kernel.nest(lane, times, times, memoryview(out).toreadonly(), out.copy())
    with pytest.raises(TypeError, match="nest\\(\\) takes 5 buffers, 1 were given"):
        kernel.nest(lane)


def test_columns_that_are_not_contiguous_are_copied():
    rows = np.array([[0, 10], [2, 5]], np.int64)

    parent, self_ns = nesting.nest(np.zeros(4, np.int32)[::2], rows[:, 0], rows[:, 1])

    assert parent.tolist() == [-1, 0]
    assert self_ns.tolist() == [7, 3]


def test_cover_counts_recursion_once_and_lanes_each():
    table = spans("""
        main   | f----------
        main   |   f---
        main   |          f---
        worker |   f---
    """)
    start_ns = table["start_ns"].to_numpy()

    covered_ns = nesting.cover(
        table["lane"].to_numpy(),
        start_ns,
        start_ns + table["dur_ns"].to_numpy(),
        np.zeros(table.height, np.int32),
        names=1,
    )

    assert covered_ns.tolist() == [(13 + 4) * 1000]


def paths_of(kernels: ModuleType, rows: list[tuple[int, int]]) -> list[tuple[int, ...]]:
    """The codes from the outermost row to each row, by what number_paths tells."""
    count = len(rows)
    parent, code = np.array([row[0] for row in rows], np.int64), np.zeros(count, np.int32)
    code[:] = [row[1] for row in rows]
    path, above, last = np.full(count, 77), np.full(count, 77), np.full(count, 77, np.int32)
    kernels.number_paths(parent, code, path, above, last)
    found = []
    for number in path.tolist():
        codes = []
        while number >= 0:
            codes.append(int(last[number]))
            number = int(above[number])
        found.append(tuple(reversed(codes)))
    assert sorted(set(path.tolist())) == list(range(len(set(found))))
    return found


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2)), max_size=30))
def test_paths_are_the_codes_from_the_outermost_row_on(
    kernels: ModuleType, drawn: list[tuple[int, int]]
) -> None:
    rows = [(min(up, row) - 1, code) for row, (up, code) in enumerate(drawn)]
    expected: list[tuple[int, ...]] = []
    for parent, code in rows:
        expected.append((*(expected[parent] if parent >= 0 else ()), code))

    assert paths_of(kernels, rows) == expected


def test_paths_refuse_parents_below(kernels: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"number_paths\(\): row 1 has a parent that is not above"):
        paths_of(kernels, [(-1, 0), (1, 0)])
    with pytest.raises(ValueError, match=r"number_paths\(\): row 0 has a negative name"):
        paths_of(kernels, [(-1, -1)])


@given(st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=30))
def test_the_innermost_marked_row_is_the_first_on_the_way_up(
    kernels: ModuleType, drawn: list[tuple[int, bool]]
) -> None:
    rows = [(min(up, row) - 1, is_marked) for row, (up, is_marked) in enumerate(drawn)]
    expected: list[int] = []
    for row, (parent, is_marked) in enumerate(rows):
        expected.append(row if is_marked else expected[parent] if parent >= 0 else -1)
    found = np.array([row if rows[row][1] else -1 for row in range(len(rows))], np.int64)

    kernels.innermost(np.array([parent for parent, _ in rows], np.int64), found)

    assert found.tolist() == expected


def test_innermost_refuses_parents_below(kernels: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"innermost\(\): row 1 has a parent that is not above"):
        kernels.innermost(np.array([-1, 1]), np.array([0, -1]))
