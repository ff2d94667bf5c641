# SPDX-License-Identifier: Apache-2.0
"""A recording as Paddle's profiler would show it: what strobe.paddle needs of the rooms below."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strobe._version import __version__
from strobe.errors import FormatError
from strobe.model.paddle import PROCESS_USE, SYSTEM_USE, SortedKeys
from strobe.model.paddle import TracerEventType as Type
from strobe.model.tables import CATEGORIES
from strobe.model.text import escape
from strobe.record import recorder
from strobe.record.messages import show
from strobe.record.schedule import as_int
from strobe.record.schedule import schedule as rounds
from strobe.record.source import Report, announce_trace
from strobe.session.recording import Recording
from strobe.sources.waits import Waits
from strobe.store import manifest, references

if TYPE_CHECKING:
    from strobe.analysis.paddle_tables import PaddleTables as PaddleTables
    from strobe.importers.paddle_trace import Trace

__all__ = [
    "FORMATS",
    "Waits",
    "as_int",
    "event_span",
    "export",
    "paddle_tables",
    "read_trace",
    "recording_of",
    "rounds",
    "show",
    "span",
    "trace_of",
]

span = recorder.span
FORMATS = {"json": "paddle", "pb": "paddle_pb"}
"""What Paddle calls a format, and the exporter that writes it."""
_CATEGORY = {
    Type.Operator: "operator",
    Type.OperatorInner: "operator",
    Type.PythonOp: "operator",
    Type.Communication: "communication",
}
_PHASE = {
    Type.Dataloader: "data_loading",
    Type.Forward: "forward",
    Type.Backward: "backward",
    Type.Optimization: "optimizer",
}


def event_span(name: str, kind: Type) -> Any:
    """Return a span that is recorded as an event of this type."""
    if kind is Type.PythonUserDefined:
        return recorder.span(name)
    category = CATEGORIES.index(_CATEGORY.get(kind, "annotation"))
    attributes = {"type": kind.name}
    if kind in _PHASE:
        attributes["phase"] = _PHASE[kind]
    return recorder.core.source_span(name, category, attributes)


def paddle_tables(recording: Recording, *, sorted_by: SortedKeys, thread_sep: bool) -> PaddleTables:
    """Return the tables of a recording's summary (strobe.analysis.paddle_tables)."""
    from strobe.analysis import paddle_tables as tables
    from strobe.exporters._paddle import read_events

    return tables.paddle_tables(
        read_events(recording.tables_path),
        recording.allocations().collect(),
        dict(recording.metadata().collect().iter_rows()),
        sorted_by=sorted_by,
        thread_sep=thread_sep,
    )


def export(recording: Recording, path: Path, form: str) -> None:
    """Write a recording as Paddle does, `form` being a key of FORMATS. Raises OSError."""
    from strobe.exporters import find_exporter

    find_exporter(FORMATS[form]).write(recording.tables_path, path, lambda _stage, _share: None)


def read_trace(path: Path) -> Trace:
    """Return all that a file of Paddle's holds, protobuf or JSON; raises FormatError."""
    from strobe.importers import paddle, paddle_json

    if not path.is_file():
        reason = "it is a folder" if path.is_dir() else "there is nothing at this path"
        raise FormatError(path, "file", f"{reason}; give a .pb or .json of Paddle's profiler")
    try:
        path = path.resolve()  # what the user gives may be a link
        read = paddle_json.read_trace if paddle_json.sniff(path) else paddle.read_trace
        return read(path)
    except OSError as error:
        raise FormatError(path, "file", f"cannot be read ({error.strerror or error})") from error


def recording_of(path: Path, trace: Trace) -> Recording:
    """Return a file of Paddle's as a recording, in a temporary folder that goes with it."""
    from strobe.importers import paddle_json
    from strobe.importers.paddle_events import held_before

    folder = Path(tempfile.mkdtemp(prefix="strobe-paddle-"))
    recording = Recording(folder)
    weakref.finalize(recording, shutil.rmtree, folder, ignore_errors=True)
    log = references.make_log(folder)
    first_ns, last_ns = trace.window()
    copy = log / "trace"
    shutil.copyfile(path, copy)  # a log holds no links, since what it holds is not to be trusted
    announce_trace(
        copy,
        source="paddle",
        reader="paddle JSON" if paddle_json.sniff(copy) else "paddle",
        anchor_name="",
        anchors=[(first_ns, first_ns), (last_ns, last_ns)],
        marks_ns=[first_ns, last_ns],
        notes=[],
    )
    for pid, levels in held_before(trace).items():
        blocks = [(0, size, device) for device, size in levels.items()]
        content = {"pid": pid, "start_ns": first_ns, "storages": blocks}
        (log / f"alive-{pid}-{first_ns}.json").write_text(json.dumps(content))
    manifest.write(folder, _describe(path, trace, first_ns, last_ns))
    _ = recording.tables_path  # written now, while the file is there
    return recording


def _describe(path: Path, trace: Trace, first_ns: int, last_ns: int) -> manifest.Manifest:
    pids = trace.host.pid
    report = Report(source_class="B", path="file", reason=escape(str(path)))
    return manifest.Manifest(
        id=manifest.new_id(),
        name=escape(path.name),
        strobe=__version__,
        recorder=manifest.IMPORTED,
        host="",
        boot="",
        pid=int(pids[0]) if len(pids) else 0,
        process_start=0,
        log=references.LOG,
        start=manifest.Anchor(clock_ns=first_ns, monotonic_ns=first_ns, wall_ns=first_ns),
        stop=manifest.Anchor(clock_ns=last_ns, monotonic_ns=last_ns, wall_ns=last_ns),
        wants={"memory": True, "flops": True},
        sources={"paddle": asdict(report)},
        metadata={
            "span_index": trace.span_index,
            **{
                key: trace.extra_info[key]
                for key in (PROCESS_USE, SYSTEM_USE)
                if key in trace.extra_info
            },
        },
    )


def trace_of(recording: Recording) -> Trace:
    """Return a recording's events as they would be read from a file of Paddle's."""
    from strobe.exporters import paddle_pb
    from strobe.importers import paddle

    with tempfile.TemporaryDirectory(prefix="strobe-") as folder:
        path = Path(folder) / "trace.pb"
        paddle_pb.write_all_types(recording.tables_path, path)
        return paddle.read_trace(path)
