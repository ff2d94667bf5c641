# SPDX-License-Identifier: Apache-2.0
"""Ranks of torchrun, with strobe run either way round, and of a program: one folder per job."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest

import strobe
from programs import run_python

pytestmark = pytest.mark.torch

PROGRAM = """
import sys
import torch.distributed as distributed
import strobe

distributed.init_process_group("gloo")
with strobe.span("work"):
    distributed.barrier()
distributed.destroy_process_group()
assert sys.argv[1:] == ["--json", "-m", "x"], sys.argv
"""
SPAWNING = """
import torch.multiprocessing as multiprocessing
import torch.distributed as distributed
import strobe

def work(rank):
    distributed.init_process_group("gloo", "file://" + __file__ + ".store", rank=rank, world_size=2)
    with strobe.Profiler(output="out"), strobe.span(f"work of {rank}"):
        distributed.barrier()
    distributed.destroy_process_group()

if __name__ == "__main__":
    multiprocessing.spawn(work, nprocs=2)
"""
RUN = ["-m", "strobe", "run", "--output", "out"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
ARGUMENTS = ["train.py", "--json", "-m", "x"]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param([*RUN, "--", sys.executable, *TORCHRUN, *ARGUMENTS], id="strobe-torchrun"),
        pytest.param([*TORCHRUN, *RUN, *ARGUMENTS], id="torchrun-strobe"),
    ],
)
def test_each_rank_has_one_recording(tmp_path: Path, command: list[str]) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "train.py").write_text(PROGRAM)

    for _ in range(2):  # a second job does not mix with the first
        run_python(tmp_path, *command)

    jobs = sorted((tmp_path / "out").iterdir())
    assert len(jobs) == 2
    for job in jobs:
        recordings = sorted(job.iterdir())
        assert [path.name[:9] for path in recordings] == ["rank00000", "rank00001"]
        for path in recordings:
            spans = strobe.open(path).spans().collect()
            assert spans.filter(pl.col("category") == "user")["name"].to_list() == ["work"]
    newest = strobe.open(tmp_path / "out")
    assert isinstance(newest, strobe.Job)
    assert (newest.ranks, newest.missing) == ([0, 1], [])


def test_ranks_that_only_the_program_knows_are_those_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    (tmp_path / "train.py").write_text(SPAWNING)

    run_python(tmp_path, str(tmp_path / "train.py"))

    (job,) = (tmp_path / "out").iterdir()
    recordings = sorted(job.iterdir())
    assert [path.name[:9] for path in recordings] == ["rank00000", "rank00001"]
    for rank, path in enumerate(recordings):
        recording = strobe.open(path)
        assert f"work of {rank}" in recording.spans().collect()["name"].to_list()
        facts = dict(recording.metadata().collect().iter_rows())
        assert (facts["rank"], facts["world_size"]) == (str(rank), "2")
