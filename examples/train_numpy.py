# SPDX-License-Identifier: Apache-2.0
"""Profile the training of a small network: two spirals, numpy alone, a few seconds on a laptop.

Run it with `make demo`, or: python examples/train_numpy.py [--steps 300] [--output strobe_data]
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import strobe

Floats = NDArray[np.float64]


def make_spirals(count: int, noise: np.random.Generator) -> tuple[Floats, Floats]:
    """Points on two spirals that wind around each other, and which of the two each is on."""
    angle = np.sqrt(noise.random(count)) * 3 * np.pi
    side = noise.integers(0, 2, count)
    radius = angle * np.where(side, 1, -1)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return (points + noise.normal(0, 0.2, points.shape)) / 8, side.astype(float)


def load_batches(points: Floats, sides: Floats, size: int) -> Iterator[tuple[Floats, Floats]]:
    """Batches without end: shuffled, rotated a little, and expanded into features."""
    noise = np.random.default_rng(1)
    while True:
        chosen = noise.integers(0, len(points), size)
        turn = noise.normal(0, 0.02, (size, 1))
        x, y = points[chosen, :1], points[chosen, 1:]
        rotated = np.concatenate([x - turn * y, y + turn * x], axis=1)
        frequencies = 2.0 ** np.arange(6)
        waves = rotated[:, :, None] * frequencies
        features = np.concatenate([np.sin(waves), np.cos(waves)], axis=2).reshape(size, -1)
        yield np.concatenate([rotated, features], axis=1), sides[chosen]


class Network:
    """A multi-layer perceptron with ReLU, a logistic loss and Adam."""

    def __init__(self, widths: list[int], noise: np.random.Generator) -> None:
        self.weights = [
            noise.normal(0, np.sqrt(2 / rows), (rows, columns))
            for rows, columns in pairwise(widths)
        ]
        self.biases = [np.zeros(b) for b in widths[1:]]
        self.moments = [(np.zeros_like(p), np.zeros_like(p)) for p in self.parameters()]
        self.steps = 0

    def parameters(self) -> list[Floats]:
        return [*self.weights, *self.biases]

    def forward(self, batch: Floats) -> list[Floats]:
        activations = [batch]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            with strobe.span("matmul", layer=layer):
                linear = activations[-1] @ weight + bias
            last = layer == len(self.weights) - 1
            with strobe.span("activation"):
                activations.append(linear if last else np.maximum(linear, 0))
        return activations

    def loss(self, logits: Floats, target: Floats) -> tuple[float, Floats]:
        with strobe.span("loss"):
            score = logits[:, 0]
            loss = np.mean(np.logaddexp(0, score) - target * score)
            gradient = (1 / (1 + np.exp(-score)) - target)[:, None] / len(target)
        return float(loss), gradient

    def backward(self, activations: list[Floats], gradient: Floats) -> list[Floats]:
        weights, biases = [], []
        for layer in reversed(range(len(self.weights))):
            with strobe.span("matmul backward", layer=layer):
                weights.append(activations[layer].T @ gradient)
                biases.append(gradient.sum(0))
                gradient = gradient @ self.weights[layer].T
            if layer:
                with strobe.span("activation backward"):
                    gradient = gradient * (activations[layer] > 0)
        return [*reversed(weights), *reversed(biases)]

    @strobe.span("adam")
    def update(self, gradients: list[Floats], rate: float = 2e-3) -> None:
        self.steps += 1
        for parameter, gradient, (mean, square) in zip(
            self.parameters(), gradients, self.moments, strict=True
        ):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            corrected = mean / (1 - 0.9**self.steps)
            spread = np.sqrt(square / (1 - 0.999**self.steps)) + 1e-8
            parameter -= rate * corrected / spread


def train(steps: int) -> float:
    noise = np.random.default_rng(0)
    network = Network([26, 256, 256, 1], noise)
    batches = load_batches(*make_spirals(20_000, noise), size=256)
    loss = float("nan")
    for step in range(steps):
        with strobe.span("step", index=step):
            with strobe.span("data loading"):
                batch, target = next(batches)
            with strobe.span("forward"):
                activations = network.forward(batch)
                loss, gradient = network.loss(activations[-1], target)
            with strobe.span("backward"):
                gradients = network.backward(activations, gradient)
            with strobe.span("optimizer"):
                network.update(gradients)
        strobe.counter("loss", loss)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="training steps (300)")
    parser.add_argument(
        "--output", default="strobe_data", help="folder of recordings (strobe_data)"
    )
    arguments = parser.parse_args()

    with strobe.Profiler(output=arguments.output) as profiler:
        loss = train(arguments.steps)

    recording = profiler.recording
    print(f"\n{arguments.steps} steps, last loss {loss:.3f}\n")
    print(recording.summary())
    path = recording.path
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    here = os.path.relpath(Path(sys.executable).parent)
    programs = "" if shutil.which("strobe") else f"{here}/"
    print(
        f"The recording is {path}\n"
        "Next:\n"
        f"  {programs}strobe info {path}\n"
        f"  {programs}python -c \"import strobe; print(strobe.open('{path}').spans().collect())\"\n"
        '  put `with strobe.span("..."):` around your own code (docs/getting-started.md)'
    )


if __name__ == "__main__":
    main()
