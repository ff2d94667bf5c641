# SPDX-License-Identifier: Apache-2.0
"""All tables of drawn traces, as they are read back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from drawing import SPILLS, trace
from strobe.assemble.tables import assemble
from strobe.model import TABLES, check
from strobe.model.texts import Attributes
from strobe.model.trace import (
    Allocations,
    Counters,
    Frame,
    Held,
    Instants,
    Loads,
    Samples,
    Source,
    Spans,
    Thread,
    Trace,
    Wanted,
)
from strobe.store.frames import empty, scan

STEP = """
    main   | step--------------------------
    main   |  net-----------  B------
    main   |    f-------        mul
    main   |      call
    stream |         kernel--
"""


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def zeros(rows: int) -> Any:
    return np.zeros(rows, np.int32)


def draw(**given: Any) -> Trace:
    """A step with a layer, an operator that launches a kernel, and its backward."""
    kinds = {"f": "operator", "mul": "operator", "B": "backward", "net": "module"}
    columns: dict[str, Any] = {
        "rename": {"f": "aten::mm", "mul": "aten::mul"},
        "category": {**kinds, "call": "runtime", "kernel": "kernel"},
        "sequence": {"f": 5, "B": 5},
        "numbered_by": {"f": 1, "B": 1},
        "correlation": {"call": 9, "kernel": 9},
        "device": {"kernel": 0},
        "stream": {"kernel": 3},
        "attributes": {"f": {"shapes": [[2, 3], [3, 4]]}},
        "threads": {"stream": Thread(7, 3, "device 0 stream 3", process="7", device=0)},
    }
    return trace(STEP, **{**columns, **given})


def allocations(*rows: tuple[int, int, int]) -> Allocations:
    """Blocks of the host: time, bytes and address."""
    start_ns, size, address = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Allocations(
        start_ns=start_ns,
        bytes=size,
        address=address,
        device=zeros(len(rows)) - 1,
        lane=zeros(len(rows)),
        reserved_bytes=np.full(len(rows), -1, np.int64),
        owner_ns=start_ns,
    )


def tables(drawn: Trace, folder: Path) -> dict[str, pl.DataFrame]:
    """All tables, which are the same whether or not the rows fit into memory."""
    found = []
    for number, spill in enumerate(SPILLS):
        into = folder / str(number)
        into.mkdir()
        assemble(drawn, into, spill=spill)
        found.append({table: scan(into, table).collect() for table in TABLES})
    for table, rows in found[0].items():
        assert rows.rows() == found[1][table].rows(), table
    return found[0]


def test_spans_know_who_is_around_them_and_what_they_are(tmp_path: Path) -> None:
    spans = tables(draw(), tmp_path)["spans"]

    assert spans.select("name", "category", "start_ns", "dur_ns", "self_ns", "parent").rows() == [
        ("step", "user", 0, 30_000, 9_000, None),
        ("net", "module", 1_000, 14_000, 6_000, 0),
        ("aten::mm", "operator", 3_000, 8_000, 4_000, 1),
        ("call", "runtime", 5_000, 4_000, 4_000, 2),
        ("kernel", "kernel", 8_000, 8_000, 8_000, None),
        ("B", "backward", 17_000, 7_000, 4_000, 0),
        ("aten::mul", "operator", 19_000, 3_000, 3_000, 5),
    ]
    assert check(spans) == []
    assert not spans["unfinished"].any()


def test_spans_know_what_frameworks_do_not_say(tmp_path: Path) -> None:
    spans = tables(draw(), tmp_path)["spans"]

    assert spans.select("name", "phase", "module", "flops").rows() == [
        ("step", None, None, None),
        ("net", "forward", "net", None),
        ("aten::mm", "forward", "net", 2 * 2 * 3 * 4),
        ("call", "forward", "net", None),
        ("kernel", "forward", None, None),
        ("B", "backward", "net", None),
        ("aten::mul", "backward", "net", None),
    ]


def test_spans_keep_what_their_producer_told(tmp_path: Path) -> None:
    spans = tables(draw(), tmp_path)["spans"]

    told = ("name", "pid", "tid", "lane", "device", "stream", "correlation", "sequence")
    assert spans[[2, 3, 4]].select(told).rows() == [
        ("aten::mm", 7, 70, 0, None, None, None, 5),
        ("call", 7, 70, 0, None, None, 9, None),
        ("kernel", 7, 3, 1, 0, 3, 9, None),
    ]
    texts = spans["attributes"].drop_nulls().to_list()
    assert texts == ['{"shapes": [[2, 3], [3, 4]]}']


def test_what_follows_from_spans_has_tables(tmp_path: Path) -> None:
    found = tables(draw(), tmp_path)

    assert found["links"].rows() == [("backward", 2, 5), ("launch", 3, 4)]
    assert found["steps"].rows() == [(0, "span", 0, 30_000, None, 0, False)]
    assert found["operators"].select("name", "calls", "total_ns", "self_ns").rows() == [
        ("step", 1, 30_000, 9_000),
        ("kernel", 1, 8_000, 8_000),
        ("net", 1, 14_000, 6_000),
        ("B", 1, 7_000, 4_000),
        ("aten::mm", 1, 8_000, 4_000),
        ("call", 1, 4_000, 4_000),
        ("aten::mul", 1, 3_000, 3_000),
    ]
    assert found["threads"].rows() == [
        (0, 7, 70, "main", 0, "7"),
        (1, 7, 3, "device 0 stream 3", 0, "7"),
    ]


def test_points_of_the_window_have_tables(tmp_path: Path) -> None:
    drawn = draw(
        instants=[
            Instants(
                start_ns=ints(99_000, 6_000, 2_000),
                name=zeros(3),
                lane=zeros(3),
                attributes=np.array([-1, 0, -1], np.int32),
                texts=Attributes(['{"a": 1}']),
            )
        ],
        counters=[
            Counters(
                start_ns=ints(5_000, 4_000, -1),
                value=np.array([0.5, 0.25, 9.0]),
                name=zeros(3),
                lane=zeros(3),
            )
        ],
        memory_lines=[
            {
                **{"moment": "stop", "start_ns": 30_000, "file": "a.py", "line": 3, "bytes": 10},
                **{"blocks": 1, "held_bytes": 50, "peak_bytes": 60, "pid": 7},
            }
        ],
    )

    found = tables(drawn, tmp_path)

    assert found["instants"].rows() == [
        ("step", 2_000, 7, 70, 0, None),
        ("step", 6_000, 7, 70, 0, '{"a": 1}'),
    ]
    assert found["counters"].rows() == [
        ("step", 4_000, 0.25, 7, 70, 0),
        ("step", 5_000, 0.5, 7, 70, 0),
    ]
    assert found["memory_lines"].rows() == [("stop", 30_000, "a.py", 3, 10, 1, 50, 60, 7)]


def test_memory_belongs_to_the_span_that_was_open(tmp_path: Path) -> None:
    blocks = allocations((25_000, -64, 1), (4_000, 64, 1), (40_000, 8, 2))
    drawn = draw(allocations=[blocks], held=[Held(7, 100, 5)])

    memory = tables(drawn, tmp_path)["allocations"]

    assert memory.select("start_ns", "bytes", "address", "span", "allocated_bytes").rows() == [
        (0, 100, 5, None, 100),
        (4_000, 64, 1, 2, 164),
        (25_000, -64, 1, 0, 100),
    ]


def test_what_nobody_asked_for_is_left_out(tmp_path: Path) -> None:
    blocks = allocations((4_000, 64, 1))
    wanted = Wanted(memory=False, flops=False, modules=False)
    told = {"category": {"f": "operator"}, "module": {"f": "Net.first"}}

    found = tables(draw(allocations=[blocks], wanted=wanted, **told), tmp_path)

    assert found["allocations"].is_empty()
    assert found["spans"]["flops"].null_count() == 7
    assert found["spans"]["module"].null_count() == 7


def test_a_layer_that_the_framework_tells_is_the_module(tmp_path: Path) -> None:
    told = {"category": {"f": "operator"}, "module": {"f": "Net.first"}}

    spans = tables(draw(**told), tmp_path)["spans"]

    assert spans["module"].drop_nulls().to_list() == ["Net.first"]


def test_a_collective_has_a_row(tmp_path: Path) -> None:
    given = {"shapes": [[[2, 3]], []], "dtypes": ["TensorList", ""], "group": "0", "dtype": "float"}
    drawn = trace(
        "main | other\nmain |         sum--",
        rename={"sum": "c10d::allreduce_"},
        category={"sum": "communication"},
        attributes={"sum": given},
        groups={"0": {"ranks": [0, 1], "backend": "gloo"}},
    )

    (row,) = tables(drawn, tmp_path)["collectives"].rows(named=True)

    assert (row["name"], row["backend"], row["ranks"]) == ("all_reduce", "gloo", "[0, 1]")
    assert (row["bytes"], row["start_ns"], row["dur_ns"], row["span"]) == (24, 8_000, 5_000, 1)


def test_batches_and_samples_have_rows(tmp_path: Path) -> None:
    drawn = draw()
    drawn = replace(
        drawn,
        names=[*drawn.names, "train"],
        loads=Loads(
            start_ns=ints(1_000),
            dur_ns=ints(2_000),
            lane=zeros(1),
            is_batch=np.array([True]),
            loader=zeros(1) + len(drawn.names),
            number=ints(4),
            automatic=ints(0),
        ),
        frames=[Frame("train", "train.py", 1, "__main__")],
        stacks=[(-1, 0)],
        samples=[Samples(start_ns=ints(6_000), interval_ns=ints(50), lane=zeros(1), stack=ints(0))],
    )

    found = tables(drawn, tmp_path)

    batches = found["batches"].select("loader", "number", "start_ns", "wait_ns", "span")
    assert batches.rows() == [("train", 4, 1_000, 2_000, None)]
    assert found["stacks"].rows() == [(None, 0, 1)]
    assert found["frames"].rows() == [("train", "train.py", 1, "__main__")]
    assert found["samples"].rows() == [(6_000, 50, 7, 70, 0, 0)]
    # the operator that was open then, and none of the others
    assert found["spans"]["stack"].to_list() == [None, None, 0, None, None, None, None]


def test_rows_are_meant_as_they_are_between_calls_of_python(tmp_path: Path) -> None:
    drawn = trace(
        """
        main | train-----------------
        main |  f---- forward   B---
        main |   add
        """,
        category={"train": "python", "forward": "python", "f": "operator", "B": "backward"},
        frame={"train": 0, "forward": 1},
        frames=[Frame("train", "train.py", 1), Frame("forward", "train.py", 9)],
        sequence={"f": 5, "B": 5},
        numbered_by={"f": 1, "B": 1},
        allocations=[allocations((2_000, 64, 1), (18_000, 8, 2))],
    )

    found = tables(drawn, tmp_path)

    columns = ("name", "parent", "lane", "stack", "category")
    assert found["spans"].select(columns).rows() == [
        ("train", None, 1, 0, "python"),
        ("f", None, 0, 0, "operator"),
        ("add", 1, 0, 0, "user"),
        ("forward", 0, 1, 1, "python"),
        ("B", None, 0, 0, "backward"),
    ]
    assert check(found["spans"]) == []
    assert found["links"].rows() == [("backward", 1, 4)]
    assert found["allocations"]["span"].to_list() == [2, 4]
    assert found["threads"]["thread"].to_list() == ["main", "main (Python)"]
    # a call is no operator
    assert set(found["operators"]["name"]) == {"f", "add", "B"}


def test_sources_are_counted_by_rows(tmp_path: Path) -> None:
    drawn = draw(
        sources=[
            Source(name="spans", rows="own", dropped=2),
            Source(name="torch", rows="own"),
            Source(name="python_calls", rows="own"),
        ],
        source=dict.fromkeys(("net", "f", "call", "kernel", "B", "mul"), "torch"),
        allocations=[allocations((4_000, 64, 1), (99_000, 64, 2))],
        end_ns=20_000,
    )

    found = tables(drawn, tmp_path)["completeness"]

    # the step and a block that nobody claims; six spans of torch; step, B and mul had not ended by
    # column 20
    assert found.select("source", "asked", "collected", "unfinished").rows() == [
        ("spans", 4, 2, 1),
        ("torch", None, 6, 2),
        ("python_calls", None, 0, 0),
    ]


def test_metadata_is_text(tmp_path: Path) -> None:
    facts = {"name": "a run", "pid": 7, "ranks": [0, 1], "path": "\udcff"}

    found = tables(Trace(metadata=facts), tmp_path)["metadata"]

    assert found.rows() == [
        ("name", "a run"),
        ("pid", "7"),
        ("ranks", "[0, 1]"),
        ("path", "\\udcff"),
    ]


def test_a_trace_may_come_in_several_batches(tmp_path: Path) -> None:
    whole = draw()
    (spans,) = whole.spans
    parts: list[Spans] = [spans.take(slice(4, None)), spans.take(slice(0, 4))]
    (tmp_path / "parts").mkdir()

    one, other = tables(whole, tmp_path), tables(replace(whole, spans=parts), tmp_path / "parts")

    assert all(one[name].equals(other[name]) for name in TABLES)


@pytest.mark.parametrize("threads", [(), (Thread(7, 70, "main"),)])
def test_an_empty_trace_has_all_tables(tmp_path: Path, threads: Any) -> None:
    found = tables(Trace(threads=threads), tmp_path)

    assert {name: table.schema for name, table in found.items()} == {
        name: empty(name).schema for name in TABLES
    }
    assert {name for name, table in found.items() if len(table)} <= {"threads"}
    assert len(found["threads"]) == len(threads)


def test_operators_are_handed_over_before_anything_is_written(tmp_path: Path) -> None:
    early: list[pl.DataFrame] = []
    reached: list[float] = []

    def take(operators: pl.DataFrame) -> None:
        assert list(tmp_path.iterdir()) == []
        early.append(operators)

    assemble(draw(), tmp_path, lambda _stage, share: reached.append(share), take)

    (operators,) = early
    assert operators.equals(scan(tmp_path, "operators").collect())
    assert reached == sorted(reached)
    assert reached[-1] == 1.0
