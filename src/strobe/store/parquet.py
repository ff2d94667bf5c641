# SPDX-License-Identifier: Apache-2.0
"""Writes one table as one Parquet file, row group by row group, in bounded memory.

A writer of our own because polars' has no choice of encodings and needs 7 to 14 bytes for a span
where this one needs 4 to 10. It knows no table, and it does not read: `pl.scan_parquet` does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, TypeAlias

import numpy as np
import polars as pl

from strobe.errors import StateError, UsageError
from strobe.model.coded import Coded
from strobe.store._encodings import (
    PLAIN,
    RLE,
    Values,
    encode_levels,
    encode_numbers,
    encode_series,
    encode_texts,
    gzip,
    varint,
    zigzag,
)

ColumnType = Literal["int64", "int32", "float64", "bool", "string"]
Column: TypeAlias = Values | pl.Series | Coded | None

ROW_GROUP_ROWS = 1 << 18
"""Rows for one append: fewer repeat the dictionaries more often, more only cost memory."""

MAGIC = b"PAR1"
"""What a file begins and ends with."""
_SMALL_ROWS = 1 << 16  # up to here gzip's level 6 costs less than 0.1 s and saves 5 to 15 %
_PAGE_LIMIT_BYTES = (1 << 31) - 1
_NUMBERS = {"int64": pl.Int64, "int32": pl.Int32, "float64": pl.Float64, "bool": pl.Boolean}

# Numbers of the format's enums (parquet.thrift).
_PHYSICAL = {"bool": 0, "int32": 1, "int64": 2, "float64": 5, "string": 6}
_OPTIONAL, _UTF8, _GZIP = 1, 0, 2
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2


class TableWriter:
    """A Parquet file that grows by one row group per `append` and has its name from `close` on.

    Until then the bytes are in `<path>.part`. The end of a `with` block closes; an exception in it
    removes that file and leaves an older `path` as it was. Every column may hold nulls. Integers
    carry min/max statistics, so that a filter on a sorted column skips row groups.
    Raises UsageError for an unknown column type.
    """

    def __init__(self, path: Path, schema: Mapping[str, ColumnType]) -> None:
        for name, kind in schema.items():
            if kind not in _PHYSICAL:
                msg = f"column {name!r} of type {kind!r}: the types are {', '.join(_PHYSICAL)}"
                raise UsageError(msg)
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._schema = dict(schema)
        self._row_groups: list[bytes] = []
        self._rows = 0
        self._file: IO[bytes] | None = self._part.open("wb")
        self._offset = 0
        self._write(MAGIC)

    def append(self, columns: Mapping[str, Column]) -> None:
        """Write one row group, of ROW_GROUP_ROWS rows if there are as many; no rows write nothing.

        An array has no nulls, a Series may, None is a column of nulls. Strings come as a Series of
        String, Enum (the fastest) or Categorical. Raises UsageError, with nothing written, when
        names, types or lengths differ from the schema or a value does not fit; StateError after
        `close`.
        """
        self._open_file()
        if columns.keys() != self._schema.keys():
            given, expected = sorted(columns), sorted(self._schema)
            msg = f"append to {str(self._path)!r}: columns {given} given, {expected} expected"
            raise UsageError(msg)
        lengths = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(lengths.values())) != 1:
            msg = f"append to {str(self._path)!r}: one length expected, not {lengths}"
            raise UsageError(msg)
        rows = next(iter(lengths.values()))
        if rows == 0:
            return
        chunks = [
            _encode_column(name, kind, columns[name], rows) for name, kind in self._schema.items()
        ]
        described, start = [], self._offset
        for (name, kind), chunk in zip(self._schema.items(), chunks, strict=True):
            described.append(chunk.describe(name, kind, self._offset))
            for page in chunk.pages:
                self._write(page)
        raw_bytes = sum(chunk.raw_bytes for chunk in chunks)
        size_bytes = self._offset - start
        group = _struct((1, _list(described)), (2, raw_bytes), (3, rows), (6, size_bytes))
        self._row_groups.append(group)
        self._rows += rows

    def close(self) -> None:
        """Write the footer and give the file its name; raises StateError the second time."""
        root = _struct((4, b"schema"), (5, _Int32(len(self._schema))))
        elements = [_schema_element(name, kind) for name, kind in self._schema.items()]
        footer = _struct(
            (1, _Int32(2)),
            (2, _list([root, *elements])),
            (3, self._rows),
            (4, _list(self._row_groups)),
            (6, b"strobe"),
            (7, _list([_struct((1, _Struct(_struct())))] * len(self._schema))),
        )
        self._write(footer + len(footer).to_bytes(4, "little") + MAGIC)
        file = self._open_file()
        with contextlib.ExitStack() as undo:
            undo.callback(self.discard)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            self._part.replace(self._path)
            undo.pop_all()
        self._file = None

    def discard(self) -> None:
        """Remove what was written so far; does nothing when closed or discarded before."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):  # a full disk refuses the buffered rest; nobody wants it
            self._file.close()
        self._file = None
        self._part.unlink(missing_ok=True)

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def _open_file(self) -> IO[bytes]:
        if self._file is None:
            msg = f"table {str(self._path)!r} is closed; open a new TableWriter to write it again"
            raise StateError(msg)
        return self._file

    def _write(self, data: bytes) -> None:
        file = self._open_file()
        with contextlib.ExitStack() as undo:
            # A footer after half a row group would be a file that reads wrong.
            undo.callback(self.discard)
            file.write(data)
            undo.pop_all()
        self._offset += len(data)


@dataclass(frozen=True)
class _Chunk:
    """One column of one row group: its pages as on disk, and what the footer says of them."""

    pages: Sequence[bytes]
    raw_bytes: int
    encodings: Sequence[int]
    rows: int
    statistics: bytes

    def describe(self, name: str, kind: ColumnType, offset: int) -> bytes:
        """Return the footer's ColumnChunk for pages that begin at `offset`."""
        has_dictionary = len(self.pages) > 1
        data_offset = offset + len(self.pages[0]) if has_dictionary else offset
        meta = _struct(
            (1, _Int32(_PHYSICAL[kind])),
            (2, _list([zigzag(encoding) for encoding in self.encodings], item=_I32)),
            (3, _list([_binary(name.encode())], item=_BINARY)),
            (4, _Int32(_GZIP)),
            (5, self.rows),
            (6, self.raw_bytes),
            (7, sum(map(len, self.pages))),
            (9, data_offset),
            *([(11, offset)] if has_dictionary else []),
            (12, _Struct(self.statistics)),
        )
        return _struct((2, 0), (3, _Struct(meta)))


def _encode_column(name: str, kind: ColumnType, column: Column, rows: int) -> _Chunk:
    valid, values = _split_nulls(name, kind, column, rows)
    statistics: list[tuple[int, _Field]] = [(3, rows - len(values))]
    dictionary: tuple[int, bytes] | None = None
    if len(values) == 0:
        encoding, encoded = PLAIN, b""
    elif isinstance(values, Coded):
        encoding, encoded, dictionary = encode_texts(values)
    elif isinstance(values, pl.Series):
        encoding, encoded, dictionary = encode_series(values)
    elif kind == "bool":
        encoding, encoded = PLAIN, np.packbits(values, bitorder="little").tobytes()
    else:
        encoding, encoded, dictionary = encode_numbers(values)
        if kind != "float64":
            statistics += [(5, values.max().tobytes()), (6, values.min().tobytes())]
    levels = encode_levels(valid, rows)
    levels_are = (3, _Int32(RLE)), (4, _Int32(RLE))
    header = _struct((1, _Int32(rows)), (2, _Int32(encoding)), *levels_are)
    level = 6 if rows <= _SMALL_ROWS else 1
    pages = [_page(name, _DATA_PAGE, (5, _Struct(header)), levels + encoded, level=level)]
    if dictionary is not None:
        count, entries = dictionary
        header = _struct((1, _Int32(count)), (2, _Int32(PLAIN)))
        # Written once per row group and read by every name lookup: worth the slowest level.
        pages.insert(0, _page(name, _DICTIONARY_PAGE, (7, _Struct(header)), entries, level=9))
    used = [encoding, RLE] if dictionary is None else [PLAIN, encoding, RLE]
    raw_bytes = sum(raw for _, raw in pages)
    return _Chunk([page for page, _ in pages], raw_bytes, used, rows, _struct(*statistics))


def _split_nulls(
    name: str, kind: ColumnType, column: Column, rows: int
) -> tuple[Values | None, Values | pl.Series | Coded]:
    """Return which rows hold a value (None: all) and those values, as they came for strings."""
    if column is None:
        return np.zeros(rows, bool), np.zeros(0, bool)
    if isinstance(column, Coded):
        if kind != "string":
            msg = f"column {name!r} is strings; the schema says {kind}"
            raise UsageError(msg)
        present = column.codes >= 0
        if present.all():
            return None, column
        return present, Coded(column.codes[present], column.texts)
    if isinstance(column, np.ndarray) and kind != "string" and column.dtype == kind:
        return None, column
    series = column if isinstance(column, pl.Series) else pl.Series(name, column)
    if not _fits(kind, series.dtype):
        msg = f"column {name!r} is {series.dtype}; the schema says {kind}"
        raise UsageError(msg)
    valid, values = None, series
    if series.null_count():
        valid, values = series.is_not_null().to_numpy(), series.drop_nulls()
    if kind == "string":
        return valid, values
    try:
        return valid, values.cast(_NUMBERS[kind]).to_numpy()
    except pl.exceptions.InvalidOperationError as error:
        msg = f"column {name!r} has values that do not fit its type {kind}: {error}"
        raise UsageError(msg) from error


def _fits(kind: ColumnType, dtype: pl.DataType) -> bool:
    if kind == "string":
        return isinstance(dtype, (pl.String, pl.Enum, pl.Categorical))
    if kind == "bool":
        return isinstance(dtype, pl.Boolean)
    return dtype.is_numeric() if kind == "float64" else dtype.is_integer()


def _page(
    name: str, kind: int, header: tuple[int, _Struct], raw: bytes, *, level: int
) -> tuple[bytes, int]:
    """Return the page with its header, and its size had it not been compressed."""
    if len(raw) > _PAGE_LIMIT_BYTES:
        msg = f"column {name!r} has {len(raw)} bytes, more than a page holds; append fewer rows"
        raise UsageError(msg)
    body = gzip(raw, level)
    head = _struct((1, _Int32(kind)), (2, _Int32(len(raw))), (3, _Int32(len(body))), header)
    return head + body, len(head) + len(raw)


def _schema_element(name: str, kind: ColumnType) -> bytes:
    type_and_repetition = (1, _Int32(_PHYSICAL[kind])), (3, _Int32(_OPTIONAL))
    fields: list[tuple[int, _Field]] = [*type_and_repetition, (4, name.encode())]
    if kind == "string":
        fields += [(6, _Int32(_UTF8)), (10, _Struct(_struct((1, _Struct(_struct())))))]
    return _struct(*fields)


# Thrift's compact protocol, as much of it as Parquet's headers need: a field's type is the Python
# type of its value, and field numbers grow by less than 16.
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


class _Int32(int):
    """A thrift i32; a plain int is an i64."""


@dataclass(frozen=True)
class _Struct:
    encoded: bytes


@dataclass(frozen=True)
class _List:
    encoded: bytes


_Field: TypeAlias = int | bytes | _Struct | _List


def _struct(*fields: tuple[int, _Field]) -> bytes:
    out, last = bytearray(), 0
    for number, value in fields:
        if isinstance(value, _Int32):
            kind, body = _I32, zigzag(value)
        elif isinstance(value, int):
            kind, body = _I64, zigzag(value)
        elif isinstance(value, bytes):
            kind, body = _BINARY, _binary(value)
        else:
            kind, body = (_STRUCT if isinstance(value, _Struct) else _LIST), value.encoded
        out.append((number - last) << 4 | kind)
        out += body
        last = number
    return bytes(out) + b"\x00"


def _list(items: Sequence[bytes], *, item: int = _STRUCT) -> _List:
    short = len(items) < 15
    head = bytes([len(items) << 4 | item]) if short else bytes([0xF0 | item]) + varint(len(items))
    return _List(head + b"".join(items))


def _binary(value: bytes) -> bytes:
    return varint(len(value)) + value
