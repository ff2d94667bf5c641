# SPDX-License-Identifier: Apache-2.0
"""What operators of MindSpore were given in PyNative mode: calls that strobe noted, in order.

dispatch_inputs.json   [[name, [[[3, 6], "float32"], null], group, phase, by a primitive], ...]
dispatch_calls.bin     int32 for each call: its place in the former
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strobe.errors import FormatError
from strobe.model.arrays import Int32, Int64
from strobe.model.attributes import DTYPES, GROUP, SHAPES
from strobe.model.interning import Interner
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


def read(path: Path) -> tuple[Int32, list[Call]]:
    """Return the calls in their order, as places among the kinds of calls; none without files.

    Raises FormatError for damaged ones.
    """
    if not os.path.lexists(path / KINDS):
        return np.zeros(0, np.int32), []
    try:
        kinds = [Call(*each) for each in json.loads(files.read_text(path / KINDS))]
        calls: Int32 = np.frombuffer(files.map_bytes(path / CALLS), np.int32)
    except (OSError, ValueError, TypeError) as error:
        raise FormatError(path / KINDS, "the file", str(error)) from None
    if len(calls) and not 0 <= calls.min() <= calls.max() < len(kinds):
        raise FormatError(path / CALLS, "the file", f"a place beyond {len(kinds)} kinds")
    return calls, kinds


def match(
    operators: Sequence[tuple[str, str]], which: Int32, calls: Int32, kinds: Sequence[Call]
) -> Int64:
    """Return the kind of call that made each row, -1 where that is not certain.

    `operators` are full names and types, `which` is the operator of each row. MindSpore runs in the
    order of the calls: if an operator ran as often as it was called, its n-th run is that of the
    n-th call. What a primitive calls has a scope, what a function calls has none. A call may have a
    longer name than what it runs: Muls runs a Mul.
    """
    keys, names = Interner[tuple[str, bool]](), Interner[str]()
    key_of = [
        keys[_plain(kind), "/" in full_name] if full_name.count("/") < 2 else -1
        for full_name, kind in operators
    ]
    type_of = _table([names[kind] for _, kind in operators])
    count = len(names)
    key_of_call = [keys.get((_plain(kind.name), kind.is_primitive), -1) for kind in kinds]
    name_of_call = _table([names[kind.name] for kind in kinds])
    row_keys, call_keys = _table(key_of)[which], _table(key_of_call)[calls]
    found = np.full(len(which), -1, np.int64)
    for key in range(len(keys)):
        ran, called = np.flatnonzero(row_keys == key), np.flatnonzero(call_keys == key)
        if len(ran) != len(called):
            continue
        named = name_of_call[calls[called]]
        # A call has the name of what it ran, or one that nothing has.
        if ((named == type_of[which[ran]]) | (named >= count)).all():
            found[ran] = calls[called]
    return found


def _table(values: Sequence[int]) -> Int64:
    return np.array(values, np.int64)


def _plain(name: str) -> str:
    """Return what a call and what it runs have in common: Sum of SumExt and of ReduceSum."""
    return _VARIANT.sub("", name) or name


def phases(by_name: Int64, call_of: Int64, of_kind: Int64) -> Int64:
    """Return the phase of each row, as its name or its call tells; -1 where neither does.

    Phases are numbers, -1 for none; `of_kind` has those of the kinds of calls. What was called by
    nobody, as parts of the backward are, is between calls: since MindSpore runs in their order, it
    has the phase of the calls before and after if that is the same.
    """
    own = np.append(of_kind, -1)[call_of]
    before, after = _carry(own), _carry(own[::-1])[::-1]
    found = np.where(before == after, before, -1)
    found = np.where(own >= 0, own, found)
    return np.where(by_name >= 0, by_name, found)


def _carry(values: Int64) -> Int64:
    """Return for each place the last value that is not negative."""
    last = np.maximum.accumulate(np.where(values >= 0, np.arange(len(values)), -1))
    return np.append(values, -1)[last]
