# SPDX-License-Identifier: Apache-2.0
"""What operators of MindSpore were given in PyNative mode: calls that strobe noted, in order.

dispatch_inputs.json   [[name, [[[3, 6], "float32"], null], group, phase, by a primitive], ...]
dispatch_calls.bin     int32 for each call: its place in the former
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strobe.errors import FormatError
from strobe.model.attributes import DTYPES, GROUP, SHAPES
from strobe.store import files

KINDS, CALLS = "dispatch_inputs.json", "dispatch_calls.bin"
BY_ORDER = ""
"""A phase that strobe.assemble.phases derives: of a call neither of a backward nor an optimizer."""

# What names of functions and of kernels have more: Muls, SumExt, BatchMatMul, ReduceSum.
_VARIANT = re.compile(r"^(Reduce|Batch(?=MatMul))|(Ext|TensorScalar|Scalar|(?<=[a-z])s)$")


@dataclass(frozen=True)
class Call:
    """One kind of call."""

    name: str
    inputs: list[Any]
    group: str | None
    phase: str | None
    is_primitive: bool

    def attributes(self) -> dict[str, Any]:
        """Return what it is given, and the group if it is a collective."""
        given: dict[str, Any] = {
            SHAPES: [_part(each, 0) for each in self.inputs],
            DTYPES: [_part(each, 1) for each in self.inputs],
        }
        return given | ({GROUP: self.group} if self.group else {})


def _part(described: Any, which: int) -> Any:
    """Return shape or dtype of [[3, 6], "float32"], a list of them for ["several", [...]]."""
    if described is None:
        return None
    if described[0] == "several":
        return [_part(each, which) for each in described[1]]
    return described[which]


def read(path: Path) -> tuple[list[int], list[Call]]:
    """Return the calls in their order, as places among the kinds of calls; none without files.

    Raises FormatError for damaged ones.
    """
    if not os.path.lexists(path / KINDS):
        return [], []
    try:
        kinds = [Call(*each) for each in json.loads(files.read_text(path / KINDS))]
        calls: list[int] = np.frombuffer(files.read_bytes(path / CALLS), np.int32).tolist()
    except (OSError, ValueError, TypeError) as error:
        raise FormatError(path / KINDS, "the file", str(error)) from None
    if calls and not 0 <= min(calls) <= max(calls) < len(kinds):
        raise FormatError(path / CALLS, "the file", f"a place beyond {len(kinds)} kinds")
    return calls, kinds


def match(rows: list[tuple[str, str]], calls: list[int], kinds: list[Call]) -> list[int]:
    """Return the kind of call that made each row, -1 where that is not certain.

    A row is an operator's full name and type. MindSpore runs in the order of the calls. So of
    operators of which as many ran as were called, the n-th was made by the n-th. What a primitive
    calls has a scope, what a function calls has none. A call may have a longer name than what it
    runs: Muls runs a Mul.
    """
    rows_of: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for row, (full_name, kind) in enumerate(rows):
        if full_name.count("/") < 2:
            rows_of[_plain(kind), "/" in full_name].append(row)
    calls_of: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for call in calls:
        calls_of[_plain(kinds[call].name), kinds[call].is_primitive].append(call)
    found = [-1] * len(rows)
    types = {kind for _, kind in rows}
    for key, ran in rows_of.items():
        called = calls_of.get(key, [])
        if len(ran) != len(called):
            continue
        names = [(rows[row][1], kinds[call].name) for row, call in zip(ran, called, strict=True)]
        if all(one == other or other not in types for one, other in names):
            for row, call in zip(ran, called, strict=True):
                found[row] = call
    return found


def _plain(name: str) -> str:
    """Return what a call and what it runs have in common: Sum of SumExt and of ReduceSum."""
    return _VARIANT.sub("", name) or name


def phases(
    by_name: Sequence[str | None], call_of: list[int], kinds: list[Call]
) -> list[str | None]:
    """Return the phase of each row, as its name or its call tells; None where neither does.

    What was called by nobody, as parts of the backward are, is between calls: since MindSpore runs
    in their order, it has the phase of the calls before and after if that is the same.
    """
    called = [kinds[call].phase or BY_ORDER if call >= 0 else None for call in call_of]
    before, after = _carry(called), _carry(called[::-1])[::-1]
    found = []
    for named, own, last, following in zip(by_name, called, before, after, strict=True):
        between = last if last == following else None
        known = [phase for phase in (named, own, between) if phase is not None]
        found.append(known[0] if known else None)
    return found


def _carry(values: list[str | None]) -> list[str | None]:
    """Return for each place the last value that is not None."""
    last: str | None = None
    return [last := value if value is not None else last for value in values]
