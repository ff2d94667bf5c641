# SPDX-License-Identifier: Apache-2.0
"""All benchmarks in one run: prints one table, writes JSON, and with --docs the page in docs/.

Each part runs in its own process. Peers that need a framework run in that framework's environment
(`--peer torch=PATH/bin/python`), which holds strobe too, so that every ratio is of one process.
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from finalize_many import FILES, PROGRAMS
from rows import Json, Row, rows

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# Traces of other tools, where they lie beside the project.
TRACES = ROOT.parent / "shared" / "data"
# Steps of MindSpore, which make 44,000 events: what analysing them may take is said of so many.
ANALYSED = "260"
# Of which a table is to be made, however quick the run: what it must be is said of so many.
MANY = "1000000"
# Whose tables may take one gigabyte of memory; where a run need not be quick, plain spans more.
FINALIZED, MOST_FINALIZED = "10000000", "100000000"


KINDS = [*(kind for kind in PROGRAMS if kind != "torch records"), *FILES]


def part(script: str, *arguments: str, python: str = sys.executable) -> Json:
    """Run one script in a process of its own and return what it printed."""
    print(f"  {script} {' '.join(arguments)} ...", file=sys.stderr, flush=True)
    done = subprocess.run(
        [python, str(HERE / script), *arguments],
        check=True,
        capture_output=True,
        text=True,
        cwd=HERE,
    )
    found: Json = json.loads(done.stdout.splitlines()[-1])
    return found


def measure_import(rounds: int) -> Json:
    """Wall time of bare Python and of `import strobe`, in turn; milliseconds."""
    programs = {"bare": "pass", "strobe": "import strobe"}
    spent: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name in random.sample(list(programs), len(programs)):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", programs[name]], check=True)
            spent[name].append((time.perf_counter() - began) * 1e3)
    added = [ours - bare for ours, bare in zip(spent["strobe"], spent["bare"], strict=True)]
    return {
        "bare_ms": statistics.median(spent["bare"]),
        "strobe_ms": statistics.median(spent["strobe"]),
        "added_ms": statistics.median(added),
        "added_p10_ms": sorted(added)[len(added) // 10],
        "added_p90_ms": sorted(added)[9 * len(added) // 10],
    }


def measure_hook(rounds: int) -> Json:
    """What strobe.pth adds to the start of a bare Python, idle and with STROBE_OPTIONS set."""
    # Far below the noise of a process's start, so it is timed by itself. In a virtual environment
    # Python reads every .pth twice.
    timing = """
import json, site, statistics, sys, sysconfig, time
spent, folder = [], sysconfig.get_path("platlib")
for _ in range(1000):
    began = time.perf_counter_ns()
    site.addpackage(folder, "strobe.pth", set())
    spent.append(time.perf_counter_ns() - began)
reads = 2 if sys.prefix != sys.base_prefix else 1
print(json.dumps({"reads": reads, "read_us": statistics.median(spent) / 1e3}))
"""
    idle = subprocess.run(
        [sys.executable, "-c", timing], check=True, capture_output=True, text=True
    )
    spent: dict[str, list[float]] = {"bare": [], "on": []}
    # The finalizer may still write into it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = {"bare": "", "on": json.dumps({"output": folder})}
        for _ in range(rounds):
            for name in random.sample(list(variables), len(variables)):
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-c", "pass"],
                    check=True,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "STROBE_OPTIONS": variables[name]},
                )
                spent[name].append((time.perf_counter() - began) * 1e3)
    on = [ours - bare for ours, bare in zip(spent["on"], spent["bare"], strict=True)]
    figures: Json = json.loads(idle.stdout)
    return {**figures, "bare_ms": statistics.median(spent["bare"]), "on_ms": statistics.median(on)}


def measure_recording(count: int) -> Json:
    """Record and stop in one process; the table in another, from a log that nobody has touched."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = part("record_many.py", str(count), folder)
        wait_for_finalizer(next(Path(folder).iterdir()))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        part("record_many.py", str(count), str(log), "--no-finalizer")
        tables = []
        for number in range(5 if count <= 1_000_000 else 1):
            shutil.copytree(log, Path(folder) / str(number))
            tables.append(part("cold_table.py", str(Path(folder) / str(number))))
    tables.sort(key=lambda table: table["table_s"])
    return {
        **recorded,
        "table": tables[len(tables) // 2],
        "tables_s": [t["table_s"] for t in tables],
    }


def measure_finalizing(arguments: argparse.Namespace) -> Json:
    """Make the tables of long recordings, of each kind of events."""
    counts = [("plain spans", MANY), *((kind, FINALIZED) for kind in KINDS)]
    if not arguments.quick:
        counts.append(("plain spans", MOST_FINALIZED))
    found = {
        f"{kind} {count}": {"kind": kind, **part("finalize_many.py", kind, count)}
        for kind, count in counts
    }
    if torch := arguments.peers.get("torch"):
        kind = "torch records"
        found[kind] = {"kind": kind, **part("finalize_many.py", kind, FINALIZED, python=torch)}
    return found


def measure_torch(count: str, python: str) -> Json:
    """Record the program of torch_table.py and make its table, from a log nobody has touched."""
    with tempfile.TemporaryDirectory() as folder:
        recorded = part("torch_many.py", count, folder, python=python)
        return {**recorded, "table": part("cold_table.py", folder)}


def wait_for_finalizer(recording: Path) -> None:
    deadline = time.monotonic() + 120
    while (recording / "log").exists() or not (recording / "tables").exists():
        if time.monotonic() > deadline:
            sys.exit(f"the finalizer did not write the tables of {recording}")
        time.sleep(0.1)


def measure_stored() -> Json:
    found = sorted([*TRACES.glob("kineto/**/*.json*"), *TRACES.glob("hta/**/*.json*")])
    large = [path for path in found if path.stat().st_size > 100_000]
    return part("stored_bytes.py", *map(str, large)) if large else {}


def run(arguments: argparse.Namespace) -> Json:
    rounds = "60" if arguments.quick else "200"
    results: Json = {
        "when": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, {_processor()}, {_cores()} cores, {platform.system()}",
        "python": platform.python_version(),
        "command": "make bench ARGS=--quick" if arguments.quick else "make bench",
        "spans": part("spans.py", "--rounds", rounds),
        "peers": {},
        "import": measure_import(20 if arguments.quick else 60),
        "hook": measure_hook(20 if arguments.quick else 60),
        "recordings": {},
        "stored": measure_stored(),
    }
    for count in (100_000, 1_000_000) if arguments.quick else (100_000, 1_000_000, 10_000_000):
        results["recordings"][str(count)] = measure_recording(count)
    results["finalized"] = measure_finalizing(arguments)
    results["python_calls"] = [part("python_calls.py")]
    sampled_for = ("--seconds", "20" if arguments.quick else "60")
    results["stack_samples"] = [part("stack_samples.py", *sampled_for)]
    results["steps"] = part("steps.py")
    results["export"] = part("export.py")
    results["summary"] = [part("summary.py", MANY)]
    results["host"] = part("sampler.py", "8" if arguments.quick else "30")
    results["memory_lines"] = part("memory_lines.py", "3" if arguments.quick else "7")
    for name, python in arguments.peers.items():
        if name == "mindspore":  # it has no spans of the user's on a CPU
            rounds_of_steps = "15" if arguments.quick else "40"
            results["mindspore_steps"] = part("mindspore_steps.py", rounds_of_steps, python=python)
            results["mindspore_analyse"] = part("mindspore_analyse.py", ANALYSED, python=python)
            continue
        if name.startswith("3."):  # another Python, whose calls are traced by other means
            results["python_calls"].append(part("python_calls.py", python=python))
            results["stack_samples"].append(part("stack_samples.py", *sampled_for, python=python))
            continue
        results["peers"][name] = part("spans.py", "--rounds", rounds, python=python)
        if name in ("jax", "paddle"):
            counts = ("25", "500") if arguments.quick else ("60", "1000")
            results[f"{name}_steps"] = part("framework_steps.py", name, *counts, python=python)
        if name == "torch":
            results["python_calls"].append(part("python_calls.py", "--rounds", "10", python=python))
            results["torch_table"] = part("torch_table.py", MANY, python=python)
            results["torch_many"] = measure_torch(MANY, python)
            results["summary"].append(part("summary.py", MANY, "--torch", python=python))
            rounds_of_steps = "25" if arguments.quick else "60"
            results["torch_steps"] = part("torch_steps.py", rounds_of_steps, python=python)
        if name == "paddle":
            results["paddle_table"] = part("paddle_table.py", MANY, python=python)
    return results


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _cores() -> int:
    return len([line for line in Path("/proc/cpuinfo").open() if line.startswith("processor")])


def mark(holds: bool | None) -> str:
    return "" if holds is None else "yes" if holds else "NO"


def show(table: list[Row]) -> None:
    cells = [("what", "strobe", "beside it", "must be", "holds")]
    cells += [(row.what, row.ours, row.others, row.target, mark(row.holds)) for row in table]
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    for row in cells:
        print(
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        )


def page(results: Json, table: list[Row]) -> str:
    lines = [
        "# Benchmarks",
        "",
        f"The last run of `{results['command']}`: {results['when']}, {results['machine']}, "
        f"Python {results['python']}. This page is written by that command (`ARGS=--docs`).",
        "",
        "Costs of a span are medians over shuffled, interleaved batches, with minimum and 90th",
        "percentile in parentheses; the empty loop is taken off. Peers run in the same process as",
        "strobe, each with its own default way to mark an interval. The machine is shared and",
        "noisy: trust ratios.",
        "",
        "| what | strobe | beside it | must be | holds |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.what} | {row.ours} | {row.others} | {row.target} | {mark(row.holds)} |"
        for row in table
    ]
    lines += [
        "",
        "- **on**: all profilers record while all contenders run; viztracer only during its own",
        "  batches, because it slows every Python call.",
        "- **operator table, cold**: a new process opens a log that nobody has touched: imports,",
        "  recovery, nesting, Parquet and the table; the median of five. torch: `stop()` and",
        "  `key_averages().table()`, imports not counted; half of its events are operators.",
        "- **tables of**: all tables of a recording, in a new process. Memory is what is",
        "  anonymous; columns that do not fit are in files, whose bytes are beside it. A hundred",
        "  million spans are finalized where a run is not quick.",
        "- **step of torch events**: CPU time that profiling adds to a training step of an MLP:",
        "  medians of shuffled rounds, and in parentheses where 95 % of bootstrap resamples lie.",
        "  With shapes, torch keeps strides and scalar inputs too; strobe keeps shapes and dtypes,",
        "  and the rest when asked.",
        "- **step of MindSpore operators**: as with torch; both drive the same native recorder of",
        "  MindSpore, so what differs is what they do around it. Where MindSpore's stop, table and",
        "  files are timed, both take turns, and the least of seven or nine times counts.",
        "- **stored**: the `spans` table of traces that other tools wrote, without arguments.",
        "",
    ]
    return "\n".join(lines) + "\n" + (HERE / "measured_once.md").read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller recordings")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md")
    parser.add_argument("--json", default="benchmarks/results.json", help="where the figures go")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    arguments = parser.parse_args()
    arguments.peers = dict(peer.split("=", 1) for peer in arguments.peer)
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        print("no C compiler: the empty manager, our floor, is left out", file=sys.stderr)

    results = run(arguments)
    (ROOT / arguments.json).write_text(json.dumps(results, indent=1) + "\n")
    table = list(rows(results))
    show(table)
    if arguments.docs:
        (ROOT / "docs" / "benchmarks.md").write_text(page(results, table))


if __name__ == "__main__":
    main()
