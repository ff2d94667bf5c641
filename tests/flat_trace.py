# SPDX-License-Identifier: Apache-2.0
"""A Trace as one table each of spans, allocations and counters, with processes and threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from strobe.model.attributes import ENDINGS
from strobe.model.phases import NONE, UNKNOWN
from strobe.model.tables import PHASES
from strobe.model.trace import Allocations, Counters, Spans, Trace, concatenate


class Flat:
    """The columns of a trace's spans; -1 where nothing is known."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.spans = concatenate(trace.spans, Spans)
        self.allocations = concatenate(trace.allocations, Allocations)
        self.counters = concatenate(trace.counters, Counters)

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.spans, name):
            return getattr(self.trace, name)
        column = getattr(self.spans, name)
        return np.full(len(self.spans), -1) if column is None else column

    @property
    def pid(self) -> Any:
        return np.array([self.trace.threads[lane].pid for lane in self.spans.lane])

    @property
    def tid(self) -> Any:
        return np.array([self.trace.threads[lane].tid for lane in self.spans.lane])

    @property
    def thread_names(self) -> dict[tuple[int | None, int | None], str | None]:
        """Those of the host's threads, by process and thread."""
        host = [thread for thread in self.trace.threads if thread.device is None]
        return {(thread.pid, thread.tid): thread.name for thread in host}

    def told(self) -> list[dict[str, Any]]:
        """What each span tells: its attributes, and what has columns instead; an unknown phase is
        None."""
        found = []
        for row in range(len(self.spans)):
            told = dict(self.spans.texts.content(int(self.spans.attributes[row])))
            for key in ("type", "full_name"):
                if self._at(key, row) >= 0:
                    told[key] = self.trace.names[self._at(key, row)]
            if (phase := self._at("phase", row)) != NONE:
                told["phase"] = None if phase == UNKNOWN else PHASES[phase]
            if (ends := self._at("ends", row)) >= 0:
                told["ends"] = ENDINGS[ends]
            found.append(told)
        return found

    def _at(self, name: str, row: int) -> int:
        column = getattr(self.spans, name)
        return -1 if column is None else int(column[row])

    @property
    def base_ns(self) -> int:
        """What is to be added to a time to have that of clocks on walls."""
        wall_ns: int = self.trace.metadata["start_wall_ns"]
        return wall_ns - self.trace.start_ns


def read_flat(importer: Any, path: Path, **options: Any) -> Flat:
    return Flat(importer.read(path, **options))
