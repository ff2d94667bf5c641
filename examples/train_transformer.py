# SPDX-License-Identifier: Apache-2.0
"""Profile the training of a small transformer on generated text: PyTorch, CPU, under a minute.

It learns to do sums. Run it where PyTorch is installed:
python examples/train_transformer.py [--steps 300] [--output strobe_data]
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import strobe

LETTERS = "0123456789+= ."
LENGTH = 16


class Sums(Dataset[Tensor]):
    """Texts such as `  417+86=503.   `, made when they are asked for."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        noise = random.Random(index)
        first, second = noise.randrange(1000), noise.randrange(1000)
        text = f"{first}+{second}={first + second}.".ljust(LENGTH)
        return torch.tensor([LETTERS.index(letter) for letter in text])


class Block(nn.Module):
    """Attention to what came before, and a perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, states: Tensor) -> Tensor:
        batch, length, width = states.shape
        projected = self.queries_keys_values(self.attention_norm(states))
        split = projected.view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        states = states + self.mix(seen.transpose(1, 2).reshape(batch, length, width))
        return states + self.perceptron(states)


class Transformer(nn.Module):
    """Predicts the next letter of each text."""

    def __init__(self, width: int = 96, heads: int = 4, blocks: int = 2) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(LETTERS)))

    def forward(self, texts: Tensor) -> Tensor:
        states = self.letters(texts) + self.places[: texts.shape[1]]
        logits: Tensor = self.head(self.blocks(states))
        return logits


def train(profiler: strobe.Profiler, steps: int) -> float:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # more would only wait for each other on so small a model
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(Sums(steps * 32), batch_size=32, num_workers=1)
    loss = torch.tensor(float("nan"))
    for texts in loader:
        logits = model(texts[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), texts[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        strobe.counter("loss", loss.item())
        profiler.step(num_samples=len(texts))
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300, help="training steps (300)")
    parser.add_argument(
        "--output", default="strobe_data", help="folder of recordings (strobe_data)"
    )
    arguments = parser.parse_args()

    profiler = strobe.Profiler(
        output=arguments.output,
        schedule=strobe.schedule(wait=5, warmup=1, active=10, repeat=1),
        record_shapes=True,
        with_flops=True,
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
        f"  python -c \"import strobe; print(strobe.open('{path}').spans().collect())\"\n"
        "  profile your own training (docs/pytorch.md)"
    )


if __name__ == "__main__":
    main()
