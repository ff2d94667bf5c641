# SPDX-License-Identifier: Apache-2.0
"""Children record into their parent's recording, however they were made."""

from __future__ import annotations

import subprocess

import polars as pl
import pytest

from programs import Program, command, count, finished


def test_a_forked_child_records_with_its_parent(program: Program) -> None:
    spans = program.record("""
        with strobe.span("before"): pass
        if (child := os.fork()) == 0:
            for i in range(5):
                with strobe.span("child", i=i): pass
            sys.exit(3)                         # leaves the profiler's block
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        with strobe.span("after"): pass
        print(os.getpid(), child)
    """)
    parent, child = map(int, program.printed.split())

    assert spans.select("name", "pid").rows() == [
        ("before", parent),
        *[("child", child)] * 5,
        ("after", parent),
    ]
    assert program.completeness()["dropped"] == 0


def test_a_child_that_goes_on_inside_an_inherited_span_ends_only_its_own(program: Program) -> None:
    spans = program.record("""
        outer = strobe.span("outer")
        with outer:
            with strobe.span("inner"):
                child = os.fork()
                with strobe.span("both"): pass
            with outer: pass
        if child == 0: os._exit(0)
        os.waitpid(child, 0)
        print(os.getpid(), child)
    """)
    parent, child = map(int, program.printed.split())
    names = {pid: rows["name"].to_list() for (pid,), rows in spans.group_by("pid")}

    assert finished(spans).height == spans.height
    assert names == {parent: ["outer", "inner", "both", "outer"], child: ["both", "outer"]}


def test_many_forks_with_the_drain_at_work_do_not_warn(program: Program) -> None:
    # Python 3.12 and later warn when a process that forks has threads; warnings are errors here.
    # 20 000 spans are more than half a ring, which is when the drain thread starts.
    spans = program.record("""
        for i in range(15):
            for j in range(20_000):
                with strobe.span("parent"): pass
            if (child := os.fork()) == 0:
                with strobe.span("child"): pass
                os._exit(0)
            os.waitpid(child, 0)
    """)

    assert count(finished(spans)) == {"parent": 300_000, "child": 15}


def test_fork_in_a_thread(program: Program) -> None:
    # Here it is the program that has threads, so Python's warning is its own.
    spans = program.record(
        """
        import threading

        sys.setswitchinterval(0.0005)
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                with strobe.span("busy"): pass
        def fork():
            with strobe.span("forking"):
                for i in range(20):
                    if (child := os.fork()) == 0:
                        with strobe.span("child"): pass
                        os._exit(0)
                    os.waitpid(child, 0)
        threads = [threading.Thread(target=busy), threading.Thread(target=busy)]
        forker = threading.Thread(target=fork)
        for t in [*threads, forker]: t.start()
        forker.join(); stop.set()
        for t in threads: t.join()
        """,
        warnings="ignore",
    )
    counted = count(finished(spans))

    assert counted["child"] == 20
    assert counted["forking"] == 1
    assert counted["busy"] > 0
    assert finished(spans).height == spans.height


def test_grandchildren_and_threads_of_children(program: Program) -> None:
    spans = program.record("""
        import threading

        def generation(depth):
            with strobe.span(f"depth {depth}"):
                thread = threading.Thread(target=lambda: strobe.span("thread")(print)())
                thread.start(); thread.join()
            if depth == 3: return
            if (child := os.fork()) == 0:
                generation(depth + 1)
                os._exit(0)
            os.waitpid(child, 0)
        generation(0)
    """)

    assert count(finished(spans)) == {f"depth {i}": 1 for i in range(4)} | {"thread": 4}
    assert spans["pid"].n_unique() == 4


def test_exec_and_subprocess_keep_recording(program: Program) -> None:
    (program.folder / "worker.py").write_text(
        "import strobe, sys\nwith strobe.span('worker ' + sys.argv[1]): pass\n"
    )
    spans = program.record(f"""
        import subprocess

        worker = {str(program.folder / "worker.py")!r}
        subprocess.run([sys.executable, worker, "subprocess"], check=True)
        os.posix_spawn(sys.executable, [sys.executable, worker, "spawn"], os.environ)
        os.wait()
        if (child := os.fork()) == 0:
            with strobe.span("before exec"): pass
            os.execv(sys.executable, [sys.executable, worker, "exec"])
        os.waitpid(child, 0)
        subprocess.run(["true"], check=True)
    """)

    assert count(finished(spans)) == {
        "worker subprocess": 1,
        "worker spawn": 1,
        "before exec": 1,
        "worker exec": 1,
    }


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(program: Program, method: str) -> None:
    program.run(
        f"""
        import multiprocessing

        def square(x):
            with strobe.span("square", x=x): return x * x

        if __name__ == "__main__":
            with strobe.Profiler(output=OUT):
                context = multiprocessing.get_context({method!r})
                workers = [context.Process(target=square, args=(x,)) for x in range(3)]
                for worker in workers: worker.start()
                for worker in workers: worker.join()
                assert [worker.exitcode for worker in workers] == [0, 0, 0]
        """
    )
    spans = program.spans()

    assert sorted(spans["attributes"]) == ['{"x":0}', '{"x":1}', '{"x":2}']
    assert spans["pid"].n_unique() == 3
    assert not spans["unfinished"].any()


def test_a_pool_of_workers_that_is_terminated(program: Program) -> None:
    # The pool has threads of its own, so Python's warning is not about ours.
    spans = program.record(
        """
        import multiprocessing

        def square(x):
            with strobe.span("square", x=x): return x * x

        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(square, range(100)) == [x * x for x in range(100)]
        """,
        warnings="ignore",
    )

    assert set(spans["attributes"]) == {f'{{"x":{x}}}' for x in range(100)}
    assert count(finished(spans)) == {"square": 100}


def test_a_child_forked_in_one_window_records_into_the_next(program: Program) -> None:
    program.run("""
        profiler = strobe.Profiler(output=OUT, name="first")
        second = strobe.Profiler(output=OUT, name="second")
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        profiler.start()
        if (child := os.fork()) == 0:
            for name in ("in first", "between", "in second", "after"):
                os.read(to_child, 1)
                with strobe.span(name): pass
                os.write(from_child, b"x")
            os._exit(0)

        def turn():
            os.write(from_parent, b"x")
            os.read(to_parent, 1)
        turn()
        profiler.stop()
        turn()
        second.start()
        turn()
        second.stop()
        turn()
        os.waitpid(child, 0)
    """)
    first, second = program.recordings()

    assert program.spans(first)["name"].to_list() == ["in first"]
    assert program.spans(second)["name"].to_list() == ["in second"]


def test_a_child_with_a_profiler_of_its_own_is_in_both_recordings(program: Program) -> None:
    program.run("""
        parent = strobe.Profiler(output=OUT, name="parent")
        with parent:
            if (child := os.fork()) == 0:
                with strobe.span("a"): pass
                own = strobe.Profiler(output=OUT, name="child")
                with own:
                    with strobe.span("b"): pass
                with strobe.span("c"): pass
                os._exit(0)
            os.waitpid(child, 0)
            with strobe.span("d"): pass
    """)
    child, parent = program.recordings()

    assert program.spans(child)["name"].to_list() == ["b"]
    assert program.spans(parent)["name"].to_list() == ["a", "b", "c", "d"]
    assert program.is_gone(child / "log")
    assert program.is_gone(parent / "log")


def test_a_child_records_on_its_own_after_its_parent_stopped(program: Program) -> None:
    program.run("""
        parent = strobe.Profiler(output=OUT, name="parent").__enter__()
        to_child, from_parent = os.pipe()
        to_parent, from_child = os.pipe()
        child = os.fork()
        if child == 0:
            own = strobe.Profiler(output=OUT, name="child").__enter__()
            with strobe.span("while parent records"): pass
            os.write(from_child, b"x")
            os.read(to_child, 1)
            with strobe.span("later"): pass
            own.stop()
            with strobe.span("nobody records this"): pass
            os._exit(0)
        os.read(to_parent, 1)
        parent.stop()
        os.write(from_parent, b"x")
        assert os.waitpid(child, 0)[1] == 0
    """)
    child, parent = program.recordings()

    assert program.spans(child)["name"].to_list() == ["while parent records", "later"]
    assert program.spans(parent)["name"].to_list() == ["while parent records"]


def test_the_finalizer_is_not_a_child_of_the_program(program: Program) -> None:
    program.run("""
        for i in range(2):
            with strobe.Profiler(output=OUT):
                with strobe.span("s"): pass
            try: os.wait()
            except ChildProcessError: print("no child")
    """)

    assert program.printed.splitlines() == ["no child"] * 2
    for recording in program.recordings():
        assert program.spans(recording)["name"].to_list() == ["s"]


def test_no_sigchld_reaches_the_program(program: Program) -> None:
    if program.recorder == "python":
        pytest.skip("without C no process can be started that does not send one")
    program.run("""
        import signal

        heard = []
        signal.signal(signal.SIGCHLD, lambda *_: heard.append(1))
        with strobe.Profiler(output=OUT): pass
        recording = os.path.join(OUT, os.listdir(OUT)[0])
        while not os.path.exists(os.path.join(recording, "tables")): time.sleep(0.01)
        time.sleep(0.05)
        print(heard)
    """)

    assert program.printed == "[]\n"


def test_os_wait_finds_the_programs_own_children(program: Program) -> None:
    program.run("""
        with strobe.Profiler(output=OUT):
            children = set()
            for code in range(3):
                if (child := os.fork()) == 0: os._exit(code)
                children.add((child, code))
        found = set()
        for i in range(3):
            pid, status = os.wait()
            found.add((pid, os.waitstatus_to_exitcode(status)))
        assert found == children
    """)
    program.open()


def test_a_child_that_records_nothing_leaves_no_ring(program: Program) -> None:
    program.record("""
        for i in range(4):
            if (child := os.fork()) == 0:
                if i % 2:
                    with strobe.span("child"): pass
                os._exit(0)
            os.waitpid(child, 0)
        log, = __import__("pathlib").Path(OUT).glob("*/log")
        print(len(list(log.glob("*.ring"))))
    """)

    assert program.printed == "3\n"


def test_descriptors_are_not_inherited_by_programs_that_are_executed(program: Program) -> None:
    program.record("""
        import subprocess

        for i in range(40_000):
            with strobe.span("s"): pass
        listing = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, text=True,
                                 close_fds=False)
        assert "strobe" not in listing.stdout and OUT not in listing.stdout, listing.stdout
    """)


def test_threads_table_tells_processes_apart(program: Program) -> None:
    program.record("""
        if (child := os.fork()) == 0:
            with strobe.span("child"): pass
            os._exit(0)
        os.waitpid(child, 0)
        with strobe.span("parent"): pass
    """)
    threads = program.open().threads().collect()

    assert threads.height == 2
    assert threads["process"].n_unique() == 2
    assert threads.select(pl.col("tid") == pl.col("pid")).to_series().all()


def test_clean_spares_what_a_child_of_a_killed_program_still_records(program: Program) -> None:
    script = program.write(
        """
        strobe.Profiler(output=OUT).start()
        with strobe.span("parent"): pass
        if os.fork() == 0:
            with strobe.span("child"): pass
            print("ready", flush=True)
            sys.stdin.read()
            os._exit(0)
        time.sleep(600)
        """
    )
    process = program.start(script, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()

    _, out, _ = command("clean", program.output, "--older-than", "0", "--yes")

    assert "nothing to delete (1 recordings stay)" in out
    process.stdin.close()
    process.stdout.read()  # to the end: the child has gone, too
    assert count(program.spans()) == {"parent": 1, "child": 1}
