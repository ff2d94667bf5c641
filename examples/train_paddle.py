# SPDX-License-Identifier: Apache-2.0
"""Profile the training of a small convolutional network: PaddlePaddle, CPU, under a minute.

It learns to tell stripes from checks. Run it where PaddlePaddle is installed:
python examples/train_paddle.py [--steps 60] [--output strobe_data]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

import strobe

SIZE = 16


class Patterns(paddle.io.Dataset):  # type: ignore[misc]
    """Noisy images of stripes across, stripes down and checks, made when they are asked for."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        noise = np.random.default_rng(index)
        label = index % 3
        rows, columns = np.indices((SIZE, SIZE)) // 2 % 2
        image = (rows, columns, rows ^ columns)[label] + noise.normal(0, 1, (SIZE, SIZE))
        return image[None].astype("float32"), np.int64(label)


class Network(nn.Layer):  # type: ignore[misc]
    """Two convolutions and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2D(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2)),
            *(nn.Conv2D(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2D(2)),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * (SIZE // 4) ** 2, 3))

    def forward(self, images: Any) -> Any:
        return self.head(self.features(images))


def train(profiler: strobe.Profiler, steps: int) -> float:
    paddle.seed(0)
    model = Network()
    optimizer = paddle.optimizer.Adam(learning_rate=1e-3, parameters=model.parameters())
    loader = paddle.io.DataLoader(Patterns(steps * 32), batch_size=32, num_workers=1)
    last = float("nan")
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        last = float(loss)
        strobe.counter("loss", last)
        profiler.step(num_samples=len(images))
    return last


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60, help="training steps (60)")
    parser.add_argument(
        "--output", default="strobe_data", help="folder of recordings (strobe_data)"
    )
    arguments = parser.parse_args()

    profiler = strobe.Profiler(
        output=arguments.output,
        schedule=strobe.schedule(wait=5, warmup=1, active=10, repeat=1),
        with_modules=True,
        profile_memory=True,
    )
    with profiler:
        loss = train(profiler, arguments.steps)

    print(f"\n{arguments.steps} steps, last loss {loss:.3f}\n")
    problem = profiler.explain_schedule()
    if problem:
        raise SystemExit(f"{problem}; give more --steps")
    print(profiler.summary())
    path = profiler.recording.path
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    print(
        f"The recording is {path}\n"
        "Next:\n"
        f"  strobe summary {path} --by step\n"
        f"  strobe export {path} --format perfetto\n"
        "  profile your own training (docs/paddle.md)"
    )


if __name__ == "__main__":
    main()
