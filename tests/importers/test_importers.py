# SPDX-License-Identifier: Apache-2.0
"""Which importer reads what: small files of each format, files of none, and real ones."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from strobe.errors import FormatError
from strobe.importers import IMPORTERS, columns, find_importer
from strobe.model.trace import NAMES, Counters, Spans, Trace, concatenate

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("STROBE_TEST_DATA", ROOT.parent / "shared" / "data"))

PADDLE_EVENT = {
    **{"name": "matmul[2.000 us]", "ph": "X", "cat": "Operator", "pid": 5, "tid": "7(C++)"},
    **{"ts": 1_700_000_000_000_001, "dur": 2.0},
    "args": {"start_time": "1.000 us", "end_time": "3.000 us"},
}
KINETO_EVENT = {
    **{"name": "aten::mm", "ph": "X", "cat": "cpu_op", "pid": 5, "tid": 7},
    **{"ts": 1.0, "dur": 2.0},
}
KINETO = {"schemaVersion": 1, "traceEvents": [KINETO_EVENT]}
QUEUES = {
    "op_info": [
        {
            **{"op_id": 0, "op_type": "BatchOp", "num_workers": 1},
            "metrics": {"output_queue": {"length": 16, "size": [3]}},
        }
    ],
    "sampling_interval": 20,
}


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """A message of protobuf; numbers, lengths and values below 128 only."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += bytes([number << 3, value])
        else:
            data = value.encode() if isinstance(value, str) else value
            out += bytes([number << 3 | 2, len(data)]) + data
    return out


def write_paddle_json(path: Path) -> None:
    content = {"schemaVersion": "1.0.2", "span_indx": "2", "traceEvents": [PADDLE_EVENT]}
    path.write_text(json.dumps(content))


def write_kineto(path: Path) -> None:
    path.write_text(json.dumps(KINETO))


def write_compressed_kineto(path: Path) -> None:
    path.write_bytes(gzip.compress(json.dumps(KINETO).encode()))


def write_paddle(path: Path) -> None:
    event = message((1, "matmul"), (2, 0), (3, 1), (4, 3), (5, 5), (6, 7))
    root = message((1, "root node"), (2, 7), (3, 0), (4, 9), (5, 5), (6, 7))
    # a thread's nodes: number, number of the parent, event; the root's parent is -1
    above = message((1, 0)) + b"\x10" + b"\xff" * 9 + b"\x01" + message((3, root))
    below = message((1, 1), (2, 0), (3, event))
    thread = message((1, 7), (2, above), (2, below))
    path.write_bytes(message((1, "1.0.2"), (2, 3), (3, thread)))


def write_xspace(path: Path) -> None:
    line = message((1, 7), (2, "main"), (3, 1), (4, message((1, 1), (2, 1), (3, 100))))
    name = message((1, 1), (2, message((1, 1), (2, "dot.1"))))
    path.write_bytes(message((1, message((2, "/host:CPU"), (3, line), (4, name)))))


def write_mindspore(path: Path) -> None:
    path.mkdir()
    row = "Default/MatMul-op0;HostCpuOps;1794789063140733731,0.047661,0\n"
    (path / "cpu_op_execute_timestamp_0.txt").write_text(row)


def write_minddata(path: Path) -> None:
    path.mkdir()
    use = {"op_info": [], "time_stamp": [100]}
    (path / "pipeline_profiling_0.json").write_text(json.dumps(QUEUES))
    (path / "minddata_cpu_utilization_0.json").write_text(json.dumps(use))


# What is in it by name, and who reads it.
FORMATS: dict[Callable[[Path], None], tuple[str, str]] = {
    write_paddle_json: ("paddle_json", "matmul"),
    write_kineto: ("kineto", "aten::mm"),
    write_compressed_kineto: ("kineto", "aten::mm"),
    write_paddle: ("paddle", "matmul"),
    write_xspace: ("xspace", "dot.1"),
    write_mindspore: ("mindspore", "MatMul"),
    write_minddata: ("minddata", "MindData queue Batch(id=0)"),
}


def contents(trace: Trace) -> set[str]:
    """Names of spans and counters."""
    parts = (concatenate(trace.spans, Spans), concatenate(trace.counters, Counters))
    return {trace.names[code] for part in parts for code in part.name}


def test_every_importer_has_a_name_of_its_own_and_can_sniff_and_read() -> None:
    names = [importer.NAME for importer in IMPORTERS]

    assert len(names) == len(set(names))
    assert all(name.isidentifier() for name in names)
    assert all(callable(importer.sniff) and callable(importer.read) for importer in IMPORTERS)


def test_every_importer_has_a_sample_here() -> None:
    assert {name for name, _ in FORMATS.values()} == {importer.NAME for importer in IMPORTERS}


# A name says nothing of what is in a file.
@pytest.mark.parametrize("name", ["unknown", "trace.json", "trace.pb"])
@pytest.mark.parametrize("write", FORMATS)
def test_who_can_read_a_file_does(tmp_path: Path, write: Callable[[Path], None], name: str) -> None:
    path = tmp_path / name
    write(path)
    expected, content = FORMATS[write]

    importer = find_importer(path)

    assert expected == importer.NAME
    assert contents(importer.read(path)) == {content}


@pytest.mark.parametrize("write", [write_mindspore, write_minddata])
def test_a_folder_is_found_by_the_one_that_it_is_in(
    tmp_path: Path, write: Callable[[Path], None]
) -> None:
    write(tmp_path / "FRAMEWORK")
    expected, content = FORMATS[write]

    importer = find_importer(tmp_path)

    assert expected == importer.NAME
    assert contents(importer.read(tmp_path)) == {content}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        b"{}",
        b"[]",
        b"null",
        b"\x00" * 100,
        b"\x89PNG\r\n\x1a\n",
        b"PAR1",
        b"# schemaVersion\n",
        b'[{"ph": "X", "cat": "cpu_op"}]',
        b'{"traceEvents": []}',
        b'{"traceEvents": [{"ph": "X", "cat": "FEE", "name": "f", "ts": 1, "dur": 1}]}',
        b'{"schemaVersion": 10, "traceEvents": []}',
        b'{"schema": 1}',
        b"\n\x05hello",
        gzip.compress(b""),
        gzip.compress(b"{}"),
        gzip.compress(b"{}")[:7],
        b"\x1f\x8b is not gzip",
    ],
    ids=range(19),
)
def test_what_is_of_no_known_format_is_nobodys(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)

    with pytest.raises(FormatError) as caught:
        find_importer(path)

    message = str(caught.value)
    assert "trace.json" in message
    assert all(importer.NAME in message for importer in IMPORTERS)


def test_an_empty_folder_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "FRAMEWORK").mkdir()

    with pytest.raises(FormatError):
        find_importer(tmp_path)


def test_what_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        find_importer(tmp_path / "nothing")


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match="FIFO"):
        find_importer(tmp_path / "fifo")


REAL = {
    "hta/**/*.json.gz": "kineto",
    "kineto/**/*.json.gz": "kineto",
    "paddle/*.json": "paddle_json",
    "paddle/*.pb": "paddle",
    "mindspore_cpu/prof*/*": "mindspore",
    "mindspore_cpu/minddata": "minddata",
}
OTHERS = ("chrome_odd/*.json", "viztracer/*.json")


def real_files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in DATA.glob(pattern))


@pytest.mark.skipif(not real_files(*REAL), reason=f"there are no traces of other tools in {DATA}")
def test_real_files_are_found() -> None:
    for pattern, expected in REAL.items():
        found = {path: find_importer(path).NAME for path in real_files(pattern)}
        assert found == dict.fromkeys(found, expected)
        assert found, pattern


@pytest.mark.skipif(not real_files(*OTHERS), reason=f"there are no Chrome traces in {DATA}")
def test_real_files_of_other_tools_are_nobodys() -> None:
    for path in real_files(*OTHERS):
        with pytest.raises(FormatError):
            find_importer(path)


SAMPLES = ROOT / "samples"


def described(trace: Trace) -> list[tuple[object, ...]]:
    """The spans with their names, threads and attributes in place of numbers, sorted."""
    rows = []
    for batch in trace.spans:
        columns = {name: each for name, each in vars(batch).items() if hasattr(each, "tolist")}
        for values in zip(*(each.tolist() for each in columns.values()), strict=True):
            row = dict(zip(columns, values, strict=True))
            row["lane"] = trace.threads[row["lane"]]
            row["attributes"] = row["attributes"] >= 0 and batch.texts[row["attributes"]]
            for name in NAMES & columns.keys():
                row[name] = row[name] >= 0 and trace.names[row[name]]
            rows.append(tuple(sorted((key, str(value)) for key, value in row.items())))
    return sorted(rows)


@pytest.mark.parametrize(
    "sample",
    [
        "kineto/2.13.0/trace.json.gz",
        "xspace/0.10.2/trace.xplane.pb",
        "paddle/3.3.1/trace.pb",
        "paddle/3.3.1/trace.json",
        "mindspore/2.10.0/run_ascend_ms",
    ],
)
def test_a_trace_in_parts_is_the_same_as_in_one(
    sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SAMPLES / sample
    whole = find_importer(path).read(path)
    expected = described(whole)
    monkeypatch.setattr(columns, "MOST_ROWS", 7)

    parted = find_importer(path).read(path)

    assert len(expected) > 7
    assert described(parted) == expected
    assert (parted.start_ns, parted.end_ns) == (whole.start_ns, whole.end_ns)
    assert set(parted.threads) == set(whole.threads)
    assert parted.skipped == whole.skipped


def test_two_processes_that_launch_keep_their_kernels_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Correlation 1 is process 5's, 2 is process 6's, and 3 is of both, so of the first."""
    calls = [(5, 1), (6, 2), (5, 3), (6, 3)]
    events = [
        {**KINETO_EVENT, "cat": "cuda_runtime", "pid": pid, "args": {"correlation": number}}
        for pid, number in calls
    ] + [
        {**KINETO_EVENT, "cat": "kernel", "args": {"correlation": n, "device": 0, "stream": 7}}
        for n in (3, 2, 1)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    monkeypatch.setattr(columns, "MOST_ROWS", 2)

    trace = find_importer(path).read(path)

    spans = concatenate(trace.spans, Spans)
    on_device = [trace.threads[lane].pid for lane in spans.lane[4:].tolist()]
    assert on_device == [5, 6, 5]
