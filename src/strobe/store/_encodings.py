# SPDX-License-Identifier: Apache-2.0
"""Values of one column -> the bytes in its Parquet pages, vectorised; knows no file, no schema."""

from __future__ import annotations

import zlib
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from strobe.model.coded import Coded
from strobe.model.texts import Texts, pack

Values: TypeAlias = npt.NDArray[Any]

# Numbers of the format's Encoding enum (parquet.thrift).
PLAIN, RLE, DELTA, DELTA_LENGTH, DICTIONARY, SPLIT = 0, 3, 5, 6, 8, 9

_FEW_ROWS = 256  # gzip makes them small in any encoding: to choose one takes longer than to write


def encode_levels(valid: Values | None, rows: int) -> bytes:
    """Return the definition levels, 1 where a row holds a value; `valid` None means all do."""
    # RLE/bit-packed hybrid of width 1, after its length in 4 bytes. One bit-packed run is enough:
    # gzip finds the rest.
    if valid is None:
        runs = varint(rows << 1) + b"\x01"
    else:
        packed = np.packbits(valid, bitorder="little").tobytes()
        runs = varint(len(packed) << 1 | 1) + packed
    return len(runs).to_bytes(4, "little") + runs


def encode_series(values: pl.Series) -> tuple[int, bytes, tuple[int, bytes] | None]:
    """Return encoding, bytes and dictionary of strings, none of them null."""
    if len(values) <= _FEW_ROWS:
        texts = values.cast(pl.String).to_list()
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        coded = Coded(np.array([places[text] for text in texts]), list(places))
    elif values.dtype == pl.String and _texts_mostly_differ(values):
        lengths = values.str.len_bytes().to_numpy().astype(np.int32)
        return DELTA_LENGTH, _encode_delta(lengths) + values.str.join("").item().encode(), None
    else:
        coded = Coded.of(values)
    dictionary, indices = encode_coded(coded)
    return DICTIONARY, indices, dictionary


def encode_texts(values: Coded) -> tuple[int, bytes, tuple[int, bytes] | None]:
    """Return encoding, bytes and dictionary of strings by number, none of them null."""
    if len(values) > _FEW_ROWS and _mostly_differ(values.codes):
        # A dictionary would only be one more copy.
        texts = values.texts
        found = texts.packed(values.codes) if isinstance(texts, Texts) else None
        lengths, content = found or pack(texts[code] for code in values.codes.tolist())
        return DELTA_LENGTH, _encode_delta(lengths.astype(np.int32)) + content, None
    dictionary, indices = encode_coded(values)
    return DICTIONARY, indices, dictionary


def _mostly_differ(codes: Values) -> bool:
    sample = _sample(codes)
    return len(np.unique(sample)) > len(sample) // 2


def _texts_mostly_differ(values: pl.Series) -> bool:
    sample = values.gather(_sample(np.arange(len(values))))
    return sample.n_unique() > len(sample) // 2


def encode_coded(values: Coded) -> tuple[tuple[int, bytes], bytes]:
    """Return the dictionary and the indices, for strings by number, none of them null."""
    if len(values.texts) == 1:
        text = values.texts[0].encode()
        only = (1, len(text).to_bytes(4, "little") + text)
        return only, _encode_indices(np.zeros(len(values), np.uint8), 1)
    codes, indices = _distinct(values.codes)
    entries = [values.texts[code].encode() for code in codes.tolist()]
    # In alphabetical order: names that begin alike stand within gzip's 32 kB window.
    order = sorted(range(len(entries)), key=entries.__getitem__)
    rank = np.empty(len(entries), np.int64)
    rank[order] = np.arange(len(entries))
    packed = b"".join(len(entries[i]).to_bytes(4, "little") + entries[i] for i in order)
    return (len(entries), packed), _encode_indices(rank[indices], len(entries))


def encode_numbers(values: Values) -> tuple[int, bytes, tuple[int, bytes] | None]:
    """Return encoding, bytes and dictionary (count and bytes, or None)."""
    # Floats by their bits: every NaN and the sign of zero survive the dictionary.
    is_float = values.dtype.kind == "f"
    bits = values.view(np.int64) if is_float else values
    if bits[0] == bits[-1] and (bits == bits[0]).all():
        constant = _encode_indices(np.zeros(len(bits), np.uint8), 1)
        return DICTIONARY, constant, (1, bits[:1].tobytes())
    encoding = SPLIT
    if len(bits) > _FEW_ROWS:
        encoding = _choose_encoding(_sample(bits), is_float=is_float)
    if encoding == DICTIONARY:
        distinct, indices = _distinct(bits)
        return (
            encoding,
            _encode_indices(indices, len(distinct)),
            (len(distinct), distinct.tobytes()),
        )
    return encoding, _encode_delta(bits) if encoding == DELTA else _encode_split(bits), None


def _choose_encoding(sample: Values, *, is_float: bool) -> int:
    """Return the encoding that is smallest after gzip. Floats have no DELTA in Parquet."""
    sizes = {SPLIT: len(gzip(_encode_split(sample), 1))}
    if not is_float:
        sizes[DELTA] = len(gzip(_encode_delta(sample), 1))
    distinct, indices = _distinct(sample)
    # The dictionary is not counted: a sample cannot tell how many rows outside it share the values.
    if len(distinct) * 8 <= len(sample):
        sizes[DICTIONARY] = len(gzip(_encode_indices(indices, len(distinct)), 1))
    return min(sizes, key=lambda encoding: sizes[encoding])


def _sample(values: Values, pieces: int = 4, rows: int = 1024) -> Values:
    if len(values) <= pieces * rows:
        return values
    starts = np.linspace(0, len(values) - rows, pieces, dtype=int)
    return np.concatenate([values[start : start + rows] for start in starts])


def _distinct(values: Values) -> tuple[Values, Values]:
    """Return the distinct values, sorted, and for each row its index among them."""
    if len(values) == 0:
        return values, np.zeros(0, np.int64)
    least, span = int(values.min()), int(values.max()) - int(values.min()) + 1
    if span > 4 * len(values):
        # polars hashes, np.unique would sort all rows.
        distinct = np.sort(pl.Series(values).unique().to_numpy())
        return distinct, np.searchsorted(distinct, values)
    shifted = (values - values.dtype.type(least)).astype(np.int64)
    seen = np.zeros(span, bool)
    seen[shifted] = True
    table = np.cumsum(seen) - 1
    return (np.flatnonzero(seen) + least).astype(values.dtype), table[shifted]


def _encode_indices(indices: Values, count: int) -> bytes:
    # One byte of bit width, then runs. Whole bytes need no bit packing, and gzip likes them better.
    if count <= 1:
        return b"\x08" + varint(len(indices) << 1) + b"\x00"
    width = 1 if count <= 1 << 8 else 2 if count <= 1 << 16 else 4
    packed = np.zeros(-(-len(indices) // 8) * 8, f"<u{width}")
    packed[: len(indices)] = indices
    return bytes([8 * width]) + varint(len(packed) // 8 << 1 | 1) + packed.tobytes()


def _encode_split(values: Values) -> bytes:
    """BYTE_STREAM_SPLIT: all first bytes, then all second bytes, ..."""
    planes: Values = values.view(np.uint8).reshape(len(values), values.itemsize).T
    return planes.tobytes()


_DELTA_BLOCK, _DELTA_MINI = 1024, 32


def _encode_delta(values: Values) -> bytes:
    """DELTA_BINARY_PACKED in widths of whole bytes: packing is a choice, and gzip sees bytes."""
    # | block | minis | count | first |, then per block
    # | least delta | a width per mini | minis: 32 deltas each, less the least |
    minis = _DELTA_BLOCK // _DELTA_MINI
    head = varint(_DELTA_BLOCK) + varint(minis) + varint(len(values)) + zigzag(int(values[0]))
    if len(values) == 1:
        return head
    deltas = np.diff(values)  # wraps, as the format asks
    padded = np.full((-(-len(deltas) // _DELTA_BLOCK), _DELTA_BLOCK), deltas[-1])
    padded.reshape(-1)[: len(deltas)] = deltas
    least = padded.min(axis=1)
    padded.reshape(-1)[len(deltas) :] = least[-1]  # unneeded minis must have width 0
    size = values.itemsize
    above = (padded - least[:, None]).view(f"u{size}").reshape(-1, _DELTA_MINI)
    limits = np.array([1 << 8 * i for i in range(size)], above.dtype)
    widths = np.searchsorted(limits, above.max(axis=1), side="right")
    body = _cut_to_widths(above.view(np.uint8).reshape(*above.shape, size), widths)
    bit_widths = (widths * 8).astype(np.uint8).tobytes()
    ends = np.cumsum(widths.reshape(-1, minis).sum(axis=1) * _DELTA_MINI).tolist()
    blocks, start = [head], 0
    for block, (delta, end) in enumerate(zip(least.tolist(), ends, strict=True)):
        blocks += [zigzag(delta), bit_widths[block * minis : (block + 1) * minis], body[start:end]]
        start = end
    return b"".join(blocks)


def _cut_to_widths(minis: Values, widths: Values) -> bytes:
    """Return the bytes of minis (mini, value, byte), of each value as many as its mini is wide."""
    sizes = widths * _DELTA_MINI
    ends = np.cumsum(sizes)
    body = np.empty(int(ends[-1]), np.uint8)
    starts = ends - sizes
    # There are few widths, most often one or two: a copy for each of them.
    for width in np.flatnonzero(np.bincount(widths)).tolist():
        chosen = np.flatnonzero(widths == width)
        places = starts[chosen, None] + np.arange(width * _DELTA_MINI)
        body[places] = minis[chosen, :, :width].reshape(len(chosen), -1)
    return body.tobytes()


def gzip(raw: bytes, level: int) -> bytes:
    """Return a gzip member, as Parquet's GZIP codec wants it."""
    packer = zlib.compressobj(level, zlib.DEFLATED, 16 + zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL + 1)
    return packer.compress(raw) + packer.flush()


def zigzag(value: int) -> bytes:
    """Return a signed 64-bit number as thrift and DELTA_BINARY_PACKED write it."""
    return varint((value << 1) ^ (value >> 63))


def varint(value: int) -> bytes:
    """Return an unsigned number as ULEB128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
