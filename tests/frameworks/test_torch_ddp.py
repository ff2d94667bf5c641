# SPDX-License-Identifier: Apache-2.0
"""Real ranks on gloo: DistributedDataParallel, FSDP and collectives, beside torch.profiler."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from programs import run_python
from strobe.model import check

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

PREPARE = """
import json, sys, torch, strobe
import torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
rank, world = distributed.get_rank(), distributed.get_world_size()
torch.manual_seed(rank)


def make():
    layers = torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    return torch.nn.Sequential(*layers)


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(5, 8)).pow(2).mean().backward()
    optimizer.step()

"""

DDP = """
model = DistributedDataParallel(make())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):  # buckets are made anew after the first step
    train(model, optimizer)
theirs = torch.profiler.profile()
with strobe.Profiler(output="out", name="ddp"), theirs:
    with torch.profiler.record_function("region"):
        for _ in range(2):
            train(model, optimizer)
names = []


def walk(node):
    names.append(node.name)
    for child in node.children:
        walk(child)


for root in theirs.profiler.kineto_results.experimental_event_tree():
    if root.name == "region":
        walk(root)
with open(f"names-{rank}.json", "w") as file:
    json.dump(names, file)
"""

COLLECTIVES = """
first = distributed.new_group(list(range(world // 2 + 1)))
numbers = torch.ones(100, dtype=torch.float64)
with strobe.Profiler(output="out", name="calls"):
    distributed.all_reduce(numbers)
    works = [distributed.all_reduce(torch.ones(size), async_op=True) for size in (10, 20)]
    torch.ones(3)
    for work in works:
        work.wait()
    if rank <= world // 2:
        distributed.broadcast(numbers, 0, group=first)
    parts = [torch.empty(3, dtype=torch.int64) for _ in range(world)]
    distributed.all_gather(parts, torch.ones(3, dtype=torch.int64))
    if rank == 0:
        distributed.send(torch.ones(7, dtype=torch.float16), 1)
    elif rank == 1:
        distributed.recv(torch.ones(7, dtype=torch.float16), 0)
    whole = torch.ones(world * 2)
    distributed.all_to_all_single(torch.empty(world * 2), whole)
    distributed.reduce_scatter_tensor(torch.empty(2), whole)
    distributed.all_gather_into_tensor(torch.empty(world * 2), torch.ones(2))
    distributed.reduce(torch.ones(5, dtype=torch.bfloat16), 0)
    distributed.scatter(torch.empty(3), [torch.ones(3)] * world if rank == 0 else None)
    distributed.barrier()
"""

FSDP = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

model = make()
mesh = init_device_mesh("cpu", (world,))
for layer in model:
    if isinstance(layer, torch.nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    train(model, optimizer)
with strobe.Profiler(output="out", name="fsdp"):
    train(model, optimizer)
"""

END = """
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.fixture(scope="module", params=[2, 4])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    return Job(folder, request.param, PREPARE + DDP + COLLECTIVES + FSDP + END)


class Job:
    """A program that torchrun has run with so many ranks, and its recordings."""

    def __init__(self, folder: Path, ranks: int, source: str) -> None:
        self.folder, self.ranks = folder, ranks
        (folder / "train.py").write_text(source)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        run_python(folder, *torchrun, "train.py")

    def recording(self, name: str, rank: int) -> strobe.Recording:
        (path,) = self.folder.glob(f"out/{name}-*/rank{rank:05}-*")
        recording = strobe.open(path)
        assert check(recording.spans().collect()) == []
        return recording

    def calls(self, name: str, rank: int) -> list[tuple[Any, ...]]:
        """What each row of `collectives` says, in their order."""
        columns = ("name", "backend", "ranks", "bytes", "dtype")
        return self.recording(name, rank).collectives().select(columns).collect().rows()


def test_the_operators_of_a_rank_are_those_of_torch_profiler(job: Job) -> None:
    for rank in range(job.ranks):
        theirs = json.loads((job.folder / f"names-{rank}.json").read_text())
        spans = job.recording("ddp", rank).spans().collect()
        (region,) = spans.filter(pl.col("name") == "region").iter_rows(named=True)
        inside = spans.filter(
            pl.col("lane") == region["lane"],
            pl.col("start_ns") >= region["start_ns"],
            pl.col("start_ns") <= region["start_ns"] + region["dur_ns"],
            ~pl.col("name").str.starts_with("gloo:"),
        )
        assert len(theirs) > 100
        assert inside["name"].to_list() == [n for n in theirs if not n.startswith("gloo:")]


def test_gradients_are_reduced_once_a_step_and_linked_with_their_work(job: Job) -> None:
    size = 4 * (8 * 16 + 16 + 16 * 4 + 4)  # of all parameters, which are one bucket
    everyone = json.dumps(list(range(job.ranks)))
    for rank in range(job.ranks):
        recording = job.recording("ddp", rank)
        spans = recording.spans().with_row_index().collect()
        told = recording.collectives().collect()

        assert job.calls("ddp", rank) == [("all_reduce", "gloo", everyone, size, "float")] * 2
        works = spans.filter(pl.col("name") == "gloo:all_reduce")["index"]
        assert sorted(told["work"]) == works.to_list()
        assert spans["name"].gather(told["span"]).to_list() == ["c10d::allreduce_"] * 2
        launches = recording.links().filter(pl.col("kind") == "launch").collect()
        assert launches.select("source", "target").rows() == told.select("span", "work").rows()
        for row in told.iter_rows(named=True):
            call, work = (spans.row(row[part], named=True) for part in ("span", "work"))
            assert call["phase"] == work["phase"] == "backward"
            end_ns = max(each["start_ns"] + each["dur_ns"] for each in (call, work))
            assert row["start_ns"] == call["start_ns"]
            assert row["dur_ns"] == end_ns - call["start_ns"]


def test_each_call_is_one_row_with_its_group_bytes_and_dtype(job: Job) -> None:
    world = job.ranks
    everyone = list(range(world))
    for rank in range(world):
        expected = [
            ("all_reduce", everyone, 8 * 100, "double"),
            ("all_reduce", everyone, 4 * 10, "float"),
            ("all_reduce", everyone, 4 * 20, "float"),
            ("broadcast", everyone[: world // 2 + 1], 8 * 100, "double"),
            ("all_gather", everyone, 8 * 3, "long int"),
            ("send" if rank == 0 else "recv", everyone, 2 * 7, "c10::Half"),
            ("all_to_all", everyone, 4 * 2 * world, "float"),
            ("reduce_scatter", everyone, 4 * 2 * world, "float"),
            ("all_gather", everyone, 4 * 2, "float"),
            ("reduce", everyone, 2 * 5, "c10::BFloat16"),
            # torch tells no shapes of lists of lists, gloo those of what it sends
            ("scatter", everyone, 4 * 3 * world if rank == 0 else None, "float"),
            ("barrier", everyone, 0, None),
        ]
        if rank > world // 2:
            del expected[3]  # not in the group
        expected = [row for row in expected if row[0] not in ("send", "recv") or rank < 2]
        assert job.calls("calls", rank) == [
            (name, "gloo", json.dumps(ranks), size, dtype) for name, ranks, size, dtype in expected
        ]


def test_a_wait_belongs_to_its_call(job: Job) -> None:
    for rank in range(job.ranks):
        recording = job.recording("calls", rank)
        spans = recording.spans().collect()
        told = recording.collectives().collect()

        assert told["wait_ns"].null_count() == 0
        waits = spans.filter(pl.col("name") == "Work.wait")["dur_ns"].to_list()
        asked = spans["dur_ns"].gather(told["span"]).to_list()
        # One wait for each call, in their order: also for those that were asked for together.
        assert told["wait_ns"].to_list() == [a + w for a, w in zip(asked, waits, strict=True)]


def test_each_work_of_gloo_belongs_to_one_call(job: Job) -> None:
    for rank in range(job.ranks):
        recording = job.recording("calls", rank)
        names = recording.spans().select("name").collect()["name"].to_list()
        works = Counter(name for name in names if name.startswith("gloo:"))
        told = recording.collectives().drop_nulls("work").collect()

        assert told["work"].n_unique() == told.height
        assert Counter(names[row] for row in told["work"]) == works


def test_fsdp_gathers_its_layers_and_scatters_their_gradients(job: Job) -> None:
    first, second = 4 * (8 * 16 + 16), 4 * (16 * 4 + 4)
    for rank in range(job.ranks):
        calls = Counter((name, size) for name, _, _, size, _ in job.calls("fsdp", rank))
        gathered = Counter({("all_gather", each // job.ranks): 2 for each in (first, second)})
        assert calls - gathered == Counter(
            {("reduce_scatter", first): 1, ("reduce_scatter", second): 1}
        )
        assert gathered - calls == Counter()
