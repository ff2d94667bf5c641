# SPDX-License-Identifier: Apache-2.0
"""Programs that XLA compiled, as an XSpace holds them: what their operators are and are given.

XEventMetadata    stats: program_id, and the bytes of an HloProto
HloProto          hlo_module = 1
HloModuleProto    computations = 3
HloComputation    instructions = 2, id = 5
HloInstruction    name = 1, opcode = 2, shape = 3, metadata = 7, id = 35, operand_ids = 36,
                  called_computation_ids = 38, replica_groups = 49; since 2025 in their place
                  collective_device_list = 87 (replica_groups = 1, iota = 2), iota = 92, axes = 93
ShapeProto        element_type = 2, dimensions = 3
OpMetadata        op_name = 2: the function that was traced, down to the operation
ReplicaGroup      replica_ids = 1
Iota              groups = 1, devices in each = 2, dimensions = 3, their order = 4: the numbers from
                  0 on, in these dimensions, in this order, cut into groups
Axes              mesh = 1 (axes = 1, each with its size = 2; devices = 3: dimensions = 1, their
                  order = 2), the axes that exchange = 2, each with its place in the mesh = 1: the
                  same, with these axes last, of these devices
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec
import numpy as np

from strobe.importers.wire import Ranges, WireFile
from strobe.model.arrays import Int64
from strobe.model.attributes import DTYPES, SHAPES

_DTYPES = {
    **{1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64"},
    **{6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64"},
    **{10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"},
    **{13: "tuple", 14: "opaque", 15: "complex64", 17: "token", 18: "complex128"},
}
_NO_WORK = ("parameter", "constant", "tuple", "get-tuple-element")
_MOVES = ("bitcast", "broadcast", "copy", "iota", "reshape", "transpose")
"""What computes nothing: where it stands in no phase, it takes none from others."""
_COLLECTIVES = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all"),
    *("collective-permute", "collective-broadcast"),
)
_MOST_DEVICES = 1 << 16
_MOST_PASSES = 100
_FORWARD, _BACKWARD, _OTHER = 1, 2, 4


@dataclass(frozen=True)
class Operator:
    """What a program says of one of its operators, as JSON without its braces."""

    phase: str | None
    plain: str
    """Groups and shapes of a collective; "" for others."""
    whole: str
    """And what it is given, and where it comes from."""


def operators(
    file: WireFile, programs: Ranges, numbers: list[int]
) -> dict[tuple[int, str], Operator]:
    """Return what each operator is, by program and name.

    `programs` are XEventMetadata; `numbers` are the names of program_id in them.
    """
    found: dict[tuple[int, str], Operator] = {}
    stats = file.find(programs, 5)
    name, unsigned, signed, data = file.columns(
        stats.ranges, [(1, "varint"), (3, "varint"), (4, "varint"), (6, "bytes")]
    )
    ids = np.isin(name, numbers)
    program = np.full(len(programs), -1, np.int64)
    program[stats.parent[ids]] = (unsigned | signed)[ids]
    rows = np.flatnonzero(data.begin >= 0)
    for row in rows.tolist():
        number = int(program[stats.parent[row]])
        modules = file.find(data[row : row + 1], 1).ranges
        for operator, told in _of_module(file, modules).items():
            found[number, operator] = told
    return found


def _of_module(file: WireFile, module: Ranges) -> dict[str, Operator]:
    computations = file.find(module, 3).ranges
    (computation,) = file.columns(computations, [(5, "varint")])
    found = file.find(computations, 2)
    instructions = found.ranges
    name, opcode, shape, metadata, number = file.columns(
        instructions, [(1, "bytes"), (2, "bytes"), (3, "bytes"), (7, "bytes"), (35, "varint")]
    )
    (origin,) = file.columns(metadata.or_empty(), [(2, "bytes")])
    (kind,) = file.columns(shape.or_empty(), [(2, "varint")])
    owner, size = file.numbers(shape.or_empty(), 3)
    user, operand = file.numbers(instructions, 36)
    count = len(instructions)
    shapes = [part.tolist() for part in _split(owner, size, count)]
    dtypes = [_DTYPES.get(each, f"type {each}") for each in kind.tolist()]
    place = {each: row for row, each in enumerate(number.tolist())}
    operands = _split(user, operand, count)
    origins = file.texts(origin)
    opcodes = file.texts(opcode)
    phases = _phases(file, instructions, computation, found.parent, opcodes, origins)
    texts = {}
    for row, own in enumerate(file.texts(name)):
        given = [place[each] for each in operands[row].tolist() if each in place]
        plain: dict[str, Any] = {}
        inputs: dict[str, Any] = {
            SHAPES: [shapes[each] for each in given],
            DTYPES: [dtypes[each] for each in given],
        }
        if opcodes[row].removesuffix("-start") in _COLLECTIVES:
            plain |= {**inputs, **_groups(file, instructions[row : row + 1])}
        whole = {**plain, **inputs, **({"op_name": origins[row]} if origins[row] else {})}
        texts[own] = Operator(phases[row], _inside(plain), _inside(whole))
    return texts


def _inside(told: dict[str, Any]) -> str:
    return msgspec.json.encode(told).decode()[1:-1]


def _phases(
    file: WireFile,
    instructions: Ranges,
    computation: Int64,
    computation_of: Int64,
    opcodes: list[str],
    origins: list[str],
) -> list[str | None]:
    """Return the phase of each instruction, with all that it calls: None where it is not one.

    What is traced for a gradient has `jvp(` in its origin, and `transpose(` if it goes backward.
    XLA computes again in the backward what is cheap of the forward: that is backward too. What is
    neither, such as an update of parameters, has no phase, and nothing that it was fused with.
    """
    own = [_kinds(*pair) for pair in zip(opcodes, origins, strict=True)]
    inside = computation[computation_of].tolist()
    user, called = file.numbers(instructions, 38)
    calls = [part.tolist() for part in _split(user, called, len(instructions))]
    of_computation: dict[int, int] = {}
    for _ in range(_MOST_PASSES):  # one, and one to see it: what is called comes first in the file
        before = dict(of_computation)
        for row, number in enumerate(inside):
            for each in calls[row]:
                own[row] |= of_computation.get(each, 0)
            of_computation[number] = of_computation.get(number, 0) | own[row]
        if of_computation == before:
            break
    meaning = {_FORWARD: "forward", _BACKWARD: "backward", _FORWARD | _BACKWARD: "backward"}
    return [meaning.get(kinds) for kinds in own]


def _kinds(opcode: str, origin: str) -> int:
    if not origin or opcode in _NO_WORK:
        return 0
    if "transpose(" in origin:
        return _BACKWARD
    if "jvp(" in origin:
        return _FORWARD
    return 0 if opcode in _MOVES else _OTHER


def _groups(file: WireFile, instruction: Ranges) -> dict[str, Any]:
    """Return which devices exchange with which, as the program numbers them."""
    devices, iota, axes = file.columns(instruction, [(87, "bytes"), (92, "bytes"), (93, "bytes")])
    found = file.find(devices.or_empty(), 1).ranges
    if not len(found):
        found = file.find(instruction, 49).ranges
    if len(found):
        owner, number = file.numbers(found, 1)
        groups = [part.tolist() for part in _split(owner, number, len(found))]
    elif axes.begin[0] >= 0:
        groups = _axes(file, axes)
    else:
        if iota.begin[0] < 0:
            iota = file.columns(devices.or_empty(), [(2, "bytes")])[0]
        groups = _iota(file, iota.or_empty())
    sizes = {len(group) for group in groups}
    if len(sizes) != 1 or 0 in sizes:
        return {}
    return {"group_size": sizes.pop(), "replica_groups": groups}


def _iota(file: WireFile, within: Ranges) -> list[list[int]]:
    groups, devices = (
        int(each[0]) for each in file.columns(within, [(1, "varint"), (2, "varint")])
    )
    sizes = file.numbers(within, 3)[1].tolist()
    order = file.numbers(within, 4)[1].tolist()
    return _cut(sizes, order, devices) if groups * devices == prod(sizes) else []


def _axes(file: WireFile, within: Ranges) -> list[list[int]]:
    """Return the groups along axes of a mesh; none where it has parts that are not known here."""
    (mesh,) = file.columns(within, [(1, "bytes")])
    chosen = file.find(within, 2).ranges
    other, moved = file.columns(mesh.or_empty(), [(2, "count"), (3, "bytes")])
    place, parts = file.columns(chosen, [(1, "varint"), (2, "count")])
    (sizes,) = file.columns(file.find(mesh.or_empty(), 1).ranges, [(2, "varint")])
    last = place.tolist()
    if parts.any() or other.any() or not all(0 <= each < len(sizes) for each in last):
        return []
    order = [each for each in range(len(sizes)) if each not in last] + last
    groups = _cut(sizes.tolist(), order, prod(sizes[last].tolist()))
    if moved.begin[0] < 0:
        return groups
    dimensions, turned = (file.numbers(moved, number)[1].tolist() for number in (1, 2))
    devices = _cut(dimensions, turned, 1)
    if len(devices) != prod(sizes.tolist()):
        return []
    return [[devices[each][0] for each in group] for group in groups]


def _cut(sizes: list[int], order: list[int], devices: int) -> list[list[int]]:
    """Return the numbers from 0 on, in these dimensions, in this order, cut into groups."""
    order = order or list(range(len(sizes)))
    if not sizes or min(sizes) < 1 or sorted(order) != list(range(len(sizes))):
        return []
    if not 0 < devices <= prod(sizes) <= _MOST_DEVICES or prod(sizes) % devices:
        return []
    found: list[list[int]] = (
        np.arange(prod(sizes)).reshape(sizes).transpose(order).reshape(-1, devices).tolist()
    )
    return found


def _split(parent: Any, values: Any, count: int) -> list[Any]:
    """Return the values of each parent; parents are sorted."""
    return np.split(values, np.searchsorted(parent, np.arange(1, count)))
