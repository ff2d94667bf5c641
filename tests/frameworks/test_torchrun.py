# SPDX-License-Identifier: Apache-2.0
"""torchrun and strobe run, either way round: one recording per rank, in one folder per job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import strobe

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
    variables = {name: text for name, text in os.environ.items() if not name.startswith("STROBE_")}

    for _ in range(2):  # a second job does not mix with the first
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**variables, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    jobs = sorted((tmp_path / "out").iterdir())
    assert len(jobs) == 2
    for job in jobs:
        recordings = sorted(job.iterdir())
        assert [path.name[:9] for path in recordings] == ["rank00000", "rank00001"]
        for path in recordings:
            spans = strobe.open(path).spans().collect()
            assert spans.filter(pl.col("category") == "user")["name"].to_list() == ["work"]
