# SPDX-License-Identifier: Apache-2.0
"""A lane is a thread, or one task of a thread; spans of different lanes do not nest."""

from __future__ import annotations

import polars as pl

from programs import Program, count, finished


def parents(spans: pl.DataFrame) -> dict[str, set[str | None]]:
    """The names of the parents of the spans of each name."""
    found: dict[str, set[str | None]] = {}
    for name, parent in spans.select("name", "parent").iter_rows():
        found.setdefault(name, set()).add(None if parent is None else spans["name"][parent])
    return found


def test_32_threads(program: Program) -> None:
    spans = program.record("""
        import threading

        barrier = threading.Barrier(32)
        def work(k):
            barrier.wait()
            for i in range(2000):
                with strobe.span(f"outer {k}"):
                    with strobe.span("inner"): pass
            barrier.wait()
        threads = [threading.Thread(target=work, args=(k,), name=f"worker {k}") for k in range(32)]
        for t in threads: t.start()
        for t in threads: t.join()
    """)
    threads = program.open().threads().collect()

    assert count(finished(spans)) == {"inner": 64_000} | {f"outer {k}": 2000 for k in range(32)}
    assert parents(spans)["inner"] == {f"outer {k}" for k in range(32)}
    assert spans["lane"].n_unique() == spans["tid"].n_unique() == 32
    lanes = spans.filter(pl.col("name") != "inner").select("name", "lane").unique()
    for name, lane in lanes.iter_rows():
        assert threads["thread"][lane] == name.replace("outer", "worker")


def test_threads_that_end_leave_their_spans_but_not_their_rings(program: Program) -> None:
    spans = program.record("""
        import pathlib, threading

        def work(i):
            with strobe.span("short", i=i): pass
            if i % 100 == 0: strobe.span("open").begin()
        for i in range(1000):
            thread = threading.Thread(target=work, args=(i,))
            thread.start(); thread.join()
        log, = pathlib.Path(OUT).glob("*/log")
        print(len(list(log.glob("*.ring"))))
    """)

    assert set(spans.filter(pl.col("name") == "short")["attributes"]) == {
        f'{{"i":{i}}}' for i in range(1000)
    }
    assert count(finished(spans)) == {"short": 1000}
    assert count(spans)["open"] == 10
    assert spans["lane"].n_unique() == 1000
    # A thread may end a little after it was joined, and the next one then needs a ring of its own.
    assert int(program.printed) <= 20


def test_a_thread_open_at_stop_is_cut_there(program: Program) -> None:
    program.run("""
        import threading

        inside, leave = threading.Event(), threading.Event()
        def work():
            with strobe.span("long"):
                inside.set()
                leave.wait()
            with strobe.span("late"): pass
        thread = threading.Thread(target=work)
        with strobe.Profiler(output=OUT):
            thread.start()
            inside.wait()
        leave.set()
        thread.join()
    """)
    spans = program.spans()

    assert spans.select("name", "unfinished").rows() == [("long", True)]


def test_threads_record_while_windows_open_and_close(program: Program) -> None:
    program.run("""
        import threading

        sys.setswitchinterval(0.0005)
        stop = threading.Event()
        def work():
            while not stop.is_set():
                with strobe.span("outer"):
                    with strobe.span("inner", a=1): pass
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads: t.start()
        for i in range(4):
            with strobe.Profiler(output=OUT): time.sleep(0.01)
        stop.set()
        for t in threads: t.join()
    """)

    for recording in program.recordings():
        spans = program.spans(recording)
        assert set(spans["name"]) <= {"inner", "outer"}
        assert spans.filter(pl.col("unfinished")).height <= 8
        assert program.completeness(recording)["dropped"] == 0
        assert program.completeness(recording)["note"] is None


def test_tasks_do_not_nest_in_each_other(program: Program) -> None:
    spans = program.record("""
        import asyncio

        async def task(k):
            with strobe.span(f"task {k}"):
                for i in range(3):
                    with strobe.span(f"part {k}"):
                        await asyncio.sleep(0)      # the other tasks run now
        async def main():
            with strobe.span("main"):
                await asyncio.gather(*(task(k) for k in range(5)))
        asyncio.run(main())
    """)

    assert count(finished(spans)) == (
        {"main": 1} | {f"task {k}": 1 for k in range(5)} | {f"part {k}": 3 for k in range(5)}
    )
    assert parents(spans) == (
        {"main": {None}}
        | {f"task {k}": {None} for k in range(5)}
        | {f"part {k}": {f"task {k}"} for k in range(5)}
    )
    assert spans["tid"].n_unique() == 1


def test_one_object_in_several_tasks(program: Program) -> None:
    spans = program.record("""
        import asyncio

        shared = strobe.span("shared")
        async def task(k):
            with strobe.span(f"task {k}"):
                with shared:
                    await asyncio.sleep(0.001 * (5 - k))    # they end in the opposite order
        async def main():
            await asyncio.gather(*(task(k) for k in range(5)))
        asyncio.run(main())
    """)

    assert count(finished(spans)) == {"shared": 5} | {f"task {k}": 1 for k in range(5)}
    assert parents(spans)["shared"] == {f"task {k}" for k in range(5)}


def test_a_decorated_coroutine_lasts_over_its_awaits(program: Program) -> None:
    spans = program.record("""
        import asyncio

        @strobe.span("load")
        async def load():
            with strobe.span("before"): pass
            await asyncio.sleep(0)
            with strobe.span("after"): pass

        async def main():
            await asyncio.gather(load(), load())
            asyncio.current_task()
        asyncio.run(main())
    """)

    assert count(finished(spans)) == {"load": 2, "before": 2, "after": 2}
    assert parents(spans)["before"] == parents(spans)["after"] == {"load"}


def test_a_cancelled_task_ends_its_spans(program: Program) -> None:
    spans = program.record("""
        import asyncio

        async def wait():
            with strobe.span("cancelled"):
                await asyncio.sleep(600)
        async def main():
            task = asyncio.create_task(wait())
            await asyncio.sleep(0)
            task.cancel()
            try: await task
            except asyncio.CancelledError: pass
        asyncio.run(main())
    """)

    assert count(finished(spans)) == {"cancelled": 1}


def test_a_generator_span_lasts_while_its_consumer_runs(program: Program) -> None:
    spans = program.record("""
        def batches():
            with strobe.span("epoch"):
                for i in range(2):
                    with strobe.span("load"): pass
                    yield i
        for batch in batches():
            with strobe.span("train"): pass
        half = batches()
        next(half)
        del half                    # ends it
    """)

    assert count(finished(spans)) == {"epoch": 2, "load": 3, "train": 2}
    assert parents(spans) == {"epoch": {None}, "load": {"epoch"}, "train": {"epoch"}}


def test_10_000_tasks(program: Program) -> None:
    spans = program.record("""
        import asyncio

        async def task():
            with strobe.span("task"):
                await asyncio.sleep(0)
                with strobe.span("inside"): pass
        async def main():
            for round in range(10):
                await asyncio.gather(*(task() for _ in range(1000)))
        asyncio.run(main())
    """)

    assert count(finished(spans)) == {"task": 10_000, "inside": 10_000}
    assert parents(spans) == {"task": {None}, "inside": {"task"}}


def test_signal_handlers_may_record(program: Program) -> None:
    spans = program.record("""
        import signal

        def handler(*_):
            with strobe.span("signal"): pass
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for i in range(100_000):
            with strobe.span("outer"):
                with strobe.span("inner"): pass
        signal.setitimer(signal.ITIMER_REAL, 0)
    """)
    counted = count(finished(spans))

    assert counted["outer"] == counted["inner"] == 100_000
    assert counted["signal"] > 0
    assert finished(spans).height == spans.height
    assert program.completeness()["dropped"] == 0


def test_garbage_collected_spans_inside_spans(program: Program) -> None:
    spans = program.record("""
        import gc

        class Node:
            def __init__(self): self.me, self.span = self, strobe.span("collected").begin()
            def __del__(self):
                with strobe.span("finalizer"): pass
        gc.set_threshold(10)
        for i in range(2000):
            Node()
            with strobe.span("work"): pass
        gc.collect()
    """)
    counted = count(spans)

    assert counted == {"collected": 2000, "finalizer": 2000, "work": 2000}
    assert spans.filter(pl.col("unfinished"))["name"].unique().to_list() == ["collected"]
