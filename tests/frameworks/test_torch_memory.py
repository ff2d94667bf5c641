# SPDX-License-Identifier: Apache-2.0
"""Memory as strobe tells it and as torch.profiler does: which operator took and gave how much."""

from __future__ import annotations

import gc
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from strobe.model import check

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_models import MODELS  # noqa: E402  (needs torch)


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Nothing of other tests is freed while one records."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def whole_life(model: str) -> Callable[[], None]:
    """A model made, trained for two steps and given up: it frees what it allocated, no more."""

    def live() -> None:
        torch.manual_seed(1)
        step = MODELS[model]()
        step()
        step()
        del step
        gc.collect()

    live()  # what happens only once has happened
    return live


def record(work: Callable[[], None], folder: Path) -> strobe.Recording:
    profiler = strobe.Profiler(output=folder, profile_memory=True)
    with profiler:
        work()
    assert check(profiler.recording.spans().collect()) == []
    return profiler.recording


def while_recording(recording: strobe.Recording) -> pl.DataFrame:
    """The allocations and frees, without what was there before."""
    return recording.allocations().filter(pl.col("lane").is_not_null()).collect()


def sums(spans: pl.DataFrame, events: pl.DataFrame) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes by name, inside and in person; an only child with its parent's name is that parent.

    So does torch.profiler when it takes averages.
    """
    total: dict[str, int] = defaultdict(int)
    own: dict[str, int] = defaultdict(int)
    parents, names = spans["parent"].to_list(), spans["name"].to_list()
    children = Counter(parents)
    for size, owner in events.drop_nulls("span").select("bytes", "span").iter_rows():
        own[names[owner]] += size
        span = owner
        while span is not None:
            above = parents[span]
            if above is None or names[above] != names[span] or children[above] > 1:
                total[names[span]] += size
            span = above
    return total, own


def of_torch(profile: Any) -> list[tuple[int, str | None]]:
    """Bytes and owner of each allocation and free, in their order."""
    found: list[tuple[int, int, str | None]] = []

    def walk(node: Any) -> None:
        if node.name == "[memory]":
            owner = None if node.parent is None else node.parent.name
            found.append((node.start_time_ns, node.typed[1].alloc_size, owner))
        for child in node.children:
            walk(child)

    for root in profile.profiler.kineto_results.experimental_event_tree():
        walk(root)
    return [(size, owner) for _, size, owner in sorted(found, key=lambda event: event[0])]


@pytest.mark.parametrize("model", MODELS)
def test_allocations_and_their_owners_are_those_of_torch_profiler(
    model: str, tmp_path: Path
) -> None:
    work = whole_life(model)
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    recording = record(work, tmp_path)
    spans = recording.spans().collect()
    events = while_recording(recording)

    owners = spans["name"].gather(events["span"])
    ours = list(zip(events["bytes"].to_list(), owners.to_list(), strict=True))
    assert len(ours) > 100
    assert ours == of_torch(profile)
    assert events["bytes"].sum() == 0

    total, own = sums(spans, events)
    told = [each for each in profile.key_averages() if each.key != "[memory]"]
    assert {each.key: total[each.key] for each in told} == {
        each.key: each.cpu_memory_usage for each in told
    }
    assert {each.key: own[each.key] for each in told} == {
        each.key: each.self_cpu_memory_usage for each in told
    }


def test_peak_and_what_was_there_before(tmp_path: Path) -> None:
    before = torch.empty(1000)
    views = [before[:10], before.view(10, 100)]
    addresses = []

    def work() -> None:
        first = torch.empty(250_000)
        second = torch.empty(250_000, dtype=torch.float64)
        addresses.extend([first.data_ptr(), second.data_ptr()])
        del first
        third = torch.empty(7, dtype=torch.int8)
        del second, third

    recording = record(work, tmp_path)

    events = while_recording(recording)
    assert events["bytes"].to_list() == [1_000_000, 2_000_000, -1_000_000, 7, -2_000_000, -7]
    assert events["address"].to_list()[:3] == [*addresses, addresses[0]]
    alive = recording.allocations().filter(pl.col("lane").is_null(), pl.col("bytes") > 0).collect()
    assert alive.filter(pl.col("address") == before.data_ptr())["bytes"].to_list() == [4000]
    assert alive["start_ns"].max() <= events["start_ns"].min()
    held = alive["bytes"].sum()
    assert events["allocated_bytes"].to_list() == [
        held + more for more in (1_000_000, 3_000_000, 2_000_000, 2_000_007, 7, 0)
    ]
    assert len(views) == 2


def test_a_tensor_that_fails_to_say_its_size_is_counted(tmp_path: Path) -> None:
    class Odd(torch.Tensor):
        def untyped_storage(self) -> Any:
            raise KeyError("what")

    odd = torch.ones(4).as_subclass(Odd)
    sparse = torch.eye(3).to_sparse()  # has no storage either, and is none of the program's doing
    with strobe.Profiler(output=tmp_path, profile_memory=True) as profiler:
        torch.ones(10)

    notes = profiler.recording.completeness()["note"].to_list()

    assert type(odd) is Odd
    assert sparse.is_sparse
    assert "1 tensors that existed at the start failed to say how much memory" in notes[0]


def test_memory_of_other_threads_is_told(tmp_path: Path) -> None:
    def work() -> None:
        thread = threading.Thread(target=lambda: torch.empty(1000).exp())
        thread.start()
        thread.join()

    events = while_recording(record(work, tmp_path))

    # What another thread than the one that started frees between its operators is not told.
    assert events["bytes"].to_list() == [4000, 4000]
    assert events["tid"].n_unique() == 1


def test_torch_profiler_starts_in_threads_that_were_recorded(tmp_path: Path) -> None:
    names: list[str] = []

    def work() -> None:
        torch.empty(1000).exp()
        recorded.set()
        stopped.wait(400)
        with torch.profiler.profile(profile_memory=True) as profile:
            torch.empty(1000).exp()
        names.extend(each.name() for each in profile.profiler.kineto_results.events())

    recorded, stopped = threading.Event(), threading.Event()
    thread = threading.Thread(target=work)
    with strobe.Profiler(output=tmp_path, profile_memory=True):
        thread.start()
        recorded.wait(400)
    stopped.set()
    thread.join()

    assert names.count("aten::exp") == 1
    assert names.count("[memory]") >= 2


def test_torch_profiler_starts_where_another_thread_stopped_the_recording(tmp_path: Path) -> None:
    enable = vars(torch.autograd.profiler)["_enable_profiler"]
    profiler = strobe.Profiler(output=tmp_path, profile_memory=True)
    profiler.start()
    torch.empty(1000)
    thread = threading.Thread(target=profiler.stop)
    thread.start()
    thread.join()
    assert vars(torch.autograd.profiler)["_enable_profiler"] is enable

    with torch.profiler.profile(profile_memory=True) as profile:
        torch.empty(1000).exp()

    names = [each.name() for each in profile.profiler.kineto_results.events()]
    assert names.count("aten::exp") == 1
    assert "[memory]" in names


def test_all_that_overlap_say_that_torch_profiler_took_over(tmp_path: Path) -> None:
    first, second = (strobe.Profiler(output=tmp_path, profile_memory=True) for _ in range(2))
    with first:
        with second, torch.profiler.profile():
            torch.empty(1000)
        torch.empty(1000)

    for profiler in (first, second):
        notes = dict(profiler.recording.completeness().select("source", "note").iter_rows())
        assert "was started meanwhile" in notes["profile_memory"]


def test_running_out_of_memory_is_noted_with_who_held_what(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.ones(500_000)  # 2 MB
    kept = []
    profiler = strobe.Profiler(output=tmp_path, profile_memory=True)

    def run_out() -> None:
        with profiler:
            kept.append(torch.ones(1_000_000) + 1)  # 4 MB, and as much again for a while
            torch.empty(10**15)

    with pytest.raises(RuntimeError, match="can't allocate memory"):
        run_out()
    recording = profiler.recording

    said = capsys.readouterr().err
    assert "strobe: out of memory (RuntimeError), " in said
    assert "MB in 1 block: aten::add\n" in said
    instants = recording.instants().collect()
    assert instants["name"].to_list() == ["out of memory"]
    (on_host,) = json.loads(instants["attributes"][0])["held"]
    then = {owner: size for owner, size, _ in on_host["owners"]}
    assert then["aten::add"] == kept[0].nbytes
    assert then["(before the start)"] >= before.nbytes
    assert "aten::ones" not in then  # freed again
    assert on_host["bytes"] == sum(then.values())
    held = recording.memory_held().filter(pl.col("device").is_null())
    assert held["bytes"].sum() == recording.peak_allocated()["peak_bytes"][0]
    owners = dict(held.select("owner", "bytes").iter_rows())
    assert owners["(before the start)"] >= before.nbytes
    assert owners["aten::add"] == kept[0].nbytes
    text = recording.memory_text(width=120)
    assert "out of memory at" in text
    assert "aten::add" in text
