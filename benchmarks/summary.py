# SPDX-License-Identifier: Apache-2.0
"""`strobe summary` as a whole command, of recordings whose tables exist; beside `import polars`.

Records N events of each kind first. Prints one JSON object.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 100

SPANS = """
import sys
import strobe
names = [f"operator {number}" for number in range(200)]
with strobe.Profiler(output=sys.argv[1]) as profiler:
    for _ in range(int(sys.argv[3])):
        for number in range(int(sys.argv[2]) // int(sys.argv[3]) // 2):
            with strobe.span(names[number % 200]), strobe.span("inner"):
                pass
        profiler.step()
"""
CALLS = """
import sys
import strobe
def outer(number):
    return inner(number)
def inner(number):
    return number + 1
def work(count):
    for number in range(count):
        outer(number)
with strobe.Profiler(output=sys.argv[1], with_stack=True) as profiler:
    for _ in range(int(sys.argv[3])):
        with strobe.span("forward"):
            work(int(sys.argv[2]) // int(sys.argv[3]) // 2)
        profiler.step()
"""
# One of its steps has about 850 events.
TORCH = """
import sys
import torch
import strobe
layers = [each for _ in range(8) for each in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
options = {"record_shapes": True, "profile_memory": True, "with_flops": True}
with strobe.Profiler(output=sys.argv[1], **options) as profiler:
    for _ in range(int(sys.argv[2]) // 850):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        profiler.step()
"""
OPEN = "import strobe, sys; print(strobe.open(sys.argv[1]).operators()['calls'].sum())"
PROGRAMS = {"spans": SPANS, "Python calls": CALLS}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--torch", action="store_true", help="Torch's operators alone.")
    arguments = parser.parse_args()

    programs = {"torch operators": TORCH} if arguments.torch else PROGRAMS
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, program in programs.items():
            record(program, Path(folder, name), arguments.count)
        commands = {
            name: [sys.executable, "-m", "strobe", "summary", f"{folder}/{name}"]
            for name in programs
        }
        commands["import polars"] = [sys.executable, "-c", "import polars"]
        json.dump(measure(commands, arguments.rounds), sys.stdout)


def record(program: str, into: Path, count: int) -> None:
    for command in ([program, str(into), str(count), str(STEPS)], [OPEN, str(into)]):
        subprocess.run([sys.executable, "-c", *command], check=True, stdout=subprocess.DEVNULL)


def measure(commands: dict[str, list[str]], rounds: int) -> dict[str, dict[str, float]]:
    """Return the wall time of each, taken in turn; the first round only fills caches."""
    spent: dict[str, list[float]] = {name: [] for name in commands}
    # As a user has it: with the bytecode of an earlier run.
    environment = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(rounds + 1):
        for name in random.sample(list(commands), len(commands)):
            began = time.perf_counter()
            subprocess.run(commands[name], check=True, stdout=subprocess.DEVNULL, env=environment)
            spent[name].append(time.perf_counter() - began)
    return {
        name: {"min_s": min(found[1:]), "median_s": statistics.median(found[1:])}
        for name, found in spent.items()
    }


if __name__ == "__main__":
    main()
