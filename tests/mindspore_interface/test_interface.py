# SPDX-License-Identifier: Apache-2.0
"""strobe.mindspore without a framework: names, defaults, arguments, errors, the environment."""

from __future__ import annotations

import enum
import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import strobe.mindspore as ms
from strobe.mindspore import _environment
from strobe.mindspore._settings import PROFILE, PROFILER, settle


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys, strobe.mindspore\n"
        "found = {'mindspore', 'torch', 'numpy', 'polars'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_only_what_analyses_in_the_program_imports_for_it_beforehand(tmp_path: Path) -> None:
    code = (
        "import sys, strobe.mindspore as ms\n"
        "with ms.profile():\n"
        "    pass\n"
        "assert 'polars' not in sys.modules\n"
        "profiler = ms.Profiler()\n"
        "assert 'polars' in sys.modules\n"
        "profiler.stop()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600, cwd=tmp_path)


@pytest.mark.parametrize("name", ms.__all__)
def test_every_name_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(ms, name))


def test_names_are_those_of_mindspore_and_more() -> None:
    theirs = {
        *("tensorboard_trace_handler", "schedule", "Profiler", "EnvProfiler", "ProfilerLevel"),
        *("ProfilerActivity", "AicoreMetrics", "ExportType", "HostSystem", "mstx", "profile"),
        *("DynamicProfilerMonitor", "_ExperimentalConfig"),
    }
    assert theirs <= set(ms.__all__)
    from strobe.mindspore.profiler import analyse

    assert analyse is ms.analyse


def test_profile_has_the_parameters_of_its_document_in_their_order() -> None:
    signature = inspect.signature(ms.profile)
    documented = {
        "activities": None,
        "with_stack": False,
        "profile_memory": False,
        "data_process": False,
        "parallel_strategy": False,
        "start_profile": True,
        "hbm_ddr": False,
        "pcie": False,
        "sync_enable": True,
        "schedule": None,
        "on_trace_ready": None,
        "experimental_config": None,
        "record_shapes": False,
    }
    found = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD
    }
    assert list(found.items()) == list(documented.items())


def test_profiler_has_the_defaults_of_the_older_documents() -> None:
    documented = {
        "output_path": "./data",
        "profile_communication": False,
        "profile_memory": False,
        "start_profile": True,
        "data_process": True,
        "parallel_strategy": True,
        "op_time": True,
        "profile_framework": "all",
        "l2_cache": False,
        "aicore_metrics": 0,
        "timeline_limit": 500,
        "sync_enable": True,
        "with_stack": False,
        "hbm_ddr": False,
        "pcie": False,
        "data_simplification": True,
    }
    assert {name: PROFILER[name] for name in documented} == documented


def test_the_config_has_the_parameters_of_mindspore_in_their_order() -> None:
    level, *rest = inspect.signature(ms._ExperimentalConfig).parameters

    config = ms._ExperimentalConfig(ms.ProfilerLevel.Level1, l2_cache=True)
    config.host_sys = ["cpu"]
    found = settle("profile", {"experimental_config": config}, PROFILE)

    assert [level, *rest] == [
        *("profiler_level", "aic_metrics", "l2_cache", "mstx", "data_simplification"),
        *("export_type", "mstx_domain_include", "mstx_domain_exclude", "sys_io"),
        *("sys_interconnection", "host_sys", "unknown"),
    ]
    assert found.values["profiler_level"] is ms.ProfilerLevel.Level1
    assert set(found.missing(several_ranks=False)) == {
        "l2_cache",
        "host_sys",
    }  # named when it was made, or later


NAN = float("nan")


def handler_of_theirs() -> Any:
    """A function as mindspore.profiler.tensorboard_trace_handler returns them."""

    def handler_fn(profiler: Any) -> None:
        profiler.analyse(async_mode=False)

    handler_fn.__module__ = "mindspore.profiler.profiler"
    return handler_fn


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: ms.profile(ctivities=[]), TypeError, "do you mean 'activities'?"),
        (
            lambda: ms.Profiler(profiler_communication=True),
            TypeError,
            "do you mean 'profile_communication'?",
        ),
        (lambda: ms.profile(mstx=True), TypeError, "experimental_config=_ExperimentalConfig(mstx="),
        (lambda: ms.profile(output_path="x"), TypeError, "=tensorboard_trace_handler("),
        (lambda: ms.profile(op_time=True), TypeError, "only Profiler has it"),
        (lambda: ms.Profiler(experimental_config=None), TypeError, "parameters of Profiler itself"),
        (lambda: ms.profile(with_stack=1), TypeError, "must be True or False"),
        (
            lambda: ms.profile(activities="TPU"),
            ValueError,
            "(activities='TPU'): must be a member of ProfilerActivity (NPU",
        ),
        (lambda: ms.profile(activities=7), TypeError, "must be a list"),
        (
            lambda: ms.profile(activities=[ms.ProfilerActivity.NPU], with_stack=True),
            ValueError,
            "must include ProfilerActivity.CPU",
        ),
        (
            lambda: ms.profile(activities=[ms.ProfilerActivity.NPU], profile_memory=True),
            ValueError,
            "must include ProfilerActivity.CPU",
        ),
        (lambda: ms.profile(schedule=3), TypeError, "must be callable"),
        (lambda: ms.profile(on_trace_ready="x"), TypeError, "must be callable"),
        (
            lambda: ms.profile(on_trace_ready=handler_of_theirs()),
            TypeError,
            "from strobe.mindspore",
        ),
        (lambda: ms.profile(experimental_config=3), TypeError, "must be an _ExperimentalConfig"),
        (lambda: ms.Profiler(aicore_metrics=9), ValueError, "from -1 (none) to 6"),
        (lambda: ms.Profiler(aicore_metrics="0"), TypeError, "must be an int from -1 to 6"),
        (lambda: ms.Profiler(timeline_limit=0), ValueError, "must be above 0"),
        (lambda: ms.Profiler(profile_framework="none"), ValueError, "'all', 'time', 'memory'"),
        (lambda: ms.Profiler(output_path=3), TypeError, "path of a folder"),
        (lambda: ms.Profiler(output_path="a\0b"), ValueError, "path of a folder"),
        (lambda: ms.Profiler(optypes_not_deal=3), TypeError, "must be a str"),
        (lambda: ms.Profiler(profiler_level=1), TypeError, "ProfilerLevel (LevelNone, Level0, "),
        (
            lambda: ms._ExperimentalConfig(profile_level=1),
            TypeError,
            "do you mean 'profiler_level'?",
        ),
        (lambda: ms.schedule(wait=-1, active=1), ValueError, "wait must be an int of 0 or more"),
        (lambda: ms.schedule(wait=0, active=0), ValueError, "active must be an int of 1 or more"),
        (lambda: ms.schedule(1, 2), TypeError, "positional"),
        (lambda: ms.tensorboard_trace_handler(3), TypeError, "must be a path"),
        (lambda: ms.tensorboard_trace_handler("x", "w" * 226), ValueError, "1 to 225"),
        (lambda: ms.mstx.mark(3), TypeError, "must be a str"),
        (
            lambda: ms.profile(start_profile=False).add_metadata("k", 1),
            TypeError,
            "value must be a str",
        ),
        (
            lambda: ms.profile(start_profile=False).add_metadata_json("k", "NaN"),
            ValueError,
            "value is no JSON",
        ),
        (lambda: ms.Profiler(start_profile=False).op_analyse([]), TypeError, "must be a str"),
        (lambda: ms.Profiler(start_profile=False).op_analyse("Add", "0"), TypeError, "be an int"),
        (lambda: ms.analyse("x", max_process_number=0), ValueError, "must be 1 or more"),
        (lambda: ms.analyse("x", step_list=[1, 3]), ValueError, "consecutive integers"),
        (lambda: ms.analyse("x", step_list=[0, 1]), ValueError, "counted from 1"),
        (lambda: ms.analyse("x", step_list="1"), TypeError, "list of integers"),
        (lambda: ms.DynamicProfilerMonitor(), TypeError, "folder's path"),
        (lambda: ms.DynamicProfilerMonitor("x", 3), TypeError, "output_path=3): must be a folder"),
        (lambda: ms.DynamicProfilerMonitor("x", poll_interval=NAN), ValueError, "above 0"),
        (
            lambda: ms.DynamicProfilerMonitor("x", poll_intervall=1),
            TypeError,
            "do you mean 'poll_interval'?",
        ),
    ],
)
def test_what_cannot_be_right_says_the_way_out(
    make: Any, error: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        make()
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_schedule_gives_the_actions_of_mindspore() -> None:
    plan = ms.schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)

    assert "".join(plan(step).name[-1] for step in range(12)) == "".join(
        {"N": "E", "W": "P", "R": "D", "S": "E"}[letter] for letter in "NNWRSNWRSNNN"
    )
    assert [plan(step) for step in (1, 2, 3, 4)] == list(ms.ProfilerAction)
    assert plan.to_dict() == {"wait": 1, "active": 2, "warmup": 1, "repeat": 2, "skip_first": 1}
    assert (plan.wait, plan.skip_first) == (1, 1)
    assert ms.ProfilerAction.get_by_value(1) is ms.ProfilerAction.WARM_UP
    with pytest.raises(ValueError, match="counted from 0"):
        plan(-1)


def test_integers_of_numpy_are_taken_as_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan = ms.schedule(wait=np.int64(0), active=np.int32(1), repeat=1)

    with ms.Profiler(output_path="out", schedule=plan) as profiler:
        profiler.step()
    profiler.analyse(step_list=list(np.arange(1, 2)))

    info = json.loads((tmp_path / "out" / "profiler" / "profiler_info_0.json").read_text())
    assert info["profiler_parameters"]["schedule"] == plan.to_dict()


def test_a_round_without_the_steps_asked_for_is_told_and_the_others_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ms.Profiler(output_path=tmp_path, schedule=ms.schedule(wait=0, active=1)) as profiler:
        for _ in range(2):
            profiler.step()

    profiler.analyse(step_list=[1])

    written = {path.parent.name for path in tmp_path.glob("*/profiler_info_0.json")}
    assert written == {"profiler", "profiler_2"}
    assert "there are no files: step_list=[1]: no steps were collected" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there is no step 2 of 1"):
        profiler.analyse(step_list=[2])


def test_a_later_round_without_the_steps_asked_for_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ms.schedule(wait=0, active=1, repeat=1)
    profiler = ms.Profiler(start_profile=False, output_path=tmp_path, schedule=plan)
    profiler.start()
    profiler.step()
    profiler.analyse(step_list=[1])
    assert capsys.readouterr().err == ""

    profiler.start()  # and no step ends
    profiler.analyse(step_list=[1])

    assert "step_list=[1]: no steps were collected" in capsys.readouterr().err


@pytest.mark.parametrize("handler", [ms.tensorboard_trace_handler(), ms.tensorboard_trace_handler])
def test_a_handler_without_a_folder_writes_into_that_of_the_profiler(
    handler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with ms.Profiler(output_path="~/out", on_trace_ready=handler):
        pass

    ms.Profiler.offline_analyse("~/out")

    (root,) = (tmp_path / "out").iterdir()
    assert root.name.endswith("_ascend_ms")
    assert (root / "profiler_info_0.json").exists()


def test_members_of_other_enums_are_taken_by_name() -> None:
    theirs = enum.Enum("ProfilerActivity", {"CPU": 1, "NPU": 2})
    levels = enum.Enum("ProfilerLevel", {"Level1": "Level1"})
    metrics = enum.Enum("AicoreMetrics", {"AiCoreNone": "None"})

    found = settle("profile", {"activities": [theirs.CPU, theirs.CPU]}, PROFILE)
    config = ms._ExperimentalConfig(
        profiler_level=levels.Level1, aic_metrics=metrics.AiCoreNone, export_type="text"
    )
    with_config = settle("profile", {"experimental_config": config}, PROFILE)

    assert found.values["activities"] == [ms.ProfilerActivity.CPU]
    assert with_config.values["profiler_level"] is ms.ProfilerLevel.Level1
    assert with_config.values["aic_metrics"] is ms.AicoreMetrics.AiCoreNone
    assert with_config.values["export_type"] == [ms.ExportType.Text]


def test_the_old_numbers_of_metrics_are_known() -> None:
    names = [
        settle("Profiler", {"aicore_metrics": number}, PROFILER).values["aic_metrics"].name
        for number in range(-1, 7)
    ]
    assert names == [
        *("AiCoreNone", "ArithmeticUtilization", "PipeUtilization", "Memory", "MemoryL0"),
        *("ResourceConflictRatio", "MemoryUB", "L2Cache"),
    ]


def test_starting_and_stopping_in_the_wrong_order_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    by_hand = ms.Profiler(start_profile=False, output_path="out")
    with pytest.raises(RuntimeError, match="call start"):
        by_hand.stop()
    by_hand.start()
    with pytest.raises(RuntimeError, match="call stop"):
        by_hand.start()
    with pytest.raises(RuntimeError, match="without a schedule"):
        by_hand.step()
    by_hand.stop()
    by_hand.start()
    by_hand.stop()
    assert sorted(path.name for path in Path("out").iterdir()) == ["profiler", "profiler_2"]

    at_once = ms.profile(on_trace_ready=ms.tensorboard_trace_handler("out", analyse_flag=False))
    with pytest.raises(RuntimeError, match="call stop"):
        at_once.start()
    at_once.stop()
    for again in (at_once.start, at_once.stop):
        with pytest.raises(RuntimeError, match="start_profile=False"):
            again()

    planned = ms.profile(start_profile=False, schedule=ms.schedule(wait=1, active=1))
    with pytest.raises(RuntimeError, match="call start"):
        planned.step()


def test_what_is_named_and_cannot_be_had_is_told_once_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = ms.Profiler(
        start_profile=False,
        output_path=tmp_path,
        profile_communication=True,  # which there is none of
        aicore_metrics=1,
        ascend_job_id="PROF_1",
        activities=["CPU", "NPU"],
        sys_io=False,
    )
    ms.Profiler(output_path=tmp_path / "none", activities=None, aic_metrics=None).stop()
    for _ in range(2):
        profiler.start()
        profiler.stop()
    profiler.analyse()

    lines = capsys.readouterr().err.splitlines()
    said = [line for line in lines if " is not collected: " in line]
    assert [line.split(" is not")[0] for line in said] == [
        *("strobe: ascend_job_id", "strobe: aicore_metrics", "strobe: ProfilerActivity.NPU"),
    ]
    info = json.loads((tmp_path / "profiler_2" / "profiler_info_0.json").read_text())
    told = info["strobe"]["not_collected"]
    assert {"ascend_job_id", "aicore_metrics", "activities"} <= set(told)
    assert told["aicore_metrics"] in said[1]


def test_an_analysis_in_on_trace_ready_is_of_that_round(tmp_path: Path) -> None:
    ready: list[list[str]] = []

    def handle(profiler: Any) -> None:
        profiler.analyse()
        ready.append(sorted(path.parent.name for path in tmp_path.rglob("profiler_info_0.json")))

    plan = ms.schedule(wait=1, active=1, repeat=2)
    with ms.Profiler(output_path=tmp_path, schedule=plan, on_trace_ready=handle) as profiler:
        for _ in range(5):
            profiler.step()  # goes on, whatever the handler did

    first, second = ready
    assert "profiler" in first
    assert "profiler_2" not in first
    assert "profiler_2" in second


def test_analysis_after_each_round_is_of_that_round(tmp_path: Path) -> None:
    profiler = ms.Profiler(start_profile=False, output_path=tmp_path)
    for _ in range(2):
        profiler.start()
        profiler.stop()
        profiler.analyse()
        (tmp_path / "profiler").rename(tmp_path / "kept")
        assert (tmp_path / "kept" / "profiler_info_0.json").exists()
        shutil.rmtree(tmp_path / "kept")


def test_analysis_without_a_new_round_is_of_all(tmp_path: Path) -> None:
    profiler = ms.Profiler(start_profile=False, output_path=tmp_path)
    for _ in range(2):
        profiler.start()
        profiler.stop()
    profiler.analyse()
    for info in tmp_path.glob("*/profiler_info_0.json"):
        info.unlink()

    profiler.analyse()

    assert len(list(tmp_path.glob("*/profiler_info_0.json"))) == 2


def test_profile_has_its_files_made_at_once_for_a_handler_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ready: list[Path] = []

    def handle(profiler: Any) -> None:
        profiler.analyse()
        ready.extend(Path("data").glob("*/profiler_info_0.json"))

    profiler = ms.profile(on_trace_ready=handle)
    with pytest.raises(RuntimeError, match="before a round has ended"):
        profiler.analyse()
    profiler.stop()

    assert len(ready) == 1


def test_modules_in_the_folder_of_the_program_are_not_those_of_the_analysis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "numpy.py").write_text("raise ImportError('not this one')")
    for _ in range(2):
        ms.Profiler(output_path="out").stop()

    ms.analyse("out", max_process_number=2)

    assert len(list(tmp_path.glob("out/*/profiler_info_0.json"))) == 2


def test_a_start_that_never_came_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = ms.Profiler(start_profile=False, output_path=tmp_path / "out")

    profiler.analyse()

    assert "nothing was recorded: start() was not called" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


OBEYED = {
    '{"start": true, "output_path": "/x", "memory": true, "hccl": false, "aicore_metrics": 0, '
    '"l2_cache": false}': ("profiler", {"profile_memory": True, "output_path": "/x"}),
    '{"start": true, "timeline_limit": 10, "op_time": true}': ("profiler", {"timeline_limit": 10}),
    '{"start": true, "memory": false}': (
        "profiler",
        {"data_process": True, "aic_metrics": ms.AicoreMetrics.ArithmeticUtilization},
    ),
    '{"start": true}': (
        "profile",
        {"data_process": False, "aic_metrics": ms.AicoreMetrics.AiCoreNone},
    ),
    '{"start": true, "activities": ["CPU"], "profiler_level": "Level1", "aic_metrics": "None", '
    '"export_type": ["text"], "record_shapes": true, "data_simplification": false}': (
        "profile",
        {"record_shapes": True, "data_simplification": False},
    ),
}


@pytest.mark.parametrize("text", OBEYED)
def test_the_variable_has_the_keys_of_both_generations(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected_kind, expected = OBEYED[text]

    found = _environment.read(text)

    assert found is not None
    settings, kind = found
    assert kind == expected_kind
    assert {name: settings.values[name] for name in expected} == expected
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object"),
        ('{"start": "false"}', "start='false' must be true or false"),
        ('{"start": 1}', "start=1 must be true or false"),
    ],
)
def test_a_variable_that_is_wrong_starts_nothing(
    text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _environment.read(text) is None
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_variable_in_a_folder_that_is_gone_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MS_PROFILER_OPTIONS", '{"start": true, "output_path": "here"}')
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    ms.EnvProfiler.init_profiler()

    assert "this program is not profiled" in capsys.readouterr().err
    assert ms.EnvProfiler.profiler is None


def test_a_wrong_key_is_one_line_and_the_others_hold(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"start": True, "memory": 1, "activity": ["CPU"], "pcie": True, "with_stack": True}
    given["activities"] = ["NPU"]

    found = _environment.read(json.dumps(given))

    assert found is not None
    assert found[0].values["pcie"] is True
    assert found[0].values["profile_memory"] is False
    memory, unknown, stack = capsys.readouterr().err.splitlines()
    assert "'memory' is left out" in memory
    assert "unknown key 'activity' is left out; do you mean 'activities'?" in unknown
    assert "must include ProfilerActivity.CPU; 'with_stack' is left out" in stack
    assert _environment.read('{"start": false}') is None
    assert _environment.read("{}") is None
