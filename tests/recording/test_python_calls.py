# SPDX-License-Identifier: Apache-2.0
"""Python's calls: against what sys.setprofile tells, and where programs make it hard."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from programs import Program
from strobe.reports.flame import collapsed, page, speedscope

pytestmark = pytest.mark.skipif(
    find_spec("strobe.record._core") is None, reason="strobe.record._core is not built"
)

MONITORING = sys.version_info >= (3, 12)

# The same work twice: once for sys.setprofile, once for us.
WORK = """
import asyncio, collections, json, threading

def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)

def numbers(n):
    for i in range(n):
        yield i

def fails():
    try:
        int("no number")
    finally:
        len("")

class Thing:
    def method(self): return sorted([3, 1, 2], key=self.key)
    @staticmethod
    def key(value): return -value
    @classmethod
    def make(cls): return cls()
    @property
    def size(self): return len("four")

async def sleeper(n):
    for _ in range(n):
        await asyncio.sleep(0)
    return n

async def gather():
    return await asyncio.gather(*(sleeper(k) for k in (1, 2, 3)))

def outer():
    def inner(): return max(1, 2)
    return inner()

def in_thread():
    fib(5)
    "a b".split()

def work():
    fib(12)
    list(numbers(4))
    unfinished = numbers(9)
    next(unfinished)
    unfinished.close()
    thrown = numbers(9)
    next(thrown)
    try: thrown.throw(KeyError)
    except KeyError: pass
    for _ in range(3):
        try: fails()
        except ValueError: pass
    thing = Thing.make()
    thing.method(), thing.size
    outer()
    asyncio.run(gather())
    with strobe.span("threads"):
        threads = [threading.Thread(target=in_thread, name=f"worker {i}") for i in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()

work()  # what is imported late is there now
truth = collections.Counter()

def hook(frame, event, argument):
    code = frame.f_code
    if code.co_filename != __file__: return
    if event == "call": truth[f"{code.co_name}:{code.co_firstlineno}"] += 1
    if event == "c_call": truth[argument.__name__] += 1

threading.setprofile(hook); sys.setprofile(hook)
work()
sys.setprofile(None); threading.setprofile(None)
del truth["setprofile"]
profiler = strobe.Profiler(output=OUT, with_stack=True)
profiler.start()
work()
profiler.stop()
print(json.dumps(truth))
"""


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> tuple[strobe.Recording, dict[str, int]]:
    program = Program("c", tmp_path_factory.mktemp("worked"))
    truth = json.loads(program.run(WORK))
    return program.open(), truth


@pytest.fixture
def program(tmp_path: Path) -> Any:
    program = Program("c", tmp_path)
    yield program
    program.end()


def calls(recording: strobe.Recording) -> pl.DataFrame:
    """The calls with file and line of their function, and the file of their caller's."""
    spans = recording.spans().drop("module").with_row_index("row").collect()
    frames = recording.frames().with_row_index("frame").collect()
    stacks = recording.stacks().with_row_index("stack").collect()
    known = stacks.join(frames.with_columns(pl.col("frame").cast(pl.Int64)), on="frame")
    known = known.select(pl.col("stack").cast(pl.Int64), "file", "line", "module")
    found = spans.filter(pl.col("category") == "python").join(known, on="stack", how="left")
    callers = found.select(pl.col("row").cast(pl.Int64).alias("parent"), caller="file")
    return found.join(callers, on="parent", how="left").sort("row")


def names(recording: strobe.Recording) -> Counter[str]:
    return Counter(calls(recording).filter(~pl.col("unfinished"))["name"])


def notes(recording: strobe.Recording) -> str:
    rows = recording.completeness().filter(pl.col("source") == "python_calls")
    return str(rows["note"].item())


def test_calls_are_those_that_setprofile_tells(worked: Any) -> None:
    recording, truth = worked

    found: Counter[str] = Counter()
    for row in calls(recording).iter_rows(named=True):
        short = row["name"].rpartition(".")[2]
        if row["unfinished"]:
            continue
        if row["file"] is not None and row["file"].endswith("program.py"):
            found[f"{short}:{row['line']}"] += 1
        elif row["file"] is None and (row["caller"] or "").endswith("program.py"):
            found[short] += 1
    assert dict(found) == truth
    assert truth["fib:6"] == 465 + 3 * 15  # 2 * fib(n + 1) - 1, for 12 and for 5
    assert "unmatched" not in notes(recording)


def test_functions_have_qualified_names_and_stacks(worked: Any) -> None:
    recording, _ = worked
    frames, stacks = recording.frames().collect(), recording.stacks().collect()

    def path(stack: int | None) -> list[str]:
        if stack is None:
            return []
        parent, frame, _ = stacks.row(stack)
        return [*path(parent), frames["name"][frame]]

    rows = calls(recording)
    split = rows.filter(pl.col("name") == "str.split").row(0, named=True)
    assert path(split["stack"])[-3:] == ["Thread.run", "in_thread", "str.split"]
    inner = rows.filter(pl.col("name") == "outer.<locals>.inner").row(0, named=True)
    assert path(inner["stack"]) == ["<module>", "work", "outer", "outer.<locals>.inner"]
    assert {"Thing.make", "Thing.method", "Thing.key", "Thing.size"} <= set(rows["name"])
    # The span was made in work(), and is in a lane without calls.
    span = recording.spans().filter(pl.col("name") == "threads").collect().row(0, named=True)
    assert path(span["stack"]) == ["<module>", "work"]
    assert span["self_ns"] == span["dur_ns"]
    assert recording.operators()["name"].to_list() == ["threads"]
    threads = recording.threads().collect()["thread"].to_list()
    assert {"MainThread (Python)", *(f"worker {i} (Python)" for i in range(3))} <= set(threads)


def test_what_ran_before_is_open_at_both_ends(worked: Any) -> None:
    recording, _ = worked

    open_calls = calls(recording).filter("unfinished")

    assert open_calls["name"].to_list() == ["<module>"]
    assert json.loads(open_calls["attributes"].item())["running"] is True


def test_what_ran_before_is_in_the_context_that_it_ran_in(program: Any) -> None:
    """However often a task is what runs when open calls are written to the log."""
    program.run(
        """
import asyncio
def short(): pass
async def task():
    for _ in range(5000):
        short()
with strobe.Profiler(output=OUT, with_stack=True):
    asyncio.run(task())
"""
    )
    recording = program.open()

    spans = recording.spans().join(recording.threads(), on="lane").collect()
    (module,) = spans.filter("unfinished").rows(named=True)
    assert (module["name"], module["context"]) == ("<module>", 0)


def test_totals_of_flame_graphs_are_the_recordings(worked: Any) -> None:
    recording, _ = worked
    spans = recording.spans().join(recording.threads(), on="lane").collect()
    # The time in which a thread's context had anything open, second by definition.
    busy_ns = 0
    for _, mine in spans.sort("start_ns").group_by("tid", "context"):
        until = 0
        for start, dur in mine.sort("start_ns").select("start_ns", "dur_ns").iter_rows():
            busy_ns += max(0, start + dur - max(start, until))
            until = max(until, start + dur)

    graph = recording.flame()

    assert graph.source == "calls"
    assert graph.total_ns == busy_ns
    lines = collapsed(graph, "x").splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == busy_ns
    assert any("worker 1;" in line and "in_thread (program.py:" in line for line in lines)
    profiles = json.loads(speedscope(graph, "x"))["profiles"]
    assert sum(sum(profile["weights"]) for profile in profiles) == busy_ns
    assert sum(profile["endValue"] for profile in profiles) == busy_ns
    drawn = page(graph, "</script>").partition("const data = ")[2].partition(";\n")[0]
    assert sum(json.loads(drawn)["self_ns"]) == busy_ns
    assert recording.functions().filter(pl.col("name") == "fib")["calls"].item() == 510


def test_filters(program: Program) -> None:
    program.run("""
        import json

        def deep(n):
            return deep(n - 1) if n else json.dumps([])
        def quick(): return len("")
        def slow():
            end = time.perf_counter() + 0.02
            while time.perf_counter() < end: pass
        options = [
            {"stack_include": ["__main__"]}, {"stack_exclude": ["json", "time"]},
            {"stack_min_us": 10_000}, {"stack_max_depth": 4},
        ]
        for number, chosen in enumerate(options):
            with strobe.Profiler(output=OUT, name=str(number), with_stack=True, **chosen):
                deep(5); quick(); slow()
    """)

    found = [calls(strobe.open(path)) for path in program.recordings()]
    include, exclude, least, depth = found
    assert set(include.filter(pl.col("file").is_not_null())["module"]) == {"__main__"}
    assert include.filter(pl.col("name") == "len").height == 1
    assert {"deep", "quick", "slow", "len"} <= set(exclude["name"])
    assert not set(exclude["module"]) & {"json", "json.encoder", "time"}
    ended = least.filter(~pl.col("unfinished"))
    assert "slow" in ended["name"].to_list()
    assert ended["dur_ns"].min() >= 10_000_000
    # <module> and three below it
    assert depth.filter(pl.col("name") == "deep").height == 3


def test_two_profilers_and_the_one_that_did_not_ask(program: Program) -> None:
    program.run("""
        def first(): pass
        def second(): inside()
        def inside(): pass
        def both():
            with strobe.Profiler(output=OUT, name="b", with_stack=True):
                second()
        with strobe.Profiler(output=OUT, name="a", with_stack=True, stack_exclude=["none"]):
            first()
            both()
            with strobe.Profiler(output=OUT, name="c"): first()
    """)

    a, b, c = (strobe.open(path) for path in program.recordings())
    counts = names(a)
    assert (counts["first"], counts["second"], counts["inside"], counts["both"]) == (2, 1, 1, 1)
    assert {"second", "inside"} <= set(names(b))
    assert "first" not in names(b)
    # both() began before b did: there it begins with b.
    assert "both" in calls(b)["name"].to_list()
    assert calls(c).is_empty()
    assert c.completeness()["source"].to_list() == ["spans", "host"]


HARD = """
import signal, threading, weakref

waits = threading.Event()
def waiting(): waits.wait()
early = threading.Thread(target=waiting, name="early")
early.start()

def generator():
    yield 1
    yield 2

class Interrupt(Exception): pass
def handler(number, frame): raise Interrupt
def interrupted(): signal.raise_signal(signal.SIGUSR1)
signal.signal(signal.SIGUSR1, handler)

def traced(frame, event, argument): return traced
def under_debugger(): return len("")
dead = []
def die():
    for i in range(2000):
        names = {}
        exec(f"def short_{i % 100}(): return {i}", names)
        function = names[f"short_{i % 100}"]
        function()
        if i % 500 == 0: dead.append(weakref.ref(function.__code__))

def recurse(n):
    if n: return recurse(n - 1)
    profiler.stop()

def deep(): recurse(100_000)

profiler = strobe.Profiler(output=OUT, with_stack=True)
profiler.start()
die()
left = generator()
next(left)
for _ in range(3):
    try: interrupted()
    except Interrupt: pass
sys.settrace(traced)
under_debugger()
sys.settrace(None)
sys.setrecursionlimit(300_000)
threading.stack_size(1 << 29)
bottom = threading.Thread(target=deep, name="bottom")
bottom.start()
bottom.join()
waits.set()
next(left)
under_debugger()
early.join()
import gc; gc.collect()
print(sum(reference() is not None for reference in dead))
"""


def test_hard_programs(program: Program) -> None:
    alive = program.run(HARD)

    recording = program.open()
    rows, counts = calls(recording), names(recording)
    # Each of the functions that died was told by its own name.
    assert [counts[f"short_{i}"] for i in range(100)] == [20] * 100
    assert counts["interrupted"] == counts["handler"] == 3
    assert counts["under_debugger"] == 1  # the second came after stop()
    assert counts["generator"] == 1
    assert int(alive) == 0  # nothing of the program is kept
    unfinished = rows.filter("unfinished")
    assert unfinished.filter(pl.col("name") == "recurse").height == 100_001
    assert {"waiting", "Event.wait"} <= set(unfinished["name"])
    assert recording.stacks().collect()["depth"].max() > 100_000
    graph = recording.flame()
    assert graph.nodes.filter(pl.col("name") == "(deeper)").height == 1
    assert notes(recording).endswith(f"on Python {sys.version.split()[0]}")


def test_another_profile_function_before_us_is_called_too(program: Program) -> None:
    program.run("""
        seen = []
        def theirs(frame, event, argument): seen.append((event, frame.f_code.co_name))
        def called(): pass
        def failing(frame, event, argument):
            if frame.f_code.co_name == "fails": raise RuntimeError("theirs")
        def fails(): pass
        sys.setprofile(theirs)
        with strobe.Profiler(output=OUT, name="a", with_stack=True):
            called()
        assert sys.getprofile() is theirs
        sys.setprofile(None)
        assert ("call", "called") in seen and ("return", "called") in seen
        sys.setprofile(failing)
        with strobe.Profiler(output=OUT, name="b", with_stack=True):
            try: fails()
            except RuntimeError: pass
            called()
        assert sys.getprofile() is None
    """)

    for path in program.recordings():
        assert names(strobe.open(path))["called"] == 1


def test_a_profile_function_set_meanwhile_takes_over_and_is_told(program: Program) -> None:
    program.run("""
        import cProfile
        def before(): pass
        def after(): pass
        def ignore(*event): pass
        for name in "ab":
            with strobe.Profiler(output=OUT, name=name, with_stack=True):
                before()
                if name == "a":
                    sys.setprofile(ignore)
                    after()
                    assert sys.getprofile() is ignore
                    sys.setprofile(None)
                else:
                    profile = cProfile.Profile()
                    profile.enable()
                    after()
                    profile.disable()
    """)

    for path in program.recordings():
        recording = strobe.open(path)
        assert names(recording)["before"] == 1
        assert names(recording)["after"] == (1 if MONITORING else 0)
        assert ("set a profile function of its own" in notes(recording)) is not MONITORING
        # Up to there, not up to the end of the recording.
        open_calls = calls(recording).filter("unfinished")
        assert (open_calls.height == 0) is not MONITORING


def test_a_program_with_greenlet_is_told_what_it_gets(program: Program) -> None:
    program.run(
        """
        import sys, types
        sys.modules["greenlet"] = types.ModuleType("greenlet")
        with strobe.Profiler(output=OUT, with_stack=True):
            pass
        """
    )

    assert notes(program.open()).endswith("that greenlet switches between have wrong durations")


@pytest.mark.skipif(not MONITORING, reason="there is no sys.monitoring")
def test_without_a_place_in_sys_monitoring_stacks_are_sampled(program: Program) -> None:
    program.run("""
        for tool in (2, 3, 4): sys.monitoring.use_tool_id(tool, f"tool{tool}")
        def busy():
            end = time.process_time() + 0.5
            while time.process_time() < end: sum(range(100))
        with strobe.Profiler(output=OUT, with_stack=True) as profiler:
            busy()
    """)

    recording = program.open()
    assert "sampled, not traced: other tools (tool2, tool3, tool4)" in program.said
    assert "busy" in recording.functions()["name"].to_list()


def test_samples(program: Program) -> None:
    program.run("""
        import threading
        from strobe.record import recorder
        def busy(): return sum(range(200))
        def called():
            with recorder.core.source_span("outer", 1), recorder.core.source_span("inner", 1):
                busy()
        def run():
            profiler = strobe.Profiler(output=OUT, with_stack="sample", stack_rate_hz=200)
            with profiler:
                # However slow the machine is, some rounds come by.
                end = time.process_time() + 0.6
                while time.process_time() < end: called()
                child = os.fork()  # Python warns of threads, and warnings are errors here
                if child == 0: os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                end = time.process_time() + 0.3
                while time.process_time() < end: busy()
        waits = threading.Event()
        waiting = threading.Thread(target=waits.wait, name="waiting")
        waiting.start()
        run()
        waits.set()
    """)

    recording = program.open()
    samples = recording.samples().collect()
    window = dict(recording.metadata().collect().iter_rows())
    lasted_ns = int(window["end_ns"]) - int(window["start_ns"])
    functions = recording.functions().filter(pl.col("module") == "__main__")
    times = {name: time for name, time in functions.select("name", "total_ns").iter_rows()}
    assert samples["tid"].n_unique() == 2
    by_thread = samples.group_by("lane").agg(pl.sum("interval_ns"))["interval_ns"]
    assert by_thread.max() <= lasted_ns
    # What is on the stack all the time has all of the time; its callee a part of it.
    assert times["run"] == times["<module>"] >= times["busy"] > 0
    achieved = float(window["python_calls_achieved_hz"])
    assert 0 < achieved <= 250
    assert f"{achieved:g} of 200 samples per second" in notes(recording)
    own_ns, wall_ns = (int(window[f"python_calls_sampler_{key}_ns"]) for key in ("own", "wall"))
    assert 0 < own_ns < wall_ns <= lasted_ns
    assert f"for {own_ns / wall_ns:.2%} of one core's time" in notes(recording)
    # The operators that were seen, with what is inside them, know who called them.
    operators = recording.spans().filter(pl.col("stack").is_not_null()).collect()
    innermost = recording.stacks().collect()["frame"].gather(operators["stack"])
    assert {"called", "busy"} & set(recording.frames().collect()["name"].gather(innermost))
    assert Counter(operators["name"])["outer"] == Counter(operators["name"])["inner"] > 0
    assert operators.height < recording.spans().collect().height
    graph = recording.flame()
    assert graph.source == "samples"
    assert graph.total_ns == samples["interval_ns"].sum()
    assert samples.height == graph.nodes["calls"].sum()


def sampled(recording: strobe.Recording) -> pl.DataFrame:
    """The samples with the name of the innermost function of the program, and of the thread."""
    stacks, frames = recording.stacks().collect(), recording.frames().collect()

    def program_function(stack: int) -> str:
        while True:
            parent, frame, _ = stacks.row(stack)
            if parent is None or frames["module"][frame] == "__main__":
                return str(frames["name"][frame])
            stack = parent

    threads = recording.threads().select("lane", "thread").collect()
    samples = recording.samples().collect().join(threads, on="lane")
    names = [program_function(stack) for stack in samples["stack"]]
    return samples.with_columns(function=pl.Series(names, dtype=pl.String))


def span_of(recording: strobe.Recording, name: str) -> tuple[int, int]:
    span = recording.spans().filter(pl.col("name") == name).collect().row(0, named=True)
    return span["start_ns"], span["start_ns"] + span["dur_ns"]


def test_the_rate_is_kept_where_the_program_waits(program: Program) -> None:
    program.run("""
        import threading
        def pause(): time.sleep(0.05)
        end = threading.Event()
        threads = [threading.Thread(target=end.wait, name=f"idle {i}") for i in range(50)]
        for thread in threads: thread.start()
        with strobe.Profiler(output=OUT, with_stack="sample", stack_rate_hz=100):
            with strobe.span("all"):
                for _ in range(50): pause()
        end.set()
    """)

    recording = program.open()
    samples = sampled(recording)
    start_ns, end_ns = span_of(recording, "all")
    periods = (end_ns - start_ns) / 10_000_000
    counts = samples.group_by("thread").agg(pl.len(), pl.sum("interval_ns"))
    main = counts.filter(pl.col("thread") == "MainThread (Python)").row(0, named=True)
    assert periods >= 250
    # By the processor time that it uses, two of a hundred would be left.
    assert 0.4 * periods < main["len"] < 1.2 * periods + 10
    assert counts.height == 51
    assert counts["len"].min() == counts["len"].max()
    assert counts["interval_ns"].min() == counts["interval_ns"].max()
    paused_ns = samples.filter(pl.col("function") == "pause")["interval_ns"].sum()
    assert paused_ns > 0.5 * (end_ns - start_ns)


@pytest.mark.parametrize("main_thread", ["time.sleep(0.3)", "spin(0.3)"])
def test_threads_that_wait_are_seen_where_they_wait_now(program: Program, main_thread: str) -> None:
    program.run(f"""
        import threading
        def spin(seconds):
            end = time.process_time() + seconds
            while time.process_time() < end: len("")
        def first(): events[0].wait()
        def second(): events[1].wait()
        def work():
            first(); second()
        def other():
            events[0].wait(); events[1].wait()
        events = [threading.Event(), threading.Event()]
        threads = [threading.Thread(target=work, name="moves"), threading.Thread(target=other)]
        for thread in threads: thread.start()
        with strobe.Profiler(output=OUT, with_stack="sample", stack_rate_hz=200):
            with strobe.span("before"): {main_thread}
            events[0].set()
            while not events[1]._cond._waiters: time.sleep(0.01)
            while len(events[1]._cond._waiters) < 2: time.sleep(0.01)
            with strobe.span("after"): {main_thread}
            events[1].set()
            for thread in threads: thread.join()
    """)

    recording = program.open()
    samples = sampled(recording).filter(pl.col("thread") == "moves (Python)")
    for name, function in (("before", "first"), ("after", "second")):
        inside = samples.filter(pl.col("start_ns").is_between(*span_of(recording, name)))
        assert inside["function"].unique().to_list() == [function]


@pytest.mark.parametrize("caller", ["hold()", "in_thread(hold)"])
def test_a_c_function_that_keeps_the_lock_has_all_of_its_samples(
    program: Program, caller: str
) -> None:
    program.run(f"""
        import threading
        numbers = range(8_000_000)
        def hold():
            time.sleep(0.2)  # the main thread joins
            with strobe.span("hold"): sum(numbers)
        def in_thread(function):
            thread = threading.Thread(target=function)
            thread.start()
            thread.join()
        with strobe.Profiler(output=OUT, with_stack="sample", stack_rate_hz=200):
            {caller}
    """)

    recording = program.open()
    start_ns, end_ns = span_of(recording, "hold")
    periods = (end_ns - start_ns) / 5_000_000
    inside = sampled(recording).filter(pl.col("start_ns").is_between(start_ns, end_ns))
    held = inside.filter(pl.col("function") == "hold")
    # Without it there would be one, with all of the time.
    assert 0.4 * periods < held.height < 1.2 * periods + 10
    assert held["interval_ns"].sum() > 0.5 * (end_ns - start_ns)
    assert "before the thread with the interpreter's lock could be seen" in notes(recording)


def can_read_its_own_memory() -> bool:
    """Say whether the system lets us: some containers do not."""
    word, copy = ctypes.c_long(7), ctypes.c_long()
    parts = [(ctypes.c_void_p * 2)(ctypes.addressof(each), 8) for each in (copy, word)]
    read = ctypes.CDLL(None, use_errno=True).process_vm_readv
    return read(os.getpid(), parts[0], 1, parts[1], 1, 0) == 8 and copy.value == 7


@pytest.mark.skipif(not can_read_its_own_memory(), reason="process_vm_readv is not allowed here")
def test_samples_see_what_ends_before_the_lock_could_go(program: Program) -> None:
    program.run("""
        def free():
            for _ in range(50_000): pass  # it is known once it was seen here
            lists.pop()  # and what it returns: that takes the most time
        lists = []
        with strobe.Profiler(output=OUT, with_stack="sample", stack_rate_hz=500):
            end = time.process_time() + 1.5
            while time.process_time() < end:
                lists.append(list(range(1_000_000, 2_000_000)))
                with strobe.span("free"): free()
    """)

    recording = program.open()
    spans = recording.spans().filter(pl.col("name") == "free").collect()
    inside = [
        pl.col("start_ns").is_between(start_ns, start_ns + dur_ns)
        for start_ns, dur_ns in spans.select("start_ns", "dur_ns").iter_rows()
    ]
    functions = sampled(recording).filter(pl.any_horizontal(inside))["function"]
    assert len(functions) > 20
    assert (functions == "free").mean() > 0.8


def test_a_rate_that_costs_too_much_is_lowered_and_told(program: Program) -> None:
    program.run("""
        import threading
        def wait(depth): return wait(depth - 1) if depth else end.wait()
        def swap(mine, others):
            while not end.is_set():
                mine.wait(0.01); mine.clear(); others.set()
        end, one, other = threading.Event(), threading.Event(), threading.Event()
        idle = [threading.Thread(target=wait, args=(200,)) for _ in range(100)]
        busy = [threading.Thread(target=swap, args=pair) for pair in ((one, other), (other, one))]
        for thread in idle + busy: thread.start()
        one.set()
        with strobe.Profiler(output=OUT, with_stack="sample", stack_rate_hz=1000):
            time.sleep(2)
        end.set()
    """)

    recording = program.open()
    window = dict(recording.metadata().collect().iter_rows())
    own_ns, wall_ns = (int(window[f"python_calls_sampler_{key}_ns"]) for key in ("own", "wall"))
    achieved_hz = float(window["python_calls_achieved_hz"])
    # 20,000 calls are on stacks: a look at them all takes longer than the 10 us that it may.
    assert achieved_hz < 900
    assert own_ns < 0.05 * wall_ns
    assert f"the rate was lowered from 1000 to {achieved_hz:g} per second" in notes(recording)


@pytest.mark.parametrize("with_stack", [True, "sample"])
def test_threads_of_our_own_are_not_the_programs(program: Program, with_stack: bool | str) -> None:
    """The one that looks at the hardware runs Python all the time."""
    program.run(f"""
        profiler = strobe.Profiler(output=OUT, with_stack={with_stack!r}, hardware=True)
        with profiler:
            end = time.process_time() + 0.3
            while time.process_time() < end: sum(range(100))
    """)

    recording = program.open()
    threads = recording.threads().collect()
    assert "strobe sampler" in threads["thread"].to_list()  # its counters are there
    seen = calls(recording) if with_stack is True else recording.samples().collect()
    lanes = seen["lane"].unique().to_list()
    names_of = threads.filter(pl.col("lane").is_in(lanes))["thread"].to_list()
    assert names_of == ["MainThread (Python)"]


def test_forked_children_are_recorded(program: Program) -> None:
    program.run("""
        def in_child(): return len("")
        def child():
            for _ in range(50): in_child()
        def parent(): pass
        with strobe.Profiler(output=OUT, with_stack=True):
            pid = os.fork()
            if pid == 0:
                child()
                os._exit(0)
            os.waitpid(pid, 0)
            parent()
    """)

    rows = calls(program.open())
    ended = rows.filter(~pl.col("unfinished"))
    assert ended.filter(pl.col("name") == "in_child")["pid"].n_unique() == 1
    assert ended.filter(pl.col("name") == "in_child").height == 50
    assert ended.filter(pl.col("name") == "parent").height == 1


@pytest.mark.skipif(not hasattr(sys, "_strobe_hook"), reason="strobe.pth is not installed")
def test_started_children_are_recorded(program: Program) -> None:
    program.run("""
        import multiprocessing, subprocess
        import json
        CODE = "def started(): pass\\nfor _ in range(3): started()"
        if __name__ == "__main__":
            with strobe.Profiler(output=OUT, with_stack=True):
                subprocess.run([sys.executable, "-c", CODE], check=True)
                spawn = multiprocessing.get_context("spawn")
                child = spawn.Process(target=json.loads, args=("[1]",))
                child.start()
                child.join()
                assert child.exitcode == 0
            assert "STROBE_STACKS" not in os.environ
            subprocess.run([sys.executable, "-c", CODE], check=True)  # nobody records
    """)

    rows = calls(program.open()).filter(~pl.col("unfinished"))
    assert rows.filter(pl.col("name") == "started").height == 3
    assert rows.filter(pl.col("name") == "loads", pl.col("module") == "json").height == 1
    assert rows["pid"].n_unique() == 3


@pytest.mark.skipif(not MONITORING, reason="a profile function in C cannot be seen from Python")
def test_a_child_that_outlives_the_recording_loses_its_hooks(program: Program) -> None:
    printed = program.run("""
        def called(): pass
        reads, writes = os.pipe()
        with strobe.Profiler(output=OUT, with_stack=True):
            pid = os.fork()
            if pid == 0:
                os.read(reads, 1)  # until the parent has stopped
                called()
                print([sys.monitoring.get_events(tool) for tool in (2, 3, 4)], flush=True)
                os._exit(0)
        os.write(writes, b"x")
        os.waitpid(pid, 0)
    """)

    assert printed == "[0, 0, 0]\n"


def test_a_killed_program_keeps_its_calls(program: Program) -> None:
    program.run(
        """
        import signal
        def short(): pass
        def main():
            for _ in range(5000): short()
            os.kill(os.getpid(), signal.SIGKILL)
        strobe.Profiler(output=OUT, with_stack=True).start()
        main()
        """,
        exits=-9,
    )

    recording = program.open()
    assert names(recording)["short"] == 5000
    unfinished = calls(recording).filter("unfinished")["name"].to_list()
    assert "main" in unfinished
    assert "short" not in unfinished


def test_the_python_recorder_says_that_it_cannot(tmp_path: Path) -> None:
    program = Program("python", tmp_path)

    program.run("with strobe.Profiler(output=OUT, with_stack=True): len('')")

    assert "with_stack is not collected: the Python recorder cannot record calls" in program.said
    assert calls(program.open()).is_empty()
