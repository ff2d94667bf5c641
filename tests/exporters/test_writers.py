# SPDX-License-Identifier: Apache-2.0
"""The loops in C and their Python twins make the same bytes; tracks nest whatever spans do."""

from __future__ import annotations

import importlib
import json
import struct
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.exporters import _writers_python as python
from strobe.exporters._rows import join

INT64 = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(scope="module")
def c() -> ModuleType:
    try:
        return importlib.import_module("strobe.exporters._writers")
    except ImportError as error:
        pytest.skip(f"no C writers in this installation ({error})")


def both(c: ModuleType, function: str, room: int, *arguments: Any) -> bytes:
    """Write everything with both, a little room at a time; they must agree on each step."""
    written, first, rows = b"", 0, None
    while rows is None or first < rows:
        outs = [bytearray(room), bytearray(room)]
        found = [
            getattr(module, function)(out, *arguments, first)
            for module, out in zip((c, python), outs, strict=True)
        ]
        assert found[0] == found[1]
        after, used = found[0]
        assert outs[0][:used] == outs[1][:used]
        written += bytes(outs[0][:used])
        if after == first:
            if used == 0 and room > 1 << 16:
                return written
            room = 2 * room + 64
        first, rows = after, len(arguments[0]) if function == "chrome_events" else None
        if function == "perfetto_packets":
            rows = len(arguments[0]) // 16
    return written


@st.composite
def chrome_rows(draw: st.DrawFn) -> tuple[Any, ...]:
    count = draw(st.integers(0, 20))
    heads = draw(st.lists(st.binary(max_size=200), min_size=1, max_size=4))
    tracks = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=4))

    def column(values: st.SearchStrategy[int], dtype: type) -> Any:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype)

    head = column(st.integers(0, len(heads) - 1), np.int32)
    start_ns = column(INT64, np.int64)
    dur_ns = column(INT64, np.int64)[: count * draw(st.booleans())]
    track = column(st.integers(0, len(tracks) - 1), np.int32)
    given = [draw(st.binary(max_size=30)) for _ in range(count * draw(st.booleans()))]
    between = draw(st.binary(max_size=20))
    return (head, *join(heads), start_ns, dur_ns, between, track, *join(tracks), *join(given))


@given(rows=chrome_rows(), room=st.integers(0, 600))
def test_chrome_events_are_the_same(c: ModuleType, rows: tuple[Any, ...], room: int) -> None:
    written = both(c, "chrome_events", room, *rows)

    assert written.count(b"},\n") >= len(rows[0])


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, b"0.000"),
        (1, b"0.001"),
        (999_999, b"999.999"),
        (1_234_567_890, b"1234567.890"),
        (-1, b"-0.001"),
        (2**63 - 1, b"9223372036854775.807"),
        (-(2**63), b"-9223372036854775.808"),
    ],
)
def test_times_are_microseconds_with_three_decimals(c: ModuleType, ns: int, text: bytes) -> None:
    zero, none = np.zeros(1, np.int32), join([])
    time_ns = np.array([ns])
    rows = (zero, *join([b"<"]), time_ns, time_ns, b"|", zero, *join([b">"]), *none)

    assert both(c, "chrome_events", 100, *rows) == b"<" + text + b"|" + text + b">},\n"


@st.composite
def packet_rows(draw: st.DrawFn) -> tuple[Any, ...]:
    count = draw(st.integers(1, 10))
    pieces = st.lists(st.binary(max_size=200), min_size=1, max_size=4)
    heads, tracks = draw(pieces), draw(pieces)
    of_rows = st.lists(st.integers(0, len(heads) - 1), min_size=count, max_size=count)
    turn = st.tuples(INT64, st.integers(-1, count - 1), st.integers(0, len(tracks) - 1))
    turns = b"".join(struct.pack("=qii", *values) for values in draw(st.lists(turn, max_size=20)))
    bodies = [draw(st.binary(max_size=200)) for _ in range(count * draw(st.booleans()))]
    head = np.array(draw(of_rows), np.int32)
    tail = draw(st.binary(max_size=4))
    return (turns, head, *join(heads), *join(tracks), *join(bodies), tail)


@given(rows=packet_rows(), room=st.integers(0, 800))
def test_perfetto_packets_are_the_same(c: ModuleType, rows: tuple[Any, ...], room: int) -> None:
    both(c, "perfetto_packets", room, *rows)


@pytest.mark.parametrize("number", [-1, 1])
def test_a_piece_that_does_not_exist_is_refused(c: ModuleType, number: int) -> None:
    wrong, fine = np.array([number], np.int32), np.zeros(1, np.int32)
    time_ns, none, piece = np.zeros(1, np.int64), join([]), join([b"x"])
    out = bytearray(100)

    for module in (c, python):
        with pytest.raises(ValueError, match="row 0 names a piece"):
            module.chrome_events(
                *(out, wrong, *piece, time_ns, time_ns, b"", fine, *piece, *none, 0),
            )
        turns = struct.pack("=qii", 0, 0, number)
        with pytest.raises(ValueError, match="row 0 names a piece"):
            module.perfetto_packets(out, turns, fine, *piece, *piece, *none, b"", 0)


def test_wrong_buffers_are_refused(c: ModuleType) -> None:
    with pytest.raises(ValueError, match="texts_at must be a one-dimensional buffer of int64"):
        c.annotate(b"", np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="points outside"):
        c.annotate(b"{}", np.array([0, 3]))
    with pytest.raises(TypeError, match="takes 13 arguments, 0 were given"):
        c.chrome_events()
    columns = np.zeros(2, np.int32), np.array([1, 0]), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="starts before the row above it"):
        c.Tracks().place(*columns, np.zeros(2, np.int32), True)


# ---- annotations ---------------------------------------------------------------------------------

LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(LEAVES, lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=20)


def same_annotations(c: ModuleType, texts: list[str]) -> bytes:
    pieces = join(text.encode("utf-8", "replace") for text in texts)
    found = c.annotate(*pieces)
    assert found == python.annotate(*pieces)
    written: bytes = found[0]
    return written


@given(value=st.dictionaries(st.text(), VALUES), ascii_only=st.booleans(), spaces=st.booleans())
def test_annotations_of_json_are_the_same(
    c: ModuleType, value: Any, ascii_only: bool, spaces: bool
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1 if spaces else None)

    same_annotations(c, ["", text, text])


@given(text=st.text('{}[]":,\\u0123456789abcdefDtrueflsn.+-eE \n\0é'))
def test_annotations_of_what_is_not_json_are_the_same(c: ModuleType, text: str) -> None:
    same_annotations(c, [text, "{" + text, '{"a":' + text + "}"])


@given(units=st.lists(st.sampled_from(["\\ud83d", "\\ude00", "\\u00e9", "\\n", "x"]), max_size=6))
def test_annotations_of_surrogates_are_the_same(c: ModuleType, units: list[str]) -> None:
    text = "".join(units)

    written = same_annotations(c, [f'{{"{text}":"{text}"}}'])

    assert b"attributes" not in written  # it was read, not kept as text


@pytest.mark.parametrize("depth", [1, 31, 32, 33, 400])
def test_deep_values_are_kept_as_text(c: ModuleType, depth: int) -> None:
    written = same_annotations(c, ['{"a":' + "[" * depth + '"]"' + "]" * depth + "}"])

    assert (b'["]"]' in written) == (depth > 31)


# ---- tracks --------------------------------------------------------------------------------------

SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)), max_size=40)


def place(module: ModuleType, spans: list[tuple[int, int, int]], step: int) -> Any:
    """Return tracks of rows, turns of each call and lanes of tracks, `step` rows at a time."""
    state, placed, turns, lanes = module.Tracks(), [], [], b""
    for first in range(0, len(spans), step):
        columns = np.array(spans[first : first + step], np.int64).T
        lane, start_ns, dur_ns = (np.ascontiguousarray(column) for column in columns)
        track = np.full(len(lane), -7, np.int32)
        made = state.place(lane.astype(np.int32), start_ns, dur_ns, track, True)
        turns.append(made[0])
        lanes += made[1]
        placed += track.tolist()
    turns.append(state.finish())
    return placed, turns, lanes


@given(spans=SPANS, step=st.integers(1, 40))
def test_tracks_are_the_same_and_spans_nest_on_them(
    c: ModuleType, spans: list[tuple[int, int, int]], step: int
) -> None:
    rows = sorted(spans, key=lambda row: (row[1], -row[2]))

    placed, turns, lanes = place(c, rows, step)

    assert (placed, turns, lanes) == place(python, rows, step)
    lane_of = np.frombuffer(lanes, np.int32)
    assert [lane_of[track] for track in placed] == [row[0] for row in rows]
    durations, opened, last = {}, {}, {}
    for number, encoded in enumerate(turns):
        for time_ns, row, track in struct.iter_unpack("=qii", encoded):
            assert time_ns >= last.get(track, 0)
            last[track] = time_ns
            if row >= 0:
                opened.setdefault(track, []).append((number * step + row, time_ns))
            else:
                begun, start_ns = opened[track].pop()
                durations[begun] = (start_ns, time_ns - start_ns)
    assert durations == {row: (start, dur) for row, (_, start, dur) in enumerate(rows)}


def test_spans_that_nest_need_no_further_track(c: ModuleType) -> None:
    rows = [(0, 0, 10), (0, 1, 3), (0, 4, 6), (0, 4, 2), (0, 10, 0), (0, 10, 0), (0, 11, 0)]

    placed, _, _ = place(c, rows, 100)

    assert placed == [0] * 7


def test_many_crossing_spans_take_as_many_tracks_as_are_open(c: ModuleType) -> None:
    rows = [(0, start, 1000) for start in range(20_000)]

    placed, _, _ = place(c, rows, 1 << 15)

    assert max(placed) == 999  # a track is free again the moment its span ends


@given(values=st.lists(st.integers(-3, 3) | INT64, max_size=50))
def test_hashes_are_numbered_the_same(c: ModuleType, values: list[int]) -> None:
    found = []
    for module in (c, python):
        code, first = np.zeros(len(values), np.int32), np.zeros(len(values), np.int64)
        count = module.number_hashes(np.array(values, np.int64), code, first)
        found.append((count, code.tolist(), first[:count].tolist()))

    assert found[0] == found[1]
    assert [values[found[0][2][number]] for number in found[0][1]] == values


def test_more_distinct_hashes_than_the_first_table_holds(c: ModuleType) -> None:
    values = np.arange(100_000, dtype=np.int64) << 40
    code, first = np.zeros(len(values), np.int32), np.zeros(len(values), np.int64)

    assert c.number_hashes(values, code, first) == len(values)
    assert (code == np.arange(len(values))).all()
