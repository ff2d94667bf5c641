# SPDX-License-Identifier: Apache-2.0
"""Our operation counts against torch's own: the profiler's, and the flop counter's beyond them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from strobe.assemble.flops import flops

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def calls(program: Callable[[], Any]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Each operator that ran: its name, its inputs as a recording has them, torch's figure."""
    with torch.profiler.profile(record_shapes=True, with_flops=True) as profile:
        program()
    for event in profile.profiler.kineto_results.events():
        room, _, name = event.name().partition("::")
        if room != "aten" or not hasattr(torch.ops.aten, name):
            continue
        overload = getattr(torch.ops.aten, name)
        arguments = getattr(overload, overload.overloads()[0])._schema.arguments
        concrete = {
            argument.name: value
            for argument, value in zip(arguments, event.concrete_inputs(), strict=False)
            if value is not None
        }
        yield event.name(), {"shapes": event.shapes(), "concrete": concrete}, event.flops()


def mlp() -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(12, 20), torch.nn.GELU(), torch.nn.Linear(20, 5, bias=False)
    )
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9, foreach=False)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(7, 12)).pow(2).mean().backward()
        optimizer.step()


def cnn() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 8, (3, 5), dilation=(2, 1), groups=4),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(4),
    )
    model(torch.randn(2, 3, 17, 19)).sum().backward()


def transformer() -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, dim_feedforward=32, dropout=0.0)
    layer(torch.randn(9, 2, 16)).sum().backward()


def lstm() -> None:
    torch.nn.LSTM(5, 7, num_layers=2)(torch.randn(3, 2, 5))[0].sum().backward()


def products() -> None:
    left, right = torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    torch.baddbmm(torch.randn(2, 3, 5), left, right)
    torch.bmm(left, right) * torch.randn(5) + torch.randn(2, 3, 1)
    torch.mm(torch.randn(3, 0), torch.randn(0, 5))
    torch.tensor(2.0) * left + 1


@pytest.mark.parametrize("program", [mlp, cnn, transformer, lstm, products])
def test_figures_are_the_profilers_where_it_has_one(program: Callable[[], None]) -> None:
    of_torch = ("conv2d", "mm", "addmm", "bmm", "baddbmm", "mul", "add")
    compared = 0

    for name, attributes, theirs in calls(program):
        if name.removeprefix("aten::") in of_torch:
            assert flops(name, attributes) == theirs, (name, attributes)
            compared += 1
        else:
            assert theirs == 0, f"torch counts {name} too"

    assert compared


def convolutions() -> None:
    # Without groups: the counter forgets them where it counts the gradient of the kernel.
    def image(*shape: int) -> Any:
        return torch.randn(*shape, requires_grad=True)

    outputs = [
        torch.nn.Conv1d(4, 6, 3, padding=1)(image(2, 4, 15)),
        torch.nn.Conv2d(4, 6, 3, bias=False)(image(2, 4, 9, 9)),
        torch.nn.Conv3d(2, 4, 3, stride=2)(image(2, 2, 8, 9, 7)),
        torch.nn.ConvTranspose1d(4, 6, 3)(image(2, 4, 15)),
        torch.nn.ConvTranspose2d(4, 6, 3, stride=2)(image(2, 4, 9, 9)),
        torch.nn.Conv2d(4, 6, 3)(torch.randn(2, 4, 9, 9)),  # its input wants no gradient
    ]
    sum(output.sum() for output in outputs).backward()


def linear() -> None:
    torch.nn.Linear(4, 5)(torch.randn(2, 3, 4, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("program", [convolutions, linear])
def test_totals_are_those_of_torchs_flop_counter(program: Callable[[], None]) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        program()

    # The counter leaves out what is done element by element.
    ours = [
        flops(name, attributes) or 0
        for name, attributes, _ in calls(program)
        if name not in ("aten::mul", "aten::add")
    ]

    assert sum(ours) == counter.get_total_flops()


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_the_cpu_counts_as_torchs_formula_for_any_attention(causal: bool) -> None:
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    shapes = (2, 4, 10, 16), (2, 4, 12, 16), (2, 4, 12, 16)
    query, key, value = (torch.randn(shape, requires_grad=True) for shape in shapes)

    def attention() -> None:
        product = torch.nn.functional.scaled_dot_product_attention
        product(query, key, value, is_causal=causal).sum().backward()

    ours = [flops(name, attributes) for name, attributes, _ in calls(attention)]

    assert [figure for figure in ours if figure is not None] == [
        sdpa_flop_count(*shapes),
        sdpa_backward_flop_count(shapes[0], *shapes),
    ]
