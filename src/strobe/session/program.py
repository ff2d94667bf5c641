# SPDX-License-Identifier: Apache-2.0
"""Which program this process runs, and what of its command line and environment is kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from strobe.model.redact import redact_arguments, redact_environment

# What decides how a program runs; the environment at large is not ours to keep.
_VARIABLES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM", "PADDLE_RANK_IN_NODE"),
    *("RANK_ID", "RANK_SIZE", "DEVICE_ID", "MS_ROLE", "MS_NODE_ID", "MS_WORKER_NUM"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
    *("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "NCCL_DEBUG"),
    *("JAX_PLATFORMS", "XLA_FLAGS", "FLAGS_allocator_strategy", "LD_PRELOAD"),
    *("PYTHONOPTIMIZE", "PYTHONHASHSEED", "PYTHONMALLOC", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV"),
)


@dataclass(frozen=True)
class Program:
    """What Python was told to run: `text` is a path, a module's name or source code."""

    kind: Literal["script", "module", "code", "none"]
    text: str = ""
    options: tuple[str, ...] = ()
    """The interpreter's own options."""


def find_program(command: Sequence[str] | None = None) -> Program:
    """Read what Python runs off its command line, before it has set sys.argv right for -m."""
    waiting = list(sys.orig_argv if command is None else command)[1:]
    options: list[str] = []
    while waiting:
        token = waiting.pop(0)
        if token == "--":
            return Program("script", "".join(waiting[:1]), tuple(options))
        if token in ("", "-") or not token.startswith("-"):
            return Program("script", token, tuple(options))
        if token.startswith("--"):
            options.append(token)
            if token == "--check-hash-based-pycs":
                options += waiting[:1]
                del waiting[:1]
            continue
        for place, letter in enumerate(token[1:], 1):
            if letter in "cm":
                if place > 1:
                    options.append(token[:place])
                text = token[place + 1 :] or "".join(waiting[:1])
                return Program("code" if letter == "c" else "module", text, tuple(options))
            if letter in "WX":
                options.append(token)
                if place == len(token) - 1:
                    options += waiting[:1]
                    del waiting[:1]
                break
        else:
            options.append(token)
    return Program("none", options=tuple(options))


def program_name() -> str:
    """Return what a person would call the program."""
    program = find_program()
    if program.kind == "module":
        return program.text
    if program.kind == "code":
        return "python"
    return PurePath(sys.argv[0]).stem if getattr(sys, "argv", None) else ""


def describe_program() -> dict[str, Any]:
    """Return the command line and the variables that matter, without what looks like a secret."""
    variables = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    return {
        "argv": redact_arguments(sys.orig_argv),
        "environment": redact_environment(variables),
    }
