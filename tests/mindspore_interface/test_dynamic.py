# SPDX-License-Identifier: Apache-2.0
"""DynamicProfilerMonitor in a loop by hand: what its file says, when, and how wrong it may be."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import strobe
import strobe.mindspore as ms
from mindspore_interface.conftest import TRAINING
from programs import Program

KINDS = "FRAMEWORK/cpu_op_type_info_0.csv"

MONITOR = (
    TRAINING
    + """
from pathlib import Path
monitor = ms.DynamicProfilerMonitor(OUT, OUT + "/dyn", poll_interval=float(sys.argv[2]))
config = Path(OUT) / "profiler_config.json"

def tell(text):
    part = config.with_suffix(".part")
    part.write_text(text)
    changed = part.stat()
    part.rename(config)
    return changed.st_mtime_ns, changed.st_ino, changed.st_size

def plan(**changes):
    version = tell(json.dumps({**offered, **changes}))
    while monitor._seen != version:
        time.sleep(0.01)

def loop(steps):
    for number in steps:
        with strobe.span(f"step {number}"):
            step()
        monitor.step()

offered = json.loads(config.read_text())
assert offered["start_step"] == -1
"""
)


def recorded_steps(output: Path, name: str) -> list[str]:
    """The steps of a loop by hand that were recorded, in the one folder of these."""
    (made,) = (output / "dyn" / name).iterdir()
    recording = strobe.open(made)
    assert recording.steps().filter(pl.col("kind") == "step").collect().height
    spans = recording.spans().filter(pl.col("name").str.starts_with("step ")).collect()
    return [name.removeprefix("step ") for name in spans.sort("start_ns")["name"]]


def test_a_file_starts_and_stops_a_program_that_runs(program: Program) -> None:
    printed = program.run(
        MONITOR
        + """
plan(start_step=3, stop_step=4, analyse=True)
loop(range(4))
plan(start_step=8, stop_step=8)  # while it records: for afterwards
loop(range(4, 9))
plan(start_step=8, stop_step=8, with_stack=True)  # they have been dealt with
loop([9])
plan(start_step=2, stop_step=3)
loop([10])
monitor.close()
""",
        0.01,
    )
    assert printed == ""
    _, said = program.said.splitlines()
    assert "steps 2 to 3 do not lie ahead of step 11" in said
    assert recorded_steps(program.output, "rank0_start3_stop4") == ["3", "4"]
    assert recorded_steps(program.output, "rank0_start8_stop8") == ["8"]
    (first,) = (program.output / "dyn" / "rank0_start3_stop4").iterdir()
    (second,) = (program.output / "dyn" / "rank0_start8_stop8").iterdir()
    assert "\nMomentum,2,1," in (first / KINDS).read_text()
    assert {path.name for path in second.iterdir()} == {"FRAMEWORK"}  # not to be analysed
    ms.analyse(second)
    assert "\nMomentum,1,1," in (second / KINDS).read_text()


def test_steps_that_are_sunk_together_are_recorded_together(program: Program) -> None:
    program.run(
        MONITOR
        + """
from types import SimpleNamespace

plan(start_step=13, stop_step=14)
for number in (10, 20, 30):  # as Model.train tells, on a device that is given ten steps at once
    context = SimpleNamespace(original_args=lambda: SimpleNamespace(cur_step_num=number))
    monitor.step_begin(context)
    with strobe.span(f"step {number}"):
        step()
    monitor.step_end(context)
""",
        0.01,
    )
    (made,) = (program.output / "dyn" / "rank0_start13_stop14").iterdir()
    names = strobe.open(made).spans().collect()["name"].to_list()
    assert [name for name in names if name.startswith("step ")] == ["step 20"]


def test_a_file_that_is_wrong_is_told_and_half_a_file_awaited(program: Program) -> None:
    program.run(
        MONITOR
        + """
def say(text):
    tell(text)
    monitor._look()

say('{"start_step": 1, "stop')
say(json.dumps({**offered, "start_step": 1, "stop_step": 1, "activities": 1, "profiler_level": 2}))
say(json.dumps({**offered, "start_step": 1, "stop_step": 1, "record_shape": True}))
for key, wrong in (
    ("start_step", 5),
    ("with_stack", "yes"),
    ("activities", 9),
    ("analyse_mode", 7),
    ("start_step", "5"),
):
    say(json.dumps({**offered, key: wrong}))
say("[" * 100_000)
monitor._look()
loop(range(3))
""",
        1000,
    )
    *said, _ = program.said.splitlines()
    parts = [
        "unknown key 'record_shape' is left out; do you mean 'record_shapes'?",
        "not obeyed: stop_step=-1 must be start_step=5 or more",
        "with_stack='yes'): must be True or False",
        "not obeyed: activities=9 must be from 0 to 2",
        "not obeyed: analyse_mode=7 must be -1, 0 or 1",
        "not obeyed: start_step='5' must be an integer",
        "not obeyed: it is not JSON (",
    ]
    assert len(said) == len(parts), program.said
    for line, part in zip(said, parts, strict=True):
        assert part in line
    assert recorded_steps(program.output, "rank0_start1_stop1") == ["1"]
