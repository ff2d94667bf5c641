# SPDX-License-Identifier: Apache-2.0
"""The tensors that exist when recording of memory begins: nobody else reports them."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

from strobe.record import recorder
from strobe.sources.held import Held

FILE_NAME = "alive-{pid}-{start_ns}.json"


def write(log: Path) -> None:
    """Write address, bytes and device of each storage that a Python object holds into the log."""
    start_ns = recorder.core.clock_ns()
    storages, unread = _storages()
    path = log / FILE_NAME.format(pid=os.getpid(), start_ns=start_ns)
    content = {"pid": os.getpid(), "start_ns": start_ns, "storages": storages, "unread": unread}
    path.write_text(json.dumps(content))
    if hasattr(recorder.core, "owners_before"):
        recorder.core.owners_before(storages)


def held() -> list[Held]:
    """Return who holds what PyTorch has allocated, as far as its allocations were seen."""
    return [
        Held(owner, None if device < 0 else device, blocks, size)
        for owner, device, blocks, size in recorder.core.owners_list()
    ]


def _storages() -> tuple[list[tuple[int, int, int]], int]:
    """Return (address, bytes, device) of each storage, and how many tensors failed to say theirs.

    The host is device -1.
    """
    import torch

    found: dict[tuple[int, int], int] = {}
    unread = 0
    # By its type, once for each: isinstance() would ask the object for its __class__, and a lazy
    # stand-in of the program's would come to life.
    is_tensor: dict[type, bool] = {}
    for thing in gc.get_objects():
        kind = type(thing)
        if kind not in is_tensor:
            is_tensor[kind] = issubclass(kind, torch.Tensor)
        if not is_tensor[kind]:
            continue
        try:
            _add(thing, found)
        except RuntimeError:  # sparse, meta, fake: no memory of its own
            continue
        except Exception:  # a class of the program's: counted, and its memory is not
            unread += 1
    return [(address, size, device) for (address, device), size in found.items()], unread


def _add(tensor: Any, found: dict[tuple[int, int], int]) -> None:
    storage = tensor.untyped_storage()
    address, size = storage.data_ptr(), storage.nbytes()
    kind, index = tensor.device.type, tensor.device.index
    if address and size:
        found[address, -1 if kind == "cpu" else index or 0] = size
