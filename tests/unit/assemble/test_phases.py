# SPDX-License-Identifier: Apache-2.0
"""Phases of drawn training loops.

Letters stand for what torch records: L a wait for the loader, F a fetch, O Optimizer.step, Z
Optimizer.zero_grad, B a backward, f and x operators, C communication, G a kernel, u a user's span,
M a module. f1 has the backward B1; x has none.
"""

from __future__ import annotations

import re

import polars as pl

from drawing import phases_of, spans, table

KINDS = {
    "L": ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "annotation"),
    "F": ("fetch", "data_loading"),
    "O": ("Optimizer.step#SGD.step", "annotation"),
    "Z": ("Optimizer.zero_grad#SGD.zero_grad", "annotation"),
    "B": ("autograd::engine::evaluate_function: MmBackward0", "backward"),
    "f": ("aten::mm", "operator"),
    "x": ("aten::relu", "operator"),
    "C": ("c10d::allreduce_", "communication"),
    "G": ("gemm_kernel", "kernel"),
    "u": ("mine", "user"),
    "M": ("Linear", "module"),
}
SHORT = {"data_loading": "load", "backward": "back", "optimizer": "opt", "zero_grad": "zero"}


def phased(drawing: str, launches: str = "", pids: list[int] | None = None) -> str:
    """The drawn spans in order of time, each as letter:phase.

    launches: pairs like "C1>C2"; pids: the process of each lane, one for all by default.
    """
    trace = spans(drawing)
    glyphs = trace["name"].to_list()
    pairs = [
        ("backward", row, other)
        for row, glyph in enumerate(glyphs)
        for other, name in enumerate(glyphs)
        if re.fullmatch(r"f\d+", glyph) and name == "B" + glyph[1:]
    ]
    for pair in launches.split():
        source, target = pair.split(">")
        pairs.append(("launch", glyphs.index(source), glyphs.index(target)))
    schema = {"kind": pl.String, "source": pl.Int64, "target": pl.Int64}
    named = trace.with_columns(
        name=pl.Series([KINDS[glyph[0]][0] for glyph in glyphs]),
        category=pl.Series([KINDS[glyph[0]][1] for glyph in glyphs]),
        pid=pl.Series([(pids or [7] * 9)[lane] for lane in trace["lane"]]),
    )

    found = phases_of(named, pl.DataFrame(pairs, schema=schema, orient="row"))

    words = (SHORT.get(phase, phase) or "-" for phase in found)
    return " ".join(f"{glyph}:{word}" for glyph, word in zip(glyphs, words, strict=True))


def test_a_training_step_has_all_phases():
    # the x after the backward clips gradients, the last one prints the loss
    assert phased("""
        main | L-- Z- f1 x  B1-  x O--- x
        main |  x           x       x
    """) == ("L:load x:load Z:zero f1:forward x:forward B1:back x:back x:other O:opt x:opt x:other")


def test_the_next_step_needs_neither_loader_nor_zero_grad():
    assert (
        phased("""
        main | x f1 B1 O x f2 B2 O
    """)
        == "x:forward f1:forward B1:back O:opt x:forward f2:forward B2:back O:opt"
    )


def test_gradients_may_accumulate_over_several_batches():
    assert phased("""
        main | L x f1 B1 x L x f2 B2 x O Z
    """) == (
        "L:load x:forward f1:forward B1:back x:other "
        "L:load x:forward f2:forward B2:back x:other O:opt Z:zero"
    )


def test_two_models_and_two_optimizers_take_turns():
    assert phased("""
        main | L Z f1 B1 O Z f2 x B2 x O
    """) == (
        "L:load Z:zero f1:forward B1:back O:opt Z:zero f2:forward x:forward B2:back x:other O:opt"
    )


def test_two_backwards_of_one_forward():
    assert phased("main | f1 f2 B1 B2 x O") == (
        "f1:forward f2:forward B1:back B2:back x:other O:opt"
    )


def test_inference_is_forward():
    assert phased("main | L x x L x") == "L:load x:forward x:forward L:load x:forward"
    assert phased("main | x x") == "x:forward x:forward"


def test_a_thread_that_only_infers_beside_one_that_trains():
    found = phased("""
        main  | f1 B1 x O
        serve |  x  x  x
    """)

    assert found == "f1:forward x:forward B1:back x:forward x:other x:forward O:opt"


def test_validation_after_training_is_forward_again():
    assert phased("main | f1 B1 O L x L x") == (
        "f1:forward B1:back O:opt L:load x:forward L:load x:forward"
    )


def test_a_forward_recomputed_in_the_backward_is_backward():
    assert (
        phased("""
        main | f1 B1------
        main |    f2 B2
    """)
        == "f1:forward B1:back f2:back B2:back"
    )


def test_a_closure_keeps_its_phases_inside_the_optimizers_step():
    # x: what the optimizer itself computes, before and after
    assert (
        phased("""
        main | O--------------------- x
        main |  x Z f1 x B1 x x
    """)
        == "O:opt x:opt Z:zero f1:forward x:forward B1:back x:opt x:opt x:other"
    )


def test_an_optimizer_that_is_differentiated_later_is_no_forward():
    assert (
        phased("""
        main | f1 B1 O----- f3 B3 B2
        main |         f2
    """)
        == "f1:forward B1:back O:opt f2:opt f3:forward B3:back B2:back"
    )


def test_an_optimizers_step_in_the_backward_is_the_optimizers():
    assert (
        phased("""
        main | f1 B1-------- x
        main |      O---  x
        main |       x
    """)
        == "f1:forward B1:back O:opt x:opt x:back x:other"
    )


def test_all_is_data_loading_inside_data_loading():
    assert (
        phased("""
        main | L------------ f3 B3
        main |  f1 B1 Z O
    """)
        == "L:load f1:load B1:load Z:load O:load f3:forward B3:back"
    )


def test_a_backward_on_its_own_thread_parts_the_runs_of_its_forward():
    assert phased("""
        main     | f1 x     x  O x f2    x
        autograd |      B1 x         B2-
        autograd |                    x
    """) == (
        "f1:forward x:forward B1:back x:other x:other O:opt x:forward f2:forward "
        "B2:back x:back x:other"
    )


def test_a_loaders_worker_loads_whatever_it_does():
    found = phased(
        """
        main   | L--- x f1 B1 O
        worker | x F-- x F
        worker |   x
    """,
        pids=[1, 2],
    )

    assert found == ("L:load x:load F:load x:load x:forward x:load f1:forward F:load B1:back O:opt")


def test_communication_has_the_phase_of_its_place_or_of_who_asked_for_it():
    found = phased(
        """
        main | C0 x f1 B1----- C3 O
        main |          C1
        gloo |           C2--
        nobodys | C4
    """,
        launches="C1>C2",
    )

    assert found == (
        "C0:forward C4:other x:forward f1:forward B1:back C1:back C2:back C3:other O:opt"
    )


def test_a_kernel_has_the_phase_of_its_launch():
    found = phased(
        """
        main   | f1- B1--  O
        device |  G1     G2 G3
    """,
        launches="f1>G1 B1>G2",
    )

    assert found == "f1:forward G1:forward B1:back G2:back O:opt G3:-"


def test_containers_have_a_phase_only_if_all_in_them_agree():
    # u0 holds the step, u1 the forward with its module, u2 two phases, u3 nothing known
    assert (
        phased("""
        main | u0---------------------------
        main |  u1------ u2------- u3-
        main |   M1---    B1 O--
        main |     f1
    """)
        == "u0:- u1:forward M1:forward f1:forward u2:- B1:back O:opt u3:-"
    )


def test_a_container_is_not_asked_about_other_lanes():
    assert (
        phased("""
        other | x
        main  | u-----
        main  |   Z
        last  |   x
    """)
        == "u:zero x:forward Z:zero x:forward"
    )


def test_spans_of_users_alone_have_none():
    assert phased("main | u- u-") == "u:- u:-"


def test_no_spans_have_no_phases():
    empty = table([]).with_columns(
        category=pl.Series([], dtype=pl.String), pid=pl.Series([], dtype=pl.Int64)
    )
    links = pl.DataFrame(schema={"kind": pl.String, "source": pl.Int64, "target": pl.Int64})

    assert phases_of(empty, links) == []


def test_neither_compiled_operators_nor_mere_calls_of_a_runtime_tell_a_phase():
    trace = spans("main | call op op").with_columns(
        category=pl.Series(["runtime", "operator", "operator"]), pid=pl.Series([7, 7, 7])
    )
    links = pl.DataFrame(schema={"kind": pl.String, "source": pl.Int64, "target": pl.Int64})

    assert phases_of(trace, links) == ["forward"] * 3
    unknown = trace.with_columns(unknown=pl.Series([False, True, True]))
    assert phases_of(unknown, links) == [None] * 3


def test_spans_that_tell_their_phase_are_believed():
    # As Paddle has it: a layer, operators of the loss, a backward without links, an optimizer
    trace = spans("""
        main | A--- f  D-- x E--- x
        main |  f       f     f
    """)
    kinds = {"A": "annotation", "D": "annotation", "E": "annotation"}
    told = {"A": "forward", "D": "backward", "E": "optimizer"}
    glyphs = trace["name"].to_list()
    named = trace.with_columns(
        category=pl.Series([kinds.get(glyph, "operator") for glyph in glyphs]),
        stated=pl.Series([told.get(glyph) for glyph in glyphs], dtype=pl.String),
        pid=pl.lit(7),
    )
    links = pl.DataFrame(schema={"kind": pl.String, "source": pl.Int64, "target": pl.Int64})

    found = phases_of(named, links)

    words = (f"{glyph}:{phase}" for glyph, phase in zip(glyphs, found, strict=True))
    assert " ".join(words) == (
        "A:forward f:forward f:forward D:backward f:backward x:other "
        "E:optimizer f:optimizer x:other"
    )


def test_what_is_known_to_hold_several_phases_has_none():
    # Of a step's operators, those that update parameters are known, the others are not.
    trace = spans("""
        main | S--------
        main |   x x O
    """)
    glyphs = trace["name"].to_list()
    named = trace.with_columns(
        category=pl.Series(["annotation" if glyph == "S" else "operator" for glyph in glyphs]),
        stated=pl.Series(["optimizer" if glyph == "O" else None for glyph in glyphs]),
        pid=pl.lit(7),
    )
    links = pl.DataFrame(schema={"kind": pl.String, "source": pl.Int64, "target": pl.Int64})
    named = named.with_columns(unknown=pl.Series([glyph != "O" for glyph in glyphs]))

    assert phases_of(named, links) == [None, None, None, "optimizer"]
