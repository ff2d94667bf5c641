# SPDX-License-Identifier: Apache-2.0
"""strobe.paddle beside paddle.profiler: the same run, the same figures, but for known faults."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import strobe.paddle as profiler
from strobe.model.paddle import TracerEventType as Type

if find_spec("paddle") is None:
    pytest.skip("PaddlePaddle is not installed", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it tells of a compiler cache that is not there
    import paddle
    import paddle.profiler
    from paddle.profiler.profiler_statistic import StatisticData

    import paddle_models as models

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:paddle"),
]

STEPS = 3


@pytest.fixture(autouse=True)
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """There can be one native profiler: that of a test goes with its objects."""
    monkeypatch.chdir(tmp_path)
    gc.collect()
    yield
    gc.collect()


def work(prof: Any, record_event: Any) -> None:
    step = models.training()
    for _ in range(STEPS):
        with record_event("mine"):
            step()
        with record_event("memcpy of mine"):
            paddle.zeros([4, 4])
        prof.step()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """Paddle's own statistics of a run of Paddle's own profiler, and our tables of its file."""
    folder = tmp_path_factory.mktemp("both")
    with paddle.profiler.Profiler(on_trace_ready=lambda _: None, profile_memory=True) as prof:
        work(prof, paddle.profiler.RecordEvent)
    result = prof.profiler_result
    theirs = StatisticData(result.get_data(), result.get_extra_info())
    result.save(str(folder / "x.pb"), "pb")
    theirs.owner = result  # its nodes go with it
    ours = profiler.load_profiler_result(folder / "x.pb").summary()
    return theirs, ours


def figures(items: Any) -> dict[str, tuple[Any, ...]]:
    return {
        name: (item.call, item.cpu_time, item.max_cpu_time, item.min_cpu_time)
        for name, item in items.items()
    }


MEASURES = ("calls", "cpu_total_ns", "cpu_max_ns", "cpu_min_ns")


def measured(table: pl.DataFrame) -> dict[str, tuple[Any, ...]]:
    return {row["name"]: tuple(row[name] for name in MEASURES) for row in table.to_dicts()}


def test_operators_and_what_is_in_them_agree(both: tuple[Any, Any]) -> None:
    theirs, ours = both
    top = ours.operator.filter(pl.col("level") == 0)

    assert measured(top) == figures(theirs.event_summary.items)
    assert len(top) > 10
    whole = sum(item.cpu_time for item in theirs.event_summary.items.values())
    assert top["cpu_ratio"].to_list() == pytest.approx((top["cpu_total_ns"] / whole).to_list())
    for name, item in theirs.event_summary.items.items():
        inside = ours.operator.filter((pl.col("operator") == name) & (pl.col("level") == 1))
        assert measured(inside) == figures(item.operator_inners)


def test_the_model_agrees(both: tuple[Any, Any]) -> None:
    theirs, ours = both

    parts = measured(ours.model.filter(pl.col("name") != "Others"))

    assert parts == figures(theirs.event_summary.model_perspective_items)
    assert set(parts) == {"ProfileStep", "Forward", "Backward", "Optimization"}


def test_what_users_named_agrees(both: tuple[Any, Any]) -> None:
    theirs, ours = both

    assert measured(ours.userdefined) == figures(theirs.event_summary.userdefined_items)
    copies = figures(theirs.event_summary.memory_manipulation_items)
    assert measured(ours.memory_manipulation) == copies
    assert list(copies) == ["memcpy of mine"]


def test_the_overview_agrees(both: tuple[Any, Any]) -> None:
    theirs, ours = both
    times = theirs.time_range_summary
    parts = theirs.event_summary.model_perspective_items

    for row in ours.overview.to_dicts():
        kind = getattr(paddle.profiler.TracerEventType, row["type"])
        expected = times.get_cpu_range_sum(kind)
        calls = times.call_times[kind]
        if row["type"] in parts and row["type"] != "ProfileStep":
            expected, calls = parts[row["type"]].cpu_time, parts[row["type"]].call
        assert (row["type"], row["time_ns"], row["calls"]) == (row["type"], expected, calls)


def test_memory_agrees_but_for_what_paddle_counts_twice(both: tuple[Any, Any]) -> None:
    theirs, ours = both
    (place,) = theirs.memory_summary.allocated_items
    items = theirs.memory_summary.allocated_items[place]
    launches = [name for name in items if name.endswith("kernel launch")]
    of_operators = set(theirs.event_summary.items)

    found = {row["name"]: row for row in ours.memory.filter(type="Allocated").to_dicts()}

    assert place == "Place(cpu)"
    # Paddle lists the blocks of a kernel launch in the operator, and again by the launch's name.
    assert launches
    assert not set(launches) & set(found)
    for name in of_operators & set(items):
        # It looks one level deep; what a backward's inner events hold is ours alone.
        assert found[name]["allocation_count"] >= items[name].allocation_count
    in_all = sum(row["increased_bytes"] for row in found.values())
    every = [node.increase_bytes for root in theirs.node_trees.values() for node in _blocks(root)]
    assert in_all == sum(every)
    assert sum(item.increase_size for item in items.values()) != sum(every)
    # What was in use before counts, as Paddle counts it.
    blocks = [node for root in theirs.node_trees.values() for node in _blocks(root)]
    peak = max(block.current_allocated for block in blocks)
    assert set(ours.memory.filter(type="Allocated")["peak_bytes"]) == {peak}


def _blocks(node: Any) -> Iterator[Any]:
    yield from node.mem_node
    for child in node.children_node:
        yield from _blocks(child)


def test_the_same_program_has_the_same_events_under_both() -> None:
    """What differs on purpose is in DIFFERENCES."""
    with paddle.profiler.Profiler(on_trace_ready=lambda _: None) as prof:
        work(prof, paddle.profiler.RecordEvent)
    result = prof.profiler_result
    times = StatisticData(result.get_data(), result.get_extra_info()).time_range_summary.call_times
    theirs = {kind.name: calls for kind, calls in times.items()}
    del prof, result
    gc.collect()
    with profiler.Profiler(on_trace_ready=lambda _: None) as mine:
        work(mine, profiler.RecordEvent)
    tables = mine.summary()
    assert tables is not None
    rows = profiler.load_profiler_result(_exported(mine)).get_data()
    ours: dict[str, int] = {}
    for root in rows.values():
        for node in _nodes(root):
            ours[node.type.name] = ours.get(node.type.name, 0) + 1

    assert theirs.pop("ProfileStep") == STEPS + 1, DIFFERENCES["ProfileStep"]
    assert ours.pop("ProfileStep") == STEPS
    assert ours.pop("PythonOp") == STEPS, DIFFERENCES["PythonOp"]
    # The native events are those of one and the same profiler, Paddle's.
    assert ours.pop("OperatorInner") == theirs.pop("OperatorInner") + theirs.pop(
        "DygraphKernelLaunch"
    ), DIFFERENCES["DygraphKernelLaunch"]
    assert ours == theirs


DIFFERENCES = {
    "ProfileStep": "Paddle counts the step that had begun when it was stopped",
    "PythonOp": "we record clear_grad, which Paddle does not",
    "DygraphKernelLaunch": "Paddle cannot read this type in a .pb, so we write OperatorInner",
}


def _exported(mine: profiler.Profiler) -> str:
    mine.export("x.pb", "pb")
    return "x.pb"


def _nodes(node: Any) -> Iterator[Any]:
    for child in node.children_node:
        yield child
        yield from _nodes(child)


def test_paddle_loads_our_file_with_memory_and_all() -> None:
    with profiler.Profiler(on_trace_ready=lambda _: None, profile_memory=True) as mine:
        work(mine, profiler.RecordEvent)
    mine.export("x.pb", "pb")

    loaded = paddle.profiler.load_profiler_result("x.pb")

    assert loaded is not None
    theirs = StatisticData(loaded.get_data(), loaded.get_extra_info())
    tables = mine.summary()
    assert tables is not None
    top = tables.operator.filter(pl.col("level") == 0)
    assert figures(theirs.event_summary.items) == measured(top)
    parts = tables.model.filter(pl.col("name") != "Others")
    assert figures(theirs.event_summary.model_perspective_items) == measured(parts)
    blocks = [block for root in loaded.get_data().values() for block in _blocks(root)]
    assert sum(block.increase_bytes for block in blocks) == tables.memory["increased_bytes"].sum()
    assert loaded.get_version() == "1.0.2"
    assert float(loaded.get_extra_info()["Process Cpu Utilization"]) > 0
    assert {Type(int(node.type)) for root in loaded.get_data().values() for node in _nodes(root)}


@pytest.mark.parametrize("form", ["json", "pb"])
def test_a_file_of_ours_has_the_tables_of_its_recording(form: str) -> None:
    options = {"profile_memory": True, "record_shapes": True, "with_flops": True}
    with profiler.Profiler(on_trace_ready=lambda _: None, **options) as mine:
        work(mine, profiler.RecordEvent)
    mine.export("x", form)

    live, loaded = mine.summary(), profiler.load_profiler_result("x").summary()

    assert live is not None
    assert live.operator["flops"].sum() > 0
    for name in ("model", "operator", "userdefined", "memory", "memory_manipulation", "flops"):
        assert_frame_equal(getattr(loaded, name), getattr(live, name))


SEED = """
import paddle
import strobe.paddle as profiler
linear = paddle.nn.Linear(13, 5)
momentum = paddle.optimizer.Momentum(learning_rate=0.0003, parameters=linear.parameters())
def train():
    data = paddle.reshape(paddle.randn(shape=[26]), [2, 13])
    linear(data).backward()
    momentum.step()
    momentum.clear_grad()
targets = [profiler.ProfilerTarget.CPU, profiler.ProfilerTarget.GPU]
with profiler.Profiler(targets=targets,
                       scheduler=profiler.make_scheduler(closed=1, ready=2, record=3, repeat=1),
                       on_trace_ready=profiler.export_chrome_tracing('./profiler_demo')) as prof:
    for i in range(10):
        train()
        prof.step()
prof.summary()
prof = profiler.Profiler(targets=targets, scheduler=(5, 9),
                         on_trace_ready=profiler.export_chrome_tracing('./profiler_demo'))
prof.start()
for i in range(10):
    train()
    prof.step()
prof.stop()
prof.summary()
with profiler.Profiler(on_trace_ready=lambda p: None) as prof:
    with paddle.no_grad():
        linear(paddle.randn([2, 13]))
prof.summary()
"""


def test_the_examples_of_the_document_print_every_table() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SEED], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    for title in (
        *("Device", "Overview", "Model", "Distribution", "Operator", "Kernel"),
        *("Memory Manipulation", "UserDefined", "Memory"),
    ):
        assert done.stdout.count(f"{title} Summary") >= 3, title
    steps = [line.split() for line in done.stdout.splitlines() if line.startswith("ProfileStep ")]
    assert [line[1] for line in steps] == ["3", "3", "4", "4", "1", "1"]


def test_waits_for_data_are_told_to_the_timer() -> None:
    dataset = paddle.io.TensorDataset([paddle.randn([24, 3])])
    kind = paddle.io.dataloader.dataloader_iter._DataLoaderIterSingleProcess
    theirs = paddle.profiler.timer.benchmark()
    before = kind.__next__, dict(vars(theirs))
    for options in ({"timer_only": True}, {"on_trace_ready": lambda _: None}):
        made = profiler.Profiler(**options)  # type: ignore[arg-type]
        with made:
            for _ in paddle.io.DataLoader(dataset, batch_size=2):
                made.step(num_samples=2)
            told = made.step_info("images")

        assert "reader_cost" in told
        assert "images/s" in told
        assert (kind.__next__, dict(vars(theirs))) == before
