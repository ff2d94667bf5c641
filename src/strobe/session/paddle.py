# SPDX-License-Identifier: Apache-2.0
"""A recording as Paddle's profiler would show it: what strobe.paddle needs of the rooms below."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strobe.errors import FormatError
from strobe.model.attributes import PHASE, TYPE
from strobe.model.paddle import SortedKeys
from strobe.model.paddle import TracerEventType as Type
from strobe.model.tables import record_code
from strobe.record import recorder
from strobe.record.messages import show
from strobe.record.schedule import as_int
from strobe.record.schedule import schedule as rounds
from strobe.session.recording import Recording, import_foreign
from strobe.sources.waits import Waits

if TYPE_CHECKING:
    from strobe.analysis.paddle_tables import PaddleTables as PaddleTables
    from strobe.importers.paddle_trace import PaddleTrace

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
    category = record_code(_CATEGORY.get(kind, "annotation"), "spans")
    attributes = {TYPE: kind.name}
    if kind in _PHASE:
        attributes[PHASE] = _PHASE[kind]
    return recorder.core.source_span(name, category, attributes)


def paddle_tables(recording: Recording, *, sorted_by: SortedKeys, thread_sep: bool) -> PaddleTables:
    """Return the tables of a recording's summary (strobe.analysis.paddle_tables)."""
    from strobe.analysis import paddle_tables as analysis

    return analysis.paddle_tables(recording, sorted_by=sorted_by, thread_sep=thread_sep)


def export(recording: Recording, path: Path, form: str) -> None:
    """Write a recording as Paddle does, `form` being a key of FORMATS. Raises OSError."""
    from strobe.exporters import find_exporter

    find_exporter(FORMATS[form]).write(recording, path, lambda _stage, _share: None)


def read_trace(path: Path) -> PaddleTrace:
    """Return all that a file of Paddle's holds, protobuf or JSON; raises FormatError."""
    if not path.is_file():
        reason = "it is a folder" if path.is_dir() else "there is nothing at this path"
        raise FormatError(path, "file", f"{reason}; give a .pb or .json of Paddle's profiler")
    try:
        path = path.resolve()  # what the user gives may be a link
        trace: PaddleTrace = _reader(path).read_trace(path)
    except OSError as error:
        raise FormatError(path, "file", f"cannot be read ({error.strerror or error})") from error
    return trace


def _reader(path: Path) -> Any:
    from strobe.importers import paddle, paddle_json, read_head

    return paddle_json if read_head(path).lstrip()[:1] == b"{" else paddle


def recording_of(path: Path, trace: PaddleTrace) -> Recording:
    """Return a file of Paddle's that was parsed as a recording."""
    from strobe.finalize.convert import Parsed

    path = path.resolve()
    reader = _reader(path)
    return import_foreign(path, Parsed(reader, lambda: reader.read_parsed(path, trace)))


def trace_of(recording: Recording) -> PaddleTrace:
    """Return a recording's events as they would be read from a file of Paddle's."""
    from strobe.exporters import paddle_pb
    from strobe.importers import paddle

    with tempfile.TemporaryDirectory(prefix="strobe-") as folder:
        path = Path(folder) / "trace.pb"
        paddle_pb.write_all_types(recording, path)
        return paddle.read_trace(path)
