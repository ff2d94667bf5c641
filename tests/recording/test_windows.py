# SPDX-License-Identifier: Apache-2.0
"""Several profilers at once: each recording holds exactly what began in its window."""

from __future__ import annotations

import polars as pl
import pytest

from programs import Program, count


def by_name(program: Program) -> dict[str, list[str]]:
    """The names of the spans of each recording of the folder, by the recording's name."""
    found = {}
    for path in sorted(program.folder.glob("out*/*/strobe.json")):
        spans = program.spans(path.parent)
        found[path.parent.name.partition("-")[0]] = [
            name + ("?" if unfinished else "")
            for name, unfinished in spans.select("name", "unfinished").iter_rows()
        ]
    return found


def logs(program: Program) -> list[str]:
    return [str(path) for path in program.folder.glob("out*/*/log") if not program.is_gone(path)]


def test_overlapping_windows(program: Program) -> None:
    program.run("""
        a = strobe.Profiler(output=OUT, name="a")
        b = strobe.Profiler(output=OUT + "2", name="b")
        def span(name):
            with strobe.span(name): pass
        span("0")
        a.start(); span("1")
        over = strobe.span("over").begin()
        b.start(); span("2")
        over.end()
        into = strobe.span("into").begin()
        a.stop(); span("3")
        into.end()
        b.stop(); span("4")
    """)

    assert by_name(program) == {"a": ["1", "over", "2", "into?"], "b": ["2", "into", "3"]}
    assert logs(program) == []


def test_nested_windows(program: Program) -> None:
    program.run("""
        def span(name):
            with strobe.span(name): pass
        with strobe.Profiler(output=OUT, name="outer"):
            span("1")
            with strobe.Profiler(output=OUT, name="inner") as inner:
                span("2")
            names = inner.recording.spans().collect()["name"].to_list()   # while outer records
            assert names == ["2"], names
            span("3")
            with strobe.Profiler(output=OUT, name="second"):
                span("4")
            span("5")
    """)

    assert by_name(program) == {"outer": ["1", "2", "3", "4", "5"], "inner": ["2"], "second": ["4"]}
    assert logs(program) == []


def test_one_profiler_many_rounds(program: Program) -> None:
    program.run("""
        profiler = strobe.Profiler(output=OUT)
        span = strobe.span("s", a=1)
        for i in range(5):
            with profiler:
                for j in range(i):
                    with span: pass
            with span: pass
            assert len(profiler.recording.spans().collect()) == i
    """)

    assert sorted(program.spans(path).height for path in program.recordings()) == [0, 1, 2, 3, 4]


def test_a_window_that_closes_while_another_records_hard_is_whole(program: Program) -> None:
    # The inner recording is read while its log is being written.
    program.run("""
        import threading

        stop = threading.Event()
        def work():
            while not stop.is_set():
                for i in range(500):
                    with strobe.span("busy"): pass
                time.sleep(0.002)
        thread = threading.Thread(target=work)
        with strobe.Profiler(output=OUT, name="outer"):
            thread.start()
            for i in range(5):
                with strobe.Profiler(output=OUT, name="inner") as inner:
                    with strobe.span("marker"): pass
                    time.sleep(0.01)
                figures = inner.recording.completeness().row(0, named=True)
                spans = inner.recording.spans().collect()
                assert spans["name"].to_list().count("marker") == 1
                assert figures["dropped"] == 0 and figures["note"] is None, figures
            stop.set()
            thread.join()
    """)
    outer = next(path for path in program.recordings() if path.name.startswith("outer"))

    assert count(program.spans(outer))["marker"] == 5
    assert program.completeness(outer)["dropped"] == 0


def test_a_child_forked_after_the_first_window_closed_is_in_the_second(program: Program) -> None:
    program.run("""
        a = strobe.Profiler(output=OUT, name="a")
        b = strobe.Profiler(output=OUT, name="b")
        a.start(); b.start(); a.stop()
        assert len(a.recording.spans().collect()) == 0      # a has its tables, the log goes on
        if (child := os.fork()) == 0:
            with strobe.span("child"): pass
            os._exit(0)
        os.waitpid(child, 0)
        b.stop()
    """)

    assert by_name(program) == {"a": [], "b": ["child"]}
    assert logs(program) == []


def test_both_windows_of_a_killed_program_are_recovered(program: Program) -> None:
    program.run(
        """
        a = strobe.Profiler(output=OUT, name="a")
        b = strobe.Profiler(output=OUT + "2", name="b")
        def span(name):
            with strobe.span(name): pass
        a.start(); span("1"); b.start(); span("2")
        open_span = strobe.span("open").begin()
        os.kill(os.getpid(), 9)
        """,
        exits=-9,
    )

    assert by_name(program) == {"a": ["1", "2", "open?"], "b": ["2", "open?"]}
    assert logs(program) == []


def test_one_window_closed_the_other_killed(program: Program) -> None:
    program.run(
        """
        sys.executable = ""                 # nobody finalizes before the kill
        a = strobe.Profiler(output=OUT, name="a")
        b = strobe.Profiler(output=OUT, name="b")
        a.start(); b.start()
        with strobe.span("both"): pass
        a.stop()
        with strobe.span("only b"): pass
        os.kill(os.getpid(), 9)
        """,
        exits=-9,
    )

    assert by_name(program) == {"a": ["both"], "b": ["both", "only b"]}
    assert logs(program) == []


JUMPS = {"forward": 3600 * 10**9, "backward": -3600 * 10**9}


@pytest.mark.parametrize("direction", JUMPS)
def test_a_jump_of_the_wall_clock_changes_no_duration(program: Program, direction: str) -> None:
    program.run(f"""
        with strobe.Profiler(output=OUT):
            with strobe.span("across"):
                began = time.monotonic_ns()
                wall_ns = time.time_ns
                time.time_ns = lambda: wall_ns() + {JUMPS[direction]}
                print(time.monotonic_ns() - began)
    """)
    figures = program.completeness()
    duration_ns = program.spans()["dur_ns"][0]

    assert int(program.printed) <= duration_ns < 60 * 10**9
    assert abs(figures["clock_residual_ns"] - JUMPS[direction]) < 60 * 10**9


def test_metadata_says_who_recorded(program: Program) -> None:
    program.record("with strobe.span('s'): pass")
    facts = dict(program.open().metadata().collect().iter_rows())
    start, end = program.spans().select(pl.col("start_ns"), pl.col("dur_ns")).row(0)

    assert facts["recorder"] == {"c": "C", "python": "Python"}[program.recorder]
    assert facts["processes"] == "1"
    assert facts["name"] == "program"
    assert int(facts["start_ns"]) <= start
    assert start + end <= int(facts["end_ns"])
