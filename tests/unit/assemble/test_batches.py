# SPDX-License-Identifier: Apache-2.0
"""Batches that loaders handed out in drawn traces; numbers of rows are columns of the drawing."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from drawing import COLUMN_NS, nested, trace
from strobe.assemble.batches import batches_table, timed
from strobe.model.interning import Interner
from strobe.model.trace import UNFINISHED, Loads, Spans, Thread, Trace
from strobe.store.frames import empty

TRAIN, TEST = "enumerate(train)", "enumerate(test)"
TORCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
WAITS = {"train": TRAIN, "test": TEST, "torch": TORCH}
WORKER = Thread(8, 80, "worker", process="8")


def load(first: float, last: float | None, lane: int = 0, **facts: Any) -> tuple[Any, ...]:
    """A batch that was asked for and handed out at these columns; None: only `first` is known."""
    return first, last, lane, True, facts


def fetch(first: float, last: float, lane: int = 0, **facts: Any) -> tuple[Any, ...]:
    return first, last, lane, False, facts


def loads(drawn: Trace, *rows: tuple[Any, ...]) -> tuple[Loads, list[str]]:
    """The loads, and the names of the trace with theirs."""
    first, last, lane, is_batch, facts = zip(*rows, strict=True)
    names = Interner[str]({name: code for code, name in enumerate(drawn.names)})
    texts = {
        key: np.array([names[fact[key]] if key in fact else -1 for fact in facts], np.int32)
        for key in ("loader", "wait")
    }
    numbers = {
        key: np.array([fact.get(key, -1) for fact in facts], np.int64)
        for key in {key for fact in facts for key in fact} - texts.keys()
    }
    pairs = zip(first, last, strict=True)
    durations = [UNFINISHED if end is None else (end - begin) * COLUMN_NS for begin, end in pairs]
    found = Loads(
        start_ns=np.array([round(column * COLUMN_NS) for column in first], np.int64),
        dur_ns=np.array(durations, np.int64),
        lane=np.array(lane, np.int32),
        is_batch=np.array(is_batch),
        **texts,
        **numbers,
    )
    return found, list(names)


def watched(first: float, lane: int = 0, wait: str = TRAIN, **facts: Any) -> tuple[Any, ...]:
    """What strobe.watch marks right after a wait."""
    return load(first, None, lane, loader="train", wait=wait, automatic=0, **facts)


def spans_of(drawing: str) -> tuple[Trace, Spans]:
    drawn = trace(drawing, rename=WAITS, threads={"worker": WORKER})
    spans, _ = nested(drawn)
    return drawn, spans


def times(drawing: str, *marks: tuple[Any, ...]) -> list[tuple[int, int, int]]:
    """Number, first column and column after the last of each batch that has times."""
    drawn = trace(drawing, rename=WAITS)
    given, names = loads(drawn, *marks)
    found = timed(given, drawn.spans, names)
    assert found.number is not None
    start, dur = found.start_ns // COLUMN_NS, found.dur_ns // COLUMN_NS
    return list(zip(found.number.tolist(), start.tolist(), (start + dur).tolist(), strict=True))


def rows(drawing: str, *told: tuple[Any, ...]) -> pl.DataFrame:
    drawn, spans = spans_of(drawing)
    given, names = loads(drawn, *told)
    return pl.DataFrame(batches_table(given, spans, names, drawn.threads))


# timed()


def test_a_watched_batch_was_waited_for_as_long_as_the_span_before_it() -> None:
    drawing = "main | train--  work- train-----"

    assert times(drawing, watched(7, number=0), watched(27, number=1)) == [(0, 0, 7), (1, 15, 25)]


def test_a_watched_batch_belongs_to_the_wait_of_its_own_thread_and_loader() -> None:
    drawing = """
        main   | train--  test---
        worker |   train-----
    """
    marks = [
        watched(8, number=0),
        watched(15, lane=1, number=1),
        watched(18, number=2, wait=TEST),
    ]

    assert times(drawing, *marks) == [(0, 0, 7), (1, 2, 12), (2, 9, 16)]


def test_a_wait_that_has_not_ended_gave_no_batch() -> None:
    assert times("main | train-- train--~", watched(20, number=0)) == [(0, 0, 7)]


def test_a_watched_batch_whose_wait_is_lost_is_left_out() -> None:
    drawing = """
        main   | train--
        worker |         work
    """
    # the first mark comes before any wait has ended, the second is of a thread without waits
    marks = [watched(5, number=0), watched(9, lane=1, number=1), watched(9, number=2)]

    assert times(drawing, *marks) == [(2, 0, 7)]


def test_watched_batches_are_left_out_where_all_waits_are_lost() -> None:
    assert times("main | work--", watched(9, number=0)) == []


def test_a_wait_that_is_lost_with_its_name_is_not_that_of_another_thread() -> None:
    drawing = """
        main   | work train--
        worker | work
    """
    marks = [watched(13, number=0), watched(14, lane=1, number=1, wait=TEST)]

    assert times(drawing, *marks) == [(0, 5, 12)]


def test_batches_whose_times_are_known_stay_as_they_are() -> None:
    told, _ = loads(trace("main | work"), load(3, 5, number=0), fetch(1, 2))

    assert timed(told, [], []) is told


# batches_table()


def test_a_batch_of_a_watch_says_what_it_was() -> None:
    batch = load(5, 12, loader="train", number=3, automatic=0, samples=16)

    found = rows("main | work train--", batch)

    assert found.columns == empty("batches").columns
    known = {name: value for name, value in found.row(0, named=True).items() if value is not None}
    assert known == {
        "loader": "train",
        "number": 3,
        "start_ns": 5_000,
        "wait_ns": 7_000,
        "samples": 16,
        "pid": 7,
        "tid": 70,
        "lane": 0,
        "span": 1,
    }


def test_a_worker_process_fetches_what_its_batch_names() -> None:
    drawing = """
        main   | torch--    torch--
        worker | x
    """
    told = [
        fetch(1, 4, lane=1, key=9, number=0, worker=2, samples=16, collate_ns=70, cpu_ns=80),
        fetch(4, 8, lane=1, key=9, number=1, worker=2, samples=8, collate_ns=71, cpu_ns=81),
        fetch(5, 6, lane=1, key=1, number=1, worker=5, samples=99),  # for another loader
        load(0.5, 6.5, loader="DataLoader", number=0, producer=8, key=9, queue=0, automatic=1),
        load(11.5, 17.5, loader="DataLoader", number=1, producer=8, key=9, queue=3, automatic=1),
    ]

    found = rows(drawing, *told)

    facts = ("number", "worker", "samples", "ready_ns", "fetch_ns", "collate_ns", "cpu_ns", "queue")
    assert found.select(facts).rows() == [
        (0, 2, 16, 4_000, 3_000, 70, 80, 0),
        (1, 2, 8, 8_000, 4_000, 71, 81, 3),
    ]
    assert found["span"].to_list() == [0, 2]


def test_in_the_next_epoch_a_batch_is_fetched_again() -> None:
    told = [
        fetch(1, 2, lane=1, key=9, number=0, worker=0),
        fetch(6, 7, lane=1, key=9, number=0, worker=1),
        load(0, 3, loader="DataLoader", number=0, producer=8, key=9, automatic=1),
        load(5, 8, loader="DataLoader", number=0, producer=8, key=9, automatic=1),
    ]

    found = rows("main | x\nworker | x", *told)

    assert found.select("ready_ns", "worker").rows() == [(2_000, 0), (7_000, 1)]


def test_without_workers_a_batch_is_fetched_while_it_is_waited_for() -> None:
    told = [
        load(1, 6, loader="DataLoader", number=0, automatic=1),
        fetch(2, 5, samples=4, collate_ns=70),
        load(8, 9, loader="DataLoader", number=1, automatic=1),
        fetch(2, 9, lane=1, samples=99),
    ]

    found = rows("main | x\nother | y", *told)

    assert found.select("samples", "ready_ns", "fetch_ns", "collate_ns", "worker").rows() == [
        (4, 5_000, 3_000, 70, None),
        (None, None, None, None, None),
    ]


def test_a_watch_around_a_frameworks_loader_is_one_batch() -> None:
    drawing = """
        main | train----------
        main |  torch----
    """
    told = [
        load(0, 15, loader="train", number=0, automatic=0),
        load(1.5, 9, loader="DataLoader", number=7, queue=2, worker=1, automatic=1),
        fetch(2, 8, samples=4),
    ]

    found = rows(drawing, *told)

    facts = ("loader", "number", "wait_ns", "queue", "worker", "samples", "ready_ns", "span")
    assert found.select(facts).rows() == [("train", 0, 15_000, 2, 1, 4, 8_000, 0)]
    assert found["outer"].to_list() == [None]


def test_a_watch_knows_its_own_samples_best() -> None:
    told = [
        load(0, 15, loader="train", number=0, automatic=0, samples=32),
        load(1, 9, loader="DataLoader", number=7, samples=4, automatic=1),
    ]

    assert rows("main | x", *told)["samples"].to_list() == [32]


def test_a_watch_that_asks_for_several_batches_has_no_one_worker() -> None:
    told = [
        load(0, 20, loader="train", number=0, automatic=0),
        load(1, 9, loader="DataLoader", number=0, worker=1, queue=2, automatic=1),
        load(10, 19, loader="DataLoader", number=1, worker=2, queue=1, automatic=1),
    ]

    found = rows("main | x", *told)

    assert found.select("loader", "worker", "queue").rows() == [("train", None, None)]


def test_a_watch_in_a_watch_is_a_part_of_it() -> None:
    told = [
        load(30, 40, loader="later", number=1, automatic=0),
        load(2, 19, loader="inner", number=0, automatic=0),
        load(0, 20, loader="outer", number=0, automatic=0),
    ]

    found = rows("main | x", *told)

    assert found.select("loader", "outer").rows() == [
        ("outer", None),
        ("inner", 0),
        ("later", None),
    ]


def test_loaders_of_two_threads_have_nothing_to_do_with_each_other() -> None:
    told = [
        load(0, 20, loader="train", number=0, automatic=0),
        load(2, 9, lane=1, loader="DataLoader", number=0, automatic=1),
    ]

    found = rows("main | x\nother | y", *told)

    assert found.select("loader", "outer", "tid").rows() == [
        ("train", None, 70),
        ("DataLoader", None, 71),
    ]


def test_a_wait_that_was_over_before_is_not_the_batchs_span() -> None:
    # torch's span begins right before the batch is asked for; this one has ended by then
    told = [load(9, 12, loader="DataLoader", number=0, automatic=1)]

    assert rows("main | torch--", *told)["span"].to_list() == [None]


def test_without_batches_the_table_has_its_columns() -> None:
    found = rows("main | x", fetch(0, 1))

    assert found.schema == empty("batches").schema
    assert found.is_empty()
