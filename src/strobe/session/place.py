# SPDX-License-Identifier: Apache-2.0
"""Which process of which job this is: the environment says so, or a framework that was told."""

from __future__ import annotations

import multiprocessing
import os
import sys
from dataclasses import replace

from strobe.record import ranks
from strobe.record.ranks import Place

_Told = tuple[int, int]
"""The rank, and how many there are."""


def find_place() -> Place:
    """Return this process's place, as far as it is known now."""
    place = ranks.find_place()
    # MindSpore may number its processes otherwise than their launcher.
    told = _mindspore() or (None if place.rank is not None else _torch() or _jax())
    if told is None:
        return place
    if place.rank is None:
        place = Place(local_rank=ranks.local_rank(), job=ranks.name_job(_launcher()))
    return replace(place, rank=told[0], world_size=told[1])


def _mindspore() -> _Told | None:
    management = sys.modules.get("mindspore.communication.management")
    if management is None or not management.GlobalComm.INITED:
        return None
    return management.get_rank(), management.get_group_size()


def _torch() -> _Told | None:
    distributed = sys.modules.get("torch.distributed")
    is_initialized = getattr(distributed, "is_initialized", None)  # not in every build
    if distributed is None or is_initialized is None or not is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _jax() -> _Told | None:
    """Tell without jax.process_index(), which would make JAX choose its devices."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(state, "client", None) is None:
        return None
    return state.process_id, state.num_processes  # type: ignore[union-attr]


def _launcher() -> int:
    """Return who started the ranks: Lightning's first one does, unless multiprocessing did."""
    is_first = ranks.local_rank() == 0 and multiprocessing.parent_process() is None
    return os.getpid() if is_first else os.getppid()
