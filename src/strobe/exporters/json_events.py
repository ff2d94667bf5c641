# SPDX-License-Identifier: Apache-2.0
"""Columns -> events of Chrome's JSON, for every file that is made of such events."""

from __future__ import annotations

from typing import NamedTuple

from strobe.exporters._rows import NO_PIECES, Pieces
from strobe.exporters._rows import join as join
from strobe.exporters._writing import Room as Room
from strobe.exporters._writing import writers
from strobe.model.arrays import Int32, Int64


class Events(NamedTuple):
    """A row per event: which head, its times, which track; each distinct text once."""

    head: Int32
    heads: Pieces
    """Each an event up to its start."""
    start_ns: Int64
    dur_ns: Int64
    """None at all where events have no duration."""
    track: Int32
    tracks: Pieces
    """Each what follows the times."""
    arguments: Pieces = NO_PIECES
    """One JSON object per row, "" for none."""


def write_events(room: Room, events: Events, *, between: bytes = b',"dur":') -> None:
    """Write the events, `},` and a new line after each; `between` stands between its times."""

    def write(out: bytearray, first: int) -> tuple[int, int]:
        head, heads, start_ns, dur_ns, track, tracks, arguments = events
        return writers.chrome_events(
            *(out, head, *heads, start_ns, dur_ns, between, track, *tracks, *arguments, first)
        )

    room.fill(write, len(events.head))
