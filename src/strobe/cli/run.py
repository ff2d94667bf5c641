# SPDX-License-Identifier: Apache-2.0
"""strobe run: profile a program as it is. We become the program, and strobe.pth profiles it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from strobe.errors import CommandError, UsageError
from strobe.session.environment import VARIABLE, check_options, read_options
from strobe.session.hook import IMPORT_VARIABLE, MINDSPORE_VARIABLE
from strobe.session.program import find_program

# What is imported before the program: the interface that obeys this variable, and what puts that
# interface in the place of MindSpore's own.
_MINDSPORE_OPTIONS = "MS_PROFILER_OPTIONS"
_FACADE = "strobe.mindspore"
_REPLACE = "strobe.mindspore._replace"
_STACK_MODES = (["trace"], ["sample"])


class RunCommand(TyperCommand):
    """Leaves everything from the program's name on to the program."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what comes before the program."""
        args = list(args)
        start = self._find_program(ctx, args)
        # After a "--" of our own the parser takes nothing for an option, not even the user's "--".
        parsed: list[str] = super().parse_args(ctx, [*args[:start], "--", *args[start:]])
        return parsed

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Offer our options up to the program, and nothing of ours after it."""
        return [] if ctx.params.get("program") else super().shell_complete(ctx, incomplete)

    def _find_program(self, ctx: Any, args: list[str]) -> int:
        with_value = {
            name
            for parameter in self.get_params(ctx)
            if not getattr(parameter, "is_flag", True)
            for name in parameter.opts
        }
        place = 0
        while place < len(args):
            argument = args[place]
            if argument in ("-", "--") or not argument.startswith("-"):
                return place
            if argument.startswith("-m"):
                return place
            if argument == "--stack" and args[place + 1 : place + 2] not in _STACK_MODES:
                args.insert(place + 1, "trace")
            place += 2 if argument in with_value else 1
        return len(args)


def run(
    program: list[str] = typer.Argument(
        help="script.py, or -m module, or -- and a command; then its own arguments.",
    ),
    output: Path | None = typer.Option(
        None, "--output", "-o", help="The folder of recordings (strobe_data)."
    ),
    name: str | None = typer.Option(None, "--name", help="What the recording's name begins with."),
    steps: str | None = typer.Option(
        None, "--steps", metavar="START:END", help="Record only the steps START to END - 1."
    ),
    wait: int | None = typer.Option(
        None, "--wait", help="Steps of each round that pass unrecorded."
    ),
    warmup: int | None = typer.Option(None, "--warmup", help="Then steps that warm up."),
    active: int | None = typer.Option(None, "--active", help="Then steps that are recorded."),
    repeat: int | None = typer.Option(None, "--repeat", help="Rounds; 0 for no end."),
    skip_first: int | None = typer.Option(
        None, "--skip-first", help="Steps before the first round."
    ),
    max_seconds: float | None = typer.Option(
        None, "--max-seconds", help="A round ends after this time, steps or not."
    ),
    max_bytes: int | None = typer.Option(None, "--max-bytes", help="Of one process's log."),
    max_total_bytes: int | None = typer.Option(
        None,
        "--max-total-bytes",
        help="Of all rounds of a process (16 GiB): the oldest are deleted; 0 for no bound.",
    ),
    ranks: str | None = typer.Option(
        None, "--ranks", metavar="LIST", help="Record only in these ranks, as in 0,8-11."
    ),
    clock: str | None = typer.Option(None, "--clock", help="monotonic, or tsc for cheaper spans."),
    shapes: bool = typer.Option(False, "--shapes", help="Shapes of operators' inputs."),
    flops: bool = typer.Option(False, "--flops", help="Floating-point operations of operators."),
    memory: bool = typer.Option(False, "--memory", help="Allocations, and who made them."),
    memory_lines: bool = typer.Option(
        False, "--memory-lines", help="What lines of Python hold; slows allocations down."
    ),
    modules: bool = typer.Option(False, "--modules", help="The layer of each operator."),
    stack: str | None = typer.Option(
        None, "--stack", metavar="[sample]", help="Every Python call, or samples of the stacks."
    ),
    stack_rate: float | None = typer.Option(
        None, "--stack-rate", metavar="HZ", help="Samples per second and thread (100)."
    ),
    stack_include: str | None = typer.Option(
        None, "--stack-include", metavar="LIST", help="Only functions of these modules, as in a,b.c"
    ),
    stack_exclude: str | None = typer.Option(
        None, "--stack-exclude", metavar="LIST", help="No functions of these modules."
    ),
    stack_min_us: float | None = typer.Option(
        None, "--stack-min-us", help="Only calls of at least so many microseconds."
    ),
    stack_max_depth: int | None = typer.Option(
        None, "--stack-max-depth", help="Only calls that are nested no deeper."
    ),
    loading: bool = typer.Option(
        False, "--loading", help="What frameworks tell of data loading only if asked."
    ),
    hardware: bool = typer.Option(
        False, "--hardware", help="Processor, memory, disk, network, garbage collections."
    ),
    hbm_ddr: bool = typer.Option(False, "--hbm-ddr", help="Memory of NVIDIA's devices."),
    pcie: bool = typer.Option(False, "--pcie", help="What goes to NVIDIA's devices and back."),
    sync: bool = typer.Option(
        False, "--sync", help="Let the host wait for each operator on a device."
    ),
    mindspore: bool = typer.Option(
        False, "--mindspore", help="The program's mindspore.Profiler is strobe's; nothing else is."
    ),
) -> None:
    """Profile a program that knows nothing of it.

    Everything from the program's name on is the program's own. It runs as it would without strobe:
    the same arguments, tracebacks, exit code, standard input and signals. Each rank of a job makes
    a recording of its own; child processes join the recording of their parent. What is not an
    option here can be set in STROBE_OPTIONS, a JSON object.

    Example: strobe run train.py --epochs 3

    Example: strobe run --output out --steps 10:20 -m package.train --lr 0.1

    Example: strobe run --shapes --memory train.py

    Example: strobe run --stack train.py, then strobe flame strobe_data

    Example: strobe run -- torchrun --nproc_per_node 2 train.py

    Example: torchrun --nproc_per_node 2 -m strobe run train.py

    Example: strobe run --mindspore train_with_ms_profiler.py
    """
    plan = {"wait": wait, "warmup": warmup, "active": active}
    plan |= {"repeat": repeat, "skip_first": skip_first}
    asked = {
        "name": name,
        "schedule": _read_schedule(steps, {k: v for k, v in plan.items() if v is not None}),
        "max_seconds": max_seconds,
        "max_bytes": max_bytes,
        "max_total_bytes": max_total_bytes,
        "ranks": None if ranks is None else _read_ranks(ranks),
        "clock": clock,
        "record_shapes": shapes or None,
        "with_flops": flops or None,
        "profile_memory": memory or None,
        "memory_lines": memory_lines or None,
        "with_modules": modules or None,
        "data_process": loading or None,
        "hardware": hardware or None,
        "hbm_ddr": hbm_ddr or None,
        "pcie": pcie or None,
        "sync_enable": sync or None,
        "with_stack": {None: None, "trace": True}.get(stack, stack),
        "stack_rate_hz": stack_rate,
        "stack_include": None if stack_include is None else stack_include.split(","),
        "stack_exclude": None if stack_exclude is None else stack_exclude.split(","),
        "stack_min_us": stack_min_us,
        "stack_max_depth": stack_max_depth,
    }
    options = {key: value for key, value in asked.items() if value is not None}
    if max_total_bytes == 0:
        options["max_total_bytes"] = None
    if mindspore:
        _require_hook()
        _refuse_options(options, output)
        _become(
            _command(program), {VARIABLE: None, **_mindspore_variables(), IMPORT_VARIABLE: _REPLACE}
        )
    outer = _outer_options()
    if output or "output" not in outer:
        options["output"] = str((output or Path("strobe_data")).absolute())
    options = {**outer, **options}
    try:
        check_options(options)
    except UsageError as error:
        message = f"run: {error}"
        raise CommandError(message, exit_code=2) from None
    _require_hook()
    _become(_command(program), {VARIABLE: json.dumps(options), **_mindspore_variables()})


def _mindspore_variables() -> dict[str, str | None]:
    """What MS_PROFILER_OPTIONS says is for us to obey, and not for MindSpore in a launcher."""
    text = os.environ.get(_MINDSPORE_OPTIONS)
    if not text:
        return {}
    return {_MINDSPORE_OPTIONS: None, MINDSPORE_VARIABLE: text, IMPORT_VARIABLE: _FACADE}


def _refuse_options(options: Mapping[str, Any], output: Path | None) -> None:
    """What is recorded, and where to, is for the program's own profiler to say."""
    if options or output:
        message = "run --mindspore: leave out the other options; the program's Profiler has them"
        raise CommandError(message, exit_code=2)


def _outer_options() -> dict[str, Any]:
    """Return what an outer `strobe run`, or the user, has put into the environment."""
    text = os.environ.get(VARIABLE)
    if not text:
        return {}
    try:
        read_options(text)
    except UsageError as error:
        raise CommandError(str(error), exit_code=2) from None
    given: dict[str, Any] = json.loads(text)
    return given


def _read_schedule(steps: str | None, plan: dict[str, int]) -> Any:
    if steps is None and not plan:
        return None
    if steps is None:
        if "active" not in plan:
            message = f"run --{next(iter(plan)).replace('_', '-')}: needs --active too"
            raise CommandError(message, exit_code=2)
        return {"wait": 0, "warmup": 0, **plan}
    if plan:
        message = f"run --steps {steps}: leave out --{next(iter(plan)).replace('_', '-')}"
        raise CommandError(message, exit_code=2)
    start, colon, end = steps.partition(":")
    if not colon or not start.isdecimal() or not end.isdecimal():
        message = f"run --steps {steps!r}: must be two numbers, as in 10:20"
        raise CommandError(message, exit_code=2)
    return [int(start), int(end)]


def _read_ranks(text: str) -> list[int]:
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not first.isdecimal() or not last.isdecimal() or int(first) > int(last):
            message = f"run --ranks {text!r}: must be numbers and ranges, as in 0,8-11"
            raise CommandError(message, exit_code=2)
        ranks |= set(range(int(first), int(last) + 1))
    return sorted(ranks)


def _require_hook() -> None:
    if getattr(sys, "_strobe_hook", False):
        return
    reason = "python -S leaves it out" if sys.flags.no_site else "strobe is not installed in it"
    message = (
        f"run: {sys.executable!r} did not read strobe.pth at its start ({reason}), so a program "
        "would run unprofiled; install strobe with pip into this Python, or use strobe.Profiler"
    )
    raise CommandError(message)


def _command(program: list[str]) -> list[str]:
    """Return the command line that the program would have without us."""
    first, rest = program[0], program[1:]
    if first == "--":
        if not rest:
            message = "run --: name a command, as in: strobe run -- torchrun train.py"
            raise CommandError(message, exit_code=2)
        if shutil.which(rest[0]) is None:
            message = f"run -- {rest[0]!r}: there is no such command"
            raise CommandError(message, exit_code=2)
        return rest
    # Our own interpreter's options, -u above all, are meant for the program.
    ours = find_program()
    options = ours.options if ours.kind == "module" else ()
    if first.startswith("-m"):
        module = [first[2:], *rest] if first[2:] else rest
        if not module:
            message = "run -m: name a module, as in: strobe run -m package.train"
            raise CommandError(message, exit_code=2)
        return [sys.executable, *options, "-m", *module]
    if first != "-" and not Path(first).exists():
        hint = f"; for a command: strobe run -- {first} ..." if shutil.which(first) else ""
        message = f"run {first!r}: there is no such file{hint}"
        raise CommandError(message, exit_code=2)
    return [sys.executable, *options, first, *rest]


def _become(command: list[str], variables: Mapping[str, str | None]) -> NoReturn:
    # Python ignores these signals from its start on, and an ignored signal stays so in the program.
    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
    environment = {name: text for name, text in os.environ.items() if name not in variables}
    environment |= {name: text for name, text in variables.items() if text is not None}
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        message = f"run {command[0]!r}: cannot be started ({error.strerror})"
        raise CommandError(message, exit_code=2) from None
