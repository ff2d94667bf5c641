# SPDX-License-Identifier: Apache-2.0
"""Operations counted by hand: each expected value is the product that its comment spells out."""

from __future__ import annotations

import pytest

from drawing import SPILLS, trace
from strobe.assemble.flops import flops, flops_column
from strobe.model.trace import Spans, concatenate

IMAGE, KERNEL = [4, 8, 16, 16], [6, 8, 3, 3]
PLAIN = {"stride": [1], "padding": [0], "dilation": [1], "groups": 1, "transposed": False}


@pytest.mark.parametrize(
    ("name", "shapes", "concrete", "expected"),
    [
        ("aten::mm", [[3, 4], [4, 5]], {}, 2 * 3 * 4 * 5),
        ("aten::addmm", [[5], [6, 4], [4, 5], [], []], {}, 2 * 6 * 4 * 5),
        ("aten::bmm", [[2, 3, 4], [2, 4, 5]], {}, 2 * 2 * 3 * 4 * 5),
        ("aten::baddbmm", [[2, 3, 5], [2, 3, 4], [2, 4, 5]], {}, 2 * 2 * 3 * 4 * 5),
        ("aten::mm", [[3, 0], [0, 5]], {}, 0),
        ("aten::addmv_", [[3], [3, 4], [4]], {}, 2 * 3 * 4),
        ("aten::dot", [[7], [7]], {}, 2 * 7),
        ("aten::mul", [[3, 1], [1, 4]], {}, 3),
        ("aten::add", [[], []], {}, 1),
        ("matmul dygraph", [[3, 4], [4, 5]], {}, 2 * 3 * 4 * 5),
        ("matmul dygraph", [[4, 3], [5, 4]], {"transpose_x": True, "transpose_y": True}, 120),
        ("matmul kernel launch", [[7, 2, 3, 4], [2, 4, 5]], {}, 7 * 2 * 120),
        ("matmul dygraph", [[6, 3, 4], [4]], {}, 2 * 6 * 3 * 4),
        ("add dygraph", [[2, 1, 3], [4, 1]], {}, 2 * 4 * 3),
        # 14 x 14 pixels come out
        ("aten::conv2d", [IMAGE, KERNEL], PLAIN, 2 * 4 * 14 * 14 * 6 * 8 * 9),
        # (16 + 2 - 2 - 1) // 2 + 1 = 8
        (
            "aten::conv2d",
            [IMAGE, KERNEL],
            {"stride": [2, 2], "padding": [1, 1], "dilation": [1, 1], "groups": 1},
            2 * 4 * 8 * 8 * 6 * 8 * 9,
        ),
        # (16 - 2 * 2 - 1) // 1 + 1 = 12
        (
            "aten::conv2d",
            [IMAGE, KERNEL],
            PLAIN | {"dilation": [2, 2]},
            2 * 4 * 12 * 12 * 6 * 8 * 9,
        ),
        ("aten::conv2d", [IMAGE, KERNEL], PLAIN | {"padding": "same"}, 2 * 4 * 16 * 16 * 6 * 8 * 9),
        (
            "aten::conv2d",
            [IMAGE, KERNEL],
            PLAIN | {"padding": "valid"},
            2 * 4 * 14 * 14 * 6 * 8 * 9,
        ),
        ("aten::conv2d", [IMAGE, KERNEL], PLAIN | {"padding": [1]}, 2 * 4 * 16 * 16 * 6 * 8 * 9),
        ("aten::conv2d", [IMAGE[1:], KERNEL], PLAIN, 2 * 14 * 14 * 6 * 8 * 9),
        # four groups of two channels
        (
            "aten::conv2d",
            [[2, 8, 9, 9], [8, 2, 3, 3]],
            PLAIN | {"groups": 4},
            2 * 2 * 7 * 7 * 8 * 2 * 9,
        ),
        ("aten::conv1d", [[4, 8, 16], [6, 8, 3]], PLAIN, 2 * 4 * 14 * 6 * 8 * 3),
        ("aten::conv3d", [[2, 3, 8, 8, 8], [6, 3, 3, 3, 3]], PLAIN, 2 * 2 * 6**3 * 6 * 3 * 27),
        # each of the 8 x 8 pixels that go in meets the whole kernel
        (
            "aten::conv_transpose2d",
            [[2, 3, 8, 8], [3, 6, 3, 3]],
            {"stride": [2, 2]},
            2 * 2 * 8 * 8 * 3 * 6 * 9,
        ),
        (
            "aten::convolution_backward",
            [[4, 6, 14, 14], IMAGE, KERNEL],
            PLAIN | {"output_mask": [True, True, False]},
            2 * (2 * 4 * 14 * 14 * 6 * 8 * 9),
        ),
        (
            "aten::convolution_backward",
            [[4, 6, 14, 14], IMAGE, KERNEL],
            PLAIN | {"output_mask": [False, True, True]},
            2 * 4 * 14 * 14 * 6 * 8 * 9,
        ),
        (
            "aten::convolution_backward",
            [[2, 6, 16, 16], [2, 3, 8, 8], [3, 6, 3, 3]],
            {"transposed": True, "output_mask": [True, True, True]},
            2 * (2 * 2 * 8 * 8 * 3 * 6 * 9),
        ),
        # 10 queries and 12 keys of 16, values of 20, for 2 x 4 heads
        (
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            [[2, 4, 10, 16], [2, 4, 12, 16], [2, 4, 12, 20]],
            {},
            2 * 8 * 10 * 12 * (16 + 20),
        ),
        (
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            [[2, 4, 10, 20], [2, 4, 10, 16], [2, 4, 12, 16], [2, 4, 12, 20]],
            {},
            2 * 8 * 10 * 12 * (16 + 20 + 20 + 16 + 16),
        ),
        # 3 times, 2 sequences, four gates of 7
        (
            "aten::mkldnn_rnn_layer",
            [[3, 2, 5], [28, 5], [28, 7], [28], [28], [2, 7], [2, 7]],
            {},
            2 * 3 * 2 * 28 * (5 + 7),
        ),
    ],
)
def test_operations_are_those_counted_by_hand(name, shapes, concrete, expected):
    assert flops(name, {"shapes": shapes, "concrete": concrete}) == expected


@pytest.mark.parametrize(
    ("name", "shapes", "concrete", "expected"),
    [
        # 8 x 8 pixels come out, as above
        (
            "aten::conv2d",
            [IMAGE, KERNEL, [], [], [], [], []],
            ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"],
            2 * 4 * 8 * 8 * 6 * 8 * 9,
        ),
        (
            "aten::convolution_backward",
            [[4, 6, 14, 14], IMAGE, KERNEL],
            ["", "", "", "[0]", *["[1, 1]"] * 3, "False", "[0, 0]", "1", "[False, True, True]"],
            2 * 4 * 14 * 14 * 6 * 8 * 9,
        ),
        ("aten::addmm", [[5], [6, 4], [4, 5], [], []], ["", "", "", "1", "1"], 2 * 6 * 4 * 5),
        # torch.profiler does not say that it is "same"
        ("aten::conv2d", [IMAGE, KERNEL], ["", "", "", "[1, 1]", "", "[1, 1]", "1"], None),
    ],
)
def test_inputs_may_come_as_torchs_profiler_writes_them(name, shapes, concrete, expected):
    assert flops(name, {"shapes": shapes, "concrete": concrete}) == expected


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("aten::relu", {"shapes": [[3]]}),
        ("aten::linear", {"shapes": [[3, 4], [5, 4], [5]]}),  # its addmm has them
        ("aten::mm", {}),
        ("aten::mm", {"shapes": None}),
        ("aten::mm", {"shapes": [[3, 4]]}),
        ("aten::mm", {"shapes": [[3, 4], []]}),
        ("aten::conv2d", {"shapes": [IMAGE, KERNEL]}),
        ("aten::conv2d", {"shapes": [IMAGE, KERNEL], "concrete": PLAIN | {"padding": "odd"}}),
        ("aten::conv2d", {"shapes": [IMAGE, KERNEL], "concrete": PLAIN | {"padding": None}}),
        (
            "aten::convolution_backward",
            {"shapes": [[4, 6, 14, 14], IMAGE, KERNEL], "concrete": PLAIN},
        ),
    ],
)
def test_what_cannot_be_known_is_none(name, attributes):
    assert flops(name, attributes) is None


def test_a_column_has_the_same_figures_row_by_row():
    mm, add = {"shapes": [[3, 4], [4, 5]]}, {"shapes": [[3, 4], []]}
    drawing = """
        main | a- b- c- d- e-
    """
    names = {"a": "aten::add", "b": "aten::mm", "c": "relu", "d": "aten::mm", "e": "aten::mm"}
    told = {"a": add, "b": mm, "c": mm, "e": mm}
    drawn = trace(drawing, rename=names, attributes=told)

    column = flops_column(concatenate(drawn.spans, Spans), drawn.names, SPILLS[1])

    assert column.tolist() == [12, 120, -1, -1, 120]


def test_no_rows_give_no_figures():
    assert flops_column(concatenate([], Spans), [], SPILLS[0]).tolist() == []
