# SPDX-License-Identifier: Apache-2.0
"""CPU time that a training step costs more while it is profiled: strobe beside torch.profiler.

One process, one thread, an MLP whose step has about 449 events. All ways of profiling it are
measured in every round, in a new order each time, after some steps to warm up; what a way adds is
its time less that of the round's bare steps. Prints one JSON object.
"""

import contextlib
import json
import statistics
import sys
import tempfile
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import strobe
from rounds import Kept, compare, interleave, medians, own_times

LAYERS = 8
# what is asked of both: (strobe's options, torch.profiler's)
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "shapes": ({"record_shapes": True}, {"record_shapes": True}),
    "shapes and memory": (
        {"record_shapes": True, "profile_memory": True},
        {"record_shapes": True, "profile_memory": True},
    ),
}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    sys.executable = ""  # no finalizer beside the measurement, as where no process can be made
    torch.set_num_threads(1)
    torch.manual_seed(0)
    train = make_program()
    ways: dict[str, Any] = {"bare": contextlib.nullcontext}
    with tempfile.TemporaryDirectory() as folder:
        never = strobe.schedule(wait=10**9, warmup=0, active=1)
        ways["strobe, closed"] = with_strobe(folder, {"schedule": never})
        kept = {f"strobe, {asked}": Kept(folder, ours) for asked, (ours, _) in ASKED.items()}
        for asked, (_, theirs) in ASKED.items():
            ways[f"torch, {asked}"] = with_torch(theirs)
        ways |= kept
        spent = interleave(train, ways, rounds)
        own = own_times(kept, spent, train)
        events = count_events(train, folder)
    json.dump(
        {
            "torch": torch.__version__,
            "rounds": rounds,
            "events": events,
            "bare_us": statistics.median(spent["bare"]),
            "added_us": medians(spent),
            "own": own,
            "ratios": {
                asked: compare(spent, f"strobe, {asked}", f"torch, {asked}") for asked in ASKED
            },
        },
        sys.stdout,
    )


def make_program() -> Any:
    layers: list[torch.nn.Module] = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(64, 64), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    inputs, targets = torch.randn(32, 64), torch.randint(0, 10, (32,))
    loss_of = torch.nn.CrossEntropyLoss()

    def train(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model(inputs), targets).backward()
            optimizer.step()

    return train


def with_strobe(folder: str, options: dict[str, Any]) -> Any:
    return lambda: strobe.Profiler(output=folder, **options)


def with_torch(options: dict[str, Any]) -> Any:
    return lambda: profile(activities=[ProfilerActivity.CPU], **options)


def count_events(train: Any, folder: str) -> int:
    with strobe.Profiler(output=folder) as profiler:
        train(1)
    return profiler.recording.spans().collect().height


if __name__ == "__main__":
    main()
