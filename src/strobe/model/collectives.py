# SPDX-License-Identifier: Apache-2.0
"""Names of what exchanges data with other processes."""

from __future__ import annotations

import re

CALL = "c10d::"
"""What the names of PyTorch's calls begin with."""
BACKEND = re.compile(r"(gloo|nccl|mpi|ucc|xccl|hccl):_?(\w+)")
XLA = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute"
    r"|collective-broadcast)(-start)?(-done)?(\.\d+)*"
)


def is_communication(name: str) -> bool:
    """Say whether an operator of this name is communication, or a backend's part of it."""
    if name.startswith((CALL, "_c10d_functional::")):
        return True
    return BACKEND.fullmatch(name) is not None or XLA.fullmatch(name) is not None
