# SPDX-License-Identifier: Apache-2.0
"""Programs profiled without a change: by `strobe run`, and by STROBE_OPTIONS alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strobe
from programs import TIMEOUT_SECONDS, happens
from strobe.store.places import find_recordings

STROBE = [sys.executable, "-m", "strobe"]
OURS = ("STROBE_", "SLURM_", "OMPI_", "PADDLE_", "TORCHELASTIC_", "MS_")


@dataclass
class Done:
    status: int
    out: str
    err: str

    @property
    def program_err(self) -> str:
        """Standard error without what strobe says."""
        lines = self.err.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("strobe: "))


class Place:
    """A folder with programs in it, run with and without strobe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output = folder / "strobe_data"

    def write(self, source: str, name: str = "program.py") -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
        return name

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(OURS) and name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        }
        return {**kept, **more}

    def start(self, *command: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment(variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *command: str, stdin: str = "", **variables: str) -> Done:
        with self.start(*command, **variables) as process:
            out, err = process.communicate(stdin, timeout=TIMEOUT_SECONDS)
        return Done(process.returncode, out, err)

    def bare(self, *arguments: str, stdin: str = "", **variables: str) -> Done:
        return self.call(sys.executable, *arguments, stdin=stdin, **variables)

    def run(self, *arguments: str, stdin: str = "", **variables: str) -> Done:
        return self.call(*STROBE, "run", *arguments, stdin=stdin, **variables)

    def hooked(self, *arguments: str, options: Any = None, **variables: str) -> Done:
        """Run Python with STROBE_OPTIONS."""
        text = options if isinstance(options, str) else json.dumps(options or {})
        return self.bare(*arguments, STROBE_OPTIONS=text, **variables)

    def recordings(self) -> list[Path]:
        return find_recordings(self.output)

    def recording(self) -> strobe.Recording:
        (path,) = self.recordings()
        return strobe.open(path)

    def names(self) -> list[str]:
        """The spans of the one recording."""
        return sorted(self.recording().spans().collect()["name"].to_list())

    def metadata(self) -> dict[str, str]:
        return dict(self.recording().metadata().collect().iter_rows())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


SPAN = "import strobe\nwith strobe.span('work'): pass\n"


def test_a_script_is_recorded_under_its_name(place: Place) -> None:
    done = place.run(place.write(SPAN, "training.py"))

    assert done.status == 0, done.err
    assert place.names() == ["work"]
    assert place.metadata()["name"] == "training"


def test_the_environment_alone_is_enough(place: Place) -> None:
    done = place.hooked(place.write(SPAN), options={"name": "mine"})

    assert done.status == 0, done.err
    assert place.names() == ["work"]
    assert place.metadata()["name"] == "mine"


def test_what_runs_out_of_memory_ends_as_it_would(place: Place) -> None:
    source = "import strobe\nfor _ in strobe.watch('ab', name='data'): pass\nraise MemoryError(1)\n"
    script = place.write(source)
    options = ("--hardware", "--memory", "--memory-lines", "--loading")
    done, bare = place.run(*options, script), place.bare(script)
    recording = place.recording()

    assert done.status == bare.status == 1
    theirs = [line for line in done.err.splitlines() if not line.startswith("strobe: ")]
    assert theirs == bare.err.splitlines()
    assert recording.batches().collect()["loader"].to_list() == ["data", "data"]
    assert recording.instants().collect()["name"].to_list() == ["out of memory"]
    assert "out of memory" in set(recording.memory_lines().collect()["moment"])
    assert recording.completeness()["source"].to_list() == ["spans", "host"]


def test_a_program_that_never_imports_strobe_is_recorded_too(place: Place) -> None:
    done = place.run(place.write("print(1)"))

    assert (done.status, done.out) == (0, "1\n")
    assert place.names() == []


@pytest.mark.parametrize(
    "source",
    [
        "pass",
        "import sys; sys.exit(3)",
        "import sys; sys.exit('no way')",
        "import os; os._exit(5)",
        "def f():\n    raise ValueError('x')\nf()",
        "import atexit\natexit.register(print, 'bye')\n1 / 0",
        "import threading\nthreading.Thread(target=lambda: 1 / 0).start()",
        "syntax error",
        "import sys; print(repr(sys.stdin.read()))",
        "import os\nos.kill(os.getpid(), 15)",
        "raise KeyboardInterrupt",
        "import sys; print(sys.argv, sys.flags, sys.path, __name__, __file__, sys.warnoptions)",
        "import signal; print([signal.getsignal(n) for n in signal.valid_signals()])",
        "import warnings; warnings.warn('w')",
        "import threading; print(len(threading.enumerate()))",
    ],
)
def test_the_program_cannot_be_told_from_one_without_strobe(place: Place, source: str) -> None:
    program = place.write(source)

    with_strobe = place.run(program, "a", "--json", "-x", "--", "", "--output", stdin="line\n\n")
    without = place.bare(program, "a", "--json", "-x", "--", "", "--output", stdin="line\n\n")

    assert with_strobe.status == without.status
    assert with_strobe.out == without.out
    assert with_strobe.program_err == without.err


def test_a_module_gets_its_own_arguments(place: Place) -> None:
    place.write("", "package/__init__.py")
    place.write("import sys; print(sys.argv[1:], sys.path[0], __name__)", "package/tool.py")

    with_strobe = place.run("--name", "-m", "-m", "package.tool", "--json", "-m", "--name=x")
    without = place.bare("-m", "package.tool", "--json", "-m", "--name=x")

    assert (with_strobe.status, with_strobe.out) == (0, without.out)
    assert place.metadata()["name"] == "-m"


def test_a_module_gives_the_recording_its_name(place: Place) -> None:
    place.write(SPAN, "package/tool.py")

    done = place.run("-m", "package.tool")

    assert done.status == 0, done.err
    assert place.metadata()["name"] == "package.tool"


def test_a_missing_module_fails_as_python_says(place: Place) -> None:
    with_strobe = place.run("-m", "no.such.module")
    without = place.bare("-m", "no.such.module")

    assert (with_strobe.status, with_strobe.program_err) == (without.status, without.err)


def test_a_command_is_run_as_it_stands(place: Place) -> None:
    program = place.write(SPAN + "import sys; print(sys.argv)")
    line = f"{sys.executable} {program} --json; exit 7"

    done = place.run("--", "sh", "-c", line)

    assert (done.status, done.out) == (7, f"{[program, '--json']}\n")
    assert place.names() == ["work"]


def test_a_command_has_the_signals_of_a_shell(place: Place) -> None:
    # Python ignores SIGPIPE and would hand that on.
    done = place.run("--", "sh", "-c", "grep SigIgn /proc/self/status")

    ignored = int(done.out.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))


def test_options_of_the_interpreter_are_passed_on(place: Place) -> None:
    program = place.write(
        "import sys; print(sys.flags.utf8_mode, sys.warnoptions, sys.flags.optimize)"
    )

    done = place.call(sys.executable, "-X", "utf8", "-W", "error", "-Om", "strobe", "run", program)

    assert done.out == "1 ['error'] 1\n", done.err


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", -15), ("SIGINT", -2), ("SIGKILL", -9)])
def test_a_signal_ends_it_as_it_would_and_what_was_recorded_is_there(
    place: Place, name: str, status: int
) -> None:
    program = place.write(
        SPAN + "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.01)"
    )
    process = place.start(*STROBE, "run", program)
    assert process.stdout
    with process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        process.communicate(timeout=TIMEOUT_SECONDS)

    assert process.returncode == status
    assert place.names() == ["work"]


def test_a_handler_of_the_program_gets_the_signal(place: Place) -> None:
    program = place.write(
        SPAN
        + """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print('ready', flush=True)
while True: time.sleep(0.01)
"""
    )
    process = place.start(*STROBE, "run", program)
    assert process.stdout
    with process:
        process.stdout.readline()
        process.terminate()
        process.communicate(timeout=TIMEOUT_SECONDS)

    assert process.returncode == 9
    assert place.names() == ["work"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere.py"], "run 'nowhere.py': there is no such file"),
        (["sh", "-c", "x"], "for a command: strobe run -- sh"),
        (["--", "no-such-command"], "run -- 'no-such-command': there is no such command"),
        (["--"], "name a command"),
        (["-m"], "name a module"),
        (["--steps", "3", "x.py"], "run --steps '3': must be two numbers"),
        (["--steps", "5:3", "program.py"], "schedule=[5, 3]"),
        (["--steps", "3:5", "--wait", "1", "program.py"], "leave out --wait"),
        (["--skip-first", "1", "program.py"], "run --skip-first: needs --active too"),
        (["--active", "0", "program.py"], "active=0"),
        (["--max-seconds", "-1", "program.py"], "max_seconds=-1.0"),
        (["--ranks", "a", "program.py"], "run --ranks 'a'"),
        (["--ranks", "5-3", "program.py"], "run --ranks '5-3'"),
        (["--clock", "sundial", "program.py"], "clock='sundial'"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    place: Place, arguments: list[str], says: str
) -> None:
    place.write("print('ran')")

    done = place.run(*arguments)

    assert (done.status, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1
    assert not place.recordings()


def test_an_unknown_option_and_no_program_at_all_are_wrong_usage(place: Place) -> None:
    assert place.run("--no-such-option", "program.py").status == 2
    assert place.run().status == 2
    assert "Example: strobe run" in place.run("--help").out


def test_without_the_hook_it_says_so_and_does_not_run(place: Place) -> None:
    program = place.write("print('ran')")
    paths = os.pathsep.join(path for path in sys.path if path)

    done = place.call(sys.executable, "-S", "-m", "strobe", "run", program, PYTHONPATH=paths)

    assert (done.status, done.out) == (1, "")
    assert "did not read strobe.pth" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("{", "STROBE_OPTIONS='{': not JSON"),
        ("[1]", "[1] is not an object; known keys: clock"),
        ({"folder": "x"}, "unknown key 'folder'; known keys: clock"),
        ({"max_bytes": "1"}, "max_bytes='1'"),
        ({"output": "program.py/x"}, "cannot be recorded into"),
    ],
)
def test_bad_options_are_one_line_and_the_program_runs(
    place: Place, options: Any, says: str
) -> None:
    # A child that is a Python too does not say it again.
    program = place.write(
        SPAN + "import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])\nsys.exit(4)"
    )

    done = place.hooked(program, options=options)

    assert done.status == 4
    assert says in done.err
    assert "this program is not profiled" in done.err
    assert done.err.count("\n") == 1
    assert not place.recordings()


def test_run_refuses_bad_options_of_the_environment_before_the_program_runs(place: Place) -> None:
    done = place.run(place.write("print('ran')"), STROBE_OPTIONS='{"folder": "x"}')

    assert (done.status, done.out) == (2, "")
    assert "STROBE_OPTIONS: unknown key 'folder'" in done.err
    assert done.err.count("\n") == 1


def test_a_recorder_that_does_not_exist_is_one_line_too(place: Place) -> None:
    done = place.hooked(place.write("print('ran')"), STROBE_RECORDER="fortran")

    assert (done.status, done.out) == (0, "ran\n")
    assert done.err.count("\n") == 1
    assert "STROBE_RECORDER='fortran'" in done.err


def test_options_that_are_empty_or_absent_do_nothing(place: Place) -> None:
    program = place.write("import sys; print('strobe' in sys.modules)")

    assert place.bare(program).out == "False\n"
    assert place.bare(program, STROBE_OPTIONS="").out == "False\n"
    assert not place.recordings()


STEPS = """
import strobe
from strobe.session.hook import running_profiler
profiler = running_profiler()
for step in range(6):
    with strobe.span(f"step{step}"): pass
    profiler.step()
"""


def test_a_step_window_records_those_steps(place: Place) -> None:
    done = place.run("--steps", "2:4", place.write(STEPS))

    assert done.status == 0, done.err
    assert place.names() == ["step2", "step3"]


def test_a_schedule_makes_one_recording_per_round(place: Place) -> None:
    done = place.run("--wait", "1", "--active", "2", "--repeat", "2", place.write(STEPS))

    assert done.status == 0, done.err
    found = [strobe.open(path).spans().collect()["name"].to_list() for path in place.recordings()]
    assert sorted(found) == [["step1", "step2"], ["step4", "step5"]]


def test_rounds_go_where_the_program_began(place: Place) -> None:
    (place.folder / "elsewhere").mkdir()
    program = place.write(STEPS.replace("for step", "import os; os.chdir('elsewhere')\nfor step"))

    place.hooked(program, options={"schedule": {"wait": 1, "warmup": 0, "active": 1}})

    assert len(place.recordings()) == 3


@pytest.mark.parametrize(
    ("steps", "says", "recordings"),
    [
        ("3:5", "nothing was recorded: the program ended at step 0", 0),
        ("0:5", "step() was never called", 1),
    ],
)
def test_a_step_window_of_a_program_without_steps_is_talked_about(
    place: Place, steps: str, says: str, recordings: int
) -> None:
    done = place.run("--steps", steps, place.write(SPAN + "import os\nif not os.fork(): exit()"))

    assert done.status == 0, done.err
    assert done.err.count(says) == 1
    assert len(place.recordings()) == recordings


CHILDREN = {
    "fork": """
        import os
        if not os.fork():
            with strobe.span("child"): pass
            os._exit(0)
        os.wait()
        """,
    "subprocess": """
        import subprocess, sys
        code = "import strobe\\nwith strobe.span('child'): pass"
        subprocess.run([sys.executable, "-c", code], check=True)
        """,
    "grandchild": """
        import subprocess, sys
        code = "import strobe\\nwith strobe.span('child'): pass"
        subprocess.run(["sh", "-c", f'"{sys.executable}" -c "{code}"; true'], check=True)
        """,
    **{
        method: f"""
        import multiprocessing, sys
        context = multiprocessing.get_context("{method}")
        process = context.Process(target=child)
        process.start()
        process.join()
        assert process.exitcode == 0
        """
        for method in ("spawn", "forkserver")
    },
}


@pytest.mark.parametrize("kind", sorted(CHILDREN))
def test_children_record_into_the_recording_of_their_parent(place: Place, kind: str) -> None:
    body = textwrap.indent(textwrap.dedent(CHILDREN[kind]), "    ")
    program = place.write(
        "import strobe\n"
        "def child():\n    with strobe.span('child'): pass\n"
        f"if __name__ == '__main__':\n    with strobe.span('parent'): pass\n{body}"
    )

    done = place.run(program)

    assert done.status == 0, done.err
    assert place.names() == ["child", "parent"]
    assert done.program_err == ""


def test_a_child_started_before_the_window_follows_into_it(place: Place) -> None:
    program = place.write(
        """
        import subprocess, sys
        from strobe.session.hook import running_profiler
        code = '''
        import strobe, sys
        for line in sys.stdin:
            with strobe.span("child"): pass
            print(flush=True)
        '''
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for step in range(4):
            child.stdin.write("go\\n")
            child.stdin.flush()
            child.stdout.readline()
            running_profiler().step()
        child.communicate()
        """
    )

    done = place.run("--steps", "1:3", program)

    assert done.status == 0, done.err
    assert place.names() == ["child", "child"]


def test_a_program_that_replaces_itself_is_recorded_anew(place: Place) -> None:
    program = place.write(
        """
        import os, sys, strobe
        if len(sys.argv) == 1:
            with strobe.span("before"): pass
            os.execv(sys.executable, [sys.executable, *sys.argv, "again"])
        with strobe.span("after"): pass
        """
    )

    done = place.run(program)

    assert done.status == 0, done.err
    names = [strobe.open(path).spans().collect()["name"].to_list() for path in place.recordings()]
    assert sorted(names) == [["after"], ["before"]]


LAUNCHER = """
import os, subprocess, sys
ranks = [subprocess.Popen([sys.executable, *sys.argv[1:]],
    env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"}) for rank in range(3)]
for process in ranks: process.wait()
"""
RANK = """
import multiprocessing, os, strobe
def child():
    with strobe.span("worker" + os.environ["RANK"]): pass
if __name__ == "__main__":
    with strobe.span("rank" + os.environ["RANK"]): pass
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
"""


def ranks_of(place: Place) -> dict[str, list[str]]:
    """The spans of the recording of each rank, all of which must lie in one job's folder."""
    found = place.recordings()
    ranked = [path for path in found if path.name.startswith("rank")]
    assert len({path.parent for path in ranked}) == 1
    return {
        path.name[:9]: sorted(strobe.open(path).spans().collect()["name"].to_list())
        for path in ranked
    }


EACH_RANK = {f"rank0000{rank}": [f"rank{rank}", f"worker{rank}"] for rank in range(3)}


def test_each_rank_has_its_recording_in_the_folder_of_the_job(place: Place) -> None:
    launcher = place.write(LAUNCHER, "bin/torchrun")
    program = place.write(RANK)

    done = place.run("--", sys.executable, launcher, program)

    assert done.status == 0, done.err
    assert ranks_of(place) == EACH_RANK
    assert len(place.recordings()) == 3  # none of the launcher, none of multiprocessing's helpers


def test_each_rank_may_call_strobe_run_itself(place: Place) -> None:
    launcher = place.write(LAUNCHER, "bin/torchrun")
    program = place.write(RANK)

    done = place.bare(launcher, "-m", "strobe", "run", program)

    assert done.status == 0, done.err
    assert ranks_of(place) == EACH_RANK
    assert len(place.recordings()) == 3


def test_an_inner_run_adds_to_the_options_of_the_outer_one(place: Place) -> None:
    launcher = place.write(LAUNCHER, "bin/torchrun")
    program = place.write(RANK)
    inner = ["-m", "strobe", "run", "--ranks", "1", program]

    done = place.run("--name", "outer", "--", sys.executable, launcher, *inner)

    assert done.status == 0, done.err
    (path,) = place.recordings()
    assert path.name.startswith("rank00001")
    assert path.parent.name.startswith("outer-")


def test_a_launcher_that_we_do_not_know_is_recorded_beside_its_ranks(place: Place) -> None:
    launcher = place.write(LAUNCHER, "my_launcher.py")

    done = place.run(launcher, place.write(RANK))

    assert done.status == 0, done.err
    assert ranks_of(place) == EACH_RANK
    (own,) = [path for path in place.recordings() if path.name.startswith("my_launcher")]
    assert strobe.open(own).spans().collect().is_empty()


@pytest.mark.parametrize(("ranks", "expected"), [("1", [1]), ("0,2", [0, 2]), ("1-2", [1, 2])])
def test_only_the_ranks_asked_for_are_recorded(
    place: Place, ranks: str, expected: list[int]
) -> None:
    launcher = place.write(LAUNCHER, "bin/torchrun")

    done = place.run("--ranks", ranks, "--", sys.executable, launcher, place.write(RANK))

    assert done.status == 0, done.err
    assert ranks_of(place) == {f"rank0000{rank}": EACH_RANK[f"rank0000{rank}"] for rank in expected}


def test_our_own_commands_are_not_profiled(place: Place) -> None:
    done = place.call(*STROBE, "--version", STROBE_OPTIONS="{}")

    assert done.status == 0
    assert not place.recordings()


def test_the_finalizer_is_not_profiled(place: Place) -> None:
    place.run(place.write(SPAN))
    (path,) = place.recordings()

    assert happens(lambda: not (path / "log").exists())
    assert place.recordings() == [path]


def test_the_command_line_is_kept_without_its_secrets(place: Place) -> None:
    arguments = ["--api-key", "hush", "--url=http://me:hush@host/", "--lr", "0.1"]
    variables = {"CUDA_VISIBLE_DEVICES": "0,1", "HF_TOKEN": "hush", "XLA_FLAGS": "--token=hush"}

    place.run(place.write(SPAN), *arguments, **variables)

    metadata = place.metadata()
    (path,) = place.recordings()
    assert happens(lambda: not (path / "log").exists())  # none of its files goes from now on
    assert json.loads(metadata["argv"])[1:] == [
        *("program.py", "--api-key", "[redacted]", "--url=http://me:[redacted]@host/"),
        *("--lr", "0.1"),
    ]
    assert json.loads(metadata["environment"])["CUDA_VISIBLE_DEVICES"] == "0,1"
    stored = b"".join(path.read_bytes() for path in place.output.rglob("*") if path.is_file())
    assert b"hush" not in stored


def test_a_program_without_standard_error_keeps_its_output(place: Place) -> None:
    program = place.write("print('out')")

    done = place.run("--", "sh", "-c", f'exec "{sys.executable}" {program} 2>&-')

    assert done.out == "out\n"
    assert len(place.recordings()) == 1
