# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of operators, from their names and the shapes of their inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from strobe.model.arrays import Int64
from strobe.model.attributes import CONCRETE, SHAPES
from strobe.model.trace import Spans
from strobe.store.spill import Spill

_Shape = Sequence[int]
_Shapes = Sequence[_Shape]
_Concrete = Mapping[str, Any]


def flops(name: str, attributes: Mapping[str, Any]) -> int | None:
    """Return the floating-point operations of one call, None where they are not known.

    attributes: `shapes`, one list per input ([] for what is no tensor), and `concrete`, the inputs
        that are no tensors by their names: stride, padding (numbers, or "same" or "valid"),
        dilation, transposed and output_mask, for operators that have them; or all inputs in
        order, each as a text, as torch.profiler writes them.

    A multiplication and the addition after it are two operations. Where torch.profiler has a figure
    (mm, addmm, bmm, baddbmm, conv2d, mul, add) it is the same one: mul and add count the elements
    of their first input alone. Attention counts every score, those that a mask hides too.

    Operators that only pass their inputs on to others here, as aten::linear and aten::matmul do,
    have none: what they call has. Paddle's are known as `matmul dygraph` and, in that, `matmul
    kernel launch`; their figures are those of paddle.utils.flops. Its gradients have none: it does
    not tell which of them were computed.
    """
    rule = _RULES.get(name)
    if rule is None:
        return None
    try:
        found = rule(attributes[SHAPES], _named(name, attributes.get(CONCRETE) or {}))
    except (LookupError, TypeError, ValueError):  # not the inputs that the operator has in torch
        return None
    return found if isinstance(found, int) and 0 <= found < 1 << 63 else None


def flops_column(spans: Spans, names: Sequence[str], spill: Spill) -> Int64:
    """Return `flops` of each span, -1 where it is not known."""
    has_rule = np.array([name in _RULES for name in names] or [False])
    found: Int64 = spill.full(len(spans), -1, np.int64)
    figures: dict[int, int] = {}
    for part in spill.parts(len(spans)):
        rows = np.flatnonzero(has_rule[spans.name[part]] & (spans.attributes[part] >= 0))
        rows += part.start
        # The same operators see the same shapes again and again.
        pairs = spans.name[rows].astype(np.int64) << 32 | spans.attributes[rows]
        distinct, place = np.unique(pairs, return_inverse=True)
        for pair in distinct.tolist():
            if pair not in figures:
                figure = flops(names[pair >> 32], spans.texts.content(pair & 0xFFFFFFFF))
                figures[pair] = -1 if figure is None else figure
        known = np.array([figures[pair] for pair in distinct.tolist()], np.int64)
        found[rows] = known[place.reshape(-1)]
    return found


def _named(name: str, concrete: _Concrete | Sequence[str]) -> _Concrete:
    """Return the inputs that are no tensors by their names."""
    if isinstance(concrete, Mapping):
        return concrete
    places = _PLACES.get(name, {})
    # [1, 1], 1, False or [True, False]: JSON but for the capitals.
    return {given: json.loads(concrete[place].lower()) for given, place in places.items()}


def _matrices(left: int) -> Callable[[_Shapes, _Concrete], int]:
    """Return the rule for [batch x] m x k times [batch x] k x n, the inputs `left` and the next."""

    def rule(shapes: _Shapes, _concrete: _Concrete) -> int:
        return 2 * prod(shapes[left]) * shapes[left + 1][-1]

    return rule


def _vector(matrix: int) -> Callable[[_Shapes, _Concrete], int]:
    """Return the rule for the input `matrix` (or vector) times a vector."""
    return lambda shapes, _concrete: 2 * prod(shapes[matrix])


def _elements(shapes: _Shapes, _concrete: _Concrete) -> int:
    return prod(shapes[0])


def _convolution(shapes: _Shapes, concrete: _Concrete) -> int:
    """Return 2 for each element of the kernel and of an output channel: groups are in its shape."""
    inputs, kernel = shapes[0], shapes[1]
    dimensions = len(kernel) - 2
    output = [
        _convolved(
            size,
            kernel[2 + i],
            stride=_at(concrete["stride"], i),
            padding=_at(concrete["padding"], i),
            dilation=_at(concrete["dilation"], i),
        )
        for i, size in enumerate(inputs[len(inputs) - dimensions :])
    ]
    return 2 * _samples(inputs, kernel) * prod(output) * prod(kernel)


def _convolved(size: int, kernel: int, *, stride: int, padding: int | str, dilation: int) -> int:
    if padding == "same":
        return size
    around = 0 if padding == "valid" else 2 * int(padding)
    return (size + around - dilation * (kernel - 1) - 1) // stride + 1


def _at(value: Any, dimension: int) -> Any:
    """Return the number for a dimension: torch takes one number for all of them too."""
    if not isinstance(value, list):
        return value
    return value[dimension] if len(value) > 1 else value[0]


def _samples(inputs: _Shape, kernel: _Shape) -> int:
    return inputs[0] if len(inputs) == len(kernel) else 1


def _transposed(shapes: _Shapes, _concrete: _Concrete) -> int:
    inputs, kernel = shapes[0], shapes[1]
    return 2 * _samples(inputs, kernel) * prod(inputs[2 - len(kernel) :]) * prod(kernel)


def _convolution_backward(shapes: _Shapes, concrete: _Concrete) -> int:
    """Return as much as the forward for each gradient asked for: the input's, the kernel's."""
    gradient, inputs, kernel = shapes[0], shapes[1], shapes[2]
    over = inputs if concrete["transposed"] else gradient
    one = 2 * _samples(inputs, kernel) * prod(over[2 - len(kernel) :]) * prod(kernel)
    return one * sum(map(bool, concrete["output_mask"][:2]))


def _attention(shapes: _Shapes, _concrete: _Concrete) -> int:
    query, key, value = shapes[:3]
    scores = prod(query[:-1]) * key[-2]
    return 2 * scores * (query[-1] + value[-1])


def _attention_backward(shapes: _Shapes, _concrete: _Concrete) -> int:
    """Return three products with queries and keys (one of them the scores again), two with values.

    The first input is the gradient of the output.
    """
    query, key, value = shapes[1:4]
    scores = prod(query[:-1]) * key[-2]
    return 2 * scores * (3 * query[-1] + 2 * value[-1])


def _recurrent(times: int) -> Callable[[_Shapes, _Concrete], int]:
    """Return the rule for a layer over time x batch x features with two matrices of weights."""

    def rule(shapes: _Shapes, _concrete: _Concrete) -> int:
        return times * 2 * prod(shapes[0][:2]) * (prod(shapes[1]) + prod(shapes[2]))

    return rule


_CONVOLUTIONS = ("aten::conv1d", "aten::conv2d", "aten::conv3d")
_PLACES: Mapping[str, Mapping[str, int]] = {
    **{name: {"stride": 3, "padding": 4, "dilation": 5} for name in _CONVOLUTIONS},
    "aten::convolution_backward": {"transposed": 7, "output_mask": 10},
}
_ATTENTION = (
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
)


def _broadcast(shapes: _Shapes, _concrete: _Concrete) -> int:
    """Return the elements of what two inputs give."""
    size = max(len(shapes[0]), len(shapes[1]))
    padded = [[1] * (size - len(shape)) + list(shape) for shape in shapes[:2]]
    return prod(map(max, *padded))


def _product(shapes: _Shapes, concrete: _Concrete) -> int:
    """Return the rule for matrices of which either may be transposed, in batches."""
    left, right = list(shapes[0]), list(shapes[1])
    if concrete.get("transpose_x") and len(left) > 1:
        left[-2:] = left[:-3:-1]
    if concrete.get("transpose_y") and len(right) > 1:
        right[-2:] = right[:-3:-1]
    if len(left) < 2 or len(right) < 2:  # a vector: each element of the other is taken once
        return 2 * max(prod(left), prod(right))
    batches = _broadcast([left[:-2], right[:-2]], {})
    return 2 * batches * left[-2] * left[-1] * right[-1]


_PADDLE: Mapping[str, Callable[[_Shapes, _Concrete], int]] = {
    **dict.fromkeys(("matmul", "bmm"), _product),
    **dict.fromkeys(("add", "subtract", "multiply", "divide"), _broadcast),
    **dict.fromkeys(("conv2d", "conv3d", "depthwise_conv2d"), _convolution),
    "relu": _elements,
}

_RULES: Mapping[str, Callable[[_Shapes, _Concrete], int]] = {
    "aten::mm": _matrices(0),
    "aten::addmm": _matrices(1),
    "aten::addmm_": _matrices(1),
    "aten::_addmm_activation": _matrices(1),
    "aten::bmm": _matrices(0),
    "aten::baddbmm": _matrices(1),
    "aten::baddbmm_": _matrices(1),
    "aten::_int_mm": _matrices(0),
    "aten::_scaled_mm": _matrices(0),
    "aten::addmv": _vector(1),
    "aten::addmv_": _vector(1),
    "aten::dot": _vector(0),
    "aten::vdot": _vector(0),
    "aten::mul": _elements,
    "aten::add": _elements,
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    "aten::conv_transpose1d": _transposed,
    "aten::conv_transpose2d": _transposed,
    "aten::conv_transpose3d": _transposed,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    **dict.fromkeys(_ATTENTION, _attention),
    **{f"{name}_backward": _attention_backward for name in _ATTENTION},
    "aten::mkldnn_rnn_layer": _recurrent(1),
    "aten::mkldnn_rnn_layer_backward": _recurrent(2),
    **{f"{name} dygraph": rule for name, rule in _PADDLE.items()},
    **{f"{name} kernel launch": rule for name, rule in _PADDLE.items()},
}
