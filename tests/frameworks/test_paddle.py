# SPDX-License-Identifier: Apache-2.0
"""Paddle as strobe records it, beside what paddle.profiler says of the same steps."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import strobe
from strobe.importers import paddle as importer
from strobe.model import check
from strobe.sources.paddle import build, session
from strobe.store.places import find_recordings

if find_spec("paddle") is None:
    pytest.skip("PaddlePaddle is not installed", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it tells of a compiler cache that is not there
    import paddle
    import paddle.profiler

    import paddle_models as models

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:paddle"),
]

STEPS = 3
OURS = {"Optimizer.clear_grad"}  # what paddle.profiler does not have


@pytest.fixture(autouse=True)
def release() -> Iterator[None]:
    """There can be one native profiler: that of a test goes with its objects."""
    gc.collect()
    yield
    gc.collect()


@pytest.fixture
def static_mode() -> Iterator[None]:
    paddle.enable_static()
    yield
    paddle.disable_static()


def record(work: Callable[[], Any], folder: Path, **options: Any) -> strobe.Recording:
    with strobe.Profiler(output=folder, **options) as profiler:
        work()
    recording = profiler.recording
    assert check(recording.spans().collect()) == []
    return recording


def repeated(step: models.Step, times: int = STEPS) -> Callable[[], None]:
    def work() -> None:
        for _ in range(times):
            step()

    return work


def theirs(work: Callable[[], Any], **options: Any) -> Any:
    """What paddle.profiler has recorded."""
    profiler = paddle.profiler.Profiler(on_trace_ready=lambda _: None, **options)
    with profiler:
        work()
    return profiler.profiler_result


def walk(result: Any) -> Iterator[Any]:
    """The nodes of a result without roots and steps."""
    waiting = [child for root in result.get_data().values() for child in root.children_node]
    while waiting:
        node = waiting.pop()
        waiting += node.children_node
        if not node.name.startswith("ProfileStep#"):
            yield node


def names(recording: strobe.Recording) -> Counter[str]:
    spans = recording.spans().collect()
    return Counter({name: n for name, n in spans["name"].value_counts().iter_rows()})


def notes(recording: strobe.Recording) -> str:
    rows = recording.completeness().filter(pl.col("source") == "paddle")
    return str(rows["note"][0])


def test_the_reader_says_what_paddle_says(tmp_path: Path) -> None:
    step = models.training()
    result = theirs(repeated(step), profile_memory=True)
    path = tmp_path / "trace.pb"
    result.save(str(path), "pb")

    trace = importer.read_trace(path)

    roots = [child for root in result.get_data().values() for child in root.children_node]
    waiting, nodes = list(roots), []
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting += node.children_node
    host = trace.host
    told = Counter(
        (trace.names[name], kind, start, end, pid, tid)
        for name, kind, start, end, pid, tid in zip(
            host.name, host.type, host.start_ns, host.end_ns, host.pid, host.tid, strict=True
        )
    )
    assert told == Counter(
        (each.name, int(each.type), each.start_ns, each.end_ns, each.process_id, each.thread_id)
        for each in nodes
    )
    around = Counter(
        (trace.names[host.name[row]], trace.names[host.name[parent]] if parent >= 0 else None)
        for row, parent in enumerate(host.parent)
    )
    expected: Counter[Any] = Counter((each.name, None) for each in roots)
    expected += Counter((child.name, each.name) for each in nodes for child in each.children_node)
    assert around == expected
    memory = trace.memory
    blocks = Counter(zip(memory.time_ns.tolist(), memory.bytes.tolist(), strict=True))
    inside = [event for each in nodes for event in each.mem_node]
    assert blocks >= Counter((each.timestamp_ns, each.increase_bytes) for each in inside)
    assert len(inside) > 0
    assert trace.version == result.get_version()
    assert trace.span_index == result.get_span_index()
    assert trace.extra_info == result.get_extra_info()


@pytest.mark.parametrize("make", [models.training, models.inference, models.to_static])
def test_names_and_counts_are_those_of_paddle_profiler(
    make: Callable[[], models.Step], tmp_path: Path
) -> None:
    step = make()
    step()  # what happens once has happened
    step()

    recording = record(repeated(step), tmp_path)

    counts = names(recording)
    assert {name: n for name, n in counts.items() if name not in OURS} == Counter(
        each.name for each in walk(theirs(repeated(step)))
    )


@pytest.mark.usefixtures("static_mode")
def test_a_static_program(tmp_path: Path) -> None:
    step = models.static()
    step()

    recording = record(repeated(step), tmp_path)

    assert names(recording) == Counter(each.name for each in walk(theirs(repeated(step))))
    steps = recording.steps().collect()
    assert steps["kind"].to_list() == ["optimizer"] * STEPS
    by_name = dict(recording.spans().select("name", "phase").unique().collect().iter_rows())
    assert by_name["pd_op.matmul_grad"] == "backward"
    assert by_name["pd_op.adam_"] == "optimizer"
    assert by_name["pd_op.matmul"] == "forward"


class Kept:
    """A native profiler whose result is kept, as paddle.profiler keeps it."""

    def __init__(self, native: Any, results: list[Any]) -> None:
        self._native, self._results = native, results

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def stop(self) -> Any:
        self._results.append(self._native.stop())
        return self._results[-1]


def test_own_time_grows_with_the_events_of_paddle(tmp_path: Path) -> None:
    step = models.training()

    short, long = (
        record(repeated(step, times), tmp_path / str(times)).completeness().to_dicts()
        for times in (10, 40)
    )

    rows = [next(row for row in each if row["source"] == "paddle") for each in (short, long)]
    events = rows[1]["collected"] / rows[0]["collected"]
    assert rows[1]["own_ns"] / rows[0]["own_ns"] == pytest.approx(events, rel=0.5)
    assert all("own time is estimated" in row["note"] for row in rows)


@pytest.mark.parametrize("make", [models.training, models.inference])
def test_times_are_those_that_paddle_says_of_the_same_run(
    make: Callable[[], models.Step], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results: list[Any] = []
    create = session.create
    monkeypatch.setattr(session, "create", lambda: Kept(create(), results))
    step = make()

    recording = record(repeated(step), tmp_path)

    spans = recording.spans().sort("start_ns").collect()
    result = results.pop()  # its nodes go with it
    nodes = sorted(walk(result), key=lambda node: node.start_ns)
    nodes = [node for node in nodes if node.name != session.ANCHOR]
    assert len(nodes) > 20 * STEPS
    # Both clocks run alike but for a thousandth, and were laid beside each other at both ends, as
    # well as the recording says.
    (residual_ns,) = recording.completeness().filter(pl.col("source") == "paddle")[
        "clock_residual_ns"
    ]
    whole_ns = nodes[-1].end_ns - nodes[0].start_ns
    wrong = 1 / 1000 + 2 * residual_ns / whole_ns
    for name in {node.name for node in nodes}:
        theirs_ns = [(node.start_ns, node.end_ns) for node in nodes if node.name == name]
        mine = spans.filter(pl.col("name") == name)
        ours_ns = zip(mine["start_ns"], mine["start_ns"] + mine["dur_ns"], strict=True)
        apart = [
            ours - told
            for pair in zip(ours_ns, theirs_ns, strict=True)
            for ours, told in zip(*pair, strict=True)
        ]
        assert max(apart) - min(apart) <= 1000 + whole_ns * wrong, name
        total = sum(end - start for start, end in theirs_ns)
        assert abs(mine["dur_ns"].sum() - total) <= 2 * len(theirs_ns) + total * wrong, name


def test_operators_lie_inside_the_spans_around_them(tmp_path: Path) -> None:
    values = paddle.ones([4])

    def work() -> None:
        for _ in range(50):
            with strobe.span("around"):
                paddle.tanh(values)

    spans = record(work, tmp_path).spans().collect()

    operators = spans.filter(pl.col("name") == "tanh pybind_imperative_func")
    assert set(spans["name"].gather(operators["parent"])) == {"around"}
    assert operators["parent"].n_unique() == 50


def test_phases_steps_and_layers(tmp_path: Path) -> None:
    step = models.training()

    recording = record(repeated(step), tmp_path, with_modules=True)

    spans = recording.spans().collect()
    phase = {name: set(part["phase"]) for (name,), part in spans.group_by("name")}
    assert phase["Optimization Step"] == phase["adam_ dygraph"] == {"optimizer"}
    assert phase["Gradient Backward"] == phase["Global_MatmulGradNode"] == {"backward"}
    assert phase["matmul_grad kernel launch"] == {"backward"}
    assert phase["Sequential"] == phase["matmul dygraph"] == {"forward"}
    assert phase["cross_entropy_with_softmax dygraph"] == {"forward"}  # outside of any layer
    assert phase["Optimizer.clear_grad"] == {"zero_grad"}
    layers = spans.filter(pl.col("category") == "module")["name"]
    assert set(layers) == {"Sequential", "Sequential.0", "Sequential.1", "Sequential.2"}
    assert set(spans.filter(pl.col("name") == "relu dygraph")["module"]) == {"Sequential.1"}
    steps = recording.steps().collect()
    assert steps["kind"].to_list() == ["optimizer"] * STEPS
    ends = (steps["start_ns"] + steps["dur_ns"]).to_list()
    optimizer = spans.filter(pl.col("name") == "Optimization Step")
    assert ends == (optimizer["start_ns"] + optimizer["dur_ns"]).to_list()


def test_overlapping_events_lose_nothing(tmp_path: Path) -> None:
    @paddle.profiler.RecordEvent("recursive")
    def recur(depth: int) -> None:
        paddle.tanh(paddle.ones([2]))
        if depth:
            recur(depth - 1)

    def work() -> None:
        first, second = (paddle.profiler.RecordEvent(name) for name in ("first", "second"))
        first.begin()
        second.begin()
        first.end()
        second.end()
        twice = paddle.profiler.RecordEvent("twice")
        twice.begin()
        twice.begin()
        twice.end()
        twice.end()
        twice.end()
        paddle.profiler.RecordEvent("open").begin()
        recur(2)

    recording = record(work, tmp_path)

    counts = names(recording)
    expected = {"first": 1, "second": 1, "twice": 2, "open": 1, "recursive": 3, "tanh dygraph": 3}
    assert {name: counts[name] for name in expected} == expected
    unfinished = recording.spans().filter("unfinished").collect()
    assert unfinished["name"].to_list() == ["open"]


def test_layers_that_are_none_and_layers_that_fail(tmp_path: Path) -> None:
    class Odd(paddle.nn.Layer):  # type: ignore[misc]
        def named_sublayers(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

        def forward(self, values: Any) -> Any:
            return values + 1

    def work() -> None:
        inputs = iter([1, 2])  # as Layer's function has a variable of that name
        kind = paddle.profiler.TracerEventType.Forward
        with paddle.profiler.RecordEvent("by hand", kind):
            Odd()(paddle.ones([2]))
        assert list(inputs) == [1, 2]

    recording = record(work, tmp_path, with_modules=True, record_shapes=True)

    counts = names(recording)
    assert counts["by hand"] == counts["Odd"] == 1


class Squares(paddle.io.Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return np.full(8, index, "float32"), np.int64(index % 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loading(workers: int, tmp_path: Path) -> None:
    def work() -> None:
        for values, _ in paddle.io.DataLoader(Squares(), batch_size=4, num_workers=workers):
            paddle.tanh(values)

    recording = record(work, tmp_path)

    spans = recording.spans().collect()
    kind = "MultiProcess" if workers else "SingleProcess"
    waits = spans.filter(pl.col("name") == f"_DataLoaderIter{kind}")
    assert len(waits) == 4  # the last one finds that there is no more
    assert set(waits["phase"]) == {"data_loading"}
    fetched = spans.filter(pl.col("name") == "fetch")
    attributes = [json.loads(text) for text in fetched["attributes"]]
    assert [each["samples"] for each in attributes] == [4, 4, 4]
    assert {each.get("worker") for each in attributes} == ({0, 1} if workers else {None})
    assert (os.getpid() not in set(fetched["pid"])) == bool(workers)
    assert set(fetched["phase"]) == {"data_loading"}
    assert names(recording)["collate"] == 3
    assert recording.steps().collect()["kind"].to_list() == ["batch"] * 3
    batches = recording.batches().collect()
    assert batches.select("loader", "number", "samples").rows() == [
        ("DataLoader(Squares)", number, 4) for number in range(3)
    ]
    assert batches["worker"].to_list() == ([0, 1, 0] if workers else [None] * 3)
    # Two for each worker are fetched ahead.
    assert all((ready is not None and ready <= 4) == bool(workers) for ready in batches["queue"])
    assert recording.workers()["batches"].to_list() == ([2, 1] if workers else [])
    assert recording.workers()["cpu_ns"].null_count() == 0
    assert spans[batches["span"].to_list()].equals(waits[:3])
    assert batches["fetch_ns"].null_count() == 0
    assert batches["fetch_ns"].sum() >= fetched["dur_ns"].sum()


def test_the_loop_of_paddle_model(tmp_path: Path) -> None:
    model = paddle.Model(models.mlp())
    optimizer = paddle.optimizer.SGD(parameters=model.parameters())
    model.prepare(optimizer, paddle.nn.CrossEntropyLoss())

    recording = record(lambda: model.fit(Squares(), batch_size=4, verbose=0), tmp_path)

    assert recording.steps().collect()["kind"].to_list() == ["optimizer"] * 3
    spans = recording.spans().filter(pl.col("name") == "sgd_ dygraph").collect()
    assert spans["phase"].to_list() == ["optimizer"] * 12


def test_memory_has_owners_and_what_was_there(tmp_path: Path) -> None:
    core = paddle.base.core
    # It may be below 0: Paddle counts what a loader's thread allocates and frees apart.
    others = core.host_memory_stat_current_value("Allocated", 0)
    before = paddle.ones([100])
    in_use = core.host_memory_stat_current_value("Allocated", 0)
    kept = []

    recording = record(
        lambda: kept.append(paddle.ones([1000, 1000])), tmp_path, profile_memory=True
    )

    rows = recording.allocations().collect()
    assert rows["bytes"][0] == in_use >= others + before.size * 4
    (large,) = rows.filter(pl.col("bytes") == 4_000_000).iter_rows(named=True)
    spans = recording.spans().collect()
    assert spans["name"][large["span"]] == "full kernel launch"
    assert rows["allocated_bytes"][-1] == core.host_memory_stat_current_value("Allocated", 0)
    del kept[:]


def attributes(recording: strobe.Recording, name: str) -> list[dict[str, Any]]:
    spans = recording.spans().filter(pl.col("name") == name).collect()
    return [json.loads(text or "{}") for text in spans["attributes"]]


def test_shapes_of_operators_which_paddle_loses(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    step = models.training()
    step()

    recording = record(repeated(step), tmp_path, record_shapes=True, with_modules=True)

    # 5 rows through 8 x 16 and 16 x 4, and back
    for name in ("matmul dygraph", "matmul kernel launch"):
        found = [each["shapes"] for each in attributes(recording, name)]
        assert found == [[[5, 8], [8, 16]], [[5, 16], [16, 4]]] * STEPS
    for name in ("Local_MatmulGradNode", "matmul_grad kernel launch"):
        told = attributes(recording, name)
        by_input = [dict(zip(each["inputs"], each["shapes"], strict=True)) for each in told]
        last = {"x": [5, 16], "y": [16, 4], "out_grad": [5, 4]}
        assert by_input == [last, {"x": [5, 8], "y": [8, 16], "out_grad": [5, 16]}] * STEPS
    updated = [each["shapes"][0] for each in attributes(recording, "adam_ dygraph")]
    assert updated == [[8, 16], [16], [16, 4], [4]] * STEPS
    # Each operator that has a kernel has its shapes, and of each call one.
    told = recording.spans().filter(pl.col("attributes").str.contains('"shapes"')).collect()
    launched = [name for name in names(recording).elements() if name.endswith(" kernel launch")]
    assert Counter(told["name"]) >= Counter(launched)
    layer = attributes(recording, "Sequential.0")[0]
    assert (layer["shapes"], layer["dtypes"]) == ([[5, 8]], ["float32"])
    assert "does not tell the dtypes" in notes(recording)
    assert "shapes" not in recording.completeness()["source"]
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if not line.startswith("strobe: ")] == []
    library = build.load()
    assert library.strobe_paddle_take(os.fsencode(tmp_path / "rest")) == 0  # nothing is left in it


def test_flops_are_those_of_the_shapes(tmp_path: Path) -> None:
    spans = record(models.inference(), tmp_path, with_flops=True).spans().collect()

    # 2 images of 3 x 8 x 8 with 4 kernels of 3 x 3: 4 x 6 x 6 each, of 27 products and sums
    figures = {
        "conv2d dygraph": 2 * 2 * (4 * 6 * 6) * 27,
        "relu dygraph": 2 * 4 * 6 * 6,
        "matmul dygraph": 2 * 2 * 144 * 5,
    }
    known = spans.filter(pl.col("name").is_in(list(figures)))
    assert dict(known.select("name", "flops").iter_rows()) == figures
    assert spans.filter(pl.col("name") == "batch_norm dygraph")["flops"].to_list() == [None]


def test_what_cannot_be_had_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "_loaded", {})
    monkeypatch.setenv("STROBE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STROBE_BUILD_CALLBACK", "0")

    recording = record(models.inference(), tmp_path / "out", record_shapes=True)

    (row,) = recording.completeness().filter(pl.col("source") == "record_shapes")["note"]
    assert "STROBE_BUILD_CALLBACK=0 and it has not been built ahead" in row
    assert "shapes" not in attributes(recording, "matmul dygraph")[0]
    assert attributes(recording, "Linear")[0]["shapes"] == [[2, 144]]
    assert "record_shapes" in capfd.readouterr().err


def test_rounds(tmp_path: Path) -> None:
    step = models.training()
    schedule = strobe.schedule(wait=1, warmup=0, active=2, repeat=2)
    rounds: list[strobe.Recording] = []

    def keep(profiler: strobe.Profiler) -> None:
        rounds.append(profiler.recording)

    with strobe.Profiler(output=tmp_path, schedule=schedule, on_trace_ready=keep) as profiler:
        for _ in range(6):
            step()
            profiler.step()

    assert [names(each)["Optimization Step"] for each in rounds] == [2, 2]
    assert [names(each)["adam_ dygraph"] for each in rounds] == [8, 8]


def test_two_profilers_share_it(tmp_path: Path) -> None:
    step = models.training()
    outer = strobe.Profiler(output=tmp_path / "outer")
    inner = strobe.Profiler(output=tmp_path / "inner", profile_memory=True)

    outer.start()
    step()
    inner.start()
    step()
    inner.stop()
    step()
    outer.stop()

    assert names(inner.recording)["adam_ dygraph"] == 4
    assert names(outer.recording)["adam_ dygraph"] == 12
    assert len(inner.recording.allocations().collect()) > 1
    assert len(outer.recording.allocations().collect()) == 0


def test_a_window_that_is_too_long_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROBE_PADDLE_SECONDS", "1e-9")
    step = models.training()

    recording = record(repeated(step), tmp_path)

    counts = names(recording)
    assert counts["Optimization Step"] == STEPS
    assert counts["adam_ dygraph"] == 0
    assert "for 1e-09 s of a window at most" in notes(recording)


def test_a_window_is_cut_though_the_program_calls_no_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STROBE_PADDLE_SECONDS", "5")
    values = paddle.ones([4])

    def work() -> None:
        paddle.tanh(values)
        while "of a window at most" not in capfd.readouterr().err:
            time.sleep(0.05)
        for _ in range(3):
            paddle.exp(values)

    recording = record(work, tmp_path, profile_memory=True)

    counts = names(recording)
    assert (counts["tanh dygraph"], counts["exp dygraph"]) == (1, 0)
    assert "for 5 s of a window at most" in notes(recording)
    again = record(lambda: paddle.exp(values), tmp_path / "again")
    assert names(again)["exp dygraph"] == 1


def test_their_profiler_is_started_meanwhile(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    step = models.training()
    results: list[Any] = []

    def work() -> None:
        step()
        results.append(theirs(repeated(step)))

    recording = record(work, tmp_path)

    assert names(recording)["adam_ dygraph"] == 4
    assert names(recording)["Optimization Step"] == 1 + STEPS
    told = Counter(each.name for each in walk(results[0]))
    assert told["adam_ dygraph"] == 4 * STEPS
    assert told["Sequential"] == told["Gradient Backward"] == STEPS
    assert "up to the start of paddle.profiler" in notes(recording)
    assert "paddle: operators are recorded up to the start" in capfd.readouterr().err


def test_their_profiler_is_there_before(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    step = models.training()
    recordings: list[strobe.Recording] = []

    def work() -> None:
        step()
        recordings.append(record(step, tmp_path))
        step()

    result = theirs(work)

    told = Counter(each.name for each in walk(result))
    assert told["adam_ dygraph"] == 12
    assert told["Sequential"] == told["Optimization Step"] == told["Gradient Backward"] == 3
    counts = names(recordings[0])
    assert counts["Sequential"] == counts["Optimization Step"] == 1
    assert counts["adam_ dygraph"] == 0
    assert "a paddle.profiler.Profiler exists" in notes(recordings[0])
    assert "operators are not recorded" in capfd.readouterr().err


def test_their_timer_is_no_obstacle(tmp_path: Path) -> None:
    step = models.training()
    timer: list[Any] = []

    def work() -> None:
        timer.append(paddle.profiler.Profiler(timer_only=True, on_trace_ready=lambda _: None))
        timer[0].start()
        step()
        timer[0].step()
        timer[0].stop()

    recording = record(work, tmp_path)

    assert names(recording)["adam_ dygraph"] == 4


def test_it_may_start_inside_of_anything(tmp_path: Path) -> None:
    """Paddle asks twice whether a profiler is there, and must not get two answers."""
    values = paddle.ones([2])
    values.stop_gradient = False
    profiler = strobe.Profiler(output=tmp_path)

    class Starting(Squares):
        def __getitem__(self, index: int) -> Any:
            if index == 5:
                profiler.start()
            return super().__getitem__(index)

    def stop(_: Any) -> None:
        profiler.stop()

    for _ in paddle.io.DataLoader(Starting(), batch_size=4):
        pass
    values.register_hook(stop)
    (values * 2).sum().backward()
    other = strobe.Profiler(output=tmp_path / "other")
    doubled = values.detach()
    doubled.stop_gradient = False
    doubled.register_hook(lambda _: other.start())
    (doubled * 2).sum().backward()
    other.stop()

    assert names(profiler.recording)["fetch"] >= 1


def test_nothing_stays_patched(tmp_path: Path) -> None:
    from paddle.io.dataloader import dataloader_iter, fetcher

    def state() -> list[Any]:
        utils = paddle.profiler.utils
        iterator = dataloader_iter._DataLoaderIterSingleProcess
        return [
            *(utils._is_profiler_used, utils.RecordEvent.begin, utils.RecordEvent.end),
            *(paddle.profiler.profiler._Profiler, paddle.Tensor.backward, iterator.__next__),
            *(dataloader_iter.in_profiler_mode, fetcher._MapDatasetFetcher.fetch),
            *(paddle.optimizer.Optimizer.step, paddle.optimizer.Adam.step),
            *(paddle.optimizer.Optimizer.clear_grad, paddle.distributed.barrier),
            paddle.distributed.communication.stream.all_reduce,
        ]

    before = state()
    during: list[Any] = []

    record(lambda: during.extend(state()), tmp_path)

    assert state() == before
    assert all(now != then for now, then in zip(during, before, strict=True))


PROGRAM = """
import strobe

profiler = strobe.Profiler(output="out")
profiler.start()
import paddle

model = paddle.nn.Linear(3, 2)
optimizer = paddle.optimizer.SGD(parameters=model.parameters())
for _ in range(3):
    model(paddle.ones([2, 3])).sum().backward()
    optimizer.step()
profiler.stop()
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_it_may_be_imported_later(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)

    done = run(tmp_path, "program.py")

    recording = strobe.open(tmp_path / "out")
    assert names(recording)["sgd_ dygraph"] == 6
    assert [line for line in done.stderr.splitlines() if not line.startswith("strobe: ")] == []


def test_a_program_that_is_not_changed(tmp_path: Path) -> None:
    lines = [
        line for line in PROGRAM.splitlines() if "strobe" not in line and "profiler" not in line
    ]
    (tmp_path / "program.py").write_text("\n".join(lines))

    run(tmp_path, "-m", "strobe", "run", "--output", "out", "program.py")

    recording = strobe.open(tmp_path / "out")
    assert names(recording)["sgd_ dygraph"] == 6
    assert recording.steps().collect()["kind"].to_list() == ["optimizer"] * 3


@pytest.mark.parametrize("make", ["training", "static"])
def test_steps_of_a_program_are_counted_by_themselves(make: str, tmp_path: Path) -> None:
    lines = [
        f"import sys, paddle; sys.path.insert(0, {str(Path(models.__file__).parent)!r})",
        "import paddle_models",
        "paddle.enable_static()" if make == "static" else "",
        f"step = paddle_models.{make}()",
        "for _ in range(6): step()",
    ]
    (tmp_path / "program.py").write_text("\n".join(lines))

    run(tmp_path, "-m", "strobe", "run", "--steps", "2:4", "--output", "out", "program.py")

    counts = names(strobe.open(tmp_path / "out"))
    updates = {"training": ("adam_ dygraph", 4), "static": ("pd_op.adam_", 2)}
    name, parameters = updates[make]
    assert counts[name] == 2 * parameters


RANK = """
import paddle, paddle.distributed as distributed, strobe

distributed.init_parallel_env()
values = paddle.ones([10])
with strobe.Profiler(output="out"):
    distributed.all_reduce(values)
    distributed.all_gather([], values)
    distributed.all_reduce(values.astype("float64"), sync_op=False).wait()
    distributed.barrier()
    if distributed.get_rank() == 0:
        distributed.send(values, dst=1)
    else:
        distributed.recv(values, src=0)
"""


PARALLEL = """
import paddle

layers = paddle.nn.Linear(300, 300), paddle.nn.ReLU(), paddle.nn.Linear(300, 2)
sizes = {"comm_buffer_size": 0.1, "last_comm_buffer_size": 0.01}
model = paddle.DataParallel(paddle.nn.Sequential(*layers), **sizes)
gradients = paddle.ones([4, 300])
with strobe.Profiler(output="parallel"):
    for _ in range(3):
        model(gradients).sum().backward()
"""


def check_exchanges(folder: Path) -> None:
    """What DataParallel exchanges in a backward is found where Paddle has no event of it."""
    paths = find_recordings(folder)
    assert len(paths) == 2
    for path in paths:
        recording = strobe.open(path)
        rows = recording.collectives().collect()
        # The bucket of what is small and that of 300 x 300 weights, in each of three backwards.
        expected = rows["bytes"].unique().to_list()
        assert sum(expected) == 4 * (300 * 300 + 300 + 300 * 2 + 2)
        assert rows.height == 3 * len(expected)
        assert set(rows["name"]) == {"all_reduce"}
        assert set(rows.select("dtype", "backend", "ranks").rows()) == {
            ("float32", "gloo", "[0, 1]")
        }
        spans = recording.spans().collect()
        found = spans.filter(pl.col("name") == "DataParallel all_reduce")
        assert set(found["phase"]) == {"backward"}
        assert set(spans["name"].gather(found["parent"])) == {"Global_GradNodeAccumulation"}


def test_collectives_of_two_ranks(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK + PARALLEL)
    launch = ["-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--backend", "gloo"]

    run(tmp_path, *launch, "--log_dir", "log", "rank.py")

    found = find_recordings(tmp_path / "out")
    assert len(found) == 2
    for rank, path in enumerate(found):
        rows = strobe.open(path).collectives().collect()
        assert rows.select("name", "bytes", "dtype").rows() == [
            ("all_reduce", 40, "float32"),
            ("all_gather", 40, "float32"),
            ("all_reduce", 80, "float64"),
            ("barrier", 0, None),
            ("recv" if rank else "send", 40, "float32"),
        ]
        assert set(rows["backend"]) == {"gloo"}
        assert set(rows["ranks"]) == {"[0, 1]"}
        assert (rows["wait_ns"] > 0).all()
        assert (rows["wait_ns"] <= rows["dur_ns"]).all()
    check_exchanges(tmp_path / "parallel")
