# SPDX-License-Identifier: Apache-2.0
"""What strobe.pth calls when Python starts with STROBE_OPTIONS set: profile this program, or not.

Also where a profiled program that records its calls has started this one (STROBE_STACKS).

A process whose parent is profiled records into the parent's recording. One of another rank, and one
that a launcher started, makes a recording of its own. Launchers and helpers make none.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from strobe.record import recorder
from strobe.record.messages import show
from strobe.session.program import Program, find_program

if TYPE_CHECKING:
    from strobe.session.profiler import Profiler

_OPTIONS_VARIABLE = "STROBE_OPTIONS"
# Which process profiles this one, and as which rank; inherited like STROBE_CONTROL.
_PARENT_VARIABLE = "STROBE_PARENT"
# Modules that are imported before the program: `strobe run` names the interfaces it is to have.
IMPORT_VARIABLE = "STROBE_IMPORT"
# Where `strobe run` puts what MS_PROFILER_OPTIONS says, for strobe.mindspore: launchers import
# MindSpore too, which would obey it.
MINDSPORE_VARIABLE = "STROBE_MS_PROFILER_OPTIONS"

_OUR_NAME = "strobe"  # of the script and, after -m, of the module
# They start the processes that do the work; our own command line is one.
_LAUNCHERS = {
    *("torchrun", "accelerate", "accelerate-launch", "deepspeed", "ds", "msrun", "fleetrun"),
    *("horovodrun", "mpirun", "mpiexec", _OUR_NAME),
}
_LAUNCHER_MODULES = {
    *("torch.distributed.run", "torch.distributed.launch"),
    *("paddle.distributed.launch", "paddle.distributed.fleet.launch"),
    "mindspore.parallel.cluster.run",
    *("accelerate.commands.accelerate_cli", "accelerate.commands.launch"),
    *("deepspeed.launcher.runner", "deepspeed.launcher.launch"),
    "horovod.runner.launch",
    _OUR_NAME,
}
_HELPER = re.compile(r"from [\w.]*\b(resource_tracker|semaphore_tracker|forkserver) import main")


@dataclass
class _Hook:
    """What the hook did in this process."""

    called: bool = False
    profiler: Profiler | None = None
    pid: int = 0


_hook = _Hook()


def start() -> None:
    """Do what the variables say. A failure is one line on standard error, never an exception."""
    if _hook.called:
        return  # site reads the folder of a virtual environment twice
    _hook.called = True
    try:
        if os.environ.get(_OPTIONS_VARIABLE):
            _start()
        elif not is_helper(find_program()):
            _follow_stacks()
        _import()
    except Exception as error:  # the program is not ours: it must run, profiled or not
        ours = (_OPTIONS_VARIABLE, _PARENT_VARIABLE, IMPORT_VARIABLE)
        for variable in (*ours, recorder.CONTROL_VARIABLE, recorder.STACKS_VARIABLE):
            os.environ.pop(variable, None)  # its children would only say it again
        reason = " ".join(str(error).split()) or type(error).__name__
        show(f"{reason}; this program is not profiled")


def when_imported(framework: str, action: Callable[[], None]) -> None:
    """Do this when a framework has been imported, at once if it is there."""
    from strobe.sources import active

    active.when_imported(framework, action)


def _follow_stacks() -> None:
    """Record Python's calls as the process that started this one does, if it does."""
    if os.environ.get(recorder.STACKS_VARIABLE) and recorder.core.directory() is not None:
        from strobe.sources.python_calls.source import source

        source.follow_parent()


def _import() -> None:
    """Import what was named, but not into programs that only start others.

    A scheduler has it, so that what it runs is not MindSpore's: ours records nothing there.
    """
    program = find_program()
    if is_launcher(program) or (is_helper(program) and not is_scheduler()):
        return
    for name in filter(None, os.environ.get(IMPORT_VARIABLE, "").split(",")):
        import_module(name)


def running_profiler() -> Profiler | None:
    """Return the profiler that STROBE_OPTIONS started in this process, None if there is none."""
    return _hook.profiler if _hook.pid == os.getpid() else None


def is_launcher(program: Program) -> bool:
    """Say whether the program only starts those that do the work."""
    if program.kind == "module":
        return program.text.removesuffix(".__main__") in _LAUNCHER_MODULES
    if program.kind != "script":
        return False
    path = Path(program.text)
    module = ".".join(path.with_suffix("").parts).removesuffix(".__main__")
    return path.name in _LAUNCHERS or any(
        module.endswith(f".{launcher}") for launcher in _LAUNCHER_MODULES if "." in launcher
    )


def _is_our_command(program: Program) -> bool:
    if program.kind == "module":
        return program.text.removesuffix(".__main__") == _OUR_NAME
    return program.kind == "script" and Path(program.text).name == _OUR_NAME


def is_helper(program: Program) -> bool:
    """Say whether the program belongs to multiprocessing, or is a scheduler without work."""
    if is_scheduler():
        return True
    return program.kind == "code" and _HELPER.match(program.text) is not None


def is_scheduler() -> bool:
    """Say whether this is msrun's scheduler, which runs the program too, to no end."""
    return os.environ.get("MS_ROLE") == "MS_SCHED"


def _start() -> None:
    # Before any module of ours that has something to do at exit: this one comes last.
    atexit.register(_say_what_was_not_recorded)
    from strobe.record.ranks import find_place
    from strobe.session.environment import read_options

    program = find_program()
    # What is wrong with them, our own command tells by itself, and runs nothing.
    options = {} if _is_our_command(program) else read_options(os.environ[_OPTIONS_VARIABLE])
    rank = find_place().rank
    if is_helper(program):
        return
    if not is_launcher(program) and _is_profiled_by_parent(rank):
        # To record its spans, importing the recorder was enough.
        _follow_stacks()
        return
    for variable in (_PARENT_VARIABLE, recorder.CONTROL_VARIABLE, recorder.STACKS_VARIABLE):
        os.environ.pop(variable, None)
    if is_launcher(program):
        return
    from strobe.record import windows
    from strobe.session.profiler import Profiler

    # The program may change its directory between two rounds.
    options["output"] = str(Path(options.get("output", "strobe_data")).absolute())
    profiler = Profiler(**options)
    profiler.count_steps()
    windows.share_control()
    profiler.start()
    os.environ[_PARENT_VARIABLE] = _describe_self(rank)
    _hook.profiler, _hook.pid = profiler, os.getpid()


def _describe_self(rank: int | None) -> str:
    from strobe.store import manifest

    pid = os.getpid()
    start = manifest.process_start(pid) or 0
    facts = {"rank": rank, "pid": pid, "start": start, "host": socket.gethostname()}
    return json.dumps({**facts, "boot": manifest.boot_id()})


def _is_profiled_by_parent(rank: int | None) -> bool:
    """Say whether a process that still runs profiles this one too."""
    from strobe.store import manifest

    if not os.environ.get(recorder.CONTROL_VARIABLE):
        return False
    try:
        parent = json.loads(os.environ.get(_PARENT_VARIABLE, ""))
        if parent.pop("rank") != rank or parent["pid"] == os.getpid():
            return False  # the same process: it ran another program before and has replaced it
        return manifest.is_alive(**parent) is True
    except (ValueError, TypeError, KeyError, AttributeError):
        return False


def _say_what_was_not_recorded() -> None:
    """At the end of a program with a step window: say where it did not work out."""
    profiler = running_profiler()
    if profiler is None:
        return
    problem = profiler.explain_schedule()
    if problem:
        show(problem)
