# SPDX-License-Identifier: Apache-2.0
"""Profile the training of a small network on generated digits: MindSpore, CPU, under a minute.

It learns to tell stripes apart. Run it where MindSpore is installed:
python examples/train_mindspore.py [--epochs 2] [--output strobe_data]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import mindspore
import mindspore.dataset
import numpy as np
from mindspore import nn

import strobe

KINDS, SIDE = 4, 16


def images(count: int = 640) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield stripes of four directions under noise, and which they are."""
    noise = np.random.default_rng(0)
    rows, columns = np.indices((SIDE, SIDE))
    patterns = [rows % 4 < 2, columns % 4 < 2, (rows + columns) % 4 < 2, (rows - columns) % 4 < 2]
    for number in range(count):
        kind = number % KINDS
        picture = patterns[kind] + noise.normal(0, 0.5, (SIDE, SIDE))
        yield picture.astype(np.float32)[np.newaxis], np.int32(kind)


def batches() -> mindspore.dataset.Dataset:
    columns = ["picture", "kind"]
    return mindspore.dataset.GeneratorDataset(images, columns, shuffle=False).batch(32)


class Stripes(nn.Cell):
    """Two convolutions and a layer that decides."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.SequentialCell(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Conv2d(8, 16, 3), nn.ReLU()
        )
        self.flatten = nn.Flatten()
        self.head = nn.Dense(16 * (SIDE // 2) ** 2, KINDS)

    def construct(self, pictures: mindspore.Tensor) -> mindspore.Tensor:
        return self.head(self.flatten(self.features(pictures)))


def train(epochs: int) -> mindspore.train.Model:
    mindspore.set_seed(0)
    mindspore.set_device("CPU")
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    network = Stripes()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.02, momentum=0.9)
    model = mindspore.train.Model(network, loss, optimizer, metrics={"accuracy"})
    model.train(epochs, batches(), dataset_sink_mode=False)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=2, help="training epochs (2)")
    parser.add_argument(
        "--output", default="strobe_data", help="folder of recordings (strobe_data)"
    )
    arguments = parser.parse_args()

    profiler = strobe.Profiler(
        output=arguments.output,
        record_shapes=True,
        with_modules=True,
        profile_memory=True,
        data_process=True,
    )
    with profiler:
        model = train(arguments.epochs)

    accuracy = model.eval(batches(), dataset_sink_mode=False)["accuracy"]
    print(f"\n{arguments.epochs} epochs, accuracy {accuracy:.3f}\n")
    print(profiler.summary())
    path = profiler.recording.path
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    print(
        f"The recording is {path}\n"
        "Next:\n"
        f"  strobe summary {path} --by module\n"
        f"  strobe export {path} --format perfetto\n"
        "  profile your own training (docs/mindspore.md)"
    )


if __name__ == "__main__":
    main()
