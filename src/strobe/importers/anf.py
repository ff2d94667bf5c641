# SPDX-License-Identifier: Apache-2.0
"""A graph that MindSpore has compiled, in its protobuf: what each operator is given.

ModelProto   graph = 4
GraphProto   node = 1, parameters = 3, const_vals = 5
Node         input = 1 (name = 1), name = 2, attribute = 5, output_type = 6, full_name = 8
Parameter    name = 1, type = 2
Constant     key = 1, value = 2
TypeProto    data_type = 1, tensor_type = 2 (elem_type = 1), sequence_type = 3
Attribute    name = 1, value = 2
Value        dtype = 1, int_val = 3, str_val = 7, tensor_val = 8 (data_type = 2), values = 18
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from strobe.importers.wire import Ranges, WireFile
from strobe.model.attributes import DTYPES, GROUP

_DTYPES = {
    **{1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64"},
    **{6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64"},
    **{10: "float16", 11: "float32", 12: "float64", 46: "bfloat16"},
    **{43: "complex64", 44: "complex128", 48: "int4"},
}
SIZES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""How many bytes an element has."""
_STRATEGY = ("in_strategy", "strategy")
_MOST_DEPTH = 8


def operators(path: Path) -> dict[str, dict[str, Any]]:
    """Return dtypes, and group and strategy where it has one, of each operator by its full name.

    A dtype is None for what is no tensor. Raises FormatError for a damaged file.
    """
    file = WireFile(path)
    graph = file.find(file.whole, 4).ranges
    nodes = file.find(graph, 1).ranges
    name, output, full_name = file.columns(nodes, [(2, "bytes"), (6, "bytes"), (8, "bytes")])
    dtypes = dict(zip(file.texts(name), _types(file, output), strict=True))
    dtypes |= _parameters(file, file.find(graph, 3).ranges)
    dtypes |= _constants(file, file.find(graph, 5).ranges)
    inputs = file.find(nodes, 1)
    (given,) = file.columns(inputs.ranges, [(1, "bytes")])
    found: list[dict[str, Any]] = [{DTYPES: []} for _ in range(len(nodes))]
    for node, text in zip(inputs.parent.tolist(), file.texts(given), strict=True):
        found[node][DTYPES].append(dtypes.get(text))
    _add_attributes(file, nodes, found)
    return dict(zip(file.texts(full_name), found, strict=True))


def _parameters(file: WireFile, parameters: Ranges) -> dict[str, str | None]:
    name, kind = file.columns(parameters, [(1, "bytes"), (2, "bytes")])
    return dict(zip(file.texts(name), _types(file, kind), strict=True))


def _constants(file: WireFile, constants: Ranges) -> dict[str, str | None]:
    key, value = file.columns(constants, [(1, "bytes"), (2, "bytes")])
    (tensor,) = file.columns(value.or_empty(), [(8, "bytes")])
    (element,) = file.columns(tensor.or_empty(), [(2, "varint")])
    dtypes = [_DTYPES.get(number) for number in element.tolist()]
    return dict(zip(file.texts(key), dtypes, strict=True))


def _types(file: WireFile, types: Ranges) -> list[str | None]:
    """Return the type of a tensor's elements, None for what is none."""
    (tensor,) = file.columns(types.or_empty(), [(2, "bytes")])
    (element,) = file.columns(tensor.or_empty(), [(1, "varint")])
    return [_DTYPES.get(number) for number in element.tolist()]


def _add_attributes(file: WireFile, nodes: Ranges, found: list[dict[str, Any]]) -> None:
    attributes = file.find(nodes, 5)
    key, value = file.columns(attributes.ranges, [(1, "bytes"), (2, "bytes")])
    for row, (node, text) in enumerate(
        zip(attributes.parent.tolist(), file.texts(key), strict=True)
    ):
        if text == "group":
            (group,) = file.columns(value[[row]].or_empty(), [(7, "bytes")])
            found[node][GROUP] = file.texts(group)[0]
        elif text in _STRATEGY:
            found[node]["strategy"] = _numbers(file, value[[row]].or_empty())


def _numbers(file: WireFile, value: Ranges, depth: int = 0) -> Any:
    """Return a number, or tuples of them as lists: ((2, 1), (1, 1))."""
    parts = file.find(value, 18).ranges
    (number,) = file.columns(value, [(3, "varint")])
    if not len(parts) or depth == _MOST_DEPTH:
        return int(number[0])
    return [_numbers(file, parts[np.array([each])], depth + 1) for each in range(len(parts))]
