# SPDX-License-Identifier: Apache-2.0
"""Collectives: what a program asked for, what its backend did, and how long the program waited."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import polars as pl

from strobe.model import attributes as keys
from strobe.model.collectives import BACKEND, CALL, XLA

WAITS = ("Work.wait", "task.wait")
"""Where programs of PyTorch and Paddle wait."""
SCHEMA = pl.Schema(
    {
        "name": pl.String,
        "backend": pl.String,
        "group": pl.String,
        "ranks": pl.String,
        "bytes": pl.Int64,
        "dtype": pl.String,
        "start_ns": pl.Int64,
        "dur_ns": pl.Int64,
        "wait_ns": pl.Int64,
        "span": pl.Int64,
        "work": pl.Int64,
    }
)

# The call without its prefix and underscores: (what it is called, which input is sent, the names
# that a backend may have for it)
_KINDS = {
    "allreduce": ("all_reduce", 0, ("all_reduce",)),
    "allreduce_coalesced": ("all_reduce", 0, ("all_reduce", "allreduce_coalesced")),
    "broadcast": ("broadcast", 0, ("broadcast",)),
    "reduce": ("reduce", 0, ("reduce",)),
    "allgather": ("all_gather", 1, ("all_gather",)),
    "allgather_base": ("all_gather", 1, ("all_gather", "_all_gather_base")),
    "allgather_coalesced": ("all_gather", 1, ("all_gather",)),
    "allgather_into_tensor_coalesced": ("all_gather", 1, ("all_gather",)),
    "reduce_scatter": ("reduce_scatter", 1, ("reduce_scatter", "all_reduce")),
    "reduce_scatter_base": ("reduce_scatter", 1, ("reduce_scatter", "all_reduce")),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 1, ("reduce_scatter", "all_reduce")),
    "gather": ("gather", 1, ("gather",)),
    "scatter": ("scatter", 1, ("scatter",)),
    "alltoall": ("all_to_all", 1, ("all_to_all",)),
    "alltoall_base": ("all_to_all", 1, ("all_to_all",)),
    "barrier": ("barrier", None, ("barrier",)),
    "monitored_barrier": ("barrier", None, ("barrier",)),
    "send": ("send", 0, ("send",)),
    "recv": ("recv", 0, ("recv",)),
    "recv_any_source": ("recv", 0, ("recvAnySource", "recv")),
}
# What torch calls a list of tensors; for other lists it gives no shapes.
_TENSORS = "TensorList"
_BYTES = {
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "long int": 8,
    "long": 8,
    "int": 4,
    "short": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    # As XLA calls them:
    **{"int8": 1, "int16": 2, "int32": 4, "int64": 8, "bfloat16": 2, "float16": 2, "float32": 4},
    **{"uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "float64": 8},
    **{"complex64": 8, "complex128": 16},
}


@dataclass
class _Span:
    row: int
    name: str
    process: int
    lane: int
    start_ns: int
    end_ns: int
    parent: int | None
    attributes: Mapping[str, Any]


def collectives(
    spans: pl.DataFrame,
    attributes: Sequence[Mapping[str, Any]],
    groups: Mapping[str, Mapping[str, Any]],
) -> pl.DataFrame:
    """Return one row for each collective that the program asked for, by start: see SCHEMA.

    A call and the work that it makes a backend do are one collective: the work is that of the same
    kind and process that began first of those which began no earlier than the call and belong to no
    call before it. It is complete when both are. A call whose attributes name the
    `collective` has no such work: it is complete when it returns, or has been waited for. In
    a program that XLA compiled, it is an operator, once on each device; of one in two parts it is
    the first. Its ranks are devices, as the program numbers them, and known where all exchange with
    all; on a CPU it holds its thread up from begin to end, of which `rendezvous_wait_ns` of the
    span's attributes is the time that others were waited for.

    `spans` has row, name, process, lane, start_ns, dur_ns and parent of the spans of category
    communication, by start, and `attributes` those of each; `groups` has the ranks and backend of
    each group, by name.
    """
    rows = spans.iter_rows(named=True)
    found = [_read(row, content) for row, content in zip(rows, attributes, strict=True)]
    named = [span for span in found if keys.COLLECTIVE in span.attributes]
    calls = [span for span in found if span.name.startswith(CALL) and _kind(span.name)]
    work_of = _match(calls, [span for span in found if BACKEND.fullmatch(span.name)])
    waits = [span for span in found if span.name in WAITS]
    later = [span for span in named if not span.attributes.get(keys.SYNCHRONOUS)]
    own = {span.row for span in named}
    outside = [span for span in waits if span.parent not in own]
    waits_of = _match_waits([*calls, *later], outside)
    described = [
        _describe(call, work_of.get(call.row), waits_of.get(call.row), groups) for call in calls
    ]
    described += [_repeat(call, waits_of.get(call.row), groups) for call in named]
    described += [_describe_compiled(span) for span in found if _begins_compiled(span.name)]
    return pl.DataFrame(described, schema=SCHEMA).sort("start_ns", maintain_order=True)


def _read(row: Mapping[str, Any], attributes: Mapping[str, Any]) -> _Span:
    return _Span(
        row=row["row"],
        name=row["name"],
        process=row["process"],
        lane=row["lane"],
        start_ns=row["start_ns"],
        end_ns=row["start_ns"] + row["dur_ns"],
        parent=row["parent"],
        attributes=attributes,
    )


def _kind(name: str) -> tuple[str, int | None, tuple[str, ...]] | None:
    return _KINDS.get(name.removeprefix(CALL).strip("_"))


def _match(calls: list[_Span], works: list[_Span]) -> dict[int, _Span]:
    """Return the work of each call, by the call's row."""
    waiting: dict[tuple[int, str], list[_Span]] = defaultdict(list)
    for work in reversed(works):
        match = BACKEND.fullmatch(work.name)
        assert match is not None
        waiting[work.process, match[2]].append(work)
    found: dict[int, _Span] = {}
    for call in calls:
        kind = _kind(call.name)
        for name in kind[2] if kind else ():
            candidates = waiting[call.process, name]
            while candidates and candidates[-1].start_ns < call.start_ns:
                candidates.pop()  # of a call before the recording began
            if candidates:
                found[call.row] = candidates.pop()
                break
    return found


def _match_waits(calls: list[_Span], waits: list[_Span]) -> dict[int, _Span]:
    """Return where the program waited for each call, by the call's row.

    A collective that waits for itself, as most do, is the last one that was asked for. Another wait
    is for the oldest call that nobody has waited for, rather one inside the same span: those of
    DistributedDataParallel, for which no wait is seen, are inside a forward or a backward.
    """
    found: dict[int, _Span] = {}
    pending: dict[tuple[int, int], list[_Span]] = defaultdict(list)
    for event in sorted([*calls, *waits], key=lambda span: span.start_ns):
        here = pending[event.process, event.lane]
        if event.name not in WAITS:
            here.append(event)
        elif here:
            near = [call for call in here if call.parent == event.parent] or here
            call = near[-1 if event.attributes.get(keys.SYNCHRONOUS) else 0]
            here.remove(call)
            found[call.row] = event
    return found


def _describe(
    call: _Span, work: _Span | None, wait: _Span | None, groups: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    kind = _kind(call.name)
    assert kind is not None
    name, sent, _ = kind
    group = call.attributes.get(keys.GROUP) or _only(groups)
    known = groups.get(group or "", {})
    match = BACKEND.fullmatch(work.name) if work else None
    ranks = known.get("ranks")
    dtype = _dtype(call, work) if sent is not None else None
    end_ns = max(call.end_ns, work.end_ns if work else 0)
    return {
        "name": name,
        "backend": match[1] if match else known.get("backend"),
        "group": group,
        "ranks": None if ranks is None else json.dumps(ranks),
        "bytes": _count_bytes(call, work, sent, dtype),
        "dtype": dtype,
        "start_ns": call.start_ns,
        "dur_ns": end_ns - call.start_ns,
        "wait_ns": _waited_ns(call, wait),
        "span": call.row,
        "work": work.row if work else None,
    }


def _only(groups: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return the group where there is no other: Kineto does not name the group of a call."""
    return next(iter(groups)) if len(groups) == 1 else None


def _begins_compiled(name: str) -> bool:
    match = XLA.fullmatch(name)
    return match is not None and match[3] is None


def _describe_compiled(span: _Span) -> dict[str, Any]:
    match = XLA.fullmatch(span.name)
    assert match is not None
    attributes = span.attributes
    shapes, dtypes, groups = (
        attributes.get(key, []) for key in (keys.SHAPES, keys.DTYPES, keys.REPLICAS)
    )
    sizes = [_BYTES.get(dtype) for dtype in dtypes]
    known = len(shapes) > 0 and None not in sizes
    return {
        "name": match[1].replace("-", "_"),
        "backend": "xla",
        "bytes": sum(prod(s) * (n or 0) for s, n in zip(shapes, sizes, strict=True))
        if known
        else None,
        "ranks": json.dumps(groups[0]) if len(groups) == 1 else None,
        "dtype": dtypes[0] if known else None,
        "start_ns": span.start_ns,
        "dur_ns": span.end_ns - span.start_ns,
        "wait_ns": span.end_ns - span.start_ns if keys.WAITED in attributes else None,
        "span": span.row,
    }


def _waited_ns(call: _Span, wait: _Span | None) -> int | None:
    return None if wait is None else call.end_ns - call.start_ns + wait.end_ns - wait.start_ns


def _repeat(
    call: _Span, wait: _Span | None, groups: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Describe a collective as its call does; where it waits for itself, all of it is waiting."""
    attributes = call.attributes
    known = groups.get(attributes.get(keys.GROUP, ""), {})
    ranks = known.get("ranks")
    wait_ns = _waited_ns(call, wait)
    if attributes.get(keys.SYNCHRONOUS):
        wait_ns = call.end_ns - call.start_ns
    return {
        "name": attributes[keys.COLLECTIVE],
        "backend": known.get("backend"),
        "group": attributes.get(keys.GROUP),
        "ranks": None if ranks is None else json.dumps(ranks),
        "bytes": attributes.get(keys.BYTES),
        "dtype": attributes.get(keys.DTYPE),
        "start_ns": call.start_ns,
        "dur_ns": (wait or call).end_ns - call.start_ns,
        "wait_ns": wait_ns,
        "span": call.row,
        "work": None,
    }


def _dtype(call: _Span, work: _Span | None) -> str | None:
    """Return the type of the elements, which torch's traces give for the work alone."""
    dtypes = work.attributes.get(keys.DTYPES, []) if work else []
    of_work = dtypes[0] if dtypes and dtypes[0] in _BYTES else None
    return call.attributes.get(keys.DTYPE) or of_work


def _count_bytes(
    call: _Span, work: _Span | None, sent: int | None, dtype: str | None
) -> int | None:
    """Return how much is sent, None if unknown; for a list of lists only the work may know it."""
    if sent is None:
        return 0
    shapes = call.attributes.get(keys.SHAPES, [])
    size = _BYTES.get(dtype or "")
    if size is None or sent >= len(shapes):
        return None
    shape = shapes[sent]
    kinds = call.attributes.get(keys.DTYPES, [])[sent : sent + 1]
    if not all(kind == _TENSORS or kind in _BYTES for kind in kinds):
        shape = work.attributes.get(keys.SHAPES) if work and _does_the_same(work, call) else None
        if not shape:
            return None
    nested = any(isinstance(each, list) for each in shape)
    elements = sum(prod(each) for each in (shape if nested else [shape]))
    return size * int(elements)


def _does_the_same(work: _Span, call: _Span) -> bool:
    """Say whether the backend does what was asked for, and not something else in its place."""
    match, kind = BACKEND.fullmatch(work.name), _kind(call.name)
    return match is not None and kind is not None and match[2] == kind[0]
