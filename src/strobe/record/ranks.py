# SPDX-License-Identifier: Apache-2.0
"""Which process of which job this is, from what launchers put into the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from strobe.store import manifest

# In order of preference; a launcher that wraps another sets the outer one too.
_RANKS = (
    "RANK",
    "PADDLE_TRAINER_ID",
    "RANK_ID",
    "MS_NODE_ID",  # msrun
    "OMPI_COMM_WORLD_RANK",
    "SLURM_PROCID",
)
_LOCAL_RANKS = ("LOCAL_RANK", "PADDLE_RANK_IN_NODE", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")
_WORLD_SIZES = (
    "WORLD_SIZE",
    "PADDLE_TRAINERS_NUM",
    "RANK_SIZE",
    "MS_WORKER_NUM",
    "OMPI_COMM_WORLD_SIZE",
    "SLURM_NTASKS",
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """This process's place in a job: all None for a program that is alone."""

    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    job: str | None = None


def find_place(environment: Mapping[str, str] = os.environ) -> Place:
    """Return this process's place. All ranks of a job find the same job, without talking."""
    rank = _number(environment, _RANKS)
    if rank is None:
        return Place()
    return Place(
        rank=rank,
        local_rank=local_rank(environment),
        world_size=_number(environment, _WORLD_SIZES),
        job=_find_job(environment),
    )


def local_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return its number on this host, which some launchers tell where they do not tell the rank."""
    return _number(environment, _LOCAL_RANKS)


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = environment.get(name, "")
        if value.isdecimal():
            return int(value)
    return None


def _find_job(environment: Mapping[str, str]) -> str:
    """Return a name that the ranks of one run share and no later run has."""
    run = environment.get("TORCHELASTIC_RUN_ID", "")
    if run and run != "none":
        return f"torch-{run}"
    if environment.get("SLURM_JOB_ID"):
        parts = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return "slurm-" + "-".join(environment[name] for name in parts if environment.get(name))
    if environment.get("PMIX_NAMESPACE"):
        return f"mpi-{environment['PMIX_NAMESPACE']}"
    # Nobody gave the run a name: the launcher itself is one, for the ranks that it started here.
    return name_job(os.getppid())


def name_job(launcher: int) -> str:
    """Return the name of the job whose ranks this process started; it may be one of them."""
    return f"job-{launcher}-{manifest.process_start(launcher) or 0}"
