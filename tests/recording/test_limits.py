# SPDX-License-Identifier: Apache-2.0
"""Long recordings: everything is there, and the program's memory does not grow."""

from __future__ import annotations

import pytest

from programs import Program

MEGABYTE = 1 << 20

MANY = """
import resource

def resident():
    with open("/proc/self/statm") as file: return int(file.read().split()[1]) * 4096

span = strobe.span("s")
before = resident()
with strobe.Profiler(output=OUT):
    for i in range({spans} // 10):
        with span: pass
        with span: pass
        with span: pass
        with span: pass
        with span: pass
        with strobe.span("fresh"): pass
        with strobe.span("fresh"): pass
        with strobe.span("fresh"): pass
        with strobe.span("fresh"): pass
        with strobe.span("fresh"): pass
        if i == {spans} // 100: early = resident()
    late = resident()
print(before, early, late)
"""


def check_many(program: Program, spans: int) -> None:
    program.run(MANY.format(spans=spans))
    before, early, late = map(int, program.printed.split())
    figures = program.completeness()

    assert (figures["asked"], figures["dropped"]) == (spans, 0)
    assert late - before < 64 * MEGABYTE
    assert late - early < 4 * MEGABYTE
    calls = dict(program.open().operators().select("name", "calls").iter_rows())
    assert calls == {"s": spans // 2, "fresh": spans // 2}


def test_memory_does_not_grow_with_the_spans(program: Program) -> None:
    check_many(program, 1_000_000 if program.recorder == "c" else 300_000)


@pytest.mark.stress
def test_memory_does_not_grow_with_ten_million_spans(program: Program) -> None:
    check_many(program, 10_000_000)


def test_memory_does_not_grow_with_names_that_never_end(program: Program) -> None:
    program.run("""
        def resident():
            with open("/proc/self/statm") as file: return int(file.read().split()[1]) * 4096

        before = resident()
        with strobe.Profiler(output=OUT):
            for i in range(200_000):
                with strobe.span(f"a name that is not used again {i:08}"): pass
        print(resident() - before)
    """)

    assert int(program.printed) < 64 * MEGABYTE
    assert program.spans()["name"].n_unique() == 200_000


def test_memory_does_not_grow_with_windows(program: Program) -> None:
    # 40 rings of 1 MB would show.
    program.run("""
        sys.executable = ""                 # no finalizers: this is about our own memory
        def resident():
            with open("/proc/self/statm") as file: return int(file.read().split()[1]) * 4096

        profiler = strobe.Profiler(output=OUT)
        for i in range(50):
            if i == 10: before = resident()
            with profiler:
                for j in range(40_000 if i < 10 else 100):
                    with strobe.span("s"): pass
        print(resident() - before, len(os.listdir("/proc/self/fd")))
    """)
    grown, descriptors = map(int, program.printed.split())

    assert grown < 16 * MEGABYTE
    assert descriptors < 16


def test_memory_does_not_grow_with_threads(program: Program) -> None:
    program.run("""
        import threading
        def resident():
            with open("/proc/self/statm") as file: return int(file.read().split()[1]) * 4096
        def work():
            with strobe.span("s"): pass

        with strobe.Profiler(output=OUT):
            for i in range(600):
                thread = threading.Thread(target=work)
                thread.start(); thread.join()
                if i == 100: before = resident()
            print(resident() - before)
    """)

    assert int(program.printed) < 16 * MEGABYTE
    assert program.spans().height == 600


def test_spans_made_while_off_leave_nothing(program: Program) -> None:
    program.run("""
        for i in range(1000):
            with strobe.span("off", i=i): pass
            strobe.instant("off"); strobe.counter("off", i)
        print(os.path.exists(OUT), len(os.listdir("/proc/self/task")))
    """)

    assert program.printed == "False 1\n"


def test_a_thousand_open_spans_of_one_object(program: Program) -> None:
    program.run("""
        span = strobe.span("s")
        with strobe.Profiler(output=OUT):
            for i in range(1000): span.begin()
            for i in range(1000): span.end()
            span.end()
    """)
    spans = program.spans()

    assert spans.height == 1000
    assert not spans["unfinished"].any()
    # The last one begun is the first one ended: each contains the next.
    assert spans["parent"].to_list() == [None, *range(999)]
