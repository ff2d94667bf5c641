# SPDX-License-Identifier: Apache-2.0
"""Which drawn span led to which.

Small letters are forward operators, capital ones backwards; E is the engine's span around one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from drawing import SPILLS, nested, trace
from strobe.assemble.lanes import number_processes
from strobe.assemble.links import (
    Pairs,
    layers,
    link_backward,
    link_launches,
    links_table,
    number_engine,
)
from strobe.model.coded import Coded
from strobe.model.trace import Thread


def categories(drawing: str, **others: str) -> dict[str, str]:
    """The category of each box, by how its name is written."""
    names = {box.rstrip("-") for box in drawing.split() if box not in ("|", "main", "engine")}
    kinds = {name: "backward" if name[0].isupper() else "operator" for name in names}
    return {**kinds, **others}


def numbers(drawing: str, **sequence: int) -> dict[str, int]:
    """The sequence number of each span after the engine's have theirs."""
    thread = dict.fromkeys(sequence, 1)
    drawn = trace(drawing, category=categories(drawing), sequence=sequence, numbered_by=thread)
    spans, parent = nested(drawn)

    numbered, spilled = (number_engine(spans, parent, spill) for spill in SPILLS)
    assert np.array_equal(numbered.sequence, spilled.sequence)

    assert numbered.sequence is not None
    assert numbered.numbered_by is not None
    assert ((numbered.sequence >= 0) == (numbered.numbered_by >= 0)).all()
    names = [drawn.names[code] for code in numbered.name]
    return dict(zip(names, numbered.sequence.tolist(), strict=True))


def pairs(drawing: str, link: Any, **given: Any) -> list[str]:
    """Pairs of names, as in f>F."""
    drawn = trace(drawing, **given)
    spans, parent = nested(drawn)
    process = number_processes(drawn.threads)
    arguments = (spans, parent, process) if link is link_backward else (spans, process)
    names = [drawn.names[code] for code in spans.name]
    found, spilled = (
        [
            f"{names[one]}>{names[other]}"
            for one, other in zip(*link(*arguments, spill), strict=True)
        ]
        for spill in SPILLS
    )
    assert found == spilled
    return found


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def backwards(drawing: str, by: dict[str, int] | None = None, **sequence: int) -> list[str]:
    """Links of forwards to backwards; `by` has the threads that numbered them, 1 for the others."""
    thread = {**dict.fromkeys(sequence, 1), **(by or {})}
    kinds = categories(drawing)
    given = {"category": kinds, "sequence": sequence, "numbered_by": thread}
    return pairs(drawing, link_backward, **given)


def test_the_engines_span_has_the_number_of_the_backward_in_it() -> None:
    drawing = """
        engine | E1------  E2----  E3--
        engine |  A---      B--
    """

    assert numbers(drawing, A=5, B=4) == {"E1": 5, "A": 5, "E2": 4, "B": 4, "E3": -1}


def test_of_several_backwards_in_the_engines_span_the_first_numbers_it() -> None:
    drawing = """
        engine | E--------
        engine |  A-  B-
    """

    assert numbers(drawing, A=5, B=4) == {"E": 5, "A": 5, "B": 4}


def test_a_backward_with_a_number_keeps_it() -> None:
    drawing = """
        engine | A--------
        engine |  B-  
    """

    assert numbers(drawing, A=5, B=4) == {"A": 5, "B": 4}


def test_an_operator_around_a_backward_is_not_the_engine() -> None:
    drawing = """
        main | run------
        main |  B-
    """

    assert numbers(drawing, B=4) == {"run": -1, "B": 4}


def test_a_backward_belongs_to_the_forward_of_its_number() -> None:
    drawing = """
        main   | f  g  h
        engine |           G  F
    """

    assert backwards(drawing, f=1, g=2, G=2, F=1) == ["g>G", "f>F"]


def test_numbers_of_two_threads_have_nothing_to_do_with_each_other() -> None:
    drawing = """
        main   | f     
        other  |   g
        engine |      F  G
    """
    kinds = {"f": "operator", "g": "operator", "F": "backward", "G": "backward"}
    thread = {"f": 1, "F": 1, "g": 2, "G": 2}
    given = {"sequence": dict.fromkeys(kinds, 5), "numbered_by": thread}

    assert pairs(drawing, link_backward, category=kinds, **given) == ["f>F", "g>G"]


def test_processes_number_their_threads_alike() -> None:
    drawing = """
        main  | f     F
        child |   g     G
    """
    kinds = {"f": "operator", "g": "operator", "F": "backward", "G": "backward"}
    given: dict[str, Any] = {
        "sequence": dict.fromkeys(kinds, 5),
        "numbered_by": dict.fromkeys(kinds, 1),
        "threads": {"child": Thread(8, 80, "child", process="8")},
    }

    assert pairs(drawing, link_backward, category=kinds, **given) == ["f>F", "g>G"]


def test_a_forward_after_its_backward_is_another_one() -> None:
    drawing = """
        main   | f     f2
        engine |   F
    """

    assert backwards(drawing, F=5, f2=5) == []


def test_of_forwards_with_one_number_the_last_to_begin_made_the_node() -> None:
    drawing = """
        main   | linear-----  view  
        main   |   addmm-
        engine |                     F
    """

    assert backwards(drawing, linear=5, addmm=5, F=5) == ["addmm>F"]
    assert backwards(drawing, linear=5, addmm=5, view=5, F=5) == ["view>F"]


def test_of_backwards_inside_each_other_the_outermost_counts() -> None:
    drawing = """
        main   | f
        engine |   E-----
        engine |    F---
    """

    assert backwards(drawing, f=5, E=5, F=5) == ["f>E"]


def test_a_backward_that_runs_twice_belongs_to_its_forward_twice() -> None:
    drawing = """
        main   | f
        engine |   A--  B--
    """

    assert backwards(drawing, f=5, A=5, B=5) == ["f>A", "f>B"]


def test_without_numbers_there_are_no_pairs() -> None:
    kinds = {"f": "operator", "F": "backward"}

    assert pairs("main | f F", link_backward, category=kinds) == []
    assert backwards("main | f g", f=5, g=5) == []


LAUNCHING = """
    main   | call  more
    stream |    kernel  copy
"""
DEVICE = {"call": "runtime", "more": "runtime", "kernel": "kernel", "copy": "copy"}


def test_a_call_started_what_has_its_correlation() -> None:
    by = {"call": 3, "more": 4, "kernel": 4, "copy": 3}

    assert pairs(LAUNCHING, link_launches, category=DEVICE, correlation=by) == [
        "more>kernel",
        "call>copy",
    ]


def test_work_whose_call_is_not_seen_has_none() -> None:
    by = {"call": 3, "kernel": 5, "copy": 0, "more": 0}

    assert pairs(LAUNCHING, link_launches, category=DEVICE, correlation=by) == []
    assert pairs(LAUNCHING, link_launches, category=DEVICE) == []


def test_of_two_calls_with_one_correlation_the_first_started_the_work() -> None:
    by = {"call": 3, "more": 3, "kernel": 3, "copy": 3}

    assert pairs(LAUNCHING, link_launches, category=DEVICE, correlation=by) == [
        "call>kernel",
        "call>copy",
    ]


def test_processes_correlate_by_themselves() -> None:
    by = {"call": 3, "more": 3, "kernel": 3, "copy": 4}
    drawing = """
        main   | call
        child  |   more
        stream |      kernel
    """
    child = Thread(8, 80, "child", process="8")
    stream = Thread(8, 5, "stream", process="8", device=0)
    given = {"correlation": by, "threads": {"child": child, "stream": stream}}

    assert pairs(drawing, link_launches, category=DEVICE, **given) == ["more>kernel"]


def test_links_are_rows_of_their_table() -> None:
    pairs = [("backward", Pairs(ints(0), ints(4))), ("launch", Pairs(ints(1, 2), ints(5, 7)))]

    found = links_table(pairs, SPILLS[0])

    kinds = found["kind"]
    assert isinstance(kinds, Coded)
    assert [kinds.texts[code] for code in kinds.codes] == ["backward", "launch", "launch"]
    assert [list(found[name]) for name in ("source", "target")] == [[0, 1, 2], [4, 5, 7]]


def layers_of(drawing: str, modules: str, **sequence: int) -> dict[str, str | None] | None:
    """The layer of each span; `modules` are the names of layers."""
    layered = dict.fromkeys(modules.split(), "module")
    thread = dict.fromkeys(sequence, 1)
    kinds = categories(drawing, **layered)
    drawn = trace(drawing, category=kinds, sequence=sequence, numbered_by=thread)
    spans, parent = nested(drawn)
    process = number_processes(drawn.threads)
    found, spilled = (
        layers(spans, parent, link_backward(spans, parent, process, spill), spill)
        for spill in SPILLS
    )
    assert np.array_equal(found, spilled)
    names = [drawn.names[code] for code in spans.name]
    if found is None:
        return None
    return {name: None if row < 0 else names[row] for name, row in zip(names, found, strict=True)}


def test_an_operator_belongs_to_the_innermost_layer_around_it() -> None:
    drawing = """
        main | net--------------  loss
        main |  first--  add
        main |   mm-
    """

    assert layers_of(drawing, "net first") == {
        "net": "net",
        "first": "first",
        "mm": "first",
        "add": "net",
        "loss": None,
    }


def test_a_backward_and_all_in_it_belong_to_the_layer_of_the_forward() -> None:
    drawing = """
        main   | first-- last--
        main   |  f-      g-
        engine |                 G---  F---  X--
        engine |                  mm    add   mul
    """

    found = layers_of(drawing, "first last", f=1, g=2, G=2, F=1, X=9)

    assert found is not None
    assert {name: found[name] for name in ("G", "mm", "F", "add", "X", "mul")} == {
        "G": "last",
        "mm": "last",
        "F": "first",
        "add": "first",
        "X": None,
        "mul": None,
    }


def test_a_layer_that_is_run_again_in_a_backward_is_a_part_of_it() -> None:
    # as checkpointing does
    drawing = """
        main | block--      F---------
        main |  f-            again--
        main |                  mm
    """

    found = layers_of(drawing, "block again", f=1, F=1)

    assert found == dict.fromkeys(["block", "f", "F", "again", "mm"], "block")


def test_without_layers_there_are_none() -> None:
    assert layers_of("main | f F", "", f=1, F=1) is None
