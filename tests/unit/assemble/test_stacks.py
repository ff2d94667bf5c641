# SPDX-License-Identifier: Apache-2.0
"""Python's calls and samples in drawn traces.

f and g are functions of the program's modules app and app.inner, t is one of torch, len one in C.
mm and add are operators, k runs on a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from drawing import COLUMN_NS, SPILLS, nested, trace
from strobe.assemble.stacks import Calls, Stacks, gather_calls, sampled_stacks, split_calls
from strobe.model.threads import SAMPLER
from strobe.model.trace import Frame, Samples, Spans, Thread, Trace, Wanted, concatenate

FRAMES = [
    Frame("f", "app.py", 10, "app"),
    Frame("g", "inner.py", 20, "app.inner"),
    Frame("t", "torch.py", 30, "torch"),
    Frame("len", None, None, "builtins"),
]
FUNCTIONS = {frame.name: place for place, frame in enumerate(FRAMES)}
KINDS = {**dict.fromkeys(FUNCTIONS, "python"), "mm": "operator", "add": "operator", "k": "kernel"}
OURS = Thread(7, 99, SAMPLER)
SPILL = SPILLS[0]
"""Nothing here is too long for memory."""


def draw(drawing: str, **given: Any) -> Trace:
    threads = {"ours": OURS, "task": Thread(7, 70, "main", context=1)}
    columns = {"category": KINDS, "frame": FUNCTIONS}
    return trace(drawing, frames=FRAMES, threads=threads, **columns, **given)


def gather(drawn: Trace) -> tuple[Calls, Stacks]:
    _, calls = split_calls(concatenate(drawn.spans, Spans), drawn)
    calls = calls.take(np.lexsort((-calls.dur_ns, calls.start_ns)))
    found = concatenate(drawn.samples, Samples)
    found = found.take(np.argsort(found.start_ns, kind="stable"))
    return gather_calls(calls, found, drawn, SPILL)


def shown(drawing: str, **given: Any) -> list[tuple[str, int, int, bool]]:
    """Name, first column, column after the last, and whether it had not ended, of each call."""
    drawn = draw(drawing, **given)
    calls, _ = gather(drawn)
    ends = calls.table.start_ns + calls.table.dur_ns
    return [
        (drawn.names[name], start // COLUMN_NS, end // COLUMN_NS, is_open)
        for name, start, end, is_open in zip(
            *(calls.table.name.tolist(), calls.table.start_ns.tolist()),
            *(ends.tolist(), calls.table.unfinished.tolist()),
            strict=True,
        )
    ]


def chosen(drawing: str, **wanted: Any) -> list[str]:
    return [row[0] for row in shown(drawing, wanted=Wanted(**wanted))]


def samples(*rows: tuple[float, int, int], interval: int = 2) -> Samples:
    """Samples at these columns in these lanes, with the places of their stacks."""
    column, lane, stack = zip(*rows, strict=True) if rows else ((), (), ())
    return Samples(
        start_ns=np.array([round(each * COLUMN_NS) for each in column], np.int64),
        interval_ns=np.full(len(rows), interval * COLUMN_NS, np.int64),
        lane=np.array(lane, np.int32),
        stack=np.array(stack, np.int64),
    )


def paths(stacks: Stacks) -> list[str]:
    """Each stack as the names of its functions, the outermost first."""
    names = list(stacks.frames["name"])  # type: ignore[call-overload]
    found: list[str] = []
    rows = pl.DataFrame(stacks.stacks)
    for parent, frame, depth in rows.select("parent", "frame", "depth").rows():
        above = "" if parent is None else found[parent] + ">"
        found.append(above + names[frame])
        assert depth == found[-1].count(">") + 1
    return found


# Calls


def test_calls_are_parted_from_other_spans() -> None:
    drawn = draw("""
        main | f---------
        main |   mm-  user
    """)

    others, calls = split_calls(concatenate(drawn.spans, Spans), drawn)

    assert [drawn.names[code] for code in others.name] == ["mm", "user"]
    assert [drawn.names[code] for code in calls.name] == ["f"]


def test_calls_in_our_own_threads_are_nobodys() -> None:
    assert shown("main | f\nours | g") == [("f", 0, 1, False)]


def test_calls_get_lanes_of_their_own() -> None:
    drawn = draw("""
        main  | mm--
        other | f-------
        other |   add
        task  | g--
    """)

    calls, _ = gather(drawn)

    names = [thread.name for thread in calls.threads]
    assert names == ["main", "other", "main", "other (Python)", "main (Python)"]
    assert calls.threads[4] == Thread(7, 70, "main (Python)", context=1)
    assert calls.table.lane.tolist() == [3, 4]
    # what a framework tells of the thread, not of its contexts, is in the calls of the thread
    assert calls.lane_of.tolist() == [4, 3, 4]


def test_a_call_that_is_open_at_the_start_begins_with_the_window() -> None:
    drawing = """
        main | f----------
        main |   g----
        main |    t   len
    """

    assert shown(drawing, start_ns=5_000) == [
        ("f", 5, 11, False),
        ("g", 5, 7, False),
        ("len", 7, 10, False),
    ]


def test_a_call_that_ended_before_the_window_is_not_in_it() -> None:
    # the second one ends with its start
    assert shown("main | f- g-- t", start_ns=6_000) == [("t", 7, 8, False)]


def test_a_call_that_had_not_ended_ends_with_the_window() -> None:
    drawing = """
        main | f--~
        main |   g-------
    """

    assert shown(drawing, end_ns=8_000) == [("f", 0, 8, True), ("g", 2, 8, True)]


def test_a_call_after_the_window_is_not_in_it() -> None:
    assert shown("main | f  g~", end_ns=2_000) == [("f", 0, 1, False)]


def test_calls_are_nested_among_themselves() -> None:
    drawn = draw("""
        main | f---------  g
        main |  mm--------
        main |   g----
    """)

    calls, _ = gather(drawn)

    assert calls.table.parent.tolist() == [-1, 0, -1]
    assert calls.table.self_ns.tolist() == [5_000, 5_000, 1_000]


DEEP = """
    main | f------------------
    main |  t---------   g----
    main |   len  g--     len
"""


def test_all_calls_are_wanted_unless_somebody_says_otherwise() -> None:
    assert chosen(DEEP) == ["f", "t", "len", "g", "g", "len"]
    assert chosen(DEEP, traced=False) == []


def test_included_modules_have_those_inside_them_and_functions_in_c() -> None:
    assert chosen(DEEP, include=("app",)) == ["f", "len", "g", "g", "len"]
    assert chosen(DEEP, include=("app.inner",)) == ["len", "g", "g", "len"]
    assert chosen(DEEP, include=("ap",)) == ["len", "len"]


def test_excluded_modules_have_those_inside_them() -> None:
    assert chosen(DEEP, exclude=("app",)) == ["t", "len", "len"]
    assert chosen(DEEP, exclude=("app.inner", "builtins")) == ["f", "t"]
    assert chosen(DEEP, include=("app",), exclude=("app.inner",)) == ["f", "len", "len"]


def test_short_calls_are_not_wanted() -> None:
    assert chosen(DEEP, min_ns=3_000) == ["f", "t", "len", "g", "g", "len"]
    assert chosen(DEEP, min_ns=3_001) == ["f", "t", "g"]


def test_a_call_that_had_not_ended_is_never_too_short() -> None:
    assert chosen("main | f-~", min_ns=1_000_000) == ["f"]


def test_a_call_that_had_not_ended_is_chosen_by_its_module_as_others_are() -> None:
    drawing = """
        main | f----~
        main |  t--~
    """

    assert chosen(drawing, exclude=("torch",)) == ["f"]
    assert chosen(drawing, include=("torch",)) == ["t"]


def test_a_call_is_in_that_around_it_that_is_wanted() -> None:
    drawn = draw(DEEP, wanted=Wanted(exclude=("torch",)))

    calls, stacks = gather(drawn)

    # f, then in it: len, g, g, and in the last one len
    assert calls.table.parent.tolist() == [-1, 0, 0, 0, 3]
    assert paths(stacks) == ["f", "f>len", "f>g", "f>g>len"]
    assert calls.stack.tolist() == [0, 1, 2, 2, 3]


# Stacks


def test_each_stack_is_there_once() -> None:
    drawn = draw("""
        main  | f-------  f-----
        main  |  g-  g-    g-
        other | g
    """)

    calls, stacks = gather(drawn)

    assert sorted(paths(stacks)) == ["f", "f>g", "g"]
    shown = [paths(stacks)[stack] for stack in calls.stack]
    assert shown == ["f", "g", "f>g", "f>g", "f", "f>g"]


def test_only_functions_in_stacks_have_rows() -> None:
    _, stacks = gather(draw("main | t--\nmain |  len"))

    assert pl.DataFrame(stacks.frames).rows() == [
        ("t", "torch.py", 30, "torch"),
        ("len", None, None, "builtins"),
    ]


def test_an_operator_has_the_stack_that_it_was_begun_in() -> None:
    drawn = draw(
        """
        main   | f--------------  mm
        main   |  g-------
        main   |   mm--    add
        other  |   mm-
        stream |     k--
        """,
        device={"k": 0},
    )
    spans, _ = nested(drawn)
    operators, _ = split_calls(spans, drawn)

    calls, stacks = gather(drawn)

    at, spilled = (calls.stacks_at(operators, spill).tolist() for spill in SPILLS)
    assert spilled == at
    named = [drawn.names[code] for code in operators.name]
    where = [
        (name, paths(stacks)[place] if place >= 0 else None)
        for name, place in zip(named, at, strict=True)
    ]
    assert sorted(where, key=str) == [
        ("add", "f"),
        ("k", None),
        ("mm", "f>g"),
        ("mm", None),
        ("mm", None),
    ]


# Samples

STACKS = [(-1, 0), (0, 1), (-1, 2)]
"""f, f>g and t"""


def sampled(
    drawing: str, *rows: tuple[float, int, int], **given: Any
) -> tuple[Trace, Calls, Stacks]:
    drawn = draw(drawing, stacks=STACKS, samples=[samples(*rows)], **given)
    return drawn, *gather(drawn)


def test_samples_of_the_window_have_rows() -> None:
    rows = [(9, 1, 1), (4, 0, 2), (11, 0, 0), (2, 0, 1), (10, 0, -1)]

    _, _, stacks = sampled("main | mm-\nother | add", *rows, start_ns=3_000, end_ns=10_000)

    found = pl.DataFrame(vars(stacks.samples))
    assert found.select("start_ns", "interval_ns", "lane").rows() == [
        (4_000, 1_000, 0),  # the window began 1000 before
        (9_000, 2_000, 1),
    ]
    assert [paths(stacks)[place] for place in found["stack"]] == ["t", "f>g"]


def test_samples_of_our_own_threads_are_nobodys() -> None:
    _, _, stacks = sampled("main | mm-----\nours | x", (2, 1, 0), (3, 0, 0))

    assert stacks.samples.lane.tolist() == [0]


def test_a_lane_of_samples_is_named_so() -> None:
    _, calls, _ = sampled("main | mm-----\nother | add--", (2, 0, 0), (3, 0, 0))

    assert [thread.name for thread in calls.threads] == ["main (Python)", "other"]


def test_samples_and_calls_have_the_same_stacks() -> None:
    _, calls, stacks = sampled("main | f-----\nmain |   g--", (4, 0, 1))

    assert paths(stacks) == ["f", "f>g", "t"]
    assert calls.stack.tolist() == [0, 1]


def test_samples_stand_in_for_calls_that_could_not_be_traced() -> None:
    only_traced = Wanted(sampled=False)

    _, _, without_calls = sampled("main | mm---", (2, 0, 0), wanted=only_traced)
    _, _, with_calls = sampled("main | f---", (2, 0, 0), wanted=only_traced)

    assert len(without_calls.samples) == 1
    assert len(with_calls.samples) == 0


def test_stacks_that_nobody_wants_are_not_there() -> None:
    _, _, stacks = sampled("main | f---", (2, 0, 0), wanted=Wanted(traced=False, sampled=False))

    assert paths(stacks) == []
    assert len(stacks.samples) == len(pl.DataFrame(stacks.frames)) == 0


def seen(drawing: str, *rows: tuple[float, int, int], **given: Any) -> dict[str, str | None] | None:
    """The stack of each span as the samples tell it."""
    drawn, calls, stacks = sampled(drawing, *rows, **given)
    spans, parent = nested(drawn)
    found, spilled = (
        sampled_stacks(stacks, spans, parent, calls.threads, spill) for spill in SPILLS
    )
    assert np.array_equal(spilled, found)
    if found is None:
        return None
    names = [drawn.names[code] for code in spans.name]
    named = [*paths(stacks), None]
    return {name: named[place] for name, place in zip(names, found.tolist(), strict=True)}


def test_a_sample_tells_the_stack_of_the_operators_that_were_open() -> None:
    drawing = """
        main | user------------
        main |  mm-------   add
        main |   in1 in2
    """
    kinds = {"category": {**KINDS, "in1": "operator", "in2": "operator"}}
    drawn = trace(drawing, frames=FRAMES, stacks=STACKS, samples=[samples((7.5, 0, 1))], **kinds)
    calls, stacks = gather(drawn)
    spans, parent = nested(drawn)

    found = sampled_stacks(stacks, spans, parent, calls.threads, SPILL)

    assert found is not None
    names = [drawn.names[code] for code in spans.name]
    # in2 was open; Python went on neither between in1 and it nor before mm had ended
    assert dict(zip(names, found.tolist(), strict=True)) == {
        "user": -1,
        "mm": 1,
        "in1": 1,
        "in2": 1,
        "add": -1,
    }


def test_a_sample_tells_nothing_of_other_threads_and_devices() -> None:
    drawing = """
        main   | mm---
        other  |  add--
        stream |   k--
    """

    assert seen(drawing, (3, 0, 2), device={"k": 0}) == {"mm": "t", "add": None, "k": None}


def test_a_sample_tells_of_all_contexts_of_its_thread() -> None:
    drawing = """
        main | user--
        task |  mm---
    """

    assert seen(drawing, (3, 0, 2)) == {"user": None, "mm": "t"}


def test_without_samples_no_stack_is_known() -> None:
    assert seen("main | mm") is None
