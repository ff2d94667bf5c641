# SPDX-License-Identifier: Apache-2.0
"""Traces that are put together, parted and moved to other clocks, all of them drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drawing import batch, trace
from strobe.model import trace as model
from strobe.model.attributes import ENDINGS
from strobe.model.phases import NONE, OPTIMIZER, UNKNOWN
from strobe.model.texts import Attributes
from strobe.model.trace import (
    UNFINISHED,
    Allocations,
    Batches,
    Counters,
    Frame,
    Instants,
    Loads,
    Samples,
    Spans,
    Steps,
    Thread,
    Trace,
    attribute_columns,
    combine,
    concatenate,
    split,
)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def zeros(rows: int) -> Any:
    return np.zeros(rows, np.int32)


def samples(*stacks: int) -> Samples:
    zeros = np.zeros(len(stacks), np.int64)
    lane = zeros.astype(np.int32)
    return Samples(start_ns=zeros, interval_ns=zeros, lane=lane, stack=ints(*stacks))


def counters(values: list[float], start_ns: int = 0) -> Counters:
    start = np.arange(start_ns, start_ns + len(values))
    lane = zeros(len(values))
    return Counters(start_ns=start, value=np.array(values), name=lane, lane=lane)


def allocations(*start_ns: int, owner_ns: int = 0) -> Allocations:
    rows = len(start_ns)
    unknown = np.full(rows, -1, np.int64)
    return Allocations(
        start_ns=ints(*start_ns),
        bytes=np.full(rows, 8, np.int64),
        address=unknown,
        device=zeros(rows) - 1,
        lane=zeros(rows),
        reserved_bytes=unknown,
        owner_ns=ints(*start_ns) + owner_ns,
    )


def attributes(spans: Spans) -> list[str | None]:
    return [None if place < 0 else spans.texts[place] for place in spans.attributes.tolist()]


def named(whole: Trace) -> list[tuple[str, str | None]]:
    """Name and thread of every span."""
    return [
        (whole.names[name], whole.threads[lane].name)
        for spans in whole.spans
        for name, lane in zip(spans.name.tolist(), spans.lane.tolist(), strict=True)
    ]


# concatenate()


def test_texts_of_several_batches_become_one_sequence() -> None:
    one = batch("main | a b", attributes={"a": {"x": 1}, "b": {"x": 2}})
    other = batch("main | c d e", attributes={"c": {"x": 2}, "e": {"x": 3}})

    both = concatenate([one, other], Spans)

    assert attributes(both) == ['{"x": 1}', '{"x": 2}', '{"x": 2}', None, '{"x": 3}']
    assert list(both.texts) == ['{"x": 1}', '{"x": 2}', '{"x": 2}', '{"x": 3}']


def test_batches_that_share_their_texts_keep_them() -> None:
    whole = batch("main | a b", attributes={"a": {"x": 1}, "b": {"x": 2}})
    parts = [whole.take(slice(0, 1)), whole.take(slice(1, 2))]

    both = concatenate(parts, Spans)

    assert both.texts is whole.texts
    assert attributes(both) == ['{"x": 1}', '{"x": 2}']


def test_a_column_that_only_some_batches_have_is_minus_one_in_the_others() -> None:
    one = batch("main | a b", sequence={"a": 3, "b": 4}, phase={"a": "forward"})
    other = batch("main | c", correlation={"c": 5})

    both = concatenate([other, one], Spans)

    assert both.sequence is not None
    assert both.sequence.tolist() == [-1, 3, 4]
    assert both.correlation is not None
    assert both.correlation.tolist() == [5, -1, -1]
    assert both.phase is not None
    assert both.phase.tolist() == [NONE, 1, NONE]
    assert both.device is None


def test_the_only_batch_with_rows_stays_as_it_is() -> None:
    one = batch("main | a")

    assert concatenate([one.take(slice(0, 0)), one], Spans) is one


@pytest.mark.parametrize("kind", [Spans, Instants, Counters, Allocations, Samples, Steps, Loads])
def test_no_batches_are_a_batch_without_rows(kind: Any) -> None:
    nothing = concatenate([], kind)

    assert isinstance(nothing, kind)
    assert len(nothing) == 0
    assert len(nothing.take(np.zeros(0, bool))) == 0
    assert nothing.lane.dtype == np.int32


# split()


def test_a_long_batch_is_parted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MOST_ROWS", 2)
    whole = batch("main | a b c d e", sequence={"a": 1, "e": 5})

    parts = split(whole)

    assert [part.name.tolist() for part in parts] == [[0, 1], [2, 3], [4]]
    assert [part.sequence.tolist() for part in parts if part.sequence is not None] == [
        [1, -1],
        [-1, -1],
        [5],
    ]
    assert all(part.texts is whole.texts for part in parts)


def test_a_batch_that_is_not_too_long_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MOST_ROWS", 2)
    whole = batch("main | a b")

    assert split(whole) == [whole]
    assert split(whole.take(slice(0, 0))) == []


# combine()


def test_threads_of_the_same_numbers_are_one() -> None:
    one = trace("main | a\nother | b")
    again = {"there": Thread(7, 71, "the other's name"), "new": Thread(7, 99, "new")}
    other = trace("new | c\nthere | d", threads=again)

    both = combine([one, other])

    assert named(both) == [("a", "main"), ("b", "other"), ("c", "new"), ("d", "other")]
    assert len(both.threads) == 3


def test_the_contexts_of_a_thread_stay_apart() -> None:
    task = Thread(7, 70, "main", context=1)
    one = trace("main | a\ntask | b", threads={"task": task})
    other = trace("task | c\nmain | d", threads={"task": task, "main": Thread(7, 70, "theirs")})

    both = combine([one, other])

    lanes = [lane for spans in both.spans for lane in spans.lane.tolist()]
    assert lanes == [0, 1, 2, 0]
    assert [thread.context for thread in both.threads] == [0, 1, 1]


def test_a_stream_is_no_thread_of_the_same_number() -> None:
    one = trace("main | a", threads={"main": Thread(7, 5, "main")})
    stream, another = Thread(7, 5, "stream", device=0), Thread(7, 5, "another", device=1)
    other = trace("x | k\ny | l\nx | m", threads={"x": stream, "y": another})

    both = combine([one, other, other])

    assert [thread.name for thread in both.threads] == ["main", "stream", "another"]
    assert [name for _, name in named(both)] == [
        "main",
        *("stream", "another", "stream"),
        *("stream", "another", "stream"),
    ]


def test_threads_of_two_processes_are_two() -> None:
    one = trace("main | a")
    other = trace("main | b", threads={"main": Thread(8, 70, "child")})

    assert named(combine([one, other])) == [("a", "main"), ("b", "child")]


def test_names_and_modules_are_those_of_all_traces() -> None:
    one = trace("main | mm relu", module={"mm": "Net.first"})
    other = trace("main | relu add", module={"relu": "Net.last", "add": "Net.first"})

    both = combine([one, other])

    assert [name for name, _ in named(both)] == ["mm", "relu", "relu", "add"]
    modules = concatenate(both.spans, Spans).module
    assert modules is not None
    assert [None if code < 0 else both.names[code] for code in modules.tolist()] == [
        "Net.first",
        None,
        "Net.last",
        "Net.first",
    ]
    assert len(both.names) == len(set(both.names))


def test_frames_and_stacks_are_those_of_all_traces() -> None:
    f, g, h = Frame("f", "a.py", 1), Frame("g", "a.py", 9), Frame("h")
    one = trace("main | a", frames=[f, g], stacks=[(-1, 0), (0, 1)], samples=[samples(1)])
    other = trace(
        "main | b c",
        frame={"b": 1},
        frames=[h, g],
        stacks=[(-1, 1), (0, 0)],
        samples=[samples(0, 1, -1)],
    )

    both = combine([one, other])

    assert list(both.frames) == [f, g, h]
    assert list(both.stacks) == [(-1, 0), (0, 1), (-1, 1), (2, 2)]
    assert [stack for each in both.samples for stack in each.stack.tolist()] == [1, 2, 3, -1]
    frame = concatenate(both.spans, Spans).frame
    assert frame is not None
    assert frame.tolist() == [-1, 1, -1]


def test_points_follow_their_threads_and_names() -> None:
    one = trace("main | a")
    other = trace(
        "worker | loss",
        threads={"worker": Thread(7, 99, "worker")},
        counters=[counters([0.5])],
        instants=[
            Instants(start_ns=ints(3), name=zeros(1), lane=zeros(1), attributes=zeros(1) - 1)
        ],
        allocations=[allocations(1)],
    )

    both = combine([one, other])

    (values,), (moments,), (blocks,) = both.counters, both.instants, both.allocations
    assert [both.names[code] for code in (*values.name, *moments.name)] == ["loss", "loss"]
    assert [part.lane.tolist() for part in (values, moments, blocks)] == [[1], [1], [1]]


def test_combined_batches_can_be_iterated_again() -> None:
    one = trace("main | a")
    drawn = batch("main | b")
    made = []

    def make() -> Any:
        made.append(True)
        return iter([drawn])

    both = combine([one, replace(one, names=["b"], spans=Batches(make))])

    assert named(both) == named(both) == [("a", "main"), ("b", "main")]
    assert len(made) == 2


def test_all_but_the_rows_is_that_of_the_first() -> None:
    one = trace("main | a-", notes=["first"], metadata={"who": "first"})
    other = trace("main | b-----", notes=["second"], metadata={"who": "second"}, start_ns=9)

    both = combine([one, other])

    assert (both.notes, both.metadata, both.start_ns, both.end_ns) == (
        ["first"],
        {"who": "first"},
        0,
        2_000,
    )


# Trace.moved()


def later(times: Any) -> Any:
    """A clock that runs at double speed, and shows 100 where the trace's shows 0."""
    return 2 * times + 100


def test_spans_keep_both_their_ends() -> None:
    moved = trace("main | a-- b").moved(later)

    (spans,) = moved.spans
    assert spans.start_ns.tolist() == [100, 8_100]
    assert spans.dur_ns.tolist() == [6_000, 2_000]
    assert (moved.start_ns, moved.end_ns) == (100, 10_100)


def test_what_had_not_ended_still_has_not() -> None:
    (spans,) = trace("main |  a--~").moved(later).spans

    assert spans.start_ns.tolist() == [2_100]
    assert spans.dur_ns.tolist() == [UNFINISHED]


def test_steps_and_loads_move_with_both_ends() -> None:
    no, lane = np.zeros(1, bool), zeros(1)
    steps = Steps(
        start_ns=ints(10),
        dur_ns=ints(30),
        number=ints(4),
        samples=ints(16),
        lane=lane,
        is_request=no,
        unfinished=no,
    )
    loads = Loads(
        start_ns=ints(10, 50),
        dur_ns=ints(5, UNFINISHED),
        lane=zeros(2),
        is_batch=np.ones(2, bool),
        loader=zeros(2),
    )

    moved = Trace(steps=steps, loads=loads).moved(later)

    assert moved.steps is not None
    assert (moved.steps.start_ns.tolist(), moved.steps.dur_ns.tolist()) == ([120], [60])
    assert (moved.steps.number.tolist(), moved.steps.samples.tolist()) == ([4], [16])
    assert moved.loads is not None
    assert moved.loads.start_ns.tolist() == [120, 200]
    assert moved.loads.dur_ns.tolist() == [10, UNFINISHED]


def test_points_move_and_blocks_know_their_owners() -> None:
    instants = Instants(start_ns=ints(7), name=zeros(1), lane=zeros(1), attributes=zeros(1))
    whole = Trace(
        instants=[instants],
        counters=[counters([0.5, 0.25], start_ns=8)],
        allocations=[allocations(10, 20, owner_ns=5)],
        samples=[samples(0)],
    )

    moved = whole.moved(later)

    times = [part.start_ns.tolist() for part in (*moved.instants, *moved.counters, *moved.samples)]
    assert times == [[114], [116, 118], [100]]
    (blocks,) = moved.allocations
    assert blocks.start_ns.tolist() == [120, 140]
    assert blocks.owner_ns.tolist() == [130, 150]
    assert blocks.bytes.tolist() == [8, 8]


def test_a_trace_without_steps_has_none_on_another_clock() -> None:
    moved = Trace().moved(later)

    assert (moved.steps, moved.loads, list(moved.spans)) == (None, None, [])


# attribute_columns()


def test_what_attributes_tell_has_columns() -> None:
    objects = [
        {"phase": "optimizer"},
        {"ends": "step", "step_num": 12},
        {"phase": None},
        {"hlo_module": "jit_train"},
        {"phase": "nonsense", "ends": "nonsense", "step_num": -3},
    ]

    columns = attribute_columns(objects, np.array([4, 3, 2, 1, 0, -1], np.int32))

    assert columns["phase"].tolist() == [NONE, UNKNOWN, UNKNOWN, NONE, OPTIMIZER, NONE]
    assert columns["ends"].tolist() == [-1, -1, -1, ENDINGS.index("step"), -1, -1]
    assert columns["step"].tolist() == [-1, -1, -1, 12, -1, -1]


def test_what_no_attributes_tell_has_no_column() -> None:
    assert attribute_columns([{"shapes": [[2, 3]]}], np.array([0, -1], np.int32)) == {}
    assert attribute_columns([], np.array([-1], np.int32)) == {}
    assert set(attribute_columns([{"step_num": 0}], np.array([0], np.int32))) == {"step"}


def test_joined_attributes_keep_their_order_and_their_objects() -> None:
    one = Attributes(['{"a":1}', '{"b":2}'], {0: {"from": "one"}})
    other = Attributes(['{"b":2}', '{"c":3}'], {1: {"from": "other"}})

    both = one.joined(other)

    assert list(both) == ['{"a":1}', '{"b":2}', '{"b":2}', '{"c":3}']
    assert [both.content(place) for place in range(4)] == [
        {"from": "one"},
        *({"b": 2}, {"b": 2}),
        {"from": "other"},
    ]
