# SPDX-License-Identifier: Apache-2.0
"""The trees that strobe.mindspore leaves, during the program, after it, and when it was killed."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import strobe.mindspore as ms
from mindspore_interface.conftest import TRAINING
from programs import Program
from strobe.errors import CaptureError, FormatError, StrobeError
from strobe.session import mindspore_tree
from strobe.store import manifest


def run(program: Program, source: str, *arguments: Any, **options: Any) -> str:
    return program.run(program.write(TRAINING + source), *arguments, **options)


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


OLD_FILES = {
    *("step_trace_point_info_0.json", "step_trace_raw_0_detail_time.csv", "framework_raw_0.csv"),
    *("cpu_op_detail_info_0.csv", "cpu_op_type_info_0.csv", "cpu_op_execute_timestamp_0.txt"),
    *("cpu_framework_0.txt", "ascend_timeline_display_0.json", "ascend_timeline_summary_0.json"),
    *("output_timeline_data_0.txt", "dataset_0.csv", "dataset_iterator_profiling_0.txt"),
    *("dynamic_shape_info_0.json", "profiler_info_0.json"),
}
TRAIN_TWICE = """
profiler = ms.Profiler(output_path=OUT, start_profile=False)
for _ in range(2):
    profiler.start()
    for number in range(3):
        step(number)
    profiler.add_metadata_json("job", '{"name": "test"}')
    profiler.stop()
profiler.analyse()
profiler.analyse(pretty=True, mode="async")
print(profiler.op_analyse("MatMul"))
"""


def test_profiler_leaves_the_tree_of_a_single_card(program: Program) -> None:
    printed = run(program, TRAIN_TWICE)

    assert names(program.output) == {"profiler", "profiler_2"}
    for root in program.output.iterdir():
        (results,) = root.glob("rank-0_*_ascend_ms")
        assert names(root) == OLD_FILES | {"FRAMEWORK", "container", results.name}
        assert names(results) == {
            *("ASCEND_PROFILER_OUTPUT", "profiler_info_0.json", "profiler_metadata.json")
        }
        assert names(results / "ASCEND_PROFILER_OUTPUT") == {
            *("trace_view.json", "step_trace_time.csv", "dataset.csv")
        }
        assert json.loads((results / "profiler_metadata.json").read_text()) == {
            "job": {"name": "test"}
        }
        info = json.loads((root / "profiler_info_0.json").read_text())
        told = info["strobe"]["files"]
        assert {name for name, fate in told.items() if fate == "written"} == {
            *(OLD_FILES - {"profiler_info_0.json"}),
            *("trace_view.json", "step_trace_time.csv", "dataset.csv", "profiler_metadata.json"),
        }
        assert told["operator_memory_0.csv"] == "not collected: profile_memory is off"
        assert "Ascend device" in told["aicore_intermediate_0_detail.csv"]
        assert info["profiler_parameters"]["output_path"] == str(program.output)
        details = {row["full_op_name"]: row for row in rows(root / "cpu_op_detail_info_0.csv")}
        assert {row["op_occurrences"] for row in details.values()} == {"3"}
        shares = [float(row["total_proportion"]) for row in details.values()]
        assert sum(shares) == pytest.approx(1, abs=1e-5)  # six digits of each
        display = root / "ascend_timeline_display_0.json"
        assert display.read_text().count("\n") > 10  # pretty
        view = results / "ASCEND_PROFILER_OUTPUT" / "trace_view.json"
        assert view.read_bytes() == display.read_bytes()
    found = json.loads(printed)
    assert [each["op_occurrences"] for each in found["MatMul"]] == [1] * 6
    assert found["MatMul"][0]["input_shape"] == "input_1:[2, 2],input_2:[2, 2],input_3:NoShape"
    assert found["device_id"] == "0"


def test_each_round_of_profile_has_a_directory(program: Program) -> None:
    printed = run(
        program,
        """
seen = []
besides = ms.tensorboard_trace_handler(OUT + "-besides")

def ready(profiler):
    seen.append(profiler)
    besides(profiler)

with ms.profile(
    schedule=ms.schedule(wait=1, active=2, repeat=2), record_shapes=True, on_trace_ready=ready
) as profiler:
    profiler.add_metadata("who", "test")
    for number in range(6):
        step(number)
        profiler.step()
assert seen == [profiler, profiler], seen
keeping = ms._ExperimentalConfig(data_simplification=False)
handler = ms.tensorboard_trace_handler(OUT, "worker")
with ms.profile(on_trace_ready=handler, experimental_config=keeping):
    step()
""",
        cwd=program.folder,
    )

    assert printed == ""
    made = sorted((program.folder / "data").iterdir())
    (own,) = program.output.iterdir()
    assert len(made) == 2
    assert own.name.startswith("worker_")
    for root in (*made, own):
        assert root.name.endswith("_ascend_ms")
        assert names(root) >= {"ASCEND_PROFILER_OUTPUT", "FRAMEWORK", "profiler_info_0.json"}
        assert names(root / "FRAMEWORK") >= {"cpu_op_detail_info_0.csv", "cpu_framework_0.txt"}
    for root, steps in zip(made, (["1", "2"], ["4", "5"]), strict=True):
        output = root / "ASCEND_PROFILER_OUTPUT"
        times = rows(output / "step_trace_time.csv")
        assert [row["Step"] for row in times] == steps
        assert "Preparing" in times[0]
        assert rows(output / "operator_details.csv")[0]["Input Shapes"].endswith(";2,2;")
        trace = json.loads((output / "trace_view.json").read_text())
        marks = [each for each in trace if each["name"].startswith("ProfilerStep#")]
        assert len(marks) == 2
        assert isinstance(marks[0]["ts"], str)
        assert (root / "profiler_metadata.json").exists()
    besides = list(Path(f"{program.output}-besides").iterdir())
    assert len(besides) == 2
    assert all((root / "ASCEND_PROFILER_OUTPUT/trace_view.json").exists() for root in besides)
    assert not (own / "profiler_metadata.json").exists()
    assert len(list(own.glob("FRAMEWORK/op_range_*/log"))) == 1  # data_simplification
    assert not list(made[0].glob("FRAMEWORK/op_range_*/log"))
    assert not (own / "ASCEND_PROFILER_OUTPUT" / "operator_details.csv").exists()


def test_what_was_killed_is_analysed_later_and_elsewhere(program: Program) -> None:
    script = program.write(
        TRAINING
        + """
profiler = ms.Profiler(output_path=OUT)
for number in range(4):
    step(number)
print("ready", flush=True)
time.sleep(600)
"""
    )
    forward = "Default/network-WithLossCell/_backbone-Net/fc-Dense/MatMul-op0"
    points = {"fp_start": forward, "bp_end": "Default/optimizer-Momentum/Momentum-op0"}
    variables = {"PROFILING_FP_START": points["fp_start"], "PROFILING_BP_END": points["bp_end"]}
    process = program.start(script, env=variables)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    with pytest.raises(RuntimeError, match="still records"):
        ms.analyse(program.output)
    process.send_signal(signal.SIGKILL)
    process.wait()
    moved = program.folder / os.fsdecode("a, b+c=d (é) [*?] 'q\" #%20\n".encode() + b"\xff")
    program.output.rename(moved)
    link = program.folder / "link"
    link.symlink_to(moved)
    root = moved / "profiler"
    assert names(root) == {"FRAMEWORK"}

    ms.Profiler.offline_analyse(link, data_simplification=False)

    (recording,) = (root / "FRAMEWORK").glob("op_range_0-*")
    assert (recording / "log").is_dir()
    assert json.loads((root / "step_trace_point_info_0.json").read_text()) == points
    info = json.loads((root / "profiler_info_0.json").read_text())
    assert info["profiling_stop_time"] is None
    assert "ended without stop()" in info["strobe"]["files"]["minddata_pipeline_raw_0.csv"]
    whole = {
        path.name: path.read_bytes() for path in root.glob("*_*.*") if "info_0" not in path.name
    }
    ms.analyse(moved)
    again = {name: (root / name).read_bytes() for name in whole}
    assert again == whole
    assert not (recording / "log").exists()  # kept by the first, not by this one

    done = subprocess.run(
        [sys.executable, "-m", "strobe", "analyse", moved, "--steps", "2:3", "--pretty"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == os.fsencode(root) + b"\n"
    all_steps = [row for row in rows_of(whole, "step_trace_raw_0_detail_time.csv")]
    some = rows(root / "step_trace_raw_0_detail_time.csv")
    assert [row["total"] for row in some[:-1]] == [row["total"] for row in all_steps[1:3]]
    kinds = {row["op_type"]: row for row in rows(root / "cpu_op_type_info_0.csv")}
    assert kinds["MatMul"]["type_occurrences"] == "4"
    assert kinds["MatMul"]["execution_frequency(per-step)"] == "2"
    with pytest.raises(ValueError, match="no step 9 of 4"):
        ms.analyse(moved, step_list=[8, 9])


def test_what_was_killed_on_another_host_is_analysed_here(program: Program) -> None:
    source = "profiler = ms.Profiler(output_path=OUT)\nstep()\nos._exit(0)\n"
    run(program, "import os\n" + source)
    root = program.output / "profiler"
    (recording,) = (root / "FRAMEWORK").iterdir()
    told = manifest.read(recording)
    manifest.write(recording, replace(told, host=f"not {told.host}"))

    for _ in range(2):  # nobody here knows that nothing is added to it, so it stays as it is
        command = [sys.executable, "-m", "strobe", "analyse", program.output]
        subprocess.run(command, check=True, timeout=300)
        assert (recording / "log").is_dir()
        assert OLD_FILES - {"dynamic_shape_info_0.json"} <= names(root)


def rows_of(files: dict[str, bytes], name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(files[name].decode().splitlines()))


def test_files_written_elsewhere_first_do_not_stand_for_its_own(program: Program) -> None:
    run(program, "profiler = ms.Profiler(output_path=OUT)\nstep()\nprofiler.stop()\n")
    root = program.output / "profiler"
    (recording,) = (root / "FRAMEWORK").glob("op_range_0-*")
    elsewhere = program.folder / "elsewhere"

    assert mindspore_tree.analyse_recording(recording, root=elsewhere) == elsewhere
    assert names(root) == {"FRAMEWORK"}
    mindspore_tree.complete(recording)

    assert "cpu_op_detail_info_0.csv" in names(elsewhere)
    assert "cpu_op_detail_info_0.csv" in names(root)


def record_one(program: Program) -> Path:
    run(program, "profiler = ms.Profiler(output_path=OUT)\nstep()\nprofiler.stop()\n")
    (recording,) = (program.output / "profiler" / "FRAMEWORK").glob("op_range_0-*")
    return recording


@pytest.mark.parametrize("name", ["ASCEND_PROFILER_OUTPUT", "results", "FRAMEWORK"])
def test_no_file_is_written_through_a_link_in_a_tree(program: Program, name: str) -> None:
    """A tree may come from anybody, as a recording may."""
    recording = record_one(program)
    root = mindspore_tree.analyse_recording(recording)
    (results,) = root.glob("rank-0_*_ascend_ms")
    place = {"results": results, "FRAMEWORK": root / name}.get(name, results / name)
    victim = program.folder / "home"
    if name == "FRAMEWORK":
        shutil.copytree(place, victim)
        recording = place / recording.name
    else:
        victim.mkdir()
        (victim / "dataset.csv").write_text("mine")
    shutil.rmtree(place)
    place.symlink_to(victim)
    before = {path: path.stat().st_mtime_ns for path in victim.rglob("*") if path.name[0] != "."}

    with pytest.raises(FormatError, match="symbolic link and not a folder"):
        mindspore_tree.analyse_recording(recording)

    after = {path: path.stat().st_mtime_ns for path in victim.rglob("*") if path.name[0] != "."}
    assert after == before


def test_a_file_of_a_tree_that_is_a_link_is_replaced(program: Program) -> None:
    recording = record_one(program)
    root = mindspore_tree.analyse_recording(recording)
    victim = program.folder / "diary.txt"
    victim.write_text("dear diary")
    for name in ("profiler_info_0.json", "cpu_op_detail_info_0.csv", "dynamic_shape_info_0.json"):
        (root / name).unlink(missing_ok=True)
        (root / name).symlink_to(victim)

    mindspore_tree.analyse_recording(recording)

    assert victim.read_text() == "dear diary"
    assert not (root / "profiler_info_0.json").is_symlink()
    assert rows(root / "cpu_op_detail_info_0.csv")


def test_a_recording_outside_of_a_tree_has_none(program: Program) -> None:
    recording = record_one(program)
    elsewhere = program.folder / "x" / "y" / "recording"
    shutil.copytree(recording, elsewhere)
    mine = program.folder / "x" / "dataset_0.csv"
    mine.write_text("mine")

    with pytest.raises(FormatError, match="not in a folder named FRAMEWORK"):
        mindspore_tree.analyse_recording(elsewhere)

    assert mine.read_text() == "mine"
    assert names(mine.parent) == {"y", "dataset_0.csv"}
    link = program.folder / "link"
    link.symlink_to(recording)
    assert mindspore_tree.analyse_recording(link) == program.output / "profiler"


@pytest.mark.parametrize(
    "changes",
    [{"parameters": 5}, {"unheard": 1}, {"missing": 5}, {"format": "x"}],
    ids=["parameters", "unheard", "missing", "format"],
)
def test_a_damaged_declaration_is_a_format_error(program: Program, changes: dict[str, Any]) -> None:
    recording = record_one(program)
    content = manifest.read(recording)
    manifest.write(recording, replace(content, exports=[{**content.exports[0], **changes}]))

    with pytest.raises(FormatError):
        mindspore_tree.analyse_recording(recording)


def test_the_place_of_a_tree_is_not_read_from_a_recording(program: Program) -> None:
    recording = record_one(program)
    victim = program.folder / "home"
    victim.mkdir()
    (recording / "tree.json").write_text(json.dumps(os.path.relpath(victim, recording)))

    root = mindspore_tree.analyse_recording(recording)

    assert root == program.output / "profiler"
    assert list(victim.iterdir()) == []


def test_a_rank_that_is_learnt_later_has_one_folder_of_its_own(program: Program) -> None:
    recording = record_one(program)
    content = manifest.read(recording)
    facts = {"metadata": {"rank": 1, "world_size": 2}}
    report = {"source_class": "B", "path": "p", "reason": "r", "missing": {}, "facts": facts}
    manifest.write(recording, replace(content, sources={"mindspore": report}))
    shutil.rmtree(recording / "tables", ignore_errors=True)
    (program.output / "rank_1" / "profiler").mkdir(parents=True)  # another run's

    roots = [mindspore_tree.analyse_recording(recording) for _ in range(2)]

    assert roots == [program.output / "rank_1" / "profiler_2"] * 2
    assert "cpu_op_detail_info_1.csv" in names(roots[0])
    moved = program.output.rename(program.folder / "moved")
    again = moved / recording.relative_to(program.output)
    assert mindspore_tree.analyse_recording(again) == moved / "rank_1" / "profiler_2"


def test_ranks_have_folders_and_are_analysed_together(program: Program) -> None:
    source = """
profiler = ms.Profiler(output_path=OUT)
step()
profiler.stop()
"""
    for rank in range(3):
        run(program, source, env={"RANK_ID": str(rank), "RANK_SIZE": "3"})
    roots = [program.output / f"rank_{rank}" / "profiler" for rank in range(3)]
    run(program, source, env={"RANK_ID": "0", "RANK_SIZE": "3", "MS_ROLE": "MS_SCHED"})
    assert all(names(root) == {"FRAMEWORK"} for root in roots)
    assert len(list(program.output.iterdir())) == 3

    ms.analyse(program.output, max_process_number=2)

    for rank, root in enumerate(roots):
        info = json.loads((root / f"profiler_info_{rank}.json").read_text())
        assert (info["rank_id"], info["rank_size"]) == (rank, 3)
        assert (root / f"cpu_op_detail_info_{rank}.csv").exists()
        assert list(root.glob(f"rank-{rank}_*_ascend_ms"))

    for folder in ("rank-1_*", "rank-1_*/ASCEND_PROFILER_OUTPUT", "container"):
        (roots[1] / "cpu_op_type_info_1.csv").unlink()
        ms.analyse(next(roots[1].glob(folder)))  # any folder of a tree stands for it
        assert (roots[1] / "cpu_op_type_info_1.csv").exists()
    assert info["parallel_mode"] is None  # nobody says how three ranks share out their work
    (damaged,) = (roots[0] / "FRAMEWORK").iterdir()
    shutil.rmtree(damaged / "tables")
    for processes in (1, 2):
        (roots[2] / "cpu_op_detail_info_2.csv").unlink()
        with pytest.raises(StrobeError, match="its tables and its log are gone"):
            ms.analyse(program.output, max_process_number=processes)
        assert (roots[2] / "cpu_op_detail_info_2.csv").exists()  # the others are made
    assert (roots[0] / "cpu_op_detail_info_0.csv").exists()  # and nothing of it is lost
    with pytest.raises(ValueError, match=r"step_list=\[1, \.\.\., 20\]: there is no step 20 of 1"):
        ms.analyse(roots[1], step_list=range(1, 21))


def test_the_example_runs(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "profile_like_mindspore.py"
    subprocess.run([sys.executable, example, "--output", tmp_path / "out"], check=True)

    made = sorted((tmp_path / "out").iterdir())
    assert len(made) == 2
    for root in made:
        trace = json.loads((root / "ASCEND_PROFILER_OUTPUT" / "trace_view.json").read_text())
        assert sum(each["name"] == "backward" for each in trace) == 3


def test_what_is_not_ours_is_told(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is nothing at this path"):
        ms.analyse(tmp_path / "none")
    with pytest.raises(ValueError, match="must not be empty"):
        ms.analyse("")
    with pytest.raises(FormatError, match=r"no data of strobe\.mindspore"):
        ms.analyse(tmp_path)
    folder = tmp_path / "profiler" / "PROF_000001_20230818142704322_ABC" / "device_0"
    folder.mkdir(parents=True)
    (folder / "info.json.0").write_text('{"version": "7.0"}')
    with pytest.raises(
        RuntimeError, match=r"of CANN 7\.0 and MindSpore of unknown version, cannot"
    ):
        ms.analyse(tmp_path)
    info = {"ms_version": "2.5.0", "cann_version": "8.0.0"}
    (tmp_path / "profiler" / "profiler_info_0.json").write_text(json.dumps(info))
    with pytest.raises(
        RuntimeError, match=r"of CANN 8\.0\.0 and MindSpore 2\.5\.0, cannot be read"
    ):
        ms.analyse(tmp_path)


def test_the_variable_profiles_a_program_that_only_imports_us(program: Program) -> None:
    source = "import strobe.mindspore\n" + TRAINING + "step()\n" + "assert not os.environ.get(V)\n"
    script = program.write("V = 'MS_PROFILER_OPTIONS'\n" + source)
    newer = {"start": True, "output_path": str(program.output)}
    for options in (newer, {**newer, "memory": True}, {"start": "false"}):
        variables = {"MS_PROFILER_OPTIONS": json.dumps(options)}
        program.run(script, env=variables)

    found = sorted(path.name for path in program.output.iterdir())
    assert found[0] == "profiler"
    assert found[1].endswith("_ascend_ms")
    assert len(found) == 2
    assert (program.output / "profiler" / "cpu_op_detail_info_0.csv").exists()
    assert (program.output / found[1] / "FRAMEWORK" / "cpu_op_detail_info_0.csv").exists()


def test_the_variable_is_obeyed_under_strobe_run(program: Program) -> None:
    script = program.write(TRAINING.replace("strobe.mindspore as ms", "strobe") + "step()\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "strobe", "run", "--output", program.folder / "ours"),
            script,
            "x",
        ],
        env={
            **os.environ,
            "MS_PROFILER_OPTIONS": json.dumps({"start": True, "output_path": str(program.output)}),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (root,) = program.output.iterdir()
    assert (root / "FRAMEWORK" / "cpu_op_type_info_0.csv").exists()
    assert list((program.folder / "ours").iterdir())


LAUNCHER = """
import os, subprocess, sys

assert "MS_PROFILER_OPTIONS" not in os.environ  # MindSpore, which msrun imports, would obey it
ranks = [{"MS_ROLE": "MS_WORKER", "RANK_ID": str(rank), "RANK_SIZE": "2"} for rank in range(2)]
for variables in ({"MS_ROLE": "MS_SCHED"}, *ranks):
    subprocess.run([sys.executable, *sys.argv[1:]], env={**os.environ, **variables}, check=True)
"""


def test_the_variable_is_for_the_ranks_of_a_launcher(program: Program) -> None:
    (program.folder / "msrun").write_text(LAUNCHER)
    script = program.write(
        TRAINING.replace("strobe.mindspore as ms", "strobe")
        + "assert not any('MS_PROFILER' in name for name in os.environ)\nstep()\n"
    )
    options = {"start": True, "output_path": str(program.output), "memory": False}
    command = [sys.executable, program.folder / "msrun", script, program.output]
    done = subprocess.run(
        [sys.executable, "-m", "strobe", "run", "--", *command],
        env={**os.environ, "MS_PROFILER_OPTIONS": json.dumps(options)},
        cwd=program.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert names(program.output) == {"rank_0", "rank_1"}
    for rank in range(2):
        root = program.output / f"rank_{rank}" / "profiler"
        assert (root / f"cpu_op_type_info_{rank}.csv").exists()


def test_options_of_strobe_run_are_not_for_their_profiler(program: Program) -> None:
    script = program.write("")
    done = subprocess.run(
        [sys.executable, "-m", "strobe", "run", "--mindspore", "--shapes", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "leave out the other options" in done.stderr


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CaptureError, match="choose a folder that can be written"):
        ms.Profiler(output_path=tmp_path / "file" / "out")
