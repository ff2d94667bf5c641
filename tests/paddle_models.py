# SPDX-License-Identifier: Apache-2.0
"""Programs of Paddle's that tests record: each makes a step() that does the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from paddle import nn

Step = Callable[[], Any]


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def training() -> Step:
    """Dygraph: forward, loss, backward, Adam."""
    model = mlp()
    optimizer = paddle.optimizer.Adam(parameters=model.parameters())
    inputs, labels = paddle.randn([5, 8]), paddle.randint(0, 4, [5])

    def step() -> None:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def inference() -> Step:
    """A convolutional network, without gradients."""
    layers = [nn.Conv2D(3, 4, 3), nn.BatchNorm2D(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)]
    model = nn.Sequential(*layers)
    model.eval()
    images = paddle.randn([2, 3, 8, 8])

    def step() -> None:
        with paddle.no_grad():
            model(images)

    return step


def to_static() -> Step:
    """A layer compiled as a whole, trained with SGD."""
    model = paddle.jit.to_static(mlp(), full_graph=True)
    optimizer = paddle.optimizer.SGD(parameters=model.parameters())
    inputs = paddle.randn([5, 8])

    def step() -> None:
        model(inputs).mean().backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def static() -> Step:
    """A static program with its optimizer in it; it has to be called in static mode."""
    program, first = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(program, first):
        inputs = paddle.static.data("inputs", [5, 8])
        loss = paddle.mean(nn.functional.relu(nn.Linear(8, 16)(inputs)))
        paddle.optimizer.Adam().minimize(loss)
    executor = paddle.static.Executor()
    executor.run(first)
    feed = {"inputs": np.ones((5, 8), "float32")}

    def step() -> None:
        executor.run(program, feed=feed, fetch_list=[loss])

    return step
