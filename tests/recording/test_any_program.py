# SPDX-License-Identifier: Apache-2.0
"""Whatever a program does with spans, both recorders tell the same true story of it.

Programs are drawn by hypothesis: threads that begin and end spans in any order, some of them the
same object, some never ended, with instants, counters and steps between. The oracle below knows
only the order of the calls. What is exported and read back must be what the tables say.
"""

import asyncio
import importlib
import os
import queue
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs import TIMEOUT_SECONDS
from round_trip import check_exports
from strobe.finalize.build import build
from strobe.model import check
from strobe.store import frames, manifest
from strobe.store.parquet import TableWriter
from strobe.store.references import Logs
from strobe.store.tables import Tables

HALF = settings(max_examples=settings.default.max_examples // 2)  # each is a recording
THREADS = 3
OBJECTS = 4
WINDOW = 0
POINTS = {"instants": "instant", "counters": "counter", "steps": "step"}

# (thread, what it calls, on which span object or with which number)
Call = tuple[int, str, int]
programs = st.lists(
    st.tuples(
        st.integers(0, THREADS - 1),
        st.sampled_from(["begin", "begin", "end", "end", "instant", "counter", "step"]),
        st.integers(0, OBJECTS - 1),
    ),
    max_size=40,
)


@pytest.fixture(params=["_core", "_python"], scope="module")
def core(request: pytest.FixtureRequest) -> ModuleType:
    try:
        return importlib.import_module(f"strobe.record.{request.param}")
    except ImportError:
        pytest.skip("the C core is not built here")


@dataclass
class Opening:
    """One begin() as the oracle sees it; times are numbers of calls."""

    name: str
    thread: int
    start: int
    end: int | None = None


@dataclass
class Story:
    """What the calls of a program amount to."""

    openings: list[Opening] = field(default_factory=list)

    def begin(self, thread: int, name: str, now: int) -> None:
        self.openings.append(Opening(name, thread, now))

    def end(self, thread: int, name: str, now: int) -> None:
        """The latest opening of the object on this thread, else its latest."""
        still_open = [o for o in self.openings if o.name == name and o.end is None]
        here = [o for o in still_open if o.thread == thread]
        if still_open:
            (here or still_open)[-1].end = now

    def rows(self, last: int) -> list[tuple[str, int | None, bool]]:
        """(name, which row is the parent, unfinished) in the order of their begin."""
        ends = [last if o.end is None else o.end for o in self.openings]
        found = []
        for number, opening in enumerate(self.openings):
            containing = [
                other
                for other in range(number)
                if self.openings[other].thread == opening.thread and ends[other] >= ends[number]
            ]
            found.append(
                (opening.name, containing[-1] if containing else None, opening.end is None)
            )
        return found


@contextmanager
def recorded(core: ModuleType) -> Iterator[Callable[[], Path]]:
    """Record what happens inside; the function that it gives makes the tables afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder)
        (recording / "log").mkdir()
        core.use_control(None, True)
        start = manifest.Anchor.now(core.clock_ns)
        core.start(str(recording / "log"))

        def make_tables() -> Path:
            stop = manifest.Anchor.now(core.clock_ns)
            core.stop()
            described = manifest.Manifest(
                id="0" * 16,
                name="any program",
                strobe="0",
                recorder="any",
                host=socket.gethostname(),
                boot="",
                pid=os.getpid(),
                process_start=manifest.process_start(os.getpid()) or 0,
                log="log",
                start=start,
                stop=stop,
                window=WINDOW,
                ended_with_step=True,
            )
            logs = Logs(found=[recording / "log"])
            build(logs, described, recording, lambda _stage, _share: None)
            return recording

        yield make_tables


class Crew:
    """Threads that do one call at a time, in the order in which they are told."""

    def __init__(self) -> None:
        self._tasks: list[queue.Queue[Callable[[], object] | None]] = []
        self._done: queue.Queue[None] = queue.Queue()
        self._threads = []
        for _ in range(THREADS):
            tasks: queue.Queue[Callable[[], object] | None] = queue.Queue()
            thread = threading.Thread(target=self._work, args=(tasks,))
            thread.start()
            self._tasks.append(tasks)
            self._threads.append(thread)

    def _work(self, tasks: "queue.Queue[Callable[[], object] | None]") -> None:
        while (task := tasks.get()) is not None:
            task()
            self._done.put(None)

    def run(self, thread: int, task: Callable[[], object]) -> None:
        self._tasks[thread].put(task)
        self._done.get(timeout=TIMEOUT_SECONDS)

    def dismiss(self) -> None:
        for tasks in self._tasks:
            tasks.put(None)
        for thread in self._threads:
            thread.join()


def is_of_process(name: object) -> bool:
    """Whether it is a counter that every recording has."""
    return isinstance(name, str) and name.startswith("process ")


def perform(core: ModuleType, call: str, number: int, span: Any) -> Callable[[], object]:
    """Return what a thread has to do for a call."""
    if call == "instant":
        return partial(core.instant, f"instant {number}", number=number)
    if call == "counter":
        return partial(core.counter, f"counter {number}", number / 3)
    if call == "step":
        return partial(core.step, WINDOW, number, core.clock_ns(), number, number % 2 == 1)
    return partial(getattr(span, call))


def busy_ns(spans: list[tuple[int, int]]) -> int:
    """How many nanoseconds lie in at least one of these (start, duration)."""
    total, free_ns = 0, 0
    for start_ns, dur_ns in sorted(spans):
        end_ns = start_ns + dur_ns
        total += max(0, end_ns - max(start_ns, free_ns))
        free_ns = max(free_ns, end_ns)
    return total


def check_self_times(spans: pl.DataFrame) -> None:
    """The self times of each lane sum to its busy time."""
    for _, lane in spans.group_by("lane"):
        assert lane["self_ns"].sum() == busy_ns(lane.select("start_ns", "dur_ns").rows())


def write_links(recording: Path, pairs: list[tuple[int, int]]) -> None:
    schema = frames.empty("links").schema
    rows = [("backward", source, target) for source, target in pairs]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    path = frames.file_path(recording, "links")
    with TableWriter(path, frames.file_schema("links")) as writer:
        writer.append(frame.to_dict())


rows_of_spans = st.integers(0, 20)


@HALF
@given(program=programs, pairs=st.lists(st.tuples(rows_of_spans, rows_of_spans), max_size=8))
def test_calls_in_any_order_on_any_thread(
    core: ModuleType, program: list[Call], pairs: list[tuple[int, int]]
) -> None:
    story, crew = Story(), Crew()
    try:
        with recorded(core) as make_tables:
            objects = [core.span(f"span {n}", number=n) for n in range(OBJECTS)]
            for now, (thread, call, number) in enumerate(program):
                crew.run(thread, perform(core, call, number, objects[number]))
                if call in ("begin", "end"):
                    getattr(story, call)(thread, f"span {number}", now)
            recording = make_tables()
            table = frames.scan(recording, "spans").collect()
            points = [frames.scan(recording, name).collect() for name in POINTS]
            write_links(recording, pairs)
            check_exports(Tables(recording), recording)
    finally:
        crew.dismiss()

    assert check(table) == []
    check_self_times(table)
    assert table.select("name", "parent", "unfinished").rows() == story.rows(len(program))
    for frame, (name, call) in zip(points, POINTS.items(), strict=True):
        column = "step" if name == "steps" else "name"
        expected = [
            n if name == "steps" else f"{call} {n}" for _, made, n in program if made == call
        ]
        found = [each for each in frame[column].to_list() if not is_of_process(each)]
        assert found == expected


trees = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=8)


@HALF
@given(forest=st.lists(trees, min_size=1, max_size=4))
def test_tasks_that_take_turns_do_not_nest_in_each_other(core: ModuleType, forest) -> None:
    """Each task walks its tree, a span for each node, and lets the others go on in every one."""

    async def walk(tree: list, path: str) -> None:
        with core.span(path):
            for number, inner in enumerate(tree):
                await asyncio.sleep(0)
                await walk(inner, f"{path}.{number}")
            await asyncio.sleep(0)

    async def run() -> None:
        await asyncio.gather(*(walk(tree, str(number)) for number, tree in enumerate(forest)))

    with recorded(core) as make_tables:
        asyncio.run(run())
        recording = make_tables()
        table = frames.scan(recording, "spans").collect()
        check_exports(Tables(recording), recording)

    assert check(table) == []
    check_self_times(table)
    names = table["name"].to_list()
    parents = [None if row is None else names[row] for row in table["parent"]]
    # A node's path says whose child it is.
    assert parents == [name.rpartition(".")[0] or None for name in names]
    assert not table["unfinished"].any()
