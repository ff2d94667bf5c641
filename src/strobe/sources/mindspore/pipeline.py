# SPDX-License-Identifier: Apache-2.0
"""MindData's profiling manager: queues and processor use of one pipeline, sampled by MindSpore.

It knows one pipeline, the first that is made after init(), and crashes the process if it is started
again when that has gone, or is initialized again while that is there. So it is used once.
"""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.sources.mindspore.session import Anchors

INTERVAL_MS = 50
AGAIN = "MindSpore crashes where its pipeline profiler is started twice, so only one window has it"
NOT_SEEN = "MindSpore profiles a pipeline only if its iterator is made while it is recorded"


class Pipeline:
    """The one recording of this process."""

    def __init__(self) -> None:
        self._anchors: Anchors | None = None
        self._interval_ms = 0
        self.used = False

    def start(self) -> bool:
        """Start, and say whether it could be."""
        if self.used:
            return False
        self.used = True
        config = import_module("mindspore.dataset").config
        self._interval_ms = config.get_monitor_sampling_interval()
        config.set_monitor_sampling_interval(INTERVAL_MS)
        manager = _manager()
        manager.init()
        manager.start()
        self._anchors = Anchors.of(time.monotonic_ns)
        return True

    def stop(self, folder: Path) -> Anchors | None:
        """Save into a new folder; None if it does not run, or no pipeline was made meanwhile."""
        anchors, self._anchors = self._anchors, None
        if anchors is None:
            return None
        import_module("mindspore.dataset").config.set_monitor_sampling_interval(self._interval_ms)
        manager = _manager()
        manager.stop()
        folder.mkdir()
        manager.save(str(folder))
        anchors.add()
        return anchors if any(folder.iterdir()) else None


def _manager() -> Any:
    return import_module("mindspore._c_dataengine").GlobalContext.profiling_manager()
