# SPDX-License-Identifier: Apache-2.0
"""STROBE_OPTIONS is taken whole or refused with a line that says what is wrong."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest

from strobe.errors import UsageError
from strobe.record.schedule import State
from strobe.session.environment import KEYS, read_options
from strobe.session.hook import is_helper, is_launcher
from strobe.session.options import Options
from strobe.session.program import find_program


def test_what_is_given_arrives() -> None:
    given = {
        "output": "out",
        "name": "run",
        "max_seconds": 2.5,
        "max_bytes": 1 << 30,
        "max_total_bytes": None,
        "max_memory_bytes": 1 << 28,
        "ranks": [0, 3],
        "clock": "tsc",
        "with_stack": "sample",
        "stack_rate_hz": 50,
        "stack_include": ["a", "b.c"],
        "stack_min_us": 2.5,
        "stack_max_depth": 20,
        "schedule": [10, 20],
    }

    assert read_options(json.dumps(given)) == given
    assert read_options("{}") == {}


def test_every_option_is_a_key_but_for_those_that_json_cannot_say() -> None:
    assert {field.name for field in fields(Options)} - set(KEYS) == {"on_trace_ready", "activities"}


def test_a_schedule_is_an_object_of_numbers() -> None:
    states = read_options('{"schedule": {"wait": 1, "warmup": 1, "active": 1}}')["schedule"]

    assert [states(step) for step in range(4)] == [
        *(State.CLOSED, State.READY, State.RECORD_AND_RETURN, State.CLOSED)
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "[] is not an object; known keys: clock"),
        ("3", "3 is not an object"),
        ('{"folder": "x"}', "unknown key 'folder'; known keys: clock"),
        ('{"on_trace_ready": null}', "unknown key 'on_trace_ready'"),
        ('{"name": "a", "name": "b"}', "the key 'name' is there twice"),
        ('{"output": 3}', "output=3: output must be a string"),
        ('{"output": null}', "output=None: output must be a string"),
        ('{"output": ""}', "output=''"),
        ('{"name": 3}', "name=3"),
        ('{"max_seconds": "3"}', "max_seconds='3'"),
        ('{"max_seconds": 0}', "max_seconds=0"),
        ('{"max_seconds": NaN}', "NaN is not a number"),
        ('{"max_seconds": true}', "max_seconds=True"),
        ('{"max_bytes": 1.5}', "max_bytes=1.5"),
        ('{"ranks": 0}', "ranks=0: ranks must be a list"),
        ('{"ranks": ""}', "ranks='': ranks must be a list"),
        ('{"ranks": [-1]}', "ranks=[-1]"),
        ('{"clock": "sundial"}', "clock='sundial'"),
        ('{"clock": []}', "clock=[]"),
        ('{"record_shapes": 1}', "record_shapes=1"),
        ('{"with_stack": 1}', "with_stack=1"),
        ('{"with_stack": "trace"}', "with_stack must be True, False or 'sample'"),
        ('{"stack_rate_hz": 0}', "stack_rate_hz=0"),
        ('{"stack_rate_hz": 5000}', "must be a number above 0 and up to 1000"),
        ('{"stack_exclude": "torch"}', "stack_exclude must be a list"),
        ('{"stack_include": [1]}', "stack_include must be a list of names"),
        ('{"stack_min_us": -1}', "stack_min_us=-1"),
        ('{"stack_max_depth": 0}', "stack_max_depth=0"),
        ('{"sync_enable": "yes"}', "sync_enable='yes'"),
        ('{"schedule": [3, 1]}', "schedule=[3, 1]"),
        ('{"schedule": 3}', "schedule=3: schedule must be [start, end] or an object"),
        ('{"schedule": {"wait": 1, "warmup": 1}}', "no 'active'; its keys: wait, warmup, active"),
        ('{"schedule": {"wait": 1, "warmup": 1, "active": 1, "skip": 1}}', "unknown key 'skip'"),
        ('{"schedule": {"wait": 1, "warmup": 1, "active": "1"}}', "active='1'"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError) as raised:
        read_options(text)

    message = str(raised.value)
    assert message.startswith("STROBE_OPTIONS")
    assert says in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("line", "kind", "text", "options"),
    [
        ("python", "none", "", []),
        ("python -i", "none", "", ["-i"]),
        ("python x.py -m y", "script", "x.py", []),
        ("python -u -X dev -W error x.py", "script", "x.py", ["-u", "-X", "dev", "-W", "error"]),
        ("python -Xdev -uWerror x.py", "script", "x.py", ["-Xdev", "-uWerror"]),
        ("python -um pkg.mod --x", "module", "pkg.mod", ["-u"]),
        ("python -mpkg", "module", "pkg", []),
        ("python -Ic code -m x", "code", "code", ["-I"]),
        ("python --check-hash-based-pycs always x.py", "script", "x.py", None),
        ("python - x", "script", "-", []),
        ("python -- x.py", "script", "x.py", []),
    ],
)
def test_the_program_is_read_off_the_command_line(
    line: str, kind: str, text: str, options: list[str] | None
) -> None:
    program = find_program(line.split())

    assert (program.kind, program.text) == (kind, text)
    assert options is None or list(program.options) == options


@pytest.mark.parametrize(
    "line",
    [
        "python /x/bin/torchrun --standalone train.py",
        "python -m torch.distributed.run train.py",
        "python -u -m torch.distributed.launch train.py",
        "python /x/site-packages/torch/distributed/run.py train.py",
        "python -m paddle.distributed.launch train.py",
        "python /x/paddle/distributed/launch/__main__.py train.py",
        "python /x/bin/msrun --worker_num=2 train.py",
        "python /x/bin/accelerate launch train.py",
        "python -u -m deepspeed.launcher.launch train.py",
        "python /x/bin/mpirun -n 2 train.py",
        "python /x/bin/strobe info out",
        "python -m strobe run train.py",
    ],
)
def test_launchers_are_known(line: str) -> None:
    assert is_launcher(find_program(line.split()))


@pytest.mark.parametrize(
    "line",
    [
        "python train.py torchrun",
        "python torchrun.py",
        "python run.py",
        "python -m run",
        "python -m pytest -k torchrun",
        "python launch.py",
        "python strobe.py",
        "python -c torchrun",
        "python",
    ],
)
def test_other_programs_are_no_launchers(line: str) -> None:
    assert not is_launcher(find_program(line.split()))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from multiprocessing.resource_tracker import main;main(7)", True),
        ("from multiprocessing.semaphore_tracker import main;main(7)", True),
        ("from multiprocessing.forkserver import main; main(5, 6)", True),
        ("from joblib.externals.loky.backend.resource_tracker import main; main(3)", True),
        ("from multiprocessing.spawn import spawn_main; spawn_main()", False),
        ("from train import main; main()", False),
    ],
)
def test_helpers_of_multiprocessing_are_known(
    code: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MS_ROLE", raising=False)

    assert is_helper(find_program(["python", "-c", code])) is expected


def test_a_scheduler_of_mindspore_is_a_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")

    assert is_helper(find_program(["python", "train.py"]))


def test_options_are_those_of_the_profiler() -> None:
    from strobe.session.profiler import Profiler

    arguments: dict[str, Any] = read_options('{"output": "x", "record_shapes": true}')

    assert "stopped" in repr(Profiler(**arguments))
