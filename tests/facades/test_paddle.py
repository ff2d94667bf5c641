# SPDX-License-Identifier: Apache-2.0
"""strobe.paddle without any framework: names, states, errors, callbacks, files, timer."""

from __future__ import annotations

import enum
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import strobe
import strobe.paddle as profiler
from programs import TIMEOUT_SECONDS
from strobe.errors import CaptureError, FormatError, StateError, UsageError
from strobe.paddle import ProfilerState as State
from strobe.paddle.timer import Benchmark


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ignore(_profiler: object) -> None:
    pass


def run(steps: int, **options: Any) -> profiler.Profiler:
    """Steps of two events each, of which one is inside the other."""
    options.setdefault("on_trace_ready", ignore)
    with profiler.Profiler(**options) as made:
        for _ in range(steps):
            with profiler.RecordEvent("outer"), profiler.RecordEvent("inner"):
                pass
            made.step()
    return made


# Names


def test_all_names_are_there_and_documented() -> None:
    for name in profiler.__all__:
        assert inspect.getdoc(getattr(profiler, name)), name
    for name in (
        *("ProfilerTarget", "ProfilerState", "make_scheduler", "export_chrome_tracing"),
        *("export_protobuf", "Profiler", "RecordEvent", "SortedKeys", "SummaryView"),
        *("load_profiler_result", "TracerEventType", "get_profiler", "benchmark"),
    ):
        assert name in profiler.__all__


def test_the_values_of_enums_are_paddles() -> None:
    values = {
        kind: {member.name: member.value for member in kind}
        for kind in (profiler.ProfilerTarget, State, profiler.SortedKeys, profiler.SummaryView)
    }

    assert values[profiler.ProfilerTarget] == {"CPU": 0, "GPU": 1, "XPU": 2, "CUSTOM_DEVICE": 3}
    assert values[State] == {"CLOSED": 0, "READY": 1, "RECORD": 2, "RECORD_AND_RETURN": 3}
    assert list(values[profiler.SortedKeys]) == [
        f"{unit}{measure}" for unit in ("CPU", "GPU") for measure in ("Total", "Avg", "Max", "Min")
    ]
    assert values[profiler.SummaryView]["UDFView"] == 8
    assert profiler.TracerEventType.StaticKernelLaunch == 16


def test_the_signatures_are_paddles() -> None:
    made = inspect.signature(profiler.Profiler).parameters
    assert list(made) == [
        *("targets", "scheduler", "on_trace_ready", "record_shapes", "profile_memory"),
        *("timer_only", "emit_nvtx", "custom_device_types", "with_flops"),
    ]
    assert all(each.kind is each.KEYWORD_ONLY for each in made.values())
    shown = inspect.signature(profiler.Profiler.summary).parameters
    assert list(shown)[1:6] == ["sorted_by", "op_detail", "thread_sep", "time_unit", "views"]
    assert shown["time_unit"].default == "ms"
    written = inspect.signature(profiler.Profiler.export).parameters
    assert (written["path"].default, written["format"].default) == ("", "json")


def test_paddle_is_never_imported() -> None:
    program = """
import sys, strobe.paddle as profiler
with profiler.Profiler(on_trace_ready=lambda p: None) as p:
    p.step()
p.summary()
p.export("x.pb", "pb")
profiler.load_profiler_result("x.pb").get_data()
heavy = [name for name in ("paddle", "torch", "jax", "mindspore") if name in sys.modules]
print("imported:", heavy)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("imported: []\n")


# Schedule


def states(scheduler: Any, count: int) -> str:
    letters = {State.CLOSED: ".", State.READY: "w", State.RECORD: "R", State.RECORD_AND_RETURN: "S"}
    return "".join(letters[scheduler(step)] for step in range(count))


def test_the_arithmetic_of_states() -> None:
    make = profiler.make_scheduler
    # the two examples of Paddle's document
    assert states(make(closed=1, ready=2, record=3, repeat=1), 10) == ".wwRRS...."
    assert states(make(closed=1, ready=3, record=3, repeat=3), 24) == ".wwwRRS" * 3 + "..."
    assert states(make(closed=1, ready=1, record=1, skip_first=2), 10) == "...wS.wS.w"[:10]
    assert states(make(closed=0, ready=1, record=2), 7) == "wRSwRSw"


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ((2, 5), ".wRRS."),
        ((1, 2), "wS...."),
        ((0, 2), "RS...."),
        ([3, 4], "..wS.."),
        ((-3, 1), "S....."),
    ],
)
def test_a_pair_records_from_start_to_end(pair: Any, expected: str) -> None:
    made = profiler.Profiler(scheduler=pair, on_trace_ready=ignore)

    assert states(made.scheduler, 6) == expected


def test_numbers_of_numpy_are_numbers() -> None:
    one, three = np.int64(1), np.int32(3)

    made = profiler.make_scheduler(closed=one, ready=one, record=three, repeat=one)
    pair = profiler.Profiler(scheduler=(one, three)).scheduler

    assert [made(step).value for step in range(6)] == [0, 1, 2, 2, 3, 0]
    assert [pair(step).value for step in range(4)] == [1, 2, 3, 0]


def test_recording_at_once_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="ready=1"):
        profiler.make_scheduler(closed=0, ready=0, record=1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"closed": -1, "ready": 1, "record": 1},
        {"closed": 1, "ready": 1, "record": 0},
        {"closed": 1, "ready": True, "record": 1},
        {"closed": 1, "ready": 1, "record": 1.5},
        {"closed": 1, "ready": 1, "record": 1, "repeat": -1},
    ],
)
def test_numbers_of_steps_that_cannot_be(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be an int of"):
        profiler.make_scheduler(**arguments)


@pytest.mark.parametrize("scheduler", [3, "x", (1,), (2, 2), (5, 1), (1, 2, 3), ("a", "b")])
def test_schedulers_that_cannot_be(scheduler: Any) -> None:
    with pytest.raises(UsageError, match="scheduler"):
        profiler.Profiler(scheduler=scheduler)


def test_the_steps_of_a_round_are_recorded() -> None:
    made = run(10, scheduler=profiler.make_scheduler(closed=1, ready=2, record=3, repeat=1))

    assert made.step_num == 10
    assert made.current_state is State.CLOSED
    steps = made.recording.steps().collect()
    assert steps["step"].to_list() == [3, 4, 5]
    assert made.recording.spans().filter(pl.col("name") == "outer").collect().height == 3


def test_attributes_follow_the_schedule() -> None:
    seen = []
    made = profiler.Profiler(scheduler=(1, 3), on_trace_ready=ignore)
    assert (made.step_num, made.previous_state, made.current_state) == (
        0,
        State.CLOSED,
        State.READY,
    )
    made.start()
    for _ in range(4):
        made.step()
        seen.append((made.step_num, made.previous_state.name, made.current_state.name))
    made.stop()

    assert seen == [
        (1, "READY", "RECORD"),
        (2, "RECORD", "RECORD_AND_RETURN"),
        (3, "RECORD_AND_RETURN", "CLOSED"),
        (4, "CLOSED", "CLOSED"),
    ]


def test_each_round_calls_back_with_the_profiler_and_its_number() -> None:
    rounds = []
    scheduler = profiler.make_scheduler(closed=0, ready=1, record=1, repeat=2)
    made = profiler.Profiler(
        scheduler=scheduler,
        on_trace_ready=lambda prof: rounds.append(
            (
                prof.profiler_result.get_span_index(),
                prof.step_num,
                prof.previous_state.name,
                prof.current_state.name,
            )
        ),
    )
    with made:
        for _ in range(5):
            made.step()

    # Of step and states it sees those that begin, as Paddle's handlers do.
    assert rounds == [(0, 2, "RECORD_AND_RETURN", "READY"), (1, 4, "RECORD_AND_RETURN", "CLOSED")]


def test_a_round_that_ends_with_the_program_has_its_number_and_use_too() -> None:
    made = profiler.Profiler(
        scheduler=lambda step: State.RECORD if step else State.RECORD_AND_RETURN,
        on_trace_ready=ignore,
    )
    made.start()
    made.step()
    began = time.process_time()
    while time.process_time() - began < 0.1:  # the system counts in hundredths of a second
        pass
    made.profiler.stop()  # as the end of the program does
    profiler.benchmark().end()

    result = made.profiler_result
    assert result is not None
    assert result.get_span_index() == 1
    assert {"Process Cpu Utilization", "System Cpu Utilization"} <= set(result.get_extra_info())


def test_a_handler_may_stop_the_profiler_or_start_it_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    stopped = profiler.Profiler(
        scheduler=profiler.make_scheduler(closed=0, ready=1, record=1),
        on_trace_ready=lambda prof: prof.stop(),
    )
    stopped.start()
    for _ in range(5):
        stopped.step()  # with Paddle it may go on after stop(), too
    once = [True]
    again = profiler.Profiler(on_trace_ready=lambda prof: once.pop() and prof.start())
    again.start()
    again.step()
    again.stop()

    assert (stopped.step_num, stopped.current_state) == (2, State.CLOSED)
    assert len(stopped.profiler.recordings) == 1
    assert capfd.readouterr().err.count("step() after stop()") == 1
    assert (again.step_num, again.current_state) == (0, State.RECORD)
    assert again.step_info() == ""
    again.on_trace_ready = ignore
    again.stop()


def test_one_object_records_again() -> None:
    made = run(4, scheduler=(1, 3))
    first = made.recording.path
    with made:
        for _ in range(4):
            made.step()

    assert made.recording.path != first
    assert made.recording.steps().collect()["step"].to_list() == [1, 2]


def test_what_a_callback_or_a_scheduler_raises_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(_: object) -> Any:
        raise ValueError("out of luck")

    made = run(2, on_trace_ready=fail)
    asked = run(4, scheduler=lambda step: fail(step) if step >= 2 else State.RECORD)

    shown = capfd.readouterr().err
    assert shown.count("ValueError: out of luck") == 2
    assert made.recording.steps().collect()["step"].to_list() == [0, 1, 2]
    assert asked.recording.steps().collect()["step"].to_list() == [0, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds memory")
def test_memory_that_runs_out_is_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MemoryError), profiler.Profiler(on_trace_ready=ignore, profile_memory=True):
        raise MemoryError

    assert "out of memory (MemoryError)" in capfd.readouterr().err


def test_a_scheduler_that_returns_something_else() -> None:
    with pytest.raises(UsageError, match="must return a ProfilerState"):
        profiler.Profiler(scheduler=lambda step: "RECORD")


def test_members_of_other_enums_are_taken_by_name() -> None:
    theirs = enum.Enum("ProfilerState", {"CLOSED": 9, "READY": 8, "RECORD": 7})
    keys = enum.Enum("SortedKeys", {"CPUMax": 5})
    views = enum.Enum("SummaryView", {"UDFView": 5})
    targets = enum.Enum("ProfilerTarget", {"CPU": 5})

    made = run(2, scheduler=lambda step: theirs.RECORD, targets=[targets.CPU])

    assert made.targets == {profiler.ProfilerTarget.CPU}
    assert made.summary(sorted_by=keys.CPUMax, views=views.UDFView) is not None  # type: ignore[arg-type]


# Targets and other arguments


def test_a_target_that_is_not_here_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strobe.paddle.schedule.has_device", lambda kind: kind == "XPU")
    target = profiler.ProfilerTarget
    with pytest.warns(UserWarning, match="CUSTOM_DEVICE and GPU are not profiled") as warned:
        made = profiler.Profiler(targets=[target.CPU, target.GPU, target.CUSTOM_DEVICE])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        every = profiler.Profiler()

    assert len(warned) == 1
    assert made.targets == {target.CPU}
    assert every.targets == {target.CPU, target.XPU}


@pytest.mark.parametrize(
    "arguments",
    [
        {"targets": ["GPU"]},
        {"targets": profiler.ProfilerTarget.CPU},
        {"on_trace_ready": "file"},
        {"record_shapes": 1},
        {"timer_only": "yes"},
        {"custom_device_types": "npu"},
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(arguments))):
        profiler.Profiler(**arguments)


def test_calls_out_of_order() -> None:
    made = profiler.Profiler(on_trace_ready=ignore)
    for call in (made.stop, made.step, made.summary, lambda: made.export("x"), made.step_info):
        with pytest.raises(RuntimeError, match="start"):
            call()
    with made:
        with pytest.raises(StateError, match="call stop"):
            made.start()
        with pytest.raises(StateError, match="still being recorded"):
            made.summary()
    assert made.profiler_result is not None
    with pytest.raises(StateError):
        made.stop()


@pytest.mark.parametrize(
    "arguments",
    [
        {"time_unit": "h"},
        {"row_limit": 0},
        {"sorted_by": "CPUTotal"},
        {"views": "all"},
        {"views": []},
    ],
)
def test_arguments_of_the_summary_that_cannot_be(arguments: dict[str, Any]) -> None:
    made = run(1)

    with pytest.raises(UsageError, match=next(iter(arguments))):
        made.summary(**arguments)


def test_a_schedule_that_never_recorded_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    made = run(3, scheduler=(20, 30))

    assert made.summary() is None
    assert capsys.readouterr().out.startswith("nothing was recorded: the program ended at step 3")
    with pytest.raises(StateError, match="nothing was recorded"):
        made.export("x.json")


# RecordEvent


def test_an_event_is_a_span_and_costs_what_one_costs() -> None:
    made = profiler.RecordEvent("x")

    assert type(made) is strobe.span
    assert isinstance(made, profiler.RecordEvent)


def test_any_nesting_is_legal() -> None:
    @profiler.RecordEvent("recursion")
    def recur(depth: int) -> None:
        if depth:
            recur(depth - 1)

    with profiler.Profiler(on_trace_ready=ignore) as made:
        first, second = profiler.RecordEvent("A"), profiler.RecordEvent("B")
        first.begin()
        second.begin()
        first.end()
        made.step()
        second.end()
        second.end()
        recur(3)
        made.step()
        profiler.RecordEvent("never ended").begin()

    found = made.summary().userdefined  # type: ignore[union-attr]
    assert dict(found.select("name", "calls").iter_rows()) == {"A": 1, "B": 1, "recursion": 4}
    assert made.recording.spans().filter(pl.col("unfinished")).collect()["name"].to_list() == [
        "never ended"
    ]


def test_types_of_events_have_their_places(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = profiler.TracerEventType
    with profiler.Profiler(on_trace_ready=ignore) as made:
        for kind in (kinds.Dataloader, kinds.Forward, kinds.Backward, kinds.Optimization):
            with profiler.RecordEvent(f"a {kind.name}", kind):
                pass
        with profiler.RecordEvent("op", kinds.Operator), profiler.RecordEvent("MemcpyH2D"):
            pass
        made.step()

    tables = made.summary()
    assert tables is not None
    assert tables.model["name"].to_list() == [
        *("ProfileStep", "Dataloader", "Forward", "Backward", "Optimization", "Others"),
    ]
    assert tables.operator["name"].to_list() == ["op", "MemcpyH2D"]
    assert tables.memory_manipulation["name"].to_list() == ["MemcpyH2D"]
    assert tables.userdefined.is_empty()
    shown = capsys.readouterr().out
    for title in ("Device", "Overview", "Model", "Operator", "Memory Manipulation"):
        assert f"{title} Summary---" in shown
    for title in ("Distribution", "Kernel", "UserDefined", "Memory"):
        assert f"\n{title} Summary: " in shown


@pytest.mark.parametrize(
    "arguments", [(3,), ("x", "Forward"), ("x", profiler.TracerEventType.Kernel)]
)
def test_events_that_cannot_be(arguments: Any) -> None:
    with pytest.raises(UsageError, match="RecordEvent"):
        profiler.RecordEvent(*arguments)


# Files


def wait_for(folder: Path, pattern: str) -> Path:
    """A file that the finalizer writes in its own time."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not (found := list(folder.glob(pattern))):
        assert time.monotonic() < deadline, f"there is no {pattern}"
        time.sleep(0.05)
    return found[0]


def test_handlers_write_each_round_after_the_program(folder: Path) -> None:
    run(3, on_trace_ready=profiler.export_protobuf("pbs", "me"))
    run(3, on_trace_ready=None)

    worker = f"{socket.gethostname()}_{os.getpid()}"
    stamp = "????_??_??_??_??_??_??????"
    path = wait_for(folder / "pbs", f"me_time_{stamp}.paddle_trace.pb")
    other = wait_for(folder / "profiler_log", f"{worker}_time_{stamp}.paddle_trace.json")
    assert profiler.load_profiler_result(path).get_version() == "1.0.2"
    content = json.loads(other.read_text())
    assert content["span_indx"] == content["span_index"] == "0"


def test_a_forked_process_names_its_files_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    made_before, named = profiler.export_protobuf("out"), profiler.export_protobuf("out", "trainer")

    monkeypatch.setattr("os.getpid", lambda: 77)

    assert made_before.prefix == f"{socket.gethostname()}_77"
    assert named.prefix == "trainer"


def test_a_handler_that_is_called_writes_at_once(folder: Path) -> None:
    handler = profiler.export_chrome_tracing("traces")

    run(2, on_trace_ready=lambda prof: handler(prof))

    assert len(list((folder / "traces").glob("*.paddle_trace.json"))) == 1


def test_folders_that_cannot_be_made(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(RuntimeError, match="cannot be made"):
        profiler.export_chrome_tracing(str(folder / "file" / "inside"))
    with pytest.raises(UsageError):
        profiler.export_protobuf("")
    with pytest.raises(UsageError, match="worker_name"):
        profiler.export_protobuf("x", "a/b")


def test_a_folder_that_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "profiler_log").touch()
    monkeypatch.setattr("tempfile.tempdir", str(folder / "temporary"))

    in_vain = run(5, scheduler=(2, 4), on_trace_ready=None)
    elsewhere = run(2, on_trace_ready=lambda prof: prof.export("own.json"))

    assert in_vain.summary() is None
    assert "nothing was recorded: Profiler(output=" in capsys.readouterr().out
    assert elsewhere.recording.path.parent == folder / "temporary" / "profiler_log"
    assert profiler.load_profiler_result("own.json").get_data()


def test_names_of_files_may_be_anything(folder: Path) -> None:
    path = os.fsdecode(b"a [*] %s\xff.json")
    run(2).export(path)

    assert set(profiler.load_profiler_result(path).summary().userdefined["name"]) == {
        "outer",
        "inner",
    }


def test_exports_that_cannot_be(folder: Path) -> None:
    made = run(1)
    (folder / "file").write_text("")

    for arguments, error in (
        (("x", "xml"), UsageError),
        (("",), UsageError),
        ((3,), UsageError),
        (("x\0y",), UsageError),
        ((str(folder / "file" / "x.json"),), CaptureError),
    ):
        with pytest.raises(error, match="export"):
            made.export(*arguments)
        with pytest.raises(error, match="save"):
            made.profiler_result.save(*arguments)  # type: ignore[union-attr]


def test_a_result_has_trees_of_nodes(folder: Path) -> None:
    made = run(2)
    made.export(folder / "x.pb", "pb")
    made.export(folder / "x.json", "json")

    for result in (
        made.profiler_result,
        profiler.load_profiler_result("x.pb"),
        profiler.load_profiler_result("x.json"),
    ):
        assert result is not None
        (root,) = result.get_data().values()
        assert (root.name, root.start_ns, root.end_ns) == ("root node", 0, 2**64 - 1)
        first, second = root.children_node
        assert (first.name, second.name) == ("ProfileStep#0", "ProfileStep#1")
        (outer,) = first.children_node
        (inner,) = outer.children_node
        assert (outer.name, inner.name) == ("outer", "inner")
        assert inner.type is profiler.TracerEventType.PythonUserDefined
        assert outer.start_ns <= inner.start_ns <= inner.end_ns <= outer.end_ns
        assert abs(inner.start_ns - time.time_ns()) < 3600 * 10**9
        assert inner.process_id == os.getpid()
        assert inner.children_node == inner.runtime_node == inner.device_node == []
        assert (inner.mem_node, inner.input_shapes, inner.callstack) == ([], {}, "")
        inner.name = "renamed"
        assert first.children_node[0].children_node[0].name == "renamed"
        info = result.get_extra_info()
        assert float(info["Process Cpu Utilization"]) > 0
        assert info[str(threading.get_native_id())] == threading.current_thread().name
        assert (result.get_span_index(), result.get_span_indx()) == (0, 0)
        ended = result.recording.steps().filter(~pl.col("unfinished")).collect()
        assert ended["step"].to_list() == [0, 1]
        tables = result.summary(views=profiler.SummaryView.UDFView)
        assert dict(tables.userdefined.select("name", "calls").iter_rows()) == {
            "outer": 2,
            "inner": 2,
        }


def test_a_result_can_be_saved_in_the_other_format(folder: Path) -> None:
    run(2).export("x.pb", "pb")

    profiler.load_profiler_result("x.pb").save("y.json", "json")

    (root,) = profiler.load_profiler_result("y.json").get_data().values()
    assert [node.name for node in root.children_node] == ["ProfileStep#0", "ProfileStep#1"]


def test_files_that_are_none(folder: Path) -> None:
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("hello")
    for name in ("absent.pb", ".", "empty", "text"):
        with pytest.raises(FormatError):
            profiler.load_profiler_result(name)
    with pytest.raises(UsageError):
        profiler.load_profiler_result("")


# Configuration


def test_a_profiler_as_a_file_describes_it(folder: Path) -> None:
    path = folder / "profile.json"
    handler = {"module": "strobe.paddle", "use_direct": False, "args": ["log"], "kwargs": {}}
    path.write_text(
        json.dumps(
            {
                "targets": ["cpu"],
                "scheduler": [2, 5],
                "on_trace_ready": {"export_protobuf": handler},
                "timer_only": False,
            }
        )
    )

    made = profiler.get_profiler(path)

    assert states(made.scheduler, 6) == ".wRRS."
    assert (folder / "log").is_dir()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"colour": 1}', '{"targets": ["quantum"]}', '{"on_trace_ready": {"a": {}}}']
)
def test_files_that_describe_no_profiler(folder: Path, text: str) -> None:
    (folder / "profile.json").write_text(text)

    with pytest.raises(FormatError):
        profiler.get_profiler("profile.json")


# Timer


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def timed(costs: list[float], waits: list[float], samples: int | None) -> tuple[Benchmark, Clock]:
    """Iterations that take so long, of which so much is waiting."""
    clock = Clock()
    timer = Benchmark(clock)
    timer.begin()
    for cost, wait in zip(costs, waits, strict=True):
        timer.before_reader()
        clock.now_s += wait
        timer.after_reader()
        clock.now_s += cost - wait
        timer.step(samples)
    return timer, clock


def test_averages_are_since_the_last_question() -> None:
    timer, clock = timed([1.0, 3.0], [0.5, 0.5], 8)

    assert (
        timer.step_info("images")
        == " reader_cost: 0.50000 s batch_cost: 2.00000 s ips: 4.000 images/s"
    )
    clock.now_s += 4
    timer.step(8)
    assert timer.step_info() == " batch_cost: 4.00000 s ips: 2.000 samples/s"
    assert timer.step_info() == ""


def test_the_summary_is_of_all_iterations_but_ten(capsys: pytest.CaptureFixture[str]) -> None:
    timer, _ = timed([9.0] * 10 + [1.0, 2.0], [0.0] * 10 + [0.5, 0.25], None)

    timer.end()

    lines = [
        [cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()
    ]
    assert lines[1:3] == [["Reader Ratio: 25.000%"], ["Time Unit: s, IPS Unit: steps/s"]]
    assert lines[4:] == [
        ["", "reader_cost", "0.37500", "0.50000", "0.25000", ""],
        ["", "batch_cost", "1.50000", "2.00000", "1.00000", ""],
        ["", "ips", "0.66667", "1.00000", "0.50000", ""],
    ]


def test_other_data_pause_the_timer_and_tasks_nest() -> None:
    clock = Clock()
    timer = Benchmark(clock)

    class Reader:
        def __init__(self, dataset: object) -> None:
            self._dataset = dataset

    training, evaluation = Reader(object()), Reader(object())
    timer.begin()
    timer.check_if_need_record(training)
    clock.now_s += 1
    timer.step(1)
    timer.check_if_need_record(evaluation)
    clock.now_s += 100
    timer.step(1)
    timer.check_if_need_record(training)
    clock.now_s += 1
    timer.step(1)
    timer.begin()
    clock.now_s += 50
    timer.step(1)
    assert "batch_cost: 50.00000 s" in timer.step_info()
    timer.end()

    assert timer.step_info() == " batch_cost: 1.00000 s ips: 1.000 samples/s"


def test_only_the_timer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = profiler.Profiler(timer_only=True)
    with made:
        for _ in range(3):
            made.step(num_samples=4)
        assert "samples/s" in made.step_info()

    assert made.summary() is None
    assert "timer_only" in capsys.readouterr().out
    assert list(folder.iterdir()) == []


def test_each_profiler_has_its_own_timer(capsys: pytest.CaptureFixture[str]) -> None:
    training = profiler.Profiler(timer_only=True)
    training.start()
    with profiler.Profiler(timer_only=True) as inside:
        with pytest.raises(StateError, match="call stop"):
            inside.start()
        with pytest.raises(UsageError, match="num_samples"):
            inside.step(-1)
        inside.stop()  # the block ends after it, and must not end another's
    with pytest.raises(StateError, match="stop"):
        inside.stop()
    later = profiler.Profiler(timer_only=True)
    later.start()
    for _ in range(11):
        training.step(np.int64(4))
    training.stop()

    assert "IPS Unit: samples/s" in capsys.readouterr().out
    assert later.step_info() == ""
    later.step()
    assert "steps/s" in later.step_info()
    later.stop()
    with pytest.raises(StateError, match="step_info"):
        later.step_info()


# The example


def test_the_example_runs_without_any_framework(folder: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "profile_like_paddle.py"

    done = subprocess.run(
        [sys.executable, example, "--steps", "8"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line]
    for name, calls in (("ProfileStep", "3"), ("Dataloader", "3"), ("multiply", "6")):
        assert [name, calls] in rows
    wait_for(folder / "profiler_demo", "*_time_*.paddle_trace.json")
