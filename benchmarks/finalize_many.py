# SPDX-License-Identifier: Apache-2.0
"""Time, memory and disk space that tables take, made in a new process from a log of many events.

    finalize_many.py KIND COUNT      prints JSON; KIND is one of PROGRAMS

Memory is the most that was anonymous: pages of files are the system's to take back.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import strobe

PERIOD_S = 0.005


def plain(count: int) -> None:
    for _ in range(count // 10):
        with strobe.span("outer"):
            for _ in range(9):
                with strobe.span("inner"):
                    pass


def attributes(count: int) -> None:
    for number in range(count):
        with strobe.span("span", number=number):
            pass


def inside_one(count: int) -> None:
    with strobe.span("all"):
        plain(count)


def calls(count: int) -> None:
    for _ in range(count // 2):
        nothing()
        len("")


def nothing() -> None:
    pass


def torch_steps(count: int) -> None:
    """About 300 records a step: operators with shapes, allocations."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows = torch.randn(4, 8)
    for _ in range(count // 300):
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


PROGRAMS: dict[str, Callable[[int], None]] = {
    "plain spans": plain,
    "spans with an int that differs": attributes,
    "spans inside an open one": inside_one,
    "Python calls": calls,
    "torch records": torch_steps,
}
OPTIONS = {
    "Python calls": {"with_stack": True},
    "torch records": {"record_shapes": True, "profile_memory": True},
}


def record(kind: str, count: int, folder: str) -> None:
    profiler = strobe.Profiler(
        output=folder, max_bytes=1 << 40, max_seconds=1e6, **OPTIONS.get(kind, {})
    )
    sys.executable = ""  # no finalizer beside
    with profiler:
        PROGRAMS[kind](count)


def finalize(folder: str) -> dict[str, float]:
    most = {"anonymous": 0, "disk": 0}
    before = shutil.disk_usage(folder).used

    def watch() -> None:
        while True:
            most["anonymous"] = max(most["anonymous"], anonymous_bytes())
            most["disk"] = max(most["disk"], shutil.disk_usage(folder).used - before)
            time.sleep(PERIOD_S)

    threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    recording = strobe.open(folder)
    events = recording.completeness()["collected"].sum()
    return {
        "events": events,
        "seconds": time.perf_counter() - began,
        "anonymous_mb": most["anonymous"] / 1e6,
        "disk_bytes_per_event": most["disk"] / events,
    }


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=PROGRAMS)
    parser.add_argument("count", type=int)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--record", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record:
        record(arguments.kind, arguments.count, arguments.folder)
    elif arguments.folder:
        json.dump(finalize(arguments.folder), sys.stdout)
    else:
        with tempfile.TemporaryDirectory(prefix="strobe-bench-") as folder:
            again = [sys.executable, __file__, arguments.kind, str(arguments.count)]
            again += ["--folder", folder]
            subprocess.run([*again, "--record"], check=True, stderr=subprocess.DEVNULL)
            subprocess.run(again, check=True)


if __name__ == "__main__":
    main()
