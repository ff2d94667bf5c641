# SPDX-License-Identifier: Apache-2.0
"""Logs that were written by hand, as Traces."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from strobe.finalize.log_trace import LOST_NAME, read_log
from strobe.model.attributes import ENDINGS
from strobe.model.marks import BATCH, FETCH
from strobe.model.phases import NONE, OPTIMIZER
from strobe.model.tables import CATEGORIES, SOURCES, record_code
from strobe.model.trace import UNFINISHED, Frame, Spans, Thread, Trace, concatenate
from strobe.store import layout
from strobe.store.log import RECORD, ProcessLog, Records
from strobe.store.manifest import Anchor, Manifest
from strobe.store.spill import Spill
from strobe.store.strings import Strings

MANIFEST = Manifest(
    id="0123456789abcdef",
    name="run",
    strobe="0",
    recorder="C",
    host="host",
    boot="",
    pid=1,
    process_start=2,
    log="log",
    start=Anchor(clock_ns=0, monotonic_ns=0, wall_ns=0),
)
SPILL = Spill(Path(tempfile.gettempdir()))
PREFIX = "host-1-2-3"
"""Host, pid, start and id, as the files of a process are named."""
NOBODY_SAID = 0xFFFFFFFF
OPERATOR, PYTHON = CATEGORIES.index("operator"), CATEGORIES.index("python")


def records(*rows: dict[str, Any]) -> Records:
    """Records of these fields; the others are 0."""
    table = np.zeros(len(rows), RECORD)
    for record, row in zip(table, rows, strict=True):
        for field, value in row.items():
            record[field] = value
    return table


def span(start_ns: int, name: int = 1, dur_ns: int = 1, **fields: Any) -> dict[str, Any]:
    return dict(kind=layout.KIND_SPAN, start_ns=start_ns, name=name, dur_ns=dur_ns, **fields)


def point(kind: int, start_ns: int, name: int, **fields: Any) -> dict[str, Any]:
    return dict(kind=kind, start_ns=start_ns, name=name, **fields)


def log(
    *rows: dict[str, Any],
    prefix: str = PREFIX,
    pid: int = 1,
    strings: dict[int, str] | None = None,
    **more: Any,
) -> ProcessLog:
    """What a process left: records, and the texts and lanes that they mean."""
    lanes = {0: {"tid": 100, "thread": "main", "context": 0}}
    texts = Strings.of(strings or {1: "a", 2: "b"})
    defined = {"strings": texts, "lanes": lanes, **more}
    return ProcessLog(prefix, process={"pid": pid}, records=[records(*rows)], **defined)


def read(*rows: dict[str, Any], **more: Any) -> Trace:
    return read_log([log(*rows, **more)], MANIFEST, SPILL).trace


def spans_of(trace: Trace) -> Spans:
    return concatenate(trace.spans, Spans)


def names(trace: Trace) -> list[str]:
    return [trace.names[code] for code in spans_of(trace).name]


def opened(*rows: tuple[int, int]) -> Records:
    """Slots of spans that are open: start and name."""
    slots = np.zeros(len(rows), [("start_ns", "<u8"), ("name", "<u4"), ("lane", "<u4")])
    slots["start_ns"], slots["name"] = zip(*rows, strict=True)
    return slots


def test_a_number_is_that_of_the_lane_and_that_of_the_record() -> None:
    lanes = {
        0: {"tid": 100, "thread": "main", "context": 0},
        1: {"tid": 101, "thread": "other", "context": 0},
        2: {"of": 0, "sequence": 0, "thread": 7},
        3: {"of": 1, "sequence": 3 << 16, "thread": 8},
    }
    rows = [
        span(1, lane=0),
        span(10, lane=2, window=41),
        point(layout.KIND_INSTANT, 15, 1),
        span(20, lane=3, window=7),
        span(30, lane=1),
        span(40, lane=9, window=5),  # its lane's definition was lost
    ]

    trace = read(*rows, lanes=lanes)

    spans = spans_of(trace)
    assert spans.sequence is not None
    assert spans.numbered_by is not None
    assert spans.start_ns.tolist() == [1, 10, 20, 30, 40]
    assert spans.sequence.tolist() == [-1, 41, (3 << 16) + 7, -1, -1]
    assert spans.numbered_by.tolist() == [-1, 7, 8, -1, -1]
    assert [trace.threads[lane].tid for lane in spans.lane] == [100, 100, 101, 101, None]
    assert len(trace.threads) == 3


def test_without_numbers_there_is_no_column_of_them() -> None:
    spans = spans_of(read(span(1), span(2)))

    assert spans.sequence is None
    assert spans.numbered_by is None


def test_processes_number_their_texts_by_themselves() -> None:
    one = log(span(1), span(2, 2))
    other = log(span(3), span(4, 2), prefix="host-9-9-9", pid=9, strings={1: "b", 2: "c"})

    trace = read_log([one, other], MANIFEST, SPILL).trace

    assert names(trace) == ["a", "b", "b", "c"]
    assert [trace.threads[lane].process for lane in spans_of(trace).lane] == [
        *(PREFIX, PREFIX),
        *("host-9-9-9", "host-9-9-9"),
    ]


def test_records_without_their_names_are_counted() -> None:
    rows = [
        span(1),
        span(2, 5),
        span(3, 0),
        point(layout.KIND_INSTANT, 4, 6),
        point(layout.KIND_COUNTER, 5, 7),
    ]

    trace, nameless, _ = read_log([log(*rows)], MANIFEST, SPILL)

    assert nameless == 4
    assert names(trace) == ["a", LOST_NAME, LOST_NAME]
    points = [*trace.instants, *trace.counters]
    assert [trace.names[code] for each in points for code in each.name] == [LOST_NAME] * 2


def test_where_no_name_is_lost_none_is_said_to_be() -> None:
    trace, nameless, _ = read_log([log(span(1))], MANIFEST, SPILL)

    assert nameless == 0
    assert LOST_NAME not in trace.names


def test_records_without_their_attributes_are_counted() -> None:
    number = layout.VALUES_BIT | 5
    value = {"kind": layout.KIND_VALUE, "category": layout.VALUE_INT, "dur_ns": 7}
    rows = [
        {**span(0), **value, "name": 2, "attributes": number},
        {**span(1), "attributes": number},
        {**span(2), "attributes": number + 1},  # was never written, or is lost
        {**span(3), "attributes": 9},
        span(4),
    ]

    trace, _, without_attributes = read_log([log(*rows)], MANIFEST, SPILL)

    spans = spans_of(trace)
    assert [spans.texts.content(code) for code in spans.attributes] == [{"b": 7}, {}, {}, {}]
    assert without_attributes == 2


def test_a_name_that_no_table_can_hold_is_written_out() -> None:
    assert names(read(span(1), strings={1: "\ud83d"})) == ["\\ud83d"]


def test_what_has_begun_and_not_ended_is_unfinished() -> None:
    trace = read(span(1), point(layout.KIND_OPEN, 5, 2), open=[opened((7, 1))])

    spans = spans_of(trace)
    assert spans.start_ns.tolist() == [1, 5, 7]
    assert spans.dur_ns.tolist() == [1, UNFINISHED, UNFINISHED]


def test_a_span_that_is_open_in_two_places_counts_once() -> None:
    trace = read(point(layout.KIND_OPEN, 5, 2), open=[opened((5, 2), (5, 1))])

    assert sorted(names(trace)) == ["a", "b"]


def test_a_span_that_has_ended_is_not_open_too() -> None:
    trace = read(span(5, dur_ns=3), point(layout.KIND_OPEN, 5, 1), open=[opened((5, 1))])

    assert spans_of(trace).dur_ns.tolist() == [3]


def test_a_value_is_the_bits_of_a_float() -> None:
    bits = int(np.array([0.75]).view(np.int64)[0])

    (counters,) = read(point(layout.KIND_COUNTER, 5, 1, dur_ns=bits)).counters

    assert (counters.start_ns.tolist(), counters.value.tolist()) == ([5], [0.75])


def test_a_blocks_address_is_in_two_fields() -> None:
    device = dict(window=3, category=1)
    freed = dict(dur_ns=np.int64(-64).astype(np.uint64))
    rows = [
        point(layout.KIND_MEMORY, 5, 0xFFFF0000, attributes=0x7F, dur_ns=64),
        point(layout.KIND_MEMORY, 6, 0xFFFF0000, attributes=0x7F, **freed),
        point(layout.KIND_MEMORY, 7, 16, dur_ns=8, **device),
    ]

    (blocks,) = read(*rows).allocations

    assert blocks.address.tolist() == [0x7FFFFF0000, 0x7FFFFF0000, 16]
    assert blocks.bytes.tolist() == [64, -64, 8]
    assert blocks.device.tolist() == [-1, -1, 3]
    assert blocks.owner_ns.tolist() == [5, 6, 7]


def marks(strings: dict[int, str], *rows: dict[str, Any]) -> tuple[Trace, list[tuple[Any, ...]]]:
    """The trace and its loads: start, duration, whether it is a batch, and what else is known."""
    trace = read(*rows, strings={1: "mine", **strings})
    loads = trace.loads
    assert loads is not None
    first = ("start_ns", "dur_ns", "is_batch")
    facts = [
        {
            name: trace.names[column[row]] if name in ("loader", "wait") else int(column[row])
            for name, column in vars(loads).items()
            if name not in (*first, "lane", "source") and column is not None and column[row] >= 0
        }
        for row in range(len(loads))
    ]
    columns = (getattr(loads, name).tolist() for name in first)
    return trace, list(zip(*columns, facts, strict=True))


def test_marks_of_a_frameworks_loader_are_batches_and_fetches() -> None:
    batch = {"since_ns": 10, "loader": "DataLoader", "automatic": 1}
    fetch = {"since_ns": 12, "key": 3}
    strings = {2: BATCH, 3: json.dumps(batch), 4: FETCH, 5: json.dumps(fetch)}

    trace, loads = marks(
        strings,
        point(layout.KIND_INSTANT, 15, 4, attributes=5),
        point(layout.KIND_INSTANT, 18, 1),
        point(layout.KIND_INSTANT, 30, 2, attributes=3),
    )

    del batch["since_ns"], fetch["since_ns"]
    assert loads == [(12, 3, False, fetch), (10, 20, True, batch)]
    (instants,) = trace.instants
    assert instants.start_ns.tolist() == [18]


def test_marks_of_a_watch_are_batches_that_end_then() -> None:
    told = {"loader": "train", "wait": "enumerate(train)", "samples": 8}
    bits = int(np.array([3.0]).view(np.int64)[0])

    trace, loads = marks(
        {2: BATCH + json.dumps(told)},
        point(layout.KIND_COUNTER, 20, 2, dur_ns=bits),
        point(layout.KIND_COUNTER, 25, 1, dur_ns=bits),
    )

    assert loads == [(20, UNFINISHED, True, {**told, "number": 3, "automatic": 0})]
    (counters,) = trace.counters
    assert counters.start_ns.tolist() == [25]


def step(number: int, window: int, samples: int = NOBODY_SAID, **fields: Any) -> dict[str, Any]:
    row = point(layout.KIND_STEP, 100 * number, number, dur_ns=50, window=window)
    return {**row, "attributes": samples, **fields}


def test_steps_are_those_of_this_window() -> None:
    rows = [step(1, 4), step(2, 5, samples=16), step(3, 5, category=1), step(4, 6)]

    trace = read_log([log(*rows)], replace(MANIFEST, window=5), SPILL).trace

    steps = trace.steps
    assert steps is not None
    assert steps.number.tolist() == [2, 3]
    assert steps.start_ns.tolist() == [200, 300]
    assert steps.dur_ns.tolist() == [50, 50]
    assert steps.samples.tolist() == [16, -1]
    assert steps.is_request.tolist() == [False, True]
    assert steps.unfinished.tolist() == [False, False]


def test_steps_and_requests_come_by_start() -> None:
    # as they ended: a request that lasts may end after those that began later
    rows = [step(2, 0), step(3, 0, category=1), step(1, 0, category=1, dur_ns=500)]

    steps = read_log([log(*rows)], MANIFEST, SPILL).trace.steps

    assert steps is not None
    assert steps.number.tolist() == [1, 2, 3]


def test_steps_are_those_of_the_process_that_recorded() -> None:
    # a pid that was used again, a child, and another process whose pid ends alike
    others = [log(step(2, 0), prefix=prefix) for prefix in ("host-1-9-3", "host-5-2-3", "h-11-2-3")]

    trace = read_log([*others, log(step(1, 0))], MANIFEST, SPILL).trace

    assert trace.steps is not None
    assert trace.steps.number.tolist() == [1]


def test_what_frameworks_tell_in_attributes_has_columns() -> None:
    told = {3: {"phase": "optimizer"}, 4: {"ends": "step", "step_num": 12}, 5: {"shapes": [[2]]}}
    strings = {1: "a", **{place: json.dumps(each) for place, each in told.items()}}
    rows = [span(time, category=OPERATOR, attributes=time) for time in (3, 4, 5)]

    spans = spans_of(read(*rows, span(6, category=OPERATOR), strings=strings))

    assert spans.phase is not None
    assert spans.phase.tolist() == [OPTIMIZER, NONE, NONE, NONE]
    assert spans.ends is not None
    assert spans.ends.tolist() == [-1, ENDINGS.index("step"), -1, -1]
    assert spans.step is not None
    assert spans.step.tolist() == [-1, 12, -1, -1]


def test_what_users_write_into_attributes_is_theirs() -> None:
    strings = {1: "a", 3: json.dumps({"phase": "optimizer", "step_num": 3})}

    spans = spans_of(read(span(1, attributes=3), strings=strings))

    assert (spans.phase, spans.step) == (None, None)
    assert [spans.texts[place] for place in spans.attributes] == [strings[3]]


def test_a_call_of_python_has_a_function() -> None:
    here, there = ({"file": f"{name}.py", "line": 3, "module": name} for name in ("m", "n"))
    strings = {1: "f", 2: "len", 3: json.dumps(here), 4: json.dumps(there)}
    rows = [
        span(1, category=PYTHON, attributes=3),
        span(2, category=PYTHON, attributes=4),
        span(3, 2, category=PYTHON),
        span(4, category=PYTHON, attributes=3),
        span(5, attributes=3),
    ]

    trace = read(*rows, strings=strings)

    frame = spans_of(trace).frame
    assert frame is not None
    assert [None if code < 0 else trace.frames[code] for code in frame] == [
        Frame("f", "m.py", 3, "m"),
        Frame("f", "n.py", 3, "n"),
        Frame("len"),
        Frame("f", "m.py", 3, "m"),
        None,
    ]
    assert len(trace.frames) == 3


def stacks_of(trace: Trace) -> list[list[str]]:
    """The functions of each sample's stack, the innermost first; none where it is lost."""
    found = []
    for place in (place for batch in trace.samples for place in batch.stack.tolist()):
        found.append([])
        while place >= 0:
            place, frame = trace.stacks[place]
            found[-1].append(trace.frames[frame].name)
    return found


def sample(start_ns: int, stack: int) -> dict[str, Any]:
    return point(layout.KIND_SAMPLE, start_ns, stack, dur_ns=10)


def test_a_stack_is_a_function_and_the_stack_above() -> None:
    # a stack's text is the stack above, the name and the attributes, all by their numbers
    strings = {1: "f", 2: "g", 10: "0 1 0", 11: "10 2 0", 12: "10 1 0"}

    trace = read(sample(5, 11), sample(6, 10), sample(7, 12), sample(8, 0), strings=strings)

    assert stacks_of(trace) == [["g", "f"], ["f"], ["f", "f"], []]
    (samples,) = trace.samples
    assert samples.interval_ns.tolist() == [10] * 4
    assert all(above < place for place, (above, _) in enumerate(trace.stacks))


def test_a_stack_that_is_above_itself_has_an_end() -> None:
    strings = {1: "f", 10: "11 1 0", 11: "10 1 0"}

    (stack,) = stacks_of(read(sample(5, 10), strings=strings))

    assert stack == ["f", "f"]


def test_a_stack_whose_function_is_lost_says_so() -> None:
    assert stacks_of(read(sample(5, 10), strings={10: "0 7 0"})) == [[LOST_NAME]]


def test_a_thread_that_only_the_system_named_has_pythons_name() -> None:
    lanes = {
        0: {"tid": 100, "thread": "python3", "context": 0, "system_name": True},
        1: {"tid": 101, "thread": "python3", "context": 0, "system_name": True},
        2: {"tid": 102, "thread": "given", "context": 0},
    }
    rows = [span(number + 1, lane=number) for number in range(3)]
    named = replace(MANIFEST, threads={"100": "Loader", "102": "renamed"})
    child = log(*rows, prefix="host-9-9-9", pid=9, lanes=lanes)

    trace = read_log([log(*rows, lanes=lanes), child], named, SPILL).trace

    assert [thread.name for thread in trace.threads] == [
        *("Loader", "python3", "given"),
        *("python3", "python3", "given"),
    ]


def test_a_lane_is_a_thread_and_its_context() -> None:
    lanes = {4: {"tid": 100, "thread": "main", "context": 2}}

    trace = read(span(1, lane=4), lanes=lanes)

    assert list(trace.threads) == [Thread(1, 100, "main", 2, PREFIX)]


def test_no_processes_are_an_empty_trace() -> None:
    trace, nameless, _ = read_log([], MANIFEST, SPILL)

    assert nameless == 0
    assert [*trace.names, *trace.threads, *trace.spans, *trace.instants, *trace.samples] == []
    assert trace.steps is not None
    assert trace.loads is not None
    assert len(trace.steps) == len(trace.loads) == 0


def test_a_record_says_what_it_is_and_whose() -> None:
    operator, wait = record_code("operator", "torch"), record_code("data_loading", "paddle")
    rows = [
        span(1, category=operator),
        span(2, category=wait),
        span(3),
        point(layout.KIND_COUNTER, 4, 1, category=record_code("user", "host")),
        point(layout.KIND_INSTANT, 5, 1),
    ]

    trace = read(*rows)

    spans = spans_of(trace)
    assert [CATEGORIES[code] for code in spans.category] == ["operator", "data_loading", "user"]
    sources = [[SOURCES[code] for code in each.source] for each in (spans, *trace.counters)]
    assert sources == [["torch", "paddle", "spans"], ["host"]]
    assert [each.source.tolist() for each in trace.instants] == [[0]]
