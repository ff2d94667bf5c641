# SPDX-License-Identifier: Apache-2.0
"""Hardware: what the sampler tells of this process beside what the system tells, and its cost."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import strobe
from programs import Program

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells of its processes in /proc"
)

# Waits for what the sampler has done, however long a busy machine takes for it.
HEAD = """
import gc, json, resource, subprocess, threading, warnings
from strobe.sources.host import sampler
from strobe.sources.host.source import source as host
sampler._GRACE_NS = sampler._MOST_OF_A_CPU = 1 << 60  # the tests are in a hurry

def until(condition):
    while not condition():
        sum(range(1000))

def seen(name):
    return lambda: name in host._counters._last

def look_at(*names):
    # Twice: the first look may have begun before.
    for group in [group for group in host._sampler._groups if group.name in names] * 2:
        due = group.due_s
        until(lambda: group.due_s > due)
"""


def counters(program: Program) -> pl.DataFrame:
    return program.open().counters().collect()


def last(rows: pl.DataFrame, name: str) -> float:
    return rows.filter(pl.col("name") == name)["value"][-1]


def test_the_process_is_seen_as_the_system_sees_it(program: Program) -> None:
    printed = program.run(
        HEAD
        + """
def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key + ":")) * 1024

child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
gc.disable()
before = time.process_time_ns(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
with strobe.Profiler(output=OUT, hardware=True):
    ballast = bytearray(64 << 20)
    resident = status("VmRSS")
    gc.collect(0)
    gc.collect()
    until(seen(f"child {child.pid} cpu %"))
    look_at("resident memory", "unique memory", "this process", "the system", "child processes")
    until(lambda: not os.fork() and os._exit(0) or os.wait())
    look_at("resident memory")
after = time.process_time_ns(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
child.communicate(b"\\n")
assert not host._sampler and not [t for t in threading.enumerate() if "strobe" in t.name]
print(json.dumps([before, after, resident, child.pid]))
""",
        warnings="error",
    )
    before, after, resident, child = json.loads(printed)
    recording = program.open()
    rows = counters(program)

    def integral(name: str) -> float:
        mine = rows.filter(pl.col("name") == name)
        return float((mine["value"] * mine["start_ns"].diff()).sum() / 1e9)

    # A rate holds for the time since the one before it.
    assert 0 < integral("process cpu %") / 100 <= (after[0] - before[0]) / 1e9
    assert 0 <= integral("process page faults/s") <= after[1] - before[1]
    assert last(rows, "process resident bytes") == pytest.approx(resident, rel=0.2)
    assert last(rows, "process unique bytes") >= 64 << 20
    assert last(rows, "process unique bytes") <= last(rows, "process proportional bytes")
    assert last(rows, f"child {child} resident bytes") > 1 << 20
    assert 0 <= last(rows, "system cpu %") <= 100
    assert last(rows, "system available bytes") > 0
    pauses = recording.spans().collect().filter(pl.col("category") == "gc")
    assert pauses["name"].to_list() == ["gc generation 0", "gc generation 2"]
    row = recording.completeness().filter(pl.col("source") == "host").row(0, named=True)
    assert row["collected"] == rows.height + pauses.height
    assert row["drain_ns"] > 0
    assert "of the program's" in row["note"]


OF_EVERY_PROCESS = ["process peak resident bytes", "process resident bytes", "process threads"]


def largest_gap_s(recording: strobe.Recording, name: str) -> float:
    """Return the longest time without a value, the start and the end of the recording included."""
    metadata = dict(recording.metadata().collect().iter_rows())
    rows = recording.counters().filter(pl.col("name") == name).collect()
    times = [int(metadata["start_ns"]), *rows["start_ns"].sort(), int(metadata["end_ns"])]
    return max(after - before for before, after in itertools.pairwise(times)) / 1e9


def test_memory_and_threads_are_recorded_unasked(program: Program) -> None:
    printed = program.run(
        """
        import json, threading
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        done = threading.Event()
        threads = [threading.Thread(target=done.wait) for _ in range(7)]
        for thread in threads: thread.start()
        large = bytearray(b"x") * 100_000_000
        del large
        with strobe.Profiler(output=OUT):
            pass
        with open("/proc/self/status") as file:
            status = dict(line.split(":", 1) for line in file)
        done.set()
        print(json.dumps([int(status["VmHWM"].split()[0]) * 1024, os.cpu_count()]))
        """
    )
    peak, cores = json.loads(printed)
    recording = program.open()
    rows = recording.counters().collect()

    # At the start and at the stop, though nothing lies between them.
    counts = rows.group_by("name").len().sort("name").rows()
    assert counts == [(name, 2) for name in OF_EVERY_PROCESS]
    assert last(rows, "process peak resident bytes") == pytest.approx(peak, rel=0.05)
    assert last(rows, "process peak resident bytes") > 100_000_000
    assert last(rows, "process resident bytes") < last(rows, "process peak resident bytes")
    # The program's eight; what strobe and libraries have started comes on top.
    assert 8 <= last(rows, "process threads") <= 16
    metadata = dict(recording.metadata().collect().iter_rows())
    assert (metadata["cores"], metadata["usable_cores"]) == (str(cores), "1")
    assert recording.completeness()["source"].to_list() == ["spans", "host"]


def test_a_leak_shows_unasked(program: Program) -> None:
    program.run("""
        kept = []
        with strobe.Profiler(output=OUT) as profiler:
            for _ in range(30):
                kept.append(bytearray(b"x") * 1_000_000)
                time.sleep(0.05)
                profiler.step()
    """)
    recording = program.open()
    values = recording.counters().filter(pl.col("name") == "process resident bytes").collect()

    assert values["value"][-1] - values["value"][0] == pytest.approx(30e6, rel=0.2)
    assert values["value"].sort().to_list() == values["value"].to_list()
    assert "process resident bytes" in recording.memory_text()


@pytest.mark.again
def test_a_sample_a_second_beside_busy_threads_and_forks(program: Program) -> None:
    program.run("""
        import threading
        end = time.monotonic() + 3

        def compute():
            while time.monotonic() < end: sum(range(1000))

        with strobe.Profiler(output=OUT):
            threads = [threading.Thread(target=compute) for _ in range(3)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            if os.fork() == 0: os._exit(0)
            os.wait()
            time.sleep(1.5)
    """)

    for name in OF_EVERY_PROCESS:
        assert largest_gap_s(program.open(), name) <= 1


@pytest.mark.again
def test_a_sample_a_second_while_a_function_keeps_the_gil(program: Program) -> None:
    if program.recorder == "python":
        pytest.skip("it is a thread of Python's, which has to wait for the GIL")
    program.run("""
        with strobe.Profiler(output=OUT):
            began = time.monotonic()
            while time.monotonic() < began + 2:
                sum(range(100_000_000))
    """)

    for name in OF_EVERY_PROCESS:
        assert largest_gap_s(program.open(), name) <= 1


@pytest.mark.again
def test_hardware_is_looked_at_once_a_second_and_at_both_ends(program: Program) -> None:
    program.run("""
        with strobe.Profiler(output=OUT, hardware=True):
            time.sleep(4)  # a program that does so little that no share of it is enough
        with strobe.Profiler(output=OUT + "-short", hardware=True):
            pass
    """)
    names = ["process cpu %", "system available bytes", "process resident bytes"]

    for name in names:
        assert largest_gap_s(program.open(), name) <= 1
    short = program.open(program.output.with_name("out-short")).counters().collect()
    assert set(names) <= set(short["name"])


def test_what_no_device_can_tell_is_said_once(program: Program) -> None:
    program.run(
        """
        profiler = strobe.Profiler(output=OUT, hbm_ddr=True, pcie=True, sync_enable=True)
        with strobe.Profiler(output=OUT + "-plain"):  # it has not asked for any of it
            for _ in range(2):
                with profiler: pass
        assert "CUDA_LAUNCH_BLOCKING" not in os.environ
        """,
        env={"LD_LIBRARY_PATH": ""},
    )
    if "hbm_ddr" not in program.said:
        pytest.skip("there is an NVIDIA device here")

    for option in ("hbm_ddr", "pcie", "sync_enable"):
        assert program.said.count(f"{option} is not collected: ") == 1
    for path in program.recordings():
        recording = program.open(path)
        notes = dict(recording.completeness().select("source", "note").iter_rows())
        assert "NVML (libnvidia-ml.so.1, of NVIDIA's driver) is not" in notes["pcie"]
        assert "no NVIDIA device" in notes["sync_enable"]
        assert set(recording.counters().collect()["name"]) == set(OF_EVERY_PROCESS)
    plain = program.open(program.output.with_name("out-plain"))
    assert plain.completeness()["source"].to_list() == ["spans", "host"]


NVML = r"""
#include <stdio.h>
#include <string.h>
typedef struct { unsigned gpu, memory; } Use;
typedef struct { unsigned long long total, free, used; } Memory;
static int devices[2];
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = &devices[index];
  return 0;
}
static unsigned place(void *device) { return (unsigned)((int *)device - devices); }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
  snprintf(name, length, "Fake %u", place(device));
  return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, Use *use) {
  use->gpu = 70 + place(device), use->memory = 30;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  memory->total = 1ull << 40, memory->used = (1ull << 33) + place(device), memory->free = 0;
  return 0;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) { *milliwatts = 250500; return 0; }
int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *mhz) {
  *mhz = kind == 1 ? 1980 : kind == 2 ? 2619 : 0;
  return 0;
}
int nvmlDeviceGetTemperature(void *device, unsigned kind, unsigned *degrees) { return 3; }
int nvmlDeviceGetPcieThroughput(void *device, unsigned kind, unsigned *kilobytes) {
  *kilobytes = kind == 0 ? 100 : 200;
  return 0;
}
const char *nvmlErrorString(int code) { return code == 3 ? "Not Supported" : "?"; }
"""


def test_devices_by_nvml(program: Program, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to make a library in NVML's place with")
    library = tmp_path / "libnvidia-ml.so.1"
    (tmp_path / "nvml.c").write_text(NVML)
    command = [compiler, "-shared", "-fPIC", "-w", "-o", str(library), str(tmp_path / "nvml.c")]
    subprocess.run(command, check=True)

    printed = program.run(
        HEAD
        + """
with strobe.Profiler(output=OUT, hardware=True, hbm_ddr=True, pcie=True, sync_enable=True):
    blocking = os.environ["CUDA_LAUNCH_BLOCKING"]
    look_at("NVIDIA devices", "PCIe")
print(json.dumps([blocking, "CUDA_LAUNCH_BLOCKING" in os.environ, host.examine()["devices"]]))
""",
        env={"LD_LIBRARY_PATH": str(tmp_path)},
    )
    rows = counters(program).filter(pl.col("name").str.starts_with("device"))
    values = dict(rows.group_by("name").agg(pl.last("value")).iter_rows())

    assert json.loads(printed) == ["1", False, "Fake 0, Fake 1"]
    of_each = {
        "memory busy %": 30,
        "power W": 250.5,
        "clock MHz": 1980,
        "memory clock MHz": 2619,
        "pcie sent bytes/s": 100 * 1024,
        "pcie received bytes/s": 200 * 1024,
    }
    expected = {f"device {d} {name}": value for d in (0, 1) for name, value in of_each.items()}
    expected |= {"device 0 busy %": 70, "device 1 busy %": 71}
    expected |= {"device 0 memory bytes": 1 << 33, "device 1 memory bytes": (1 << 33) + 1}
    assert values == pytest.approx(expected)
    notes = dict(program.open().completeness().select("source", "note").iter_rows())
    assert "nvmlDeviceGetTemperature: Not Supported" in notes["host"]
    assert set(notes) == {"spans", "host"}
