# SPDX-License-Identifier: Apache-2.0
"""Commands that need one recording take a rank of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from strobe.cluster.job import Job, name_ranks
from strobe.errors import CommandError
from strobe.session.recording import Recording, open_recording

PATH: Any = typer.Argument(
    readable=False,  # checked later, with a sentence of our own
    help="A recording, a folder of recordings, or a file of another profiler: JSON of PyTorch or "
    "Paddle (also .gz), .pb of XLA or Paddle, or a folder of MindSpore's.",
)
RANK: Any = typer.Option(None, "--rank", min=0, help="The rank to show, if there are several.")
RUN: Any = typer.Option(
    None,
    "--run",
    help="Which run of a folder that holds several: 0 is the first, -1 the newest, -2 the one "
    "before.",
)


def open_rank(path: Path, rank: int | None, run: int | None = None) -> Recording:
    """Open the one recording at a path; raises CommandError if there are several ranks."""
    opened = open_recording(path, run=run)
    if not isinstance(opened, Job):
        _check_rank(opened, rank)
        return opened
    if rank not in opened.ranks:
        asked = "" if rank is None else f"--rank {rank}: "
        message = (
            f"{asked}{str(path)!r} holds {name_ranks(opened.ranks)} of one run; choose one, as in "
            f"--rank {opened.ranks[-1]}"
        )
        raise CommandError(message, exit_code=2)
    return opened.rank(rank)


def _check_rank(recording: Recording, rank: int | None) -> None:
    if rank is None:
        return
    from strobe.analysis.metadata import read_metadata, read_number

    own = read_number(read_metadata(recording), "rank")
    if rank != own:
        whose = "a program without ranks" if own is None else f"rank {own}"
        message = f"--rank {rank}: {str(recording.path)!r} is the recording of {whose}"
        raise CommandError(message, exit_code=2)
