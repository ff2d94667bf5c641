# SPDX-License-Identifier: Apache-2.0
"""Time, memory and disk space that tables take, made in a new process from a long log or file.

    finalize_many.py KIND COUNT      prints JSON; KIND is one of PROGRAMS or of FILES

Memory is the most that was anonymous: pages of files are the system's to take back.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import strobe
from strobe.exporters import find_exporter

PERIOD_S = 0.005
SAMPLES = Path(__file__).resolve().parent.parent / "samples"


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


def long_texts(count: int) -> None:
    """Texts that are too long for records: each is a definition of its own."""
    for number in range(count):
        with strobe.span("span", prompt=f"{number:0100}"):
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
    "spans with a long text that differs": long_texts,
    "spans inside an open one": inside_one,
    "Python calls": calls,
    "torch records": torch_steps,
}
OPTIONS = {
    "Python calls": {"with_stack": True},
    "torch records": {"record_shapes": True, "profile_memory": True},
}


def write_kineto(count: int, folder: Path) -> None:
    """Write the trace of a small program over and over again, each time later."""
    content = json.loads(gzip.decompress((SAMPLES / "kineto/2.13.0/trace.json.gz").read_bytes()))
    events = content.pop("traceEvents")
    timed = [event for event in events if event["ph"] == "X"]
    starts, ends = [e["ts"] for e in timed], [e["ts"] + e["dur"] for e in timed]
    lasts = max(ends) - min(starts)
    form = ",\n".join(json.dumps({**e, "ts": 0}).replace("%", "%%") for e in timed)
    form = form.replace('"ts": 0', '"ts": %.3f')
    with (folder / "trace.json").open("w") as file:
        file.write(json.dumps(content)[:-1] + ', "traceEvents": [')
        for number in range(count // len(timed)):
            file.write("," * bool(number) + form % tuple(ts + number * lasts for ts in starts))
        file.write("]}")


def write_paddle(count: int, folder: Path, form: str) -> None:
    with tempfile.TemporaryDirectory(prefix="strobe-bench-") as recorded:
        record("plain spans", count, recorded)
        ending = "pb" if form == "paddle_pb" else "json"
        exporter = find_exporter(form)
        exporter.write(
            strobe.open(recorded), folder / f"trace.{ending}", lambda _stage, _share: None
        )


FILES: dict[str, Callable[[int, Path], None]] = {
    "events of PyTorch's JSON": write_kineto,
    "events of Paddle's JSON": lambda count, folder: write_paddle(count, folder, "paddle"),
    "events of Paddle's protobuf": lambda count, folder: write_paddle(count, folder, "paddle_pb"),
}


def record(kind: str, count: int, folder: str) -> None:
    if kind in FILES:
        FILES[kind](count, Path(folder))
        return
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

    files = [path for path in Path(folder).iterdir() if path.is_file()]
    os.environ["XDG_CACHE_HOME"] = folder
    threading.Thread(target=watch, daemon=True).start()
    began = time.perf_counter()
    recording = strobe.open(files[0] if files else folder)
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
    parser.add_argument("kind", choices=[*PROGRAMS, *FILES])
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
