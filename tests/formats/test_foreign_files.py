# SPDX-License-Identifier: Apache-2.0
"""What other profilers wrote opens as a recording; the samples are of small programs of ours.

Two steps of a model with two linear layers (torch.profiler), three calls of one jitted function in
annotated steps (jax.profiler), two steps of one linear layer (paddle.profiler), and two of one in
graph mode (mindspore.Profiler).
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe

SAMPLES = Path(__file__).resolve().parents[2] / "samples"
KINETO = SAMPLES / "kineto/2.13.0/trace.json.gz"
XSPACE = SAMPLES / "xspace/0.10.2/trace.xplane.pb"
PADDLE_JSON = SAMPLES / "paddle/3.3.1/trace.json"
PADDLE_PB = SAMPLES / "paddle/3.3.1/trace.pb"
MINDSPORE = SAMPLES / "mindspore/2.10.0/run_ascend_ms"
DATA = Path(os.environ.get("STROBE_TEST_DATA", SAMPLES.parents[1] / "shared/data"))
EVERY = {
    "kineto": KINETO,
    "xspace": XSPACE,
    "paddle_json": PADDLE_JSON,
    "paddle": PADDLE_PB,
    "mindspore": MINDSPORE,
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("STROBE_CACHE", str(folder))
    return folder


def opened(path: Path) -> strobe.Recording:
    found = strobe.open(path)
    assert isinstance(found, strobe.Recording)
    return found


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "strobe", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def kineto_events() -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(KINETO.read_bytes()))["traceEvents"]
    return events


def test_operators_are_those_of_the_trace() -> None:
    operators = opened(KINETO).operators()

    lasting = [event for event in kineto_events() if event.get("cat") in OPERATORS]
    calls = Counter(event["name"] for event in lasting)
    assert dict(operators.select("name", "calls").iter_rows()) == calls
    addmm = [event for event in lasting if event["name"] == "aten::addmm"]
    took_ns = sum(round(Decimal(str(event["dur"])) * 1000) for event in addmm)
    assert operators.filter(name="aten::addmm")["total_ns"].item() == took_ns
    assert calls["aten::addmm"] == 4  # two layers, two steps


OPERATORS = ("cpu_op", "user_annotation")


def test_the_most_memory_is_that_of_the_sum() -> None:
    """Of an older PyTorch, whose blocks have no addresses."""
    path = DATA / "kineto/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz"
    if not path.exists():
        pytest.skip("the traces of other tools are not on this machine (../shared/data)")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    told = sorted(
        (event["ts"], event["args"]["Bytes"], event["args"]["Device Type"])
        for event in events
        if event["name"] == "[memory]"
    )
    most = {}
    for device in (0, 1):
        level = highest = 0
        for _, size, kind in told:
            level += size if kind == device else 0
            highest = max(highest, level)
        most[device] = highest

    peaks = dict(opened(path).peak_allocated().select("device", "peak_bytes").iter_rows())

    assert peaks == {None: most[0], 0: most[1]}


def test_steps_phases_and_memory_are_found() -> None:
    trace = opened(KINETO)

    steps = trace.steps().collect()
    assert steps.select("step", "kind", "unfinished").rows() == [
        (2, "annotation", False),
        (3, "annotation", False),
    ]
    assert {"forward", "backward", "optimizer"} <= set(trace.phases()["phase"])
    blocks = [event["args"]["Bytes"] for event in kineto_events() if event["name"] == "[memory]"]
    told = trace.allocations().filter(pl.col("tid").is_not_null()).collect()
    assert sorted(told["bytes"]) == sorted(blocks)


def test_processes_and_threads_keep_their_numbers() -> None:
    pids = {event["pid"] for event in kineto_events() if event.get("cat") == "cpu_op"}

    threads = opened(KINETO).threads().collect()

    assert set(threads["pid"]) == pids
    assert os.getpid() not in pids


def test_what_is_left_out_is_counted_in_completeness() -> None:
    events = [event for event in kineto_events() if event["ph"] != "M"]
    kept = [e for e in events if e.get("cat") in OPERATORS or e["name"] == "[memory]"]

    (row,) = opened(KINETO).completeness().to_dicts()

    assert row["source"] == "kineto"
    assert f"{len(events) - len(kept)} events have no place here and are left out" in row["note"]


def test_both_forms_of_paddle_say_the_same() -> None:
    """They are two runs of one program."""
    calls = [
        dict(opened(path).operators().select("name", "calls").iter_rows())
        for path in (PADDLE_JSON, PADDLE_PB)
    ]

    assert calls[0] == calls[1]
    assert calls[0]["matmul dygraph"] == 2


def test_types_of_paddle_are_a_column() -> None:
    rows = opened(PADDLE_PB).spans().filter(pl.col("name") == "matmul dygraph").collect()

    assert set(rows["type"]) == {"Operator"}


def test_annotated_steps_of_jax_are_steps() -> None:
    assert opened(XSPACE).steps().collect()["step"].to_list() == [0, 1, 2]


def test_operators_of_mindspore_have_full_names() -> None:
    lines = (MINDSPORE / "FRAMEWORK/cpu_op_execute_timestamp_0.txt").read_text().splitlines()
    spans = opened(MINDSPORE).spans().collect()

    launches = Counter(
        line.partition(";HostCpuOps;")[0]
        for line in lines
        for _ in line.partition(";HostCpuOps;")[2].split()
    )
    assert Counter(spans["full_name"].to_list()) == launches


@pytest.mark.parametrize("path", EVERY.values(), ids=EVERY)
def test_every_analysis_runs_on_it(path: Path) -> None:
    from strobe.analysis import answers

    trace = opened(path)

    needs_more = {"breakdown", "operators_by"}
    for name in sorted(set(answers.NAMES) - needs_more):
        getattr(trace, name)()
    assert trace.operators_by("step").height
    assert "operators" in trace.summary()


@pytest.mark.parametrize("path", EVERY.values(), ids=EVERY)
def test_every_command_takes_it(path: Path, tmp_path: Path) -> None:
    for verb in ("info", "summary", "memory"):
        done = command(verb, path)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
    for form in ("chrome", "perfetto", "paddle_pb", "csv"):
        done = command("export", path, "--format", form, "-o", tmp_path / form)
        assert done.returncode == 0, done.stderr
    done = command("flame", path, "-o", tmp_path / "flame.html")
    assert done.returncode == 0, done.stderr


def test_a_recording_can_be_made_of_it(tmp_path: Path) -> None:
    target = tmp_path / "kept"

    done = command("export", KINETO, "--format", "strobe", "-o", target)

    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "cache")
    made, original = opened(target), opened(KINETO)
    assert made.path == target
    for table in ("spans", "steps", "allocations", "operators", "completeness", "links"):
        assert made.scan(table).collect().equals(original.scan(table).collect()), table
    assert json.loads(command("info", target, "--json").stdout)["name"] == KINETO.name
    again = command("export", KINETO, "--format", "strobe", "-o", target)
    assert again.returncode == 1
    assert "--force" in again.stderr
    assert command("export", KINETO, "--format", "strobe", "-o", target, "--force").returncode == 0


def test_a_recording_is_not_replaced_by_itself_nor_while_it_is_made(tmp_path: Path) -> None:
    with strobe.Profiler(output=tmp_path / "out"):
        (live,) = (tmp_path / "out").iterdir()
        done = command("export", KINETO, "--format", "strobe", "-o", live, "--force")
        assert done.returncode == 1
        assert "still being made" in done.stderr
        with strobe.span("kept"):
            pass
    assert opened(live).operators()["name"].to_list() == ["kept"]

    itself = command("export", live, "--format", "strobe", "-o", live, "--force")

    assert itself.returncode == 1
    assert "the recording that is to be exported" in itself.stderr
    assert opened(live).operators()["name"].to_list() == ["kept"]


def test_a_folder_that_is_no_recording_is_not_replaced_by_one(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")

    done = command("export", KINETO, "--format", "strobe", "-o", tmp_path / "mine", "--force")

    assert done.returncode == 1
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "mine"]


def test_tables_are_kept_and_nothing_lies_beside_the_file(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    shutil.copy(KINETO, folder)
    folder.chmod(0o500)  # nobody but root could write there

    first = opened(folder / KINETO.name).directory
    second = opened(folder / KINETO.name).directory

    folder.chmod(0o700)
    assert first == second
    assert first.is_relative_to(cache)
    assert [path.name for path in folder.iterdir()] == [KINETO.name]
    for path in (cache, *cache.rglob("*")):
        assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    document = json.loads(gzip.decompress(KINETO.read_bytes()))
    path.write_text(json.dumps(document))
    before = opened(path)
    rows = before.spans().collect().height

    lasting = [event for event in document["traceEvents"] if event.get("cat") == "cpu_op"]
    document["traceEvents"].append(lasting[0])
    path.write_text(json.dumps(document))

    assert opened(path).spans().collect().height == rows + 1
    time_ns = path.stat().st_mtime_ns
    path.write_text(path.read_text().replace("aten::addmm", "aten::other"))
    os.utime(path, ns=(time_ns, time_ns))  # of the same size and time, as by rsync -t
    assert "aten::other" in opened(path).operators()["name"]
    assert before.spans().collect().height == rows  # its tables are still there


def test_without_a_place_for_a_cache_tables_are_temporary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STROBE_CACHE", str(tmp_path / "file"))

    assert opened(KINETO).operators().height


def test_a_folder_of_such_files_says_which_can_be_opened(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("notes")
    shutil.copy(KINETO, tmp_path / "b.json.gz")

    with pytest.raises(strobe.FormatError, match=r"; open 'b.json.gz' in it"):
        strobe.open(tmp_path)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(KINETO)

    assert opened(tmp_path / "link").operators().equals(opened(KINETO).operators())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not of a format that strobe reads"),
        (b"{}", "not of a format that strobe reads"),
        (b"\x00" * 99, "not of a format that strobe reads"),
        (b'{"schemaVersion": 1, "traceEvents": [', "byte"),
        (KINETO.read_bytes()[:4000], "damaged gzip data"),
        (XSPACE.read_bytes()[:500], "byte"),
    ],
)
def test_what_cannot_be_read_is_one_clear_sentence(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)

    with pytest.raises(strobe.FormatError, match=reason):
        strobe.open(path)
    done = command("summary", path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "thing"
    os.mkfifo(path) if kind == "fifo" else path.mkdir()

    with pytest.raises(strobe.FormatError):
        strobe.open(path)


@pytest.mark.parametrize("damage", [b"junk", b"", None])
def test_tables_that_are_damaged_in_the_cache_are_made_anew(
    tmp_path: Path, damage: bytes | None
) -> None:
    path = Path(shutil.copy(KINETO, tmp_path))
    whole = strobe.open(path).spans().collect()
    (table,) = (tmp_path / "cache").rglob("spans.parquet")
    table.unlink()
    if damage is not None:
        table.write_bytes(damage)

    assert strobe.open(path).spans().collect().equals(whole)


def test_a_folder_names_the_newest_file_that_can_be_opened_further_down(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new")):
        (tmp_path / "logs/plugins" / name).mkdir(parents=True)
        trace = Path(shutil.copy(PADDLE_JSON, tmp_path / "logs/plugins" / name))
        os.utime(trace, (number, number))

    with pytest.raises(strobe.FormatError, match=r"open 'plugins/new/trace\.json' in it"):
        strobe.open(tmp_path / "logs")


def test_what_was_opened_can_be_sent_to_another_process(tmp_path: Path) -> None:
    whole = opened(Path(shutil.copy(KINETO, tmp_path)))
    _ = whole.directory

    again = pickle.loads(pickle.dumps(whole))

    assert again.operators().equals(whole.operators())
    assert again.path == whole.path
