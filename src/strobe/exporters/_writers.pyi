# SPDX-License-Identifier: Apache-2.0
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

# Any C-contiguous buffer of the right width will do; these are what we pass.
_Bytes: TypeAlias = bytes | bytearray | memoryview
_Int32: TypeAlias = NDArray[np.int32]
_Int64: TypeAlias = NDArray[np.int64]

def chrome_events(
    out: bytearray,
    head: _Int32,
    heads: _Bytes,
    heads_at: _Int64,
    start_ns: _Int64,
    dur_ns: _Int64,
    between: bytes,
    track: _Int32,
    tracks: _Bytes,
    tracks_at: _Int64,
    arguments: _Bytes,
    arguments_at: _Int64,
    first: int,
    /,
) -> tuple[int, int]: ...
def perfetto_packets(
    out: bytearray,
    turns: _Bytes,
    head: _Int32,
    heads: _Bytes,
    heads_at: _Int64,
    tracks: _Bytes,
    tracks_at: _Int64,
    bodies: _Bytes,
    bodies_at: _Int64,
    tail: bytes,
    first: int,
    /,
) -> tuple[int, int]: ...
def number_hashes(hashes: _Int64, code: _Int32, first: _Int64, /) -> int: ...
def annotate(texts: _Bytes, texts_at: _Int64, /) -> tuple[bytes, bytes]: ...

class Tracks:
    def place(
        self, lane: _Int32, start_ns: _Int64, dur_ns: _Int64, track: _Int32, wants_turns: bool, /
    ) -> tuple[bytes, bytes]: ...
    def finish(self) -> bytes: ...
