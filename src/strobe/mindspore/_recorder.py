# SPDX-License-Identifier: Apache-2.0
"""strobe.Profiler, recording into one of MindSpore's trees."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from strobe.errors import CaptureError, StateError
from strobe.mindspore._handler import TraceHandler
from strobe.mindspore._names import ProfilerActivity
from strobe.mindspore._settings import Settings, old_output
from strobe.record.ranks import Place
from strobe.session import mindspore_offline, mindspore_tree
from strobe.session.hook import is_scheduler
from strobe.session.profiler import Profiler
from strobe.session.round import Destination


class Recorder(Profiler):
    """One profiler of either interface, whose results go into `folder`.

    `paths` are the recordings of all rounds that ended.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        kind: mindspore_tree.Kind,
        analyses: bool,
        on_round: Callable[[], object] | None = None,
    ) -> None:
        handler = settings.values["on_trace_ready"]
        self._handler = handler if isinstance(handler, TraceHandler) else None
        self._kind: mindspore_tree.Kind = "profile" if self._handler else kind
        self._analyses = self._handler.analyses if self._handler else analyses
        self._settings = settings
        self._on_round = on_round
        self._added: dict[str, Any] = {}
        self.paths: list[Path] = []
        output = old_output(settings) if kind == "profiler" else Path("./data").absolute()
        self.folder = (self._handler and self._handler.folder) or output
        super().__init__(**settings.options, output=self.folder, on_trace_ready=self._end_round)

    @property
    def place(self) -> Place:
        """Which process of which job it records, once it has been started."""
        return self._place

    def add(self, key: str, value: Any) -> None:
        """Keep what the user added, for profiler_metadata.json."""
        self._added[key] = value
        self.add_metadata(mindspore_tree.METADATA, json.dumps(self._added))

    def start(self) -> None:
        """Start, and say what was named and cannot be had."""
        super().start()
        self._report(self._missing())

    def _missing(self) -> dict[str, str]:
        return self._settings.missing(several_ranks=(self._place.world_size or 1) > 1)

    def _require_started(self, call: str) -> None:
        if self._settings.values["start_profile"] and not self.is_started:
            message = f"{call} after stop(); make it with start_profile=False to start it again"
            raise StateError(message)
        super()._require_started(call)

    def _open_round(self) -> None:
        if not is_scheduler():
            super()._open_round()

    def _find_destination(self) -> Destination:
        declaration = mindspore_tree.Declaration(
            kind=self._kind,
            parameters=self._settings.described,
            missing=self._missing(),
            keep_log=not self._settings.values["data_simplification"],
        )
        try:
            found = self._make_tree(declaration)
        except (OSError, ValueError) as error:  # or the path is none, with a 0 in it
            reason = getattr(error, "strerror", None) or error
            message = (
                f"{str(self.folder)!r} cannot be recorded into ({reason}); choose a folder that "
                "can be written"
            )
            raise CaptureError(message) from error
        return replace(found, finalize=self._analyses)

    def _make_tree(self, declaration: mindspore_tree.Declaration) -> Destination:
        if self._kind == "profiler":
            return mindspore_tree.place_profiler(self.folder, declaration, self._place)
        worker = self._handler.worker if self._handler else socket.gethostname()
        return mindspore_tree.place_profile(self.folder, worker, declaration, self._place)

    def _end_round(self, _profiler: Profiler) -> None:
        path = self.recording.path
        self.paths.append(path)
        if self._analyses:
            mindspore_offline.expect(path)
        if self._on_round is not None:
            self._on_round()

    def _report(self, missing: Mapping[str, str]) -> None:
        """Say only what the user named, as they named it: defaults are no wish of theirs."""
        devices = set(self._settings.values["activities"]) - {ProfilerActivity.CPU}
        named = {
            "with_flops": self._settings.metrics_name,
            "activities": ", ".join(sorted(str(device) for device in devices)),
        }
        super()._report(
            {
                named.get(name, name): reason
                for name, reason in missing.items()
                if self._settings.is_named(name)
            }
        )
