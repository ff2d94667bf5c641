# SPDX-License-Identifier: Apache-2.0
"""Profile the training of a small network with JAX: two spirals, on a CPU in a few seconds.

    pip install strobe jax
    python examples/train_jax.py [--steps 200] [--output strobe_data]

The network is compiled with jax.jit; what XLA runs, and when, is in the recording all the same.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import strobe

Array = Any
Parameters = list[tuple[Array, Array]]


def make_spirals(count: int, key: Array) -> tuple[Array, Array]:
    """Points on two spirals that wind around each other, and which of the two each is on."""
    angles, sides = jax.random.split(key)
    angle = jnp.sqrt(jax.random.uniform(angles, (count,))) * 3 * jnp.pi
    side = jax.random.bernoulli(sides, shape=(count,))
    radius = jnp.where(side, angle, -angle)
    return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=1) / 8, side


def make_network(widths: list[int], key: Array) -> Parameters:
    keys = jax.random.split(key, len(widths))
    return [
        (jax.random.normal(key, (rows, columns)) * jnp.sqrt(2 / rows), jnp.zeros(columns))
        for key, (rows, columns) in zip(keys, pairwise(widths), strict=False)
    ]


def loss_of(network: Parameters, points: Array, sides: Array) -> Array:
    values = points
    for weights, biases in network[:-1]:
        values = jax.nn.relu(values @ weights + biases)
    weights, biases = network[-1]
    scores = (values @ weights + biases)[:, 0]
    return jnp.mean(jnp.logaddexp(0, jnp.where(sides, -scores, scores)))


@partial(jax.jit, donate_argnums=0)
def update(network: Parameters, points: Array, sides: Array) -> tuple[Parameters, Array]:
    loss, gradients = jax.value_and_grad(loss_of)(network, points, sides)
    return jax.tree.map(lambda value, slope: value - 0.3 * slope, network, gradients), loss


def main() -> None:
    arguments = parse()
    data, start, batches = jax.random.split(jax.random.key(0), 3)
    points, sides = make_spirals(10_000, data)
    network = make_network([2, 128, 128, 1], start)
    schedule = strobe.schedule(wait=5, warmup=1, active=10, repeat=1)
    with strobe.Profiler(output=arguments.output, schedule=schedule) as profiler:
        for number in range(arguments.steps):
            with jax.profiler.TraceAnnotation("choose a batch"):
                chosen = jax.random.randint(jax.random.fold_in(batches, number), (512,), 0, 10_000)
                batch = points[chosen], sides[chosen]
            network, loss = update(network, *batch)
            loss.block_until_ready()  # or the step ends before its work does
            profiler.step(num_samples=512)
    print(f"loss {float(loss):.3f} after {arguments.steps} steps")
    print(profiler.summary())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", type=Path, default=Path("strobe_data"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
