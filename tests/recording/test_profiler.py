# SPDX-License-Identifier: Apache-2.0
"""Rounds, steps, requests, handlers and bounds of the Profiler, on recordings really made."""

import json
import os
import threading
import warnings
from enum import Enum
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from programs import TIMEOUT_SECONDS
from strobe.model import check


def names(recording: strobe.Recording) -> list[str]:
    spans = recording.spans().collect()
    assert check(spans) == []
    return spans["name"].to_list()


def run_steps(profiler: strobe.Profiler, count: int) -> None:
    """`count` steps, each with one span named after it."""
    with profiler:
        for number in range(count):
            with strobe.span(f"work {number}"):
                pass
            profiler.step()


def test_each_round_of_a_schedule_is_a_recording(tmp_path: Path) -> None:
    schedule = strobe.schedule(wait=1, warmup=1, active=2, repeat=2, skip_first=1)
    profiler = strobe.Profiler(output=tmp_path, schedule=schedule)

    run_steps(profiler, 12)

    # Steps: N N W R S N W R S N N N
    assert [names(recording) for recording in profiler.recordings] == [
        ["work 3", "work 4"],
        ["work 7", "work 8"],
    ]
    steps = [recording.steps().collect() for recording in profiler.recordings]
    assert [table["step"].to_list() for table in steps] == [[3, 4], [7, 8]]
    assert not any(table["unfinished"].any() for table in steps)
    metadata = [dict(r.metadata().collect().iter_rows()) for r in profiler.recordings]
    assert [facts["first_step"] for facts in metadata] == ["3", "7"]


def test_rounds_that_follow_each_other_share_no_span(tmp_path: Path) -> None:
    profiler = strobe.Profiler(
        output=tmp_path, schedule=strobe.schedule(wait=0, warmup=0, active=2, repeat=3)
    )

    run_steps(profiler, 6)

    assert [names(recording) for recording in profiler.recordings] == [
        ["work 0", "work 1"],
        ["work 2", "work 3"],
        ["work 4", "work 5"],
    ]


def test_a_pair_records_from_start_to_before_end(tmp_path: Path) -> None:
    profiler = strobe.Profiler(output=tmp_path, schedule=(2, 4))

    run_steps(profiler, 6)

    assert [names(recording) for recording in profiler.recordings] == [["work 2", "work 3"]]


def test_a_schedule_that_never_came_to_record_is_explained(tmp_path: Path) -> None:
    profiler = strobe.Profiler(output=tmp_path, schedule=(10, 12))
    run_steps(profiler, 3)

    with pytest.raises(strobe.StateError, match="ended at step 3, before the schedule came"):
        profiler.summary()


def test_rounds_stay_in_their_folder_when_the_program_goes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profiler = strobe.Profiler(output="out", schedule=(1, 2))
    with profiler:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        profiler.step()
        profiler.step()

    assert profiler.recording.path.parent == tmp_path / "out"


class ForeignState(Enum):
    """As other libraries spell it: the names count."""

    CLOSED = "closed"
    RECORD = "record"


def test_a_schedule_may_be_any_callable_and_improper_changes_keep_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profiler = strobe.Profiler(
        output=tmp_path,
        schedule=lambda step: ForeignState.RECORD if step % 2 else ForeignState.CLOSED,
    )

    run_steps(profiler, 6)

    assert [names(recording) for recording in profiler.recordings] == [
        ["work 1"],
        ["work 3"],
        ["work 5"],
    ]
    assert capsys.readouterr().err.count("leaves RECORD without RECORD_AND_RETURN") == 1


def test_a_schedule_of_torch_profiler_is_one(tmp_path: Path) -> None:
    actions = Enum("ProfilerAction", ["NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"])
    profiler = strobe.Profiler(output=tmp_path, schedule=lambda step: list(actions)[step % 4])

    run_steps(profiler, 8)

    assert [names(recording) for recording in profiler.recordings] == [
        ["work 2", "work 3"],
        ["work 6", "work 7"],
    ]


@pytest.mark.parametrize("activities", [3, "CPU"])
def test_activities_are_refused_at_once_and_not_at_the_end(activities: Any) -> None:
    with pytest.raises(strobe.UsageError, match="activities must be a list"):
        strobe.Profiler(activities=activities)


def test_a_schedule_that_returns_something_else_is_refused(tmp_path: Path) -> None:
    profiler = strobe.Profiler(output=tmp_path, schedule=lambda step: "record")

    with pytest.raises(strobe.UsageError, match=r"schedule\(0\) returned 'record'"):
        profiler.start()

    assert list(tmp_path.iterdir()) == []


def test_steps_without_a_schedule_are_marked_and_the_last_is_unfinished(tmp_path: Path) -> None:
    profiler = strobe.Profiler(output=tmp_path)
    profiler.start()
    profiler.step(num_samples=4)
    profiler.step(num_samples=0)
    profiler.step()
    profiler.stop()

    steps = profiler.recording.steps().collect()
    assert steps["step"].to_list() == [0, 1, 2, 3]
    assert steps["samples"].to_list() == [4, 0, None, None]
    assert steps["unfinished"].to_list() == [False, False, False, True]
    ends = steps["start_ns"] + steps["dur_ns"]
    assert (ends[:-1] <= steps["start_ns"][1:]).all()
    (statistics,) = profiler.recording.step_statistics().to_dicts()
    assert statistics["steps"] == 3
    assert statistics["samples_per_s"] is None


def test_what_comes_before_begin_step_belongs_to_no_step(tmp_path: Path) -> None:
    with strobe.Profiler(output=tmp_path) as profiler:
        for number in range(2):
            with strobe.span("between"):
                pass
            profiler.begin_step()
            with strobe.span(f"work {number}"):
                pass
            profiler.step()

    by_step = profiler.recording.operators_by("step").sort("step", "name")
    assert by_step.select("step", "name", "calls").rows() == [
        ("-", "between", 2),
        ("0", "work 0", 1),
        ("1", "work 1", 1),
    ]


def test_spans_named_step_are_steps_where_nobody_marks_any(tmp_path: Path) -> None:
    with strobe.Profiler(output=tmp_path) as profiler:
        for _ in range(3):
            with strobe.span("step"), strobe.span("forward"):
                pass

    steps = profiler.recording.steps().collect()
    assert steps["kind"].to_list() == ["span"] * 3
    text = profiler.recording.summary(width=100)
    assert "where the time of a step goes" in text
    assert "forward" in text


def test_a_round_that_was_cut_off_at_once_says_where_the_one_before_is(tmp_path: Path) -> None:
    schedule = strobe.schedule(wait=0, warmup=0, active=2)
    with strobe.Profiler(output=tmp_path, schedule=schedule) as profiler:
        for _ in range(4):
            with strobe.span("work"):
                pass
            profiler.step()

    text = profiler.summary(width=100)
    assert "no spans were recorded" in text
    assert "No step ended in this round, the last of 3: recordings[-2]" in text
    assert "work" in profiler.recordings[-2].summary(width=100)


def test_requests_are_steps_that_may_overlap(tmp_path: Path) -> None:
    profiler = strobe.Profiler(output=tmp_path)
    everybody = threading.Barrier(4)

    def serve() -> None:
        with profiler.request(num_samples=2), strobe.span("answer"):
            everybody.wait(TIMEOUT_SECONDS)

    with profiler:
        threads = [threading.Thread(target=serve) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    requests = profiler.recording.steps().collect()
    assert requests["kind"].to_list() == ["request"] * 4
    assert sorted(requests["step"]) == [0, 1, 2, 3]
    assert requests["lane"].n_unique() == 4
    # All four were open when the barrier let them go.
    assert requests["start_ns"].max() < (requests["start_ns"] + requests["dur_ns"]).min()
    with warnings.catch_warnings(record=True) as told:  # Polars' own cannot be made errors
        warnings.simplefilter("always")
        by_step = profiler.recording.operators_by("step")
    assert told == []
    assert by_step.select("step", "name", "calls").sort("step").rows() == [
        (str(number), "answer", 1) for number in range(4)
    ]


def test_a_handler_is_called_once_per_round_with_its_recording(tmp_path: Path) -> None:
    seen: list[Path] = []
    profiler = strobe.Profiler(
        output=tmp_path,
        schedule=strobe.schedule(wait=1, warmup=0, active=1, repeat=2),
        on_trace_ready=lambda finished: seen.append(finished.recording.path),
    )

    run_steps(profiler, 6)

    assert seen == [recording.path for recording in profiler.recordings]
    assert len(seen) == 2


def test_a_handler_may_stop_the_profiler_for_good(tmp_path: Path) -> None:
    profiler = strobe.Profiler(
        output=tmp_path,
        schedule=strobe.schedule(wait=0, warmup=0, active=1),
        on_trace_ready=lambda finished: finished.stop(),
    )

    profiler.start()
    profiler.step()

    assert not profiler.is_started
    (made,) = tmp_path.iterdir()  # the next round was not begun
    assert made == profiler.recording.path


@pytest.mark.parametrize("call", ["restart", "step"])
def test_a_handler_may_go_on_by_itself_and_each_round_ends(tmp_path: Path, call: str) -> None:
    def go_on(finished: strobe.Profiler) -> None:
        if finished.is_started and len(list(tmp_path.iterdir())) == 1:
            if call == "restart":
                finished.stop()
                finished.start()
            else:
                finished.step()

    schedule = strobe.schedule(wait=0, warmup=0, active=1)
    profiler = strobe.Profiler(output=tmp_path, schedule=schedule, on_trace_ready=go_on)

    with profiler:
        profiler.step()
        with strobe.span("work"):
            profiler.step()

    made = [strobe.open(path) for path in tmp_path.iterdir()]
    assert len(made) == 3  # before, with the work, and what begins after it
    assert sorted(map(names, made)) == [[], [], ["work"]]


@pytest.mark.parametrize("number", ["x", -1, 1.5, True])
def test_a_request_has_a_number_of_samples_or_is_refused(tmp_path: Path, number: Any) -> None:
    with (
        strobe.Profiler(output=tmp_path) as profiler,
        pytest.raises(strobe.UsageError, match="num_samples"),
    ):
        profiler.request(number)


def test_who_interrupts_the_wait_at_the_end_of_a_round_has_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("strobe.sources.active.settle", interrupt)
    schedule = strobe.schedule(wait=0, warmup=0, active=1)
    profiler = strobe.Profiler(output=tmp_path, schedule=schedule)
    profiler.start()
    with strobe.span("first"):
        pass
    with pytest.raises(KeyboardInterrupt):
        profiler.step()
    with strobe.span("second"):
        pass
    with pytest.raises(KeyboardInterrupt):
        profiler.stop()

    assert not profiler.is_started
    assert [names(recording) for recording in profiler.recordings] == [["first"], ["second"]]


def test_a_handler_that_raises_is_shown_and_the_program_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def handler(_profiler: strobe.Profiler) -> None:
        message = "the handler's own fault"
        raise RuntimeError(message)

    with strobe.Profiler(output=tmp_path, on_trace_ready=handler) as profiler:
        pass

    assert "the handler's own fault" in capsys.readouterr().err
    assert names(profiler.recording) == []


def test_metadata_is_kept_and_checked(tmp_path: Path) -> None:
    profiler = strobe.Profiler(output=tmp_path)
    profiler.add_metadata("learning rate", "0.1")
    profiler.add_metadata_json("config", json.dumps({"layers": [1, 2]}))
    with pytest.raises(strobe.UsageError, match="value must be a str"):
        profiler.add_metadata("x", 1)  # type: ignore[arg-type]
    for wrong in ("{", "NaN", "1e999", "[" * 100_000):
        with pytest.raises(strobe.UsageError, match="is no JSON"):
            profiler.add_metadata_json("config", wrong)
    with profiler:
        pass

    metadata = dict(profiler.recording.metadata().collect().iter_rows())
    assert metadata["learning rate"] == "0.1"
    assert json.loads(metadata["config"]) == {"layers": [1, 2]}
    assert "y" not in metadata


def test_what_cannot_be_collected_is_said_once_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with strobe.Profiler(output=tmp_path, record_shapes=True, with_flops=True) as profiler:
        pass

    shown = capsys.readouterr().err
    assert shown.count("record_shapes is not collected") == 1
    rows = profiler.recording.completeness().filter(pl.col("collected").is_null())
    assert sorted(rows["source"]) == ["record_shapes", "with_flops"]


def test_max_bytes_keeps_the_beginning_and_counts_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with strobe.Profiler(output=tmp_path, max_bytes=4_000_000) as profiler:
        for _ in range(300_000):
            with strobe.span("work"):
                pass

    row = profiler.recording.completeness().to_dicts()[0]
    assert row["dropped"] > 0
    assert row["collected"] + row["dropped"] == 300_000
    # 4 MB of records of 32 bytes, and at most a ring more.
    assert row["collected"] <= 4_000_000 // 32 + 32_768
    assert "max_bytes=4000000 is reached" in row["note"]
    lost = f"{row['dropped']} records could not be written and are lost"
    assert f"{lost} (max_bytes=4000000 is reached)" in capsys.readouterr().err


def test_a_bound_that_costs_records_in_each_round_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = strobe.schedule(wait=0, warmup=0, active=1, repeat=3)
    with strobe.Profiler(output=tmp_path, schedule=rounds, max_bytes=1_000_001) as profiler:
        for _ in range(3):
            for _ in range(100_000):
                with strobe.span("work"):
                    pass
            profiler.step()

    assert capsys.readouterr().err.count("could not be written and are lost") == 1
    for recording in profiler.recordings:
        row = recording.completeness().to_dicts()[0]
        assert row["dropped"] > 0
        assert row["note"].count("max_bytes=1000001 is reached") == 1


def test_max_seconds_cuts_what_nobody_ended(tmp_path: Path) -> None:
    wait = threading.Event()
    with strobe.Profiler(output=tmp_path, max_seconds=2.0) as profiler:
        with strobe.span("early"):
            pass
        wait.wait(2.1)
        with strobe.span("late"):
            pass

    metadata = dict(profiler.recording.metadata().collect().iter_rows())
    assert names(profiler.recording) == ["early"]
    assert int(metadata["end_ns"]) - int(metadata["start_ns"]) == 2_000_000_000


def test_max_memory_bytes_refuses_further_threads_and_says_so(tmp_path: Path) -> None:
    everybody = threading.Barrier(4)

    def work() -> None:
        with strobe.span("work"):
            everybody.wait(TIMEOUT_SECONDS)

    with strobe.Profiler(output=tmp_path, max_memory_bytes=4 << 20) as profiler:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # Three rings of a little more than 1 MiB fit: the main thread's, the recorder's and one other.
    assert names(profiler.recording) == ["work"]
    row = profiler.recording.completeness().to_dicts()[0]
    assert row["note"].count("was not recorded: max_memory_bytes") == 3


def test_ranks_choose_who_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run 7")
    silent = strobe.Profiler(output=tmp_path, ranks=[0, 1])
    run_steps(silent, 2)
    chosen = strobe.Profiler(output=tmp_path, ranks=[3], name="train")
    run_steps(chosen, 1)

    with pytest.raises(strobe.StateError, match="rank 3 is not among"):
        silent.recording  # noqa: B018
    path = chosen.recording.path
    assert path.parent == tmp_path / "train-torch-run_7"
    assert path.name.startswith("rank00003-")
    metadata = dict(chosen.recording.metadata().collect().iter_rows())
    assert (metadata["rank"], metadata["world_size"]) == ("3", "4")


def test_a_profiler_can_be_started_again(tmp_path: Path) -> None:
    profiler = strobe.Profiler(output=tmp_path)
    run_steps(profiler, 1)
    first = profiler.recording.path
    run_steps(profiler, 2)

    assert profiler.recording.path != first
    assert names(profiler.recording) == ["work 0", "work 1"]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda p: p.stop(), r"stop\(\) while not recording; call start\(\) first"),
        (lambda p: p.step(), r"step\(\) while not recording"),
        (lambda p: p.begin_step(), r"begin_step\(\) while not recording"),
        (lambda p: p.request(), r"request\(\) while not recording"),
        (lambda p: p.recording, r"recording before start\(\)"),
    ],
)
def test_a_call_out_of_turn_says_what_to_do(tmp_path: Path, call, complaint) -> None:
    with pytest.raises(strobe.StateError, match=complaint):
        call(strobe.Profiler(output=tmp_path))


def test_a_second_start_is_refused(tmp_path: Path) -> None:
    with (
        strobe.Profiler(output=tmp_path) as profiler,
        pytest.raises(strobe.StateError, match=r"start\(\) while recording into"),
    ):
        profiler.start()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"output": ""}, r"output=''\): output must be the path of a folder"),
        ({"name": 5}, r"name=5\): name must be a str"),
        ({"clock": "sundial"}, r"clock='sundial'\): clock must be one of monotonic, tsc"),
        ({"max_seconds": 0}, r"max_seconds=0\)"),
        ({"max_bytes": -1}, r"max_bytes=-1\)"),
        ({"max_bytes": True}, r"max_bytes=True\)"),
        ({"max_total_bytes": 0}, r"max_total_bytes=0\)"),
        ({"ranks": [0, -1]}, r"ranks=\[0, -1\]\)"),
        ({"ranks": "0"}, r"ranks='0'\)"),
        ({"on_trace_ready": 3}, r"on_trace_ready=3\)"),
        ({"record_shapes": 1}, r"record_shapes=1\)"),
        ({"schedule": 7}, r"schedule=7\)"),
    ],
)
def test_a_wrong_option_is_refused_at_once(options, complaint) -> None:
    with pytest.raises(strobe.UsageError, match=complaint):
        strobe.Profiler(**options)


def test_a_wrong_number_of_samples_is_refused(tmp_path: Path) -> None:
    with (
        strobe.Profiler(output=tmp_path) as profiler,
        pytest.raises(strobe.UsageError, match=r"step\(num_samples=-1\)"),
    ):
        profiler.step(num_samples=-1)


# The threads that Python warns about are polars', which is here because of the tests.
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_the_forked_child_of_a_stepping_program_is_left_alone(tmp_path: Path) -> None:
    with strobe.Profiler(output=tmp_path) as profiler:
        profiler.step()
        child = os.fork()
        if child == 0:
            try:
                profiler.step()
                profiler.stop()
            except BaseException:  # whatever it is, the parent must hear of it
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        profiler.step()

    assert os.waitstatus_to_exitcode(status) == 0
    assert profiler.recording.steps().collect()["step"].to_list() == [0, 1, 2]


def test_a_notebook_gets_a_table(tmp_path: Path) -> None:
    with strobe.Profiler(output=tmp_path) as profiler, strobe.span("<b>bold</b>"):
        pass

    html = profiler.recording._repr_html_()

    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "<b>bold" not in html
