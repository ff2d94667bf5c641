# SPDX-License-Identifier: Apache-2.0
"""The Python twin of native/exporters: same arguments, same bytes, slower.

It stands in where the extension was not built, and the tests hold the two against each other.
"""

from __future__ import annotations

import heapq
import re
import struct
from collections.abc import Callable
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import TypeAlias

import numpy as np

from strobe.model.arrays import Int32, Int64

_Bytes: TypeAlias = bytes | bytearray | memoryview
_Pieces: TypeAlias = Callable[[int], bytes]

TURN = struct.Struct("=qii")
"""Where a span begins (row: its number in the batch) or ends (row: -1): time_ns, row, track."""

# What the C writers keep free for the longest glue; a row that would need it waits for more room.
_CHROME_GLUE = 2 * 22 + len(',"args":},\n') + 1
_PACKET_GLUE = 3 + 3 * 10


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
) -> tuple[int, int]:
    """Write rows from `first` on while they fit; return the next row and the bytes used."""
    head_of, track_of = _pieces(heads, heads_at), _pieces(tracks, tracks_at)
    argument_of = _pieces(arguments, arguments_at)
    used = 0
    for row in range(first, len(head)):
        try:
            front, back = head_of(int(head[row])), track_of(int(track[row]))
            given = argument_of(row) if len(arguments_at) > 1 else b""
        except IndexError:
            _refuse("chrome_events", row)
        needed = len(front) + len(between) + len(back) + len(given) + _CHROME_GLUE
        if len(out) - used < needed:
            return row, used
        event = front + _microseconds(int(start_ns[row]))
        if len(dur_ns):
            event += between + _microseconds(int(dur_ns[row]))
        event += back + (b',"args":' + given if given else b"") + b"},\n"
        out[used : used + len(event)] = event
        used += len(event)
    return len(head), used


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
) -> tuple[int, int]:
    """Write turns from `first` on while they fit; return the next turn and the bytes used."""
    head_of, track_of = _pieces(heads, heads_at), _pieces(tracks, tracks_at)
    body_of = _pieces(bodies, bodies_at)
    used, count = 0, len(turns) // TURN.size
    for number in range(first, count):
        time_ns, row, track = TURN.unpack_from(turns, number * TURN.size)
        try:
            if not -1 <= row < len(head):
                raise IndexError
            event = head_of(int(head[row]) if row >= 0 else 0) + track_of(track)
            if row >= 0 and len(bodies_at) > 1:
                event += body_of(row)
        except IndexError:
            _refuse("perfetto_packets", number)
        if len(out) - used < len(event) + len(tail) + _PACKET_GLUE:
            return number, used
        packet = b"\x40" + varint(time_ns) + b"\x5a" + varint(len(event)) + event + tail
        packet = b"\x0a" + varint(len(packet)) + packet
        out[used : used + len(packet)] = packet
        used += len(packet)
    return count, used


def number_hashes(hashes: Int64, code: Int32, first: Int64, /) -> int:
    """Number distinct hashes as they come.

    Writes each row's number, and each number's first row; returns how many there are.
    """
    _, rows, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(rows)
    rank = np.empty(len(rows), np.int32)
    rank[order] = np.arange(len(rows))
    code[:] = rank[inverse]
    first[: len(rows)] = rows[order]
    return len(rows)


def annotate(texts: _Bytes, texts_at: Int64, /) -> tuple[bytes, bytes]:
    """Return JSON objects as the debug_annotations of TrackEvents: bytes and offsets."""
    text_of = _pieces(texts, texts_at)
    encoded = [_annotate_row(text_of(row)) for row in range(len(texts_at) - 1)]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return b"".join(encoded), offsets.tobytes()


def varint(value: int) -> bytes:
    """Return a protobuf varint; a negative number as its 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _pieces(texts: _Bytes, at: Int64) -> _Pieces:
    def piece(number: int) -> bytes:
        if not 0 <= number < len(at) - 1 or not 0 <= at[number] <= at[number + 1] <= len(texts):
            raise IndexError
        return bytes(texts[int(at[number]) : int(at[number + 1])])

    return piece


def _refuse(function: str, row: int) -> None:
    message = f"{function}(): row {row} names a piece that does not exist"
    raise ValueError(message) from None


def _microseconds(ns: int) -> bytes:
    whole, decimals = divmod(abs(ns), 1000)
    return b"%s%d.%03d" % (b"-" if ns < 0 else b"", whole, decimals)


# ---- JSON -> DebugAnnotation ---------------------------------------------------------------------

_MAX_DEPTH = 32
_MAX_NUMBER = 63
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"[-+.0-9Ee]*")
_INTEGER = re.compile(r"-?[0-9]+")
_WORDS = {"true": b"\x10\x01", "false": b"\x10\x00", "null": b"\x32\x04null"}
# A string, or a bracket; to find where something nested ends.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]|"', re.DOTALL)


def _annotate_row(encoded: bytes) -> bytes:
    if not encoded:
        return b""
    text = encoded.decode()
    start = _skip_space(text, 0)
    try:
        if text[start : start + 1] != "{":
            raise ValueError
        if _is_empty(text, start, "}"):
            end, out = _expect(text, start + 1, "}"), b""
        else:
            end, out = _read_members(text, start, b"\x22", "}", 1)
        if _skip_space(text, end) != len(text):
            raise ValueError
    except (ValueError, IndexError):
        return _field(b"\x22", b"\x52\x0aattributes" + _field(b"\x32", encoded))
    return out


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + varint(len(content)) + content


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, expected: str) -> int:
    at = _skip_space(text, at)
    if text[at : at + 1] != expected:
        raise ValueError
    return at + 1


def _is_empty(text: str, at: int, close: str) -> bool:
    return text.startswith(close, _skip_space(text, at + 1))


def _read_members(text: str, at: int, tag: bytes, close: str, depth: int) -> tuple[int, bytes]:
    out = bytearray()
    more = True
    while more:
        at, name = _skip_space(text, at + 1), b""
        if close == "}":
            if text[at : at + 1] != '"':
                raise ValueError
            at, name = _read_string(text, at)
            at = _skip_space(text, _expect(text, at, ":"))
            name = _field(b"\x52", name)
        at, value = _read_value(text, at, depth)
        out += _field(tag, name + value)
        at = _skip_space(text, at)
        more = text.startswith(",", at)
    return _expect(text, at, close), bytes(out)


def _read_string(text: str, at: int) -> tuple[int, bytes]:
    value, end = scanstring(text, at + 1, False)
    return end, value.encode("utf-8", "backslashreplace")


def _read_value(text: str, at: int, depth: int) -> tuple[int, bytes]:
    first = text[at : at + 1]
    if first == '"':
        end, value = _read_string(text, at)
        return end, _field(b"\x32", value)
    if first in ("{", "["):
        close = "}" if first == "{" else "]"
        if depth < _MAX_DEPTH and not _is_empty(text, at, close):
            return _read_members(text, at, b"\x5a" if first == "{" else b"\x62", close, depth + 1)
        end = _end_of_nested(text, at)
        return end, _field(b"\x32", text[at:end].encode())
    for word, value in _WORDS.items():
        if text.startswith(word, at):
            return at + len(word), value
    return _read_number(text, at)


def _read_number(text: str, at: int) -> tuple[int, bytes]:
    match = _NUMBER.match(text, at)
    number = match[0] if match else ""
    end = at + len(number)
    if _INTEGER.fullmatch(number):
        digits = number.lstrip("-").lstrip("0") or "0"
        value = int(digits[:20]) * (-1 if number[0] == "-" else 1)
        if -(1 << 63) <= value < 1 << 63:
            return end, b"\x20" + varint(value)
        return end, _field(b"\x32", number.encode())
    if len(number) > _MAX_NUMBER:
        return end, _field(b"\x32", number.encode())
    return end, b"\x29" + struct.pack("<d", float(number))


def _end_of_nested(text: str, at: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(text, at):
        if token[0] == '"':
            break
        depth += (token[0] in "[{") - (token[0] in "]}")
        if depth == 0:
            return token.end()
    raise ValueError


# ---- tracks --------------------------------------------------------------------------------------

_MAX_ANCESTORS = 8


class _Lane:
    def __init__(self) -> None:
        self.spans: list[tuple[int, int]] = []  # (end_ns, track), see native/exporters/tracks.h
        self.first = -1
        self.heap: list[tuple[int, int]] = []  # (free_ns, track)


class Tracks:
    """Tracks on which spans nest, whatever they do on their lane; rows come by start."""

    def __init__(self) -> None:
        self._lanes: dict[int, _Lane] = {}
        self._ends: list[list[int]] = []
        self._turns = bytearray()

    def place(
        self, lane: Int32, start_ns: Int64, dur_ns: Int64, track: Int32, wants_turns: bool, /
    ) -> tuple[bytes, bytes]:
        """Write each row's track. Return the turns, if wanted, and the lanes of the tracks made."""
        if (lane < 0).any() or (dur_ns < 0).any() or (np.diff(start_ns) < 0).any():
            message = "place(): a lane or duration is negative, or rows are not sorted by start_ns"
            raise ValueError(message)
        self._turns.clear()
        lanes_of_new: list[int] = []
        rows = zip(lane.tolist(), start_ns.tolist(), dur_ns.tolist(), strict=True)
        for row, (number, start, dur) in enumerate(rows):
            known = len(self._ends)
            track[row] = self._place(row, self._lanes.setdefault(number, _Lane()), start, dur)
            if len(self._ends) > known:
                lanes_of_new.append(number)
        turns = bytes(self._turns) if wants_turns else b""
        return turns, np.array(lanes_of_new, np.int32).tobytes()

    def finish(self) -> bytes:
        """Return the ends of all spans that are open."""
        self._turns.clear()
        for track, ends in enumerate(self._ends):
            while ends:
                self._turns += TURN.pack(ends.pop(), -1, track)
        return bytes(self._turns)

    def _place(self, row: int, lane: _Lane, start: int, dur: int) -> int:
        end = start + dur
        while lane.spans and lane.spans[-1][0] < end:
            lane.spans.pop()
        track = self._choose(lane, start, end)
        lane.spans.append((end, track))
        self._ends[track].append(end)
        self._turns += TURN.pack(start, row, track)
        return track

    def _choose(self, lane: _Lane, start: int, end: int) -> int:
        for _, track in lane.spans[: -_MAX_ANCESTORS - 1 : -1]:
            if self._fits(track, start, end):
                return track
        if lane.first < 0:
            lane.first = self._new()
            return lane.first
        if self._fits(lane.first, start, end):
            return lane.first
        if lane.heap and self._fits(lane.heap[0][1], start, end):
            track = lane.heap[0][1]
            if not self._ends[track]:
                heapq.heapreplace(lane.heap, (end, track))
            return track
        track = self._new()
        heapq.heappush(lane.heap, (end, track))
        return track

    def _fits(self, track: int, start: int, end: int) -> bool:
        ends = self._ends[track]
        while ends and (ends[-1] < start or (ends[-1] == start and end > start)):
            self._turns += TURN.pack(ends.pop(), -1, track)
        return not ends or ends[-1] >= end

    def _new(self) -> int:
        self._ends.append([])
        return len(self._ends) - 1
