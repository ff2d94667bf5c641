# SPDX-License-Identifier: Apache-2.0
"""The C recorder and its Python twin leave the same records, times apart.

Each program runs once with either, in a process of its own: a recorder belongs to its process.
"""

import os
import subprocess
import sys
import textwrap
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from log_reader import read_log
from programs import TIMEOUT_SECONDS

needs_core = pytest.mark.skipif(
    find_spec("strobe.record._core") is None, reason="strobe.record._core is not built"
)

HEAD = """
import asyncio, copy, importlib, os, pickle, sys, threading
from strobe.errors import UsageError
recorder = importlib.import_module("strobe.record." + sys.argv[1])
span, instant, counter = recorder.span, recorder.instant, recorder.counter
recorder.use_control(None, True)

def in_thread(function, *arguments):
    thread = threading.Thread(target=function, args=arguments, name="worker")
    thread.start()
    thread.join()

def failure(function, *arguments, **keywords):
    try:
        print(function(*arguments, **keywords))
    except Exception as error:
        print(type(error).__name__, error)
"""


def run(recorder: str, program: str, directory: Path) -> str:
    """Run it with one recorder and return what it printed."""
    directory.mkdir()
    command = [sys.executable, "-W", "error", "-c", HEAD + program, recorder, str(directory)]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:surrogatepass"}
    environment["STROBE_RECORDER"] = {"_core": "c", "_python": "python"}[recorder]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def without_times(directory: Path) -> list[Any]:
    """What each process left; its lanes by the names of their threads and by what is in them."""
    found = []
    for log in read_log(directory):
        lanes: dict[int, list[Any]] = {number: [] for number in log.lanes}
        for event in log.events:
            value = event.value if event.kind == "counter" else None
            what = (event.kind, event.category, event.name)
            lanes[event.lane].append((*what, event.attributes, value))
        content = Counter(
            (
                log.lanes[number]["thread"],
                log.lanes[number]["context"] > 0,
                *sorted(events, key=repr),
            )
            for number, events in lanes.items()
        )
        found.append((log.dropped, sorted(content.items(), key=repr)))
    return sorted(found, key=repr)


PROGRAMS = {
    "nested": """
        with span("a"):
            with span("b", n=1, text="é"):
                instant("here", why=None)
            counter("loss", 0.5)
            counter("loss", -2)
        """,
    "a string of any kind": """
        class Name(str):
            def __eq__(self, other): raise ValueError
            __hash__ = str.__hash__
        with span("\\ud800 \\0 é"), span(Name("mine")), span("", text="\\udfff"):
            instant("x" * 100_000)
        """,
    "overlapping": """
        a, b = span("a"), span("b")
        a.begin(); b.begin(); a.end(); b.end(); b.end()
        """,
    "entered again": """
        again = span("again", k=[1, {"two": 2.5}])
        with again, again:
            again.begin().end()
        @span("deep")
        def deep(n):
            return deep(n - 1) if n else 0
        deep(20)
        """,
    "never ended": """
        kept = span("kept").begin()
        span("forgotten").begin()
        for _ in range(600):
            span("left", k=1).begin()
        with span("after"):
            pass
        """,
    "more open than the table holds": """
        spans = [span("many").begin() for _ in range(700)]
        for one in spans[:350] + spans[:350:-1]:
            one.end()
        """,
    "open at stop": """
        before = span("before").begin()
        recorder.stop()
        before.end()
        with span("off"):
            instant("off")
        os.mkdir(sys.argv[2] + "/second")
        recorder.start(sys.argv[2] + "/second")
        before.end()
        with before:
            pass
        """,
    "made before": """
        recorder.stop()
        early = span("early", k=1).begin()
        recorder.start(sys.argv[2])
        early.end()
        with early:
            pass
        """,
    "threads one after the other": """
        def work(n):
            with span("work", n=n):
                instant("working")
        for n in range(3):
            in_thread(work, n)
        with span("main"):
            pass
        """,
    "ended by another thread": """
        crossing = span("crossing").begin()
        in_thread(crossing.end)
        shared = span("shared").begin()
        def work():
            with shared:
                pass
        in_thread(work)
        shared.end()
        """,
    "tasks": """
        @span("job")
        async def job(n):
            with span("part", n=n):
                await asyncio.sleep(0.01 * n)
        async def main():
            with span("main"):
                await asyncio.gather(*(job(n) for n in range(4)))
        with span("around"):
            asyncio.run(main())
        """,
    "generators": """
        @span("numbers")
        def numbers():
            yield from range(3)
        @span("items")
        async def items():
            for n in range(3):
                yield n
        async def main():
            return [n async for n in items()]
        print(list(numbers()), list(zip(numbers(), numbers())))
        print(asyncio.run(main()))
        """,
    "more than a ring holds": """
        for n in range(70_000):
            with span("many"):
                pass
        counter("n", n)
        """,
    "a forked child": """
        outer = span("outer").begin()
        pid = os.fork()
        outer.end()
        with span("child" if pid == 0 else "parent"):
            pass
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        """,
    "exceptions": """
        try:
            with span("failed"):
                raise KeyError("x")
        except KeyError:
            print("passed on")
        """,
    "of sources": """
        with recorder.source_span("wait", 0x15):
            recorder.source_counter("queue", 3, 0x10)
        recorder.source_instant("batch", 0x30, number=1, loader="train")
        recorder.source_instant("batch", 0x30, facts=[1])
        recorder.source_instant("plain", 0x30)
        """,
    "the object": """
        one = span("one", k=[1])
        print(repr(one), repr(span("plain")), one.name, one.attributes, span(k=1, name="key"))
        one.attributes["k"] = 2
        print(one.attributes, span("a", name="b").attributes, one.begin() is one, one.end())
        print(pickle.loads(pickle.dumps(one)), copy.deepcopy(one), type(copy.copy(one)) is span)
        print(recorder.directory(), min(recorder.calibrate()) > 0)
        print(recorder.FORMAT_VERSION, sorted(recorder.stats()), recorder.clock_ns() > 0)
        """,
    "wrong use": """
        failure(span)
        failure(span, "a", "b")
        failure(span, 5)
        failure(span, k=1)
        failure(span, "a", k=object)
        failure(span, "a", k={1, 2})
        failure(span("a"), 5)
        failure(span("a"), int)
        failure(span("a"), len, len)
        failure(instant)
        failure(instant, b"a")
        failure(instant, "a", "b")
        failure(instant, "a", k=object)
        failure(counter, "a")
        failure(counter, "a", 1, 2)
        failure(counter, "a", "1")
        failure(counter, 1, 1)
        failure(counter, "a", 10 ** 400)
        failure(recorder.start, sys.argv[2])
        failure(recorder.start, "x" * 5000)
        failure(recorder.use_control, None, False)
        failure(recorder.use_control, "/nowhere/page", True)
        failure(recorder.use_control, os.devnull, False)
        recorder.stop()
        failure(recorder.stop)
        failure(recorder.directory)
        failure(recorder.start, "/nowhere")
        print(recorder.stats())
        """,
}


@needs_core
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_both_recorders_leave_the_same(program: str, tmp_path: Path) -> None:
    source = "recorder.start(sys.argv[2])\n" + textwrap.dedent(program)

    printed = {name: run(name, source, tmp_path / name) for name in ("_core", "_python")}
    first = {name: without_times(tmp_path / name) for name in printed}
    second = {name: without_times(tmp_path / name / "second") for name in printed}

    places = {name: text.replace(str(tmp_path / name), "OUT") for name, text in printed.items()}
    assert places["_python"] == places["_core"]
    assert first["_python"] == first["_core"]
    assert second["_python"] == second["_core"]
    assert first["_core"]


@pytest.mark.parametrize("recorder", [pytest.param("_core", marks=needs_core), "_python"])
def test_a_recording_after_another_control_page_is_a_new_one(recorder: str, tmp_path: Path) -> None:
    program = """
first, second = sys.argv[2] + "/first", sys.argv[2] + "/second"
os.mkdir(first)
os.mkdir(second)
recorder.start(first)
with span("first"):
    pass
recorder.stop()
recorder.use_control(None, True)
recorder.start(second)
with span("second"):
    pass
"""
    run(recorder, program, tmp_path / "out")

    for name in ("first", "second"):
        [log] = read_log(tmp_path / "out" / name)
        assert log.names("span") == {name: 1}


@pytest.mark.parametrize("recorder", [pytest.param("_core", marks=needs_core), "_python"])
def test_both_say_who_wrote_it(recorder: str, tmp_path: Path) -> None:
    run(recorder, "recorder.start(sys.argv[2])", tmp_path / "out")

    [log] = read_log(tmp_path / "out")

    assert log.process["recorder"] == {"_core": "C", "_python": "Python"}[recorder]
    assert set(log.process) == {"pid", "parent", "host", "start", "recorder", "version"}
