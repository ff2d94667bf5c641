# SPDX-License-Identifier: Apache-2.0
"""paddle.distributed: a span around each collective, which Paddle's profiler does not see on CPU.

What paddle.DataParallel exchanges in its backward never passes through Python: the importer finds
it in the trace, and here is only noted what it consists of.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import weakref
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.model.tables import record_code
from strobe.record import recorder
from strobe.sources.patches import Patches

_COMMUNICATION = record_code("communication", "paddle")
_STREAM = "paddle.distributed.communication.stream"
_WAIT = "task.wait"
BUCKETS = ".buckets"
"""Ending of the file beside the protobuf; strobe.importers.paddle looks for it."""
# Function -> (what it is called, which argument is sent)
_CALLS = {
    "all_reduce": ("all_reduce", "tensor"),
    "all_gather": ("all_gather", "tensor"),
    "alltoall": ("all_to_all", "in_tensor_or_tensor_list"),
    "alltoall_single": ("all_to_all", "in_tensor"),
    "broadcast": ("broadcast", "tensor"),
    "gather": ("gather", "tensor"),
    "recv": ("recv", "tensor"),
    "reduce": ("reduce", "tensor"),
    "reduce_scatter": ("reduce_scatter", "tensor_or_tensor_list"),
    "scatter": ("scatter", "tensor_or_tensor_list"),
    "send": ("send", "tensor"),
}

_Function = Callable[..., Any]

_patches = Patches("Paddle")
_buckets: weakref.WeakKeyDictionary[Any, list[dict[str, Any]]] = weakref.WeakKeyDictionary()


def attach() -> None:
    """Put the spans in place; again is the same as once."""
    if _patches:
        return
    for function, (name, sent) in _CALLS.items():
        _patches.put(_STREAM, function, _around(name, sent))
    _patches.put("paddle.distributed", "barrier", _around("barrier", ""))
    _patches.put("paddle.base.libpaddle", "task.wait", _around_wait)
    _patches.put("paddle", "DataParallel.forward", _noting)


def detach() -> None:
    """Undo it."""
    _patches.undo()
    _buckets.clear()


def write_buckets(beside: Path) -> None:
    """Write what the reducer of the program's DataParallel exchanges, if it has used one model.

    They are in the order of a backward; the file lies beside a trace (BUCKETS).
    """
    told = list(_buckets.values())
    if len(told) == 1 and told[0]:
        beside.with_name(beside.name + BUCKETS).write_text(json.dumps(told[0]))


def describe() -> dict[str, Any]:
    """Return ranks and backend of the groups this process is in, by name; {} if it is alone."""
    groups = _groups()
    return {"groups": {str(number): _group(group) for number, group in groups.items()}}


def _groups() -> dict[int, Any]:
    module = import_module("paddle.distributed.communication.group")
    found: dict[int, Any] = module._GroupManager.group_map_by_id
    return found


def _group(group: Any) -> dict[str, Any]:
    backend = group.backend.lower() if group.process_group is not None else None
    return {"ranks": sorted(group.ranks), "backend": backend}


def _noting(original: _Function) -> _Function:
    @wraps(original)
    def forward(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if self not in _buckets:
            _buckets[self] = []
            with contextlib.suppress(Exception):  # of another version; they are not known, then
                _buckets[self] = _describe_buckets(self)
        return original(self, *arguments, **keywords)

    return forward


def _describe_buckets(model: Any) -> list[dict[str, Any]]:
    """Return group, bytes and dtype of what a DataParallel exchanges, in the reducer's order."""
    parameters = [each for each in model.parameters() if each.trainable]
    found = []
    for bucket in reversed(model.group_indices):
        tensors = [parameters[place] for place in bucket]
        size = sum(each.size * each.element_size() for each in tensors)
        dtype = str(tensors[0].dtype).removeprefix("paddle.")
        found.append({"group": str(model.group.id), "bytes": int(size), "dtype": dtype})
    return found


def _around(name: str, sent: str) -> Callable[[_Function], _Function]:
    def wrap(original: _Function) -> _Function:
        signature = inspect.signature(original)

        @wraps(original)
        def call(*arguments: Any, **keywords: Any) -> Any:
            attributes = {"collective": name}
            # What the program gives may be anything: the call is recorded without it, and will say
            # itself what is wrong.
            with contextlib.suppress(Exception):
                given = signature.bind(*arguments, **keywords).arguments
                attributes |= _describe(given, sent)
            span = f"paddle.distributed.{original.__name__}"
            with recorder.core.source_span(span, _COMMUNICATION, attributes):
                return original(*arguments, **keywords)

        return call

    return wrap


def _describe(given: dict[str, Any], sent: str) -> dict[str, Any]:
    group = given.get("group")
    number = 0 if group is None else group.id
    attributes: dict[str, Any] = {"group": str(number), "bytes": 0}
    attributes["synchronous"] = given.get("sync_op", True)
    tensors = given.get(sent)
    tensors = list(tensors) if isinstance(tensors, (list, tuple)) else [tensors]
    tensors = [tensor for tensor in tensors if hasattr(tensor, "element_size")]
    if tensors:
        attributes["bytes"] = sum(each.size * each.element_size() for each in tensors)
        attributes["dtype"] = str(tensors[0].dtype).removeprefix("paddle.")
        attributes["shapes"] = [list(each.shape) for each in tensors]
    return attributes


def _around_wait(original: _Function) -> _Function:
    @wraps(original)
    def wait(self: Any, *arguments: Any, **keywords: Any) -> Any:
        with recorder.core.source_span(_WAIT, _COMMUNICATION):
            return original(self, *arguments, **keywords)

    return wait
