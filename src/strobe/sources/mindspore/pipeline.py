# SPDX-License-Identifier: Apache-2.0
"""MindData's profiling manager: queues and processor use of one pipeline, sampled by MindSpore.

It knows one pipeline at a time, the first that is made after init(), by a bare pointer: init() is
called again only when that one has gone. The thread that samples is made with the pipeline, ends
with stop() and is not made again, and to save while it runs is not safe, since there is no lock. So
a pipeline has one window, the one in which it is made; the next pipeline has the next.
"""

from __future__ import annotations

import json
import time
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.sources.mindspore.session import Anchors

INTERVAL_MS = 50
WINDOW = "window.json"  # beside its files: since when they count, in ms of the monotonic clock
NOT_SEEN = "MindSpore profiles a pipeline only if its iterator is made while it is recorded"
_ONCE = "MindSpore profiles a pipeline in one window only, and this one had it"
_UNKNOWN = "MindSpore profiles a pipeline that was not made as an iterator, and would crash"


class Pipeline:
    """The manager of this process, and the pipeline that it knows."""

    def __init__(self) -> None:
        self._anchors: Anchors | None = None
        self._folder = Path()
        self._saved: list[Path] = []
        self._interval_ms = 0
        self._iterator: weakref.ref[Any] | None = None
        self._is_unknown = False
        """Whether it has a pipeline of which we do not know whether it is there."""

    def making(self) -> None:
        """An iterator is about to be made: let it be known if the one before has gone."""
        if self._anchors is not None and self._iterator is not None and not self._is_there():
            self._save()
            self._run()

    def made(self, iterator: Any) -> None:
        """An iterator has been made; if it is the first one, the manager knows it."""
        if self._anchors is not None and self._iterator is None:
            self._iterator = weakref.ref(iterator)

    def start(self, folder: Path) -> str:
        """Begin a window, to be saved into new folders; return why it cannot be, or nothing."""
        if self._is_unknown:
            return _UNKNOWN
        if self._is_there():
            return _ONCE
        self._run()
        self._folder, self._saved = folder, []
        self._anchors = Anchors.of(time.monotonic_ns)
        return ""

    def stop(self) -> tuple[list[Path], Anchors | None]:
        """End a window: return a folder for each pipeline that there was, and their clock."""
        if self._anchors is None:
            return [], None
        self._save()
        self._anchors.add()
        anchors, self._anchors = self._anchors, None
        return self._saved, anchors

    def _run(self) -> None:
        self._interval_ms = _config().get_monitor_sampling_interval()
        _config().set_monitor_sampling_interval(INTERVAL_MS)
        self._iterator = None
        _manager().init()
        _manager().start()

    def _save(self) -> None:
        """Stop, and write what there is."""
        assert self._anchors is not None
        _manager().stop()
        folder = self._folder.with_name(f"{self._folder.name}-{len(self._saved)}")
        folder.mkdir()
        _manager().save(str(folder))  # which writes the interval as it is set now
        _config().set_monitor_sampling_interval(self._interval_ms)
        if any(folder.iterdir()):
            self._is_unknown = self._iterator is None
            begun_ms = self._anchors.marks_ns[0] // 1_000_000
            (folder / WINDOW).write_text(json.dumps(begun_ms))
            self._saved.append(folder)

    def _is_there(self) -> bool:
        """Say whether the pipeline that it knows is: an iterator may also let go of it."""
        iterator = self._iterator() if self._iterator is not None else None
        return hasattr(iterator, "_runtime_context")


def _config() -> Any:
    return import_module("mindspore.dataset").config


def _manager() -> Any:
    return import_module("mindspore._c_dataengine").GlobalContext.profiling_manager()
