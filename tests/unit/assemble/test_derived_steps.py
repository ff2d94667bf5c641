# SPDX-License-Identifier: Apache-2.0
"""Steps of programs that mark none, drawn.

L is a wait for the loader, O Optimizer.step, S a framework's own step, e the end of
the data, f forward, b backward; steps are shown as (kind, begin and end in columns, lane).
"""

from __future__ import annotations

import polars as pl

from drawing import COLUMN_NS, spans, steps_of, table
from strobe.store.frames import empty

NAMES = {
    "L": ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data_loading"),
    "F": ("fetch", "data_loading"),
    "O": ("Optimizer.step#Adam.step", "optimizer"),
    "S": ("TrainOneStepCell", None),
    "e": ("end of data", "data_loading"),
    "s": ("SGD", "optimizer"),
    "f": ("aten::mm", "forward"),
    "b": ("autograd::engine::evaluate_function: MmBackward0", "backward"),
    "x": ("aten::item", "other"),
    "u": ("mine", None),
}
ENDS = {"S": "step", "e": "data"}


def traced(drawing: str) -> pl.DataFrame:
    trace = spans(drawing)
    glyphs = trace["name"].to_list()
    return trace.with_columns(
        name=pl.Series([NAMES[glyph][0] for glyph in glyphs], dtype=pl.String),
        phase=pl.Series([NAMES[glyph][1] for glyph in glyphs], dtype=pl.String),
        ends=pl.Series([ENDS.get(glyph) for glyph in glyphs], dtype=pl.String),
    )


def steps(drawing: str) -> list[tuple]:
    found = steps_of(traced(drawing))
    assert found["step"].to_list() == list(range(found.height))
    return [
        (kind, start // COLUMN_NS, (start + dur) // COLUMN_NS, lane)
        for kind, start, dur, lane in found.select("kind", "start_ns", "dur_ns", "lane").rows()
    ]


def test_a_step_ends_with_its_optimizer():
    assert steps("""
        main |  L f b O-  L f b O- x
    """) == [("optimizer", 1, 9, 0), ("optimizer", 9, 19, 0)]


def test_accumulated_batches_are_one_step():
    assert steps("main | L f b L f b O L f b L f b O") == [
        ("optimizer", 0, 13, 0),
        ("optimizer", 13, 27, 0),
    ]


def test_two_optimizers_on_one_batch_are_one_step():
    assert steps("main | L f b O f b O L f b O f b O") == [
        ("optimizer", 0, 13, 0),
        ("optimizer", 13, 27, 0),
    ]


def test_without_a_known_forward_a_backward_parts_the_steps():
    # one operator of the optimizer for each parameter, as in MindSpore's PyNative mode
    assert steps("main | u b s u s u b s u s") == [
        ("optimizer", 0, 9, 0),
        ("optimizer", 9, 19, 0),
    ]


def test_without_a_loader_a_forward_parts_the_steps():
    # one loss after the other, then a step of both optimizers
    assert steps("main | f b O b O f b O b O") == [
        ("optimizer", 0, 9, 0),
        ("optimizer", 9, 19, 0),
    ]


def test_a_batch_loaded_once_is_not_part_of_the_loop():
    assert steps("main | L f b O f b O") == [("optimizer", 0, 7, 0), ("optimizer", 7, 13, 0)]


def test_optimizers_without_operators_are_a_step_each():
    assert steps("main | O O") == [("optimizer", 0, 1, 0), ("optimizer", 1, 3, 0)]


def test_an_optimizer_in_another_is_part_of_it():
    assert steps("""
        main | f b O---- f b O
        main |      O
    """) == [("optimizer", 0, 9, 0), ("optimizer", 9, 15, 0)]


def test_a_step_of_the_framework_holds_its_optimizer():
    assert steps("""
        main | L S----- L S-----
        main |      O-      O-
        ops  |   f b x    f b x
    """) == [("optimizer", 0, 8, 0), ("optimizer", 8, 17, 0)]


def test_operators_of_an_optimizer_end_a_step_where_nothing_else_tells():
    assert steps("main | f f b s s f f b s s") == [
        ("optimizer", 0, 9, 0),
        ("optimizer", 9, 19, 0),
    ]


def test_the_lane_that_trains_has_the_steps():
    assert steps("""
        worker | f
        main   |  f O f O
        other  | f O
    """) == [("optimizer", 1, 4, 1), ("optimizer", 4, 8, 1)]


def test_without_an_optimizer_a_batch_is_a_step():
    # the last wait finds that there is no batch left
    assert steps("""
        main   | f L-- f f L-- f L-
        main   |     F
        worker | F--- F
    """) == [("batch", 2, 10, 0), ("batch", 10, 18, 0)]


def test_an_epochs_end_is_no_batch():
    assert steps("main | L f L L f") == [("batch", 0, 6, 0), ("batch", 6, 9, 0)]


def test_a_wait_that_finds_the_end_of_the_data_is_no_step_where_operators_are_elsewhere():
    assert steps("""
        main | L-  L-  L- L-  L-
        main |         e      e
        ops  |   f   f      f
    """) == [("batch", 0, 4, 0), ("batch", 4, 11, 0), ("batch", 11, 17, 0)]


def test_a_loader_alone_has_its_waits_as_steps():
    assert steps("main | L- L-") == [("batch", 0, 3, 0), ("batch", 3, 5, 0)]


def test_with_neither_there_are_no_steps():
    assert steps("main | u f x") == []
    nothing = table([]).with_columns(phase=pl.Series([], dtype=pl.String))
    assert steps_of(nothing).is_empty()


def test_a_step_is_unfinished_with_the_span_that_ends_it():
    for drawing in ("main | f O f O-", "main | L f L f-"):
        trace = traced(drawing)
        cut = trace.with_columns(unfinished=pl.int_range(pl.len()) == pl.len() - 1)

        assert steps_of(cut)["unfinished"].to_list() == [False, True]


def test_derived_steps_have_the_columns_of_the_table():
    for drawing in ("main | f O", "main | L f", "main | u"):
        assert steps_of(traced(drawing)).schema == empty("steps").schema


def annotated(drawing: str, numbers: dict[str, int]) -> pl.DataFrame:
    """Spans that are annotations, those with these names numbered so."""
    trace = spans(drawing).with_columns(
        category=pl.lit("annotation"), phase=pl.lit(None, pl.String)
    )
    number = pl.Series([numbers.get(name, -1) for name in trace["name"]], dtype=pl.Int64)
    return steps_of(trace.with_columns(number=number))


def test_annotations_with_a_number_are_steps():
    found = annotated(
        """
        main  | x a----- b----
        main  |    c
        other | d
        """,
        {"a": 5, "b": 8, "c": 6, "d": 1},
    )

    assert found.select("step", "kind", "start_ns", "dur_ns", "lane").rows() == [
        (5, "annotation", 2 * COLUMN_NS, 6 * COLUMN_NS, 0),
        (8, "annotation", 9 * COLUMN_NS, 5 * COLUMN_NS, 0),
    ]


def test_annotations_are_counted_where_their_numbers_do_not_rise():
    assert annotated("main | a-- b--", {"a": 1, "b": 1})["step"].to_list() == [0, 1]


def test_what_tells_that_it_ends_a_step_is_believed():
    trace = traced("main | u-- u-- u--")
    named = trace.with_columns(ends=pl.Series(["step", None, "step"]))

    found = steps_of(named)

    ends = (found["start_ns"] + found["dur_ns"]) // COLUMN_NS
    assert ends.to_list() == [3, 11]


def test_annotations_that_tell_their_phase_are_believed():
    trace = traced("main | u- x u-  u- x u-")
    told = {0: "data_loading", 2: "optimizer", 3: "data_loading", 5: "optimizer"}
    named = trace.with_columns(
        stated=pl.Series([told.get(row) for row in range(6)], dtype=pl.String),
        category=pl.Series(["annotation" if row in told else "operator" for row in range(6)]),
    )

    found = steps_of(named)

    assert found["kind"].to_list() == ["optimizer"] * 2
    assert (found["start_ns"] // COLUMN_NS).to_list() == [0, 7]
