# SPDX-License-Identifier: Apache-2.0
"""Programs that XLA compiled, as an XSpace holds them: what their operators are given.

XEventMetadata  stats: program_id, and the bytes of an HloProto
HloProto        hlo_module = 1
HloModuleProto  computations = 3
HloComputation  instructions = 2
HloInstruction  name = 1, shape = 3, metadata = 7, id = 35, operand_ids = 36
ShapeProto      element_type = 2, dimensions = 3
OpMetadata      op_name = 2: the function that was traced, down to the operation
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from strobe.importers.wire import Ranges, WireFile

_DTYPES = {
    **{1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64"},
    **{6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64"},
    **{10: "float16", 11: "float32", 12: "float64", 16: "bfloat16"},
    **{13: "tuple", 14: "opaque", 15: "complex64", 17: "token", 18: "complex128"},
}


def operators(file: WireFile, programs: Ranges, numbers: list[int]) -> dict[tuple[int, str], str]:
    """Return the attributes of each operator, as JSON, by program and name.

    `programs` are XEventMetadata; `numbers` are the names of program_id in them.
    """
    found: dict[tuple[int, str], str] = {}
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
        for operator, text in _of_module(file, modules).items():
            found[number, operator] = text
    return found


def _of_module(file: WireFile, module: Ranges) -> dict[str, str]:
    instructions = file.find(file.find(module, 3).ranges, 2).ranges
    name, shape, metadata, number = file.columns(
        instructions, [(1, "bytes"), (3, "bytes"), (7, "bytes"), (35, "varint")]
    )
    (origin,) = file.columns(metadata.or_empty(), [(2, "bytes")])
    (kind,) = file.columns(shape.or_empty(), [(2, "varint")])
    owner, size = file.numbers(shape.or_empty(), 3)
    user, operand = file.numbers(instructions, 36)
    count = len(instructions)
    shapes = [part.tolist() for part in _split(owner, size, count)]
    dtypes = [_DTYPES.get(each, f"type {each}") for each in kind.tolist()]
    place = {each: row for row, each in enumerate(number.tolist())}
    texts = {}
    operands = _split(user, operand, count)
    for row, (own, traced) in enumerate(zip(file.texts(name), file.texts(origin), strict=True)):
        given = [place[each] for each in operands[row].tolist() if each in place]
        told: dict[str, Any] = {
            "shapes": [shapes[each] for each in given],
            "dtypes": [dtypes[each] for each in given],
        }
        told |= {"op_name": traced} if traced else {}
        texts[own] = msgspec.json.encode(told).decode()
    return texts


def _split(parent: Any, values: Any, count: int) -> list[Any]:
    """Return the values of each parent; parents are sorted."""
    return np.split(values, np.searchsorted(parent, np.arange(1, count)))
