# SPDX-License-Identifier: Apache-2.0
"""Traces of Kineto: drawn ones, damaged ones, and real ones beside Python's own JSON reader."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flat_trace import Flat, read_flat
from strobe.errors import FormatError
from strobe.importers import json_rows, kineto
from strobe.model.tables import CATEGORIES
from strobe.model.text import unescape

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("STROBE_TEST_DATA", ROOT.parent / "shared" / "data"))
REAL = ["hta", "kineto"]

TRACE = """ {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "a \\"device\\""}],
    "baseTimeNanoseconds": 1790857026000000000,
    "traceEvents": [
  {"ph": "M", "name": "thread_name", "ts": 0.000, "pid": 70, "tid": 71, "args": {"name": "main"}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 70, "tid": 71,
   "ts": 3928083140091.849, "dur": 21149.776,
   "args": {"External id": 1, "Sequence number": 5, "Fwd thread id": 0,
            "Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"],
            "Input Strides": [[3, 1], [4, 1]], "Concrete Inputs": ["", "0.1"]}},
  {"ph": "X", "cat": "user_annotation", "name": "}, {\\"ph\\": \\u00fc \\\\", "pid": 70, "tid": 71,
   "ts": 3928083140090, "dur": 0.001},
  {"ph": "X", "cat": "cpu_op", "name": "MmBackward0", "pid": 70, "tid": 72,
   "ts": 3928083150000.5, "dur": 9, "args": {"Sequence number": 5, "Fwd thread id": 1,
   "Input Dims": [[2, 4]]}},
  {"ph": "X", "cat": "cpu_op", "name": "torch::autograd::AccumulateGrad", "pid": 70, "tid": 72,
   "ts": 3928083150010.25, "dur": 1.5, "args": {}},
  {"ph": "X", "cat": "python_function", "name": "f", "pid": 70, "tid": 71, "ts": 1, "dur": 1},
  {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 70, "tid": 71, "ts": 2},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 70, "tid": 71,
   "ts": 3928083150011.000, "dur": 2, "args": {"cbid": 211, "correlation": 88}},
  {"ph": "X", "cat": "kernel", "name": "sgemm", "pid": 0, "tid": "stream 7",
   "ts": 3928083150013.000, "dur": 5.120, "args": {"device": 0, "stream": 7, "correlation": 88}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": 1, "tid": 8,
   "ts": 3928083150019.000, "dur": 1, "args": {"device": 1, "stream": "0x8", "correlation": 89}},
  {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 70, "tid": 71,
   "ts": 3928083140092.001, "args": {"Total Reserved": 0, "Total Allocated": 64, "Bytes": 64,
   "Device Id": -1, "Device Type": 0, "Addr": 94492350888256, "Ev Idx": 69}},
  {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 70, "tid": 71,
   "ts": 3928083140093.002, "args": {"Total Reserved": 2048, "Total Allocated": 0, "Bytes": -512,
   "Device Id": 1, "Device Type": 1, "Addr": 140000000000000}},
  {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch",
   "ts": 0, "dur": 9}
  ],"traceName": "k.json" }"""


def read(folder: Path, text: str | bytes, name: str = "trace.json") -> Flat:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_flat(kineto, path)


def same(one: Flat, other: Flat) -> bool:
    pairs = zip(flat(one).items(), flat(other).items(), strict=True)
    return all(a[0] == b[0] and np.array_equal(a[1], b[1]) for a, b in pairs)


def flat(events: Flat) -> dict[str, Any]:
    sections = {"spans": (), "allocations": (), "counters": ()}
    small = vars(dataclasses.replace(events.trace, **sections, instants=(), samples=()))
    parts = {name: vars(getattr(events, name)) for name in sections}
    columns = {f"{name}.{key}": value for name in parts for key, value in parts[name].items()}
    return {**small, **columns}


def rows(events: Flat) -> list[tuple[Any, ...]]:
    """Name, category, start and duration of each span."""
    columns = (events.name, events.category, events.start_ns, events.dur_ns)
    return [
        (events.names[name], CATEGORIES[category], start, dur)
        for name, category, start, dur in zip(*(c.tolist() for c in columns), strict=True)
    ]


def test_each_kind_of_event(tmp_path: Path) -> None:
    events = read(tmp_path, TRACE)

    assert rows(events) == [
        ("aten::mm", "operator", 3928083140091849, 21149776),
        ('}, {"ph": ü \\', "annotation", 3928083140090000, 1),
        ("MmBackward0", "backward", 3928083150000500, 9000),
        ("torch::autograd::AccumulateGrad", "backward", 3928083150010250, 1500),
        ("cudaLaunchKernel", "runtime", 3928083150011000, 2000),
        ("sgemm", "kernel", 3928083150013000, 5120),
        ("Memcpy HtoD", "copy", 3928083150019000, 1000),
    ]
    assert events.base_ns == 1790857026000000000
    assert events.pid.tolist() == [70, 70, 70, 70, 70, 70, 70]
    assert events.tid.tolist() == [71, 71, 72, 72, 71, 7, 8]
    assert events.sequence.tolist() == [5, -1, 5, -1, -1, -1, -1]
    assert events.correlation.tolist() == [-1, -1, -1, -1, 88, 88, 89]
    assert events.device.tolist() == [-1, -1, -1, -1, -1, 0, 1]
    assert events.stream.tolist() == [-1, -1, -1, -1, -1, 7, 8]
    assert events.thread_names == {(70, 71): "main", (70, 72): "thread 72"}
    assert events.skipped == {"python_function": 1, "ac2g": 1, "Trace": 1}


def test_what_operators_were_given(tmp_path: Path) -> None:
    events = read(tmp_path, TRACE)

    assert events.attributes.tolist() == [0, -1, 1, -1, -1, -1, -1]
    assert [json.loads(text) for text in events.texts] == [
        {
            "shapes": [[2, 3], [3, 4]],
            "dtypes": ["float", "float"],
            "strides": [[3, 1], [4, 1]],
            "concrete": ["", "0.1"],
        },
        {"shapes": [[2, 4]]},
    ]


def test_memory(tmp_path: Path) -> None:
    events = read(tmp_path, TRACE)

    memory = events.allocations
    assert memory.start_ns.tolist() == [3928083140092001, 3928083140093002]
    assert memory.bytes.tolist() == [64, -512]
    assert memory.address.tolist() == [94492350888256, 140000000000000]
    assert memory.device.tolist() == [-1, 1]
    assert [events.threads[lane].tid for lane in memory.lane] == [71, 71]
    assert memory.allocated_bytes.tolist() == [64, 0]
    assert memory.reserved_bytes.tolist() == [-1, 2048]


def test_a_trace_without_events(tmp_path: Path) -> None:
    events = read(tmp_path, '{"traceEvents": []}')

    assert len(events.name) == len(events.allocations.bytes) == 0
    assert (events.trace.start_ns, events.trace.end_ns) == (0, 0)


@pytest.mark.parametrize(
    ("written", "ns"),
    [
        ("0.001", 1),
        ("8796093022207.999", 8796093022207999),  # the last float that still tells them apart
        ("8796093022208.001", 8796093022208001),
        ("1712195495505582.988", 1712195495505582988),
        ("1661203462598738", 1661203462598738000),
        ("1661203462598738.5", 1661203462598738500),
        ("1.6612034625987384999e15", 1661203462598738500),
    ],
)
def test_times_are_exact(tmp_path: Path, written: str, ns: int) -> None:
    event = f'{{"ph":"X","cat":"cpu_op","name":"a","ts":{written},"dur":1.234}}'

    events = read(tmp_path, f'{{"traceEvents":[{event}]}}')

    assert events.start_ns.tolist() == [ns]
    assert events.dur_ns.tolist() == [1234]


def test_old_names_of_categories(tmp_path: Path) -> None:
    kinds = [
        ("Operator", "aten::mm", "operator"),
        ("Operator", "ProfilerStep#5", "annotation"),
        ("Operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "annotation"),
        ("Operator", "Optimizer.step#SGD.step", "annotation"),
        ("Runtime", "cudaLaunchKernel", "runtime"),
        ("Kernel", "sgemm", "kernel"),
        ("Memset", "Memset", "copy"),
    ]
    written = [{"ph": "X", "cat": cat, "name": name, "ts": 1, "dur": 1} for cat, name, _ in kinds]

    events = read(tmp_path, json.dumps({"traceEvents": written}))

    assert [row[1] for row in rows(events)] == [kind for _, _, kind in kinds]


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_the_size_of_the_pieces_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    whole = read(tmp_path, TRACE)

    monkeypatch.setattr(json_rows, "_WINDOW_BYTES", size)

    assert same(read(tmp_path, TRACE), whole)
    assert same(read(tmp_path, gzip.compress(TRACE.encode()), "trace.json.gz"), whole)


@pytest.mark.parametrize("size", [64, 1 << 20])
def test_a_file_that_was_cut_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(json_rows, "_WINDOW_BYTES", size)
    text = TRACE.encode()

    for cut in range(0, len(text) - 1, 13):
        with pytest.raises(FormatError):
            read(tmp_path, text[:cut])


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    data = gzip.compress(TRACE.encode())

    with pytest.raises(FormatError, match="damaged gzip data"):
        read(tmp_path, data[: len(data) // 2])
    for place in range(10, len(data), 17):
        with pytest.raises(FormatError):
            read(tmp_path, data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])


EVENT = '{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"pid":1,"tid":1%s}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        "not JSON",
        '{"traceEvents": {}}',
        '{"traceEvents": null}',
        '{"traceEvents": [1]}',
        '{"traceEvents": [[]]}',
        '{"traceEvents": [{"ph": 1}]}',
        '{"traceEvents": []} {"traceEvents": []}',
        '{"inner": {"traceEvents": []}}',
        '{"traceEvents": [' + EVENT % ',"args":3' + "]}",
        '{"traceEvents": [' + EVENT % ',"args":{"Sequence number":"x"}' + "]}",
        '{"traceEvents": [' + EVENT % ',"args":{"Sequence number":1e99}' + "]}",
        '{"traceEvents": [' + EVENT % (',"pid":' + "9" * 30) + "]}",
        '{"traceEvents": [' + EVENT % (',"pid":' + "9" * 9999) + "]}",
        '{"traceEvents": [' + EVENT % ',"ts":"soon"' + "]}",
        '{"traceEvents": [' + EVENT % ',"ts":1e300' + "]}",
        '{"traceEvents": [' + EVENT % ',"ts":-1e300' + "]}",
        '{"traceEvents": [' + EVENT % ',"ts":1e999999999' + "]}",
        '{"traceEvents": [' + EVENT % ',"dur":1e300' + "]}",
        '{"traceEvents": [' + EVENT % ',"ts":1661203462598738,"dur":[1]' + "]}",
        '{"traceEvents": [' + EVENT % (',"args":' + "[" * 99_999) + "]}",
        '{"traceEvents": [' + EVENT % ("," + '"args":{"a":' * 99_999) + "]}",
        '{"traceEvents": [' + "[" * 99_999 + "]}",
        '{"traceEvents": [{"ph":"M","name":"thread_name","args":{"name":[]}}]}',
        '{"traceEvents": [' + EVENT % "" + "," + EVENT % "" + '], "more": [{},{"ph":"X"}]',
    ],
    ids=range(28),
)
def test_what_is_no_trace_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    with pytest.raises(FormatError):
        read(tmp_path, text)
    monkeypatch.setattr(json_rows, "_WINDOW_BYTES", 100)
    with pytest.raises(FormatError):
        read(tmp_path, text)


def test_what_never_ends_is_refused_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rows, "_MOST_BYTES", 1 << 21)
    data = b'{"traceEvents": [' + b" " * (1 << 26)

    with pytest.raises(FormatError, match="nothing that ends within 2097152 bytes"):
        read(tmp_path, gzip.compress(data))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        read(tmp_path, (('{"traceEvents": [' + EVENT + "]}") % "").encode().replace(b"a", b"\xff"))


def test_a_name_with_a_lone_surrogate_costs_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, TRACE.replace('"aten::mm"', '"\\ud83d"'))

    assert "\ud83d" in [unescape(name) for name in found.names]
    assert len(found.names) == len(read(tmp_path, TRACE).names)


def real_traces() -> list[Path]:
    return sorted(path for name in REAL for path in DATA.glob(f"{name}/**/*.json.gz"))


@pytest.mark.skipif(not real_traces(), reason=f"there are no traces of other tools in {DATA}")
def test_real_traces_are_read_as_json_says() -> None:
    for path in real_traces():
        events = read_flat(kineto, path)
        with gzip.open(path) as file:
            document = json.load(file, parse_float=Decimal)

        written = [each for each in document["traceEvents"] if each["ph"] != "M"]
        spans = [e for e in written if e["ph"] == "X" and e.get("cat") in kineto._KINDS]
        memory = [each for each in written if each["name"] == "[memory]"]
        assert [events.names[code] for code in events.name] == [e["name"] for e in spans], path
        assert events.start_ns.tolist() == [round(Decimal(e["ts"]) * 1000) for e in spans], path
        assert events.dur_ns.tolist() == [round(Decimal(e["dur"]) * 1000) for e in spans], path
        arguments = [each.get("args", {}) for each in spans]
        assert events.sequence.tolist() == [a.get("Sequence number", -1) for a in arguments], path
        assert events.correlation.tolist() == [a.get("correlation", -1) for a in arguments], path
        shapes = [json.loads(text)["shapes"] for text in events.texts] + [None]
        assert [shapes[code] for code in events.attributes] == [
            a.get("Input Dims") for a in arguments
        ], path
        assert events.allocations.bytes.tolist() == [e["args"]["Bytes"] for e in memory], path
        assert events.base_ns == document.get("baseTimeNanoseconds", 0)
        skipped = len(written) - len(spans) - len(memory)
        assert sum(events.skipped.values()) == skipped, path


@pytest.mark.skipif(not real_traces(), reason=f"there are no traces of other tools in {DATA}")
def test_figures_known_of_a_real_trace() -> None:
    # What its authors' own plugin shows of it: 6 steps, and V100 kernels on one stream of device 0.
    (path,) = DATA.glob("kineto/resnet50_num_workers_0/worker0.1623143089861*")
    events = read_flat(kineto, path)
    kinds = Counter(CATEGORIES[code] for code in events.category)

    assert kinds["kernel"] == 8772
    assert kinds["copy"] == 312 + 12
    assert kinds["runtime"] == 11923
    assert sum(name.startswith("ProfilerStep#") for name in events.names) == 6
    kernels = events.category == CATEGORIES.index("kernel")
    assert set(events.device[kernels].tolist()) == {0}
    assert set(events.stream[kernels].tolist()) == {7}


def test_what_ends_before_it_begins_is_left_out(tmp_path: Path) -> None:
    event = '{"ph":"X","cat":"cpu_op","name":"%s","pid":1,"tid":1,"ts":%s,"dur":%s}'
    rows = [("whole", 5, 2), ("back", 6, -3), ("nearly", 7, -0.001)]
    written = ",".join(event % row for row in rows)

    events = read(tmp_path, '{"traceEvents":[' + written + "]}")

    assert [events.names[code] for code in events.name] == ["whole"]
    assert events.skipped == {"with an impossible duration": 2}


def test_kernels_belong_to_the_process_that_launched_them(tmp_path: Path) -> None:
    call = '{"ph":"X","cat":"cuda_runtime","name":"launch","pid":%d,"tid":1,"ts":1,"dur":1,%s}'
    kernel = '{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":3,"dur":1,%s}'
    told = '"args":{"correlation":%d,"device":0,"stream":7}'
    rows = [call % (70, told % 1), call % (80, told % 2), kernel % (told % 2), kernel % (told % 1)]

    events = read(tmp_path, '{"traceEvents":[' + ",".join(rows) + "]}")

    assert events.pid.tolist() == [70, 80, 80, 70]


def test_memory_without_addresses_is_a_sum(tmp_path: Path) -> None:
    """As an older PyTorch wrote it: which block is freed is not told."""
    event = (
        '{"ph":"i","name":"[memory]","pid":1,"tid":1,"ts":%d,"args":{"Device Type":0,"Bytes":%d}}'
    )
    rows = [event % (at, size) for at, size in enumerate((100, 50, -100, 30))]

    trace = read(tmp_path, '{"traceEvents":[' + ",".join(rows) + "]}")

    assert trace.allocations.address.tolist() == [-1] * 4
    assert trace.allocations.bytes.tolist() == [100, 50, -100, 30]
    assert "have no addresses" in trace.notes[0]
