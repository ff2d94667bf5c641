# SPDX-License-Identifier: Apache-2.0
"""Small models of the usual kinds, and the steps that train them: always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], None]


def mlp() -> Step:
    """Three layers and AdamW."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU())
    head = nn.Linear(16, 4)
    both = nn.Sequential(model, head)
    inputs, labels = torch.randn(5, 8), torch.randint(4, (5,))
    optimizer = torch.optim.AdamW(both.parameters())
    return _step(optimizer, lambda: functional.cross_entropy(both(inputs), labels))


def cnn() -> Step:
    """Convolutions with strides, padding, dilation, groups, and transposed; SGD with momentum."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding="same", groups=4, bias=False),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, (3, 1), dilation=(2, 1), padding=(2, 0)),
        nn.ConvTranspose2d(8, 4, 2, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 10),
    )
    inputs, labels = torch.randn(2, 3, 16, 16), torch.randint(10, (2,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
    return _step(optimizer, lambda: functional.cross_entropy(model(inputs), labels))


def transformer() -> Step:
    """An encoder of two layers with embeddings, dropout and a mask; AdamW."""
    embedding = nn.Embedding(50, 16)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model = nn.ModuleList([embedding, encoder])
    tokens = torch.randint(50, (3, 7))
    mask = nn.Transformer.generate_square_subsequent_mask(7)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    return _step(optimizer, lambda: encoder(embedding(tokens), mask=mask).square().mean())


def lstm() -> Step:
    """Two layers both ways, whose inputs are lists of tensors; Adam."""
    model = nn.LSTM(6, 8, num_layers=2, bidirectional=True)
    inputs = torch.randn(5, 3, 6)
    optimizer = torch.optim.Adam(model.parameters())
    return _step(optimizer, lambda: model(inputs)[0].pow(2).mean())


MODELS = {each.__name__: each for each in (mlp, cnn, transformer, lstm)}


def seeded(name: str) -> Step:
    """Return a step of this model, which has been done once: what happens once has happened."""
    torch.manual_seed(1)
    step = MODELS[name]()
    step()
    return step


def _step(optimizer: Any, loss: Callable[[], Any]) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def parameters_of(module: Any) -> Iterator[tuple[str, int]]:
    """Return name and bytes of each parameter."""
    for name, parameter in module.named_parameters():
        yield name, parameter.numel() * parameter.element_size()
