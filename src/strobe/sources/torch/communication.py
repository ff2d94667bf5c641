# SPDX-License-Identifier: Apache-2.0
"""torch.distributed: the groups of processes, and the time a program waits for a collective."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from strobe.model.tables import record_code
from strobe.record import recorder
from strobe.sources.patches import Patches

WAIT = "Work.wait"
_CATEGORY = record_code("communication", "torch")
_COLLECTIVES = "torch.distributed.distributed_c10d"

_patches = Patches("PyTorch")


def is_used() -> bool:
    """Say whether this process is one of several that work together."""
    import torch.distributed as distributed

    return bool(distributed.is_available() and distributed.is_initialized())


def attach() -> None:
    """Put a span around what waits for a collective; those themselves are operators."""
    import torch.distributed as distributed

    if distributed.is_available() and not _patches:
        _patches.put("torch.distributed", "Work.wait", _recorded_wait)


def detach() -> None:
    """Undo it."""
    _patches.undo()


def _recorded_wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def wait(self: Any, *arguments: Any, **keywords: Any) -> Any:
        # A collective that returns only when it is complete waits for itself.
        synchronous = sys._getframe(1).f_globals.get("__name__") == _COLLECTIVES
        with recorder.core.source_span(WAIT, _CATEGORY, {"synchronous": synchronous}):
            return original(self, *arguments, **keywords)

    return wait


def describe() -> dict[str, Any]:
    """Return ranks and backend of the groups this process is in, by name; {} if it is alone."""
    import torch.distributed as distributed

    if not is_used():
        return {}
    world = distributed.distributed_c10d._world
    return {
        "groups": {
            world.pg_names[group]: {
                "ranks": sorted(ranks),
                "backend": distributed.get_backend(group) if group in world.pg_map else None,
            }
            for group, ranks in world.pg_group_ranks.items()
            if group in world.pg_names
        }
    }
