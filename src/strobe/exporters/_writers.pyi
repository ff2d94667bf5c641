# SPDX-License-Identifier: Apache-2.0
from typing import TypeAlias

from strobe.model.arrays import Int32, Int64

# Any C-contiguous buffer of the right width will do; these are what we pass.
_Bytes: TypeAlias = bytes | bytearray | memoryview

def chrome_events(
    out: bytearray,
    head: Int32,
    heads: _Bytes,
    heads_at: Int64,
    start_ns: Int64,
    dur_ns: Int64,
    between: bytes,
    track: Int32,
    tracks: _Bytes,
    tracks_at: Int64,
    arguments: _Bytes,
    arguments_at: Int64,
    first: int,
    /,
) -> tuple[int, int]: ...
def perfetto_packets(
    out: bytearray,
    turns: _Bytes,
    head: Int32,
    heads: _Bytes,
    heads_at: Int64,
    tracks: _Bytes,
    tracks_at: Int64,
    bodies: _Bytes,
    bodies_at: Int64,
    tail: bytes,
    first: int,
    /,
) -> tuple[int, int]: ...
def number_hashes(hashes: Int64, code: Int32, first: Int64, /) -> int: ...
def annotate(texts: _Bytes, texts_at: Int64, /) -> tuple[bytes, bytes]: ...

class Tracks:
    def place(
        self, lane: Int32, start_ns: Int64, dur_ns: Int64, track: Int32, wants_turns: bool, /
    ) -> tuple[bytes, bytes]: ...
    def finish(self) -> bytes: ...
