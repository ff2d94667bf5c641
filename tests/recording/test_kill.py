# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any instant loses no span that had ended, and invents none."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

import strobe
from programs import TARGETS, TIMEOUT_SECONDS, Program, count, finished


@pytest.fixture(autouse=True)
def _without_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the counters of the process: records are counted here, one by one."""
    monkeypatch.setenv("STROBE_USAGE", "0")


LANES = {"one thread": 1, "8 threads": 8, "a forked child": 2, "a spawned child": 2}
WAYS = {"8 threads": "threads", "a forked child": "fork", "a spawned child": "spawn"}
NOTE = "the program ended without stop(): the recording ends with its last record"


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_at_random(program: Program, case: str, seed: int) -> list[int]:
    """Let it run for a random time, kill all of it, and return the counts of its lanes."""
    chance = random.Random(f"{case} {seed}")
    lanes = LANES[case]
    counts = program.folder / "counts"
    counts.write_bytes(bytes(256))
    with counts.open("r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    numbered = "numbered" if seed % 2 else "alike"
    how = WAYS.get(case, "threads")
    process = program.start(
        TARGETS / "count.py", counts, how, lanes, numbered, start_new_session=True
    )
    # One in five may be killed before it records at all.
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while seed % 5 and not all(words[:lanes]):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "the program has not begun to record"
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.1))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    while any(pid and is_running(pid) for pid in words[16 : 16 + lanes]):
        time.sleep(0.001)
    return list(words[:lanes])


def check_recovered(spans: pl.DataFrame, counts: list[int]) -> None:
    for lane, told in enumerate(counts):
        ended = finished(spans, f"lane {lane}")
        assert told <= len(ended) <= told + 1
        assert ended["start_ns"].n_unique() == len(ended)
        assert ended["attributes"].null_count() in (0, len(ended))  # numbered, or all alike
        if ended["attributes"].null_count() == 0:
            assert ended["attributes"].to_list() == [f'{{"n":{n}}}' for n in range(len(ended))]
        unfinished = count(spans.filter(pl.col("unfinished")))
        assert unfinished.get(f"lane {lane}", 0) <= 1
        if told:
            assert unfinished[f"outer {lane}"] == 1


def check_trial(program: Program, case: str, seed: int) -> None:
    program.folder.mkdir()
    counts = kill_at_random(program, case, seed)
    if not program.recordings():
        assert counts == [0] * len(counts), f"{case}, seed {seed}: no recording"
        return
    try:
        recording = program.open()
        check_recovered(recording.spans().collect(), counts)
        figures = recording.completeness().row(0, named=True)
        assert figures["dropped"] == 0
        assert figures["note"] == NOTE
    except AssertionError as error:
        raise AssertionError(f"{case}, seed {seed}, counts {counts}: {error}") from error


def check_trials(recorder: str, folder: Path, case: str, seeds: range) -> None:
    def trial(seed: int) -> None:
        program = Program(recorder, folder / str(seed))
        with contextlib.ExitStack() as stack:
            stack.callback(program.end)
            check_trial(program, case, seed)

    with ThreadPoolExecutor(2) as two_at_once:
        list(two_at_once.map(trial, seeds))


# Twenty of each case, ten at a time; make stress-kill does many more.
@pytest.mark.parametrize("first", [0, pytest.param(10, marks=pytest.mark.again)])
@pytest.mark.parametrize("case", LANES)
def test_kill_loses_nothing(recorder: str, tmp_path: Path, case: str, first: int) -> None:
    check_trials(recorder, tmp_path, case, range(first, first + 10))


@pytest.mark.stress
@pytest.mark.parametrize("case", LANES)
def test_kill_loses_nothing_500_times(recorder: str, tmp_path: Path, case: str) -> None:
    check_trials(recorder, tmp_path, case, range(1000, 1500))


def test_a_killed_child_harms_nobody(program: Program) -> None:
    spans = program.record("""
        import signal

        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            for i in range(40_000):             # more than a ring holds
                with strobe.span("child"): pass
            open_span = strobe.span("open in child").begin()
            os.write(tell, b"x")
            time.sleep(600)
        os.read(ready, 1)
        os.kill(child, signal.SIGKILL)
        with strobe.span("parent"): pass
        assert os.waitpid(child, 0) == (child, signal.SIGKILL)
    """)

    assert count(finished(spans)) == {"child": 40_000, "parent": 1}
    assert spans.filter(pl.col("unfinished"))["name"].to_list() == ["open in child"]
    assert spans["pid"].n_unique() == 2


def test_a_killed_program_that_nobody_waited_for_can_be_opened(program: Program) -> None:
    process = program.start(
        program.write("""
            strobe.Profiler(output=OUT).start()
            with strobe.span("done"): pass
            print("ready", flush=True)
            time.sleep(600)
        """)
    )
    assert process.stdout is not None
    process.stdout.readline()

    process.kill()
    while is_running(process.pid):
        time.sleep(0.001)
    # It is a zombie now: it has a pid, but it does not record.
    assert Path(f"/proc/{process.pid}").exists()

    assert program.spans()["name"].to_list() == ["done"]
    assert (program.recordings()[0] / "tables").is_dir()
    assert program.is_gone(program.recordings()[0] / "log")


def test_a_child_that_outlives_its_killed_parent_goes_on(program: Program) -> None:
    process = program.start(
        program.write("""
            strobe.Profiler(output=OUT).start()
            with strobe.span("parent"): pass
            if os.fork() == 0:
                with strobe.span("before"): pass
                print(os.getpid(), flush=True)
                sys.stdin.read()                # until the test has killed the parent
                with strobe.span("after"): pass
                os._exit(0)
            time.sleep(600)
        """),
        stdin=-1,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    child = int(process.stdout.readline())

    process.kill()
    process.wait()
    while_it_runs = program.spans()
    log_stays = (program.recordings()[0] / "log").is_dir()
    process.stdin.close()
    while is_running(child):
        time.sleep(0.001)

    assert sorted(while_it_runs["name"]) == ["before", "parent"]
    assert log_stays
    assert sorted(program.spans()["name"]) == ["after", "before", "parent"]
    assert program.is_gone(program.recordings()[0] / "log")


def test_a_pid_used_again_is_another_process(program: Program) -> None:
    process = program.start(
        program.write("""
            strobe.Profiler(output=OUT).start()
            with strobe.span("done"): pass
            os.kill(os.getpid(), 9)
        """)
    )
    process.communicate()
    again = _start_with_pid(process.pid, program)

    recovered = program.spans()
    alive = again.poll() is None

    assert recovered["name"].to_list() == ["done"]
    assert alive


def _start_with_pid(pid: int, program: Program) -> object:
    for _ in range(200):
        try:
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        except OSError as error:
            pytest.skip(f"the next pid cannot be chosen here ({error})")
        process = program.start(program.write("time.sleep(600)", "sleep.py"))
        if process.pid == pid:
            return process
        process.kill()
        process.communicate()
    pytest.skip(f"other processes took pid {pid}")


def test_two_children_with_the_same_pid_are_two_processes(program: Program) -> None:
    recorded = """
        def child(name):
            pid = os.fork()
            if pid == 0:
                with strobe.span(name): pass
                os._exit(0)
            os.waitpid(pid, 0)
            return pid

        def choose(pid):
            try: open("/proc/sys/kernel/ns_last_pid", "w").write(str(pid - 1))
            except OSError: return False
            return True

        import warnings
        warnings.simplefilter("ignore", ResourceWarning)
        for attempt in range(200):
            first = child("first")
            time.sleep(0.02)        # a tick of the clock that tells processes apart
            if not choose(first): print("cannot choose"); break
            if child("second") == first: print(attempt + 1); break
    """
    spans = program.record(recorded)
    if not program.printed.strip().isdigit():
        pytest.skip("the next pid cannot be chosen here")
    attempts = int(program.printed)

    assert count(spans) == {"first": attempts, "second": attempts}
    last = spans.sort("start_ns")[-2:]
    assert last["name"].to_list() == ["first", "second"]
    assert last["pid"].n_unique() == 1
    threads = program.open().threads().collect()
    assert threads[last["lane"]]["process"].n_unique() == 2


def test_open_says_so_while_the_program_still_records(program: Program) -> None:
    process = program.start(
        program.write("""
            strobe.Profiler(output=OUT).start()
            with strobe.span("done"): pass
            print("ready", flush=True)
            time.sleep(600)
        """)
    )
    assert process.stdout is not None
    process.stdout.readline()

    with pytest.raises(strobe.StateError, match=f"process {process.pid} is still recording"):
        strobe.open(program.output)
