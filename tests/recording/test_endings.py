# SPDX-License-Identifier: Apache-2.0
"""However the program ends, its recording is complete and its exit is its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import polars as pl
import pytest

from programs import TIMEOUT_SECONDS, Program, count, finished

WORK = """
with strobe.Profiler(output=OUT):
    with strobe.span("before"): pass
    with strobe.span("inside"):
        {end}
print("not reached")
"""

# how it ends: (what the program does, its exit code, whether "inside" has ended)
ENDINGS = {
    "exception": ("raise ValueError('mine')", 1, True),
    "sys.exit": ("sys.exit(7)", 7, True),
    "SystemExit": ("raise SystemExit('a message')", 1, True),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", -signal.SIGINT, True),
    "SIGINT": ("os.kill(os.getpid(), 2); time.sleep(600)", -signal.SIGINT, True),
    "SIGTERM": ("os.kill(os.getpid(), 15); time.sleep(600)", -signal.SIGTERM, False),
    "SIGSEGV": ("os.kill(os.getpid(), 11); time.sleep(600)", -signal.SIGSEGV, False),
    "os._exit": ("os._exit(5)", 5, False),
    "abort": ("os.abort()", -signal.SIGABRT, False),
    "exec": ("os.execvp('sh', ['sh', '-c', 'exit 9'])", 9, False),
}


@pytest.mark.parametrize("how", ENDINGS)
def test_the_recording_is_complete_however_the_program_ends(program: Program, how: str) -> None:
    end, code, ended = ENDINGS[how]
    program.run(WORK.format(end=end), exits=code)
    spans = program.spans()

    assert program.printed == ""
    assert spans.select("name", "unfinished").rows() == [("before", False), ("inside", not ended)]
    assert ("mine" in program.said) == (how == "exception")


def test_sigterm_with_a_handler_that_exits(program: Program) -> None:
    program.run(
        """
        import signal
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
        """
        + WORK.format(end="os.kill(os.getpid(), 15); time.sleep(600)").replace("\n", "\n        "),
        exits=4,
    )

    assert count(finished(program.spans())) == {"before": 1, "inside": 1}


def test_a_program_that_never_stops(program: Program) -> None:
    program.run("""
        strobe.Profiler(output=OUT).start()
        for i in range(50_000):
            with strobe.span("s"): pass
        still_open = strobe.span("open").begin()
    """)

    assert count(finished(program.spans())) == {"s": 50_000}
    figures = program.completeness()
    assert (figures["asked"], figures["unfinished"], figures["note"]) == (50_001, 1, None)


def test_a_program_that_records_in_its_own_atexit(program: Program) -> None:
    program.run("""
        import atexit
        def last():
            with strobe.span("last"): pass
        atexit.register(last)               # before strobe's: runs after it
        strobe.Profiler(output=OUT).start()
        @atexit.register
        def first():
            with strobe.span("first"): pass
    """)

    assert "first" in program.spans()["name"].to_list()


def test_threads_that_outlive_the_main_thread(program: Program) -> None:
    program.run("""
        import threading
        def work():
            time.sleep(0.05)
            for i in range(100):
                with strobe.span("late"): pass
        strobe.Profiler(output=OUT).start()
        threading.Thread(target=work).start()
    """)

    assert count(finished(program.spans())) == {"late": 100}


def test_daemon_threads_at_the_end(program: Program) -> None:
    script = program.write("""
        import threading
        recording = threading.Semaphore(0)
        def work():
            with strobe.span("daemon"): pass
            recording.release()
            while True:
                with strobe.span("daemon"): pass
        strobe.Profiler(output=OUT).start()
        for i in range(4): threading.Thread(target=work, daemon=True).start()
        for i in range(4): recording.acquire()
    """)
    process = program.start(script)
    said = process.communicate(timeout=TIMEOUT_SECONDS)[1]

    # Python 3.10 by itself crashes now and then when such threads wait for the GIL at its exit.
    endings = {0} if sys.version_info >= (3, 11) else {0, -signal.SIGSEGV}
    assert process.returncode in endings, said
    assert count(finished(program.spans()))["daemon"] >= 4


def test_an_exception_reaches_the_caller_unchanged(program: Program) -> None:
    program.run("""
        class Mine(BaseException): pass
        profiler = strobe.Profiler(output=OUT)
        try:
            with profiler:
                raise Mine(1)
        except Mine as error:
            assert error.args == (1,) and error.__context__ is None
        else: raise AssertionError
        print(len(profiler.recording.spans().collect()))
    """)

    assert program.printed == "0\n"


def test_stop_inside_the_block_is_enough(program: Program) -> None:
    program.run("""
        with strobe.Profiler(output=OUT) as profiler:
            with strobe.span("s"): pass
            profiler.stop()
            with strobe.span("not recorded"): pass
    """)

    assert program.spans()["name"].to_list() == ["s"]


@pytest.mark.parametrize("closed", ["sys.stderr = None", "sys.stderr.close()", "os.close(2)"])
def test_a_program_without_standard_error(program: Program, closed: str) -> None:
    program.run(f"""
        {closed}
        with strobe.Profiler(output=OUT):
            with strobe.span("s"): pass
        sys.stderr = None
    """)

    assert program.spans()["name"].to_list() == ["s"]


def test_a_program_that_closes_all_descriptors(program: Program) -> None:
    program.run("""
        with strobe.Profiler(output=OUT):
            for i in range(1000):
                with strobe.span("before"): pass
            os.closerange(3, 256)           # ours too: what is in the rings is safe
            for i in range(1000):
                with strobe.span("after"): pass
    """)
    names = count(program.spans())

    assert names["before"] == 1000
    assert sum(names.values()) == 2000


def test_where_no_process_can_be_made_open_does_the_work(program: Program) -> None:
    program.run("""
        sys.executable = ""
        with strobe.Profiler(output=OUT):
            with strobe.span("s"): pass
    """)
    recording = program.recordings()[0]
    left = recording / "log"

    assert left.is_dir()
    assert program.spans()["name"].to_list() == ["s"]
    assert not left.exists()


def test_the_finalizer_writes_the_tables_by_itself(program: Program) -> None:
    program.run("""
        with strobe.Profiler(output=OUT):
            with strobe.span("s"): pass
    """)
    recording = program.recordings()[0]

    assert program.is_gone(recording / "log")
    assert program.is_gone(recording / "finalizer.log")
    assert sorted(path.name for path in recording.iterdir() if path.name[0] != ".") == [
        "strobe.json",
        "tables",
    ]
    assert program.spans()["name"].to_list() == ["s"]


def test_control_pages_do_not_pile_up(program: Program) -> None:
    environment = {"TMPDIR": str(program.folder)}
    work = "with strobe.Profiler(output=OUT): pass\n"
    for end in ("", "", "strobe.Profiler(output=OUT).start(); os._exit(0)", ""):
        program.run(work + end, env=environment)

    runtime = next(program.folder.glob("strobe-*"))
    assert list(runtime.glob("control-*")) == []


def test_a_program_on_standard_input_records(program: Program) -> None:
    output = str(program.output)
    source = f"import strobe\nwith strobe.Profiler(output={output!r}), strobe.span('s'): pass\n"
    environment = os.environ | {"STROBE_RECORDER": program.recorder}
    subprocess.run(
        [sys.executable, "-"],
        input=source,
        text=True,
        check=True,
        capture_output=True,
        env=environment,
    )

    assert program.spans().select(pl.col("name")).rows() == [("s",)]
