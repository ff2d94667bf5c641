# SPDX-License-Identifier: Apache-2.0
"""Hardware: what the sampler tells of this process beside what the system tells, and its cost."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

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
    assert row["collected"] == rows.height
    assert row["drain_ns"] > 0
    assert "of the program's" in row["note"]


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
        assert recording.counters().collect().is_empty()
    plain = program.open(program.output.with_name("out-plain"))
    assert plain.completeness()["source"].to_list() == ["spans"]


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
