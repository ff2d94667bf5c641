# SPDX-License-Identifier: Apache-2.0
"""Tables in batches, and their texts as pieces: bytes and offsets, each distinct text once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from strobe.exporters._writing import writers
from strobe.model.arrays import Int32, Int64, Places
from strobe.model.coded import Coded
from strobe.model.tables import TABLES
from strobe.store.frames import empty
from strobe.store.parquet import ROW_GROUP_ROWS
from strobe.store.tables import Tables

_PLACED = ("name", "category", "start_ns", "dur_ns", "lane", "attributes", "unfinished")
"""Columns of spans for which the foreign formats have a place of their own."""
_SHOWN_OTHERWISE = ("self_ns", "pid", "tid", "parent", "stack")
"""Those that follow from others, or from how slices lie in each other."""
_DTYPES = empty("spans").schema
_EXTRA = tuple(name for name in _DTYPES if name not in (*_PLACED, *_SHOWN_OTHERWISE))
SPAN_COLUMNS = (*_PLACED, *_EXTRA)
# What Python's JSON has and others refuse: these constants, and half of a pair of \u escapes.
_NOT_JSON = r"NaN|Infinity|\\u[dD][89a-fA-F]"


class Pieces(NamedTuple):
    """Texts one after another: number i lies in texts[at[i]:at[i + 1]]."""

    texts: bytes
    at: Int64


NO_PIECES = Pieces(b"", np.zeros(0, np.int64))


class Batch(NamedTuple):
    """Some rows of a table, and how much of it has been read with them."""

    rows: pl.DataFrame
    share: float


def read_batches(tables: Tables, table: str, columns: Sequence[str] = ()) -> Iterator[Batch]:
    """Return the rows in order, as many at a time as the file has in a row group."""
    frame = tables.scan(table)
    count = frame.select(pl.len()).collect().item()
    chosen = frame.select(columns or list(TABLES[table].schema))

    def read(first: int) -> Batch:
        rows = chosen.slice(first, ROW_GROUP_ROWS).collect()
        return Batch(rows, min(1.0, (first + ROW_GROUP_ROWS) / count))

    # The next batch is read while the one at hand is written.
    with ThreadPoolExecutor(1) as reader:
        ahead = None
        for first in range(0, count, ROW_GROUP_ROWS):
            batch = ahead.result() if ahead else read(first)
            following = first + ROW_GROUP_ROWS
            ahead = reader.submit(read, following) if following < count else None
            yield batch


def read_steps(tables: Tables, lane: int) -> Iterator[Batch]:
    """Return the steps as spans of a lane, named by their kind and number.

    Those that are spans already are left out.
    """
    steps = tables.steps().filter(pl.col("kind") != "span").collect()
    kind = pl.when(pl.col("kind") == "request").then(pl.lit("request ")).otherwise(pl.lit("step "))
    samples = pl.concat_str(pl.lit('{"samples":'), pl.col("samples"), pl.lit("}"))
    rows = steps.select(
        pl.concat_str(kind, pl.col("step")).alias("name"),
        pl.lit("step").alias("category"),
        "start_ns",
        "dur_ns",
        pl.lit(lane, dtype=pl.Int32).alias("lane"),
        samples.alias("attributes"),
        "unfinished",
        *(pl.lit(None, dtype=_DTYPES[name]).alias(name) for name in _EXTRA),
    )
    if rows.height:
        yield Batch(rows, 0.0)


def read_counters(tables: Tables) -> Iterator[pl.DataFrame]:
    """Return the counters in batches, then memory in use as one counter per device."""
    for rows, _ in read_batches(tables, "counters"):
        yield rows
    device = pl.concat_str(pl.lit("device "), pl.col("device")).fill_null("host")
    for rows, _ in read_batches(tables, "allocations"):
        # A block that was there before has no lane: any of its process will do.
        lanes = tables.threads().group_by("pid").agg(pl.min("lane")).collect()
        of_process = pl.col("pid").replace_strict(lanes["pid"], lanes["lane"], default=None)
        yield rows.filter(pl.col("allocated_bytes").is_not_null()).select(
            "start_ns",
            pl.format("allocated_bytes ({})", device).alias("name"),
            pl.col("allocated_bytes").cast(pl.Float64).alias("value"),
            pl.coalesce("lane", of_process).alias("lane"),
        )


def numbers(column: pl.Series) -> Any:
    """Return a column of numbers as an array, 0 for nulls."""
    known = column.fill_null(0) if column.null_count() else column
    return np.ascontiguousarray(known.to_numpy())


def number_texts(column: pl.Series) -> Coded:
    """Return a column of texts as int32 numbers; null is ""."""
    texts = column.fill_null("") if column.null_count() else column
    code, first = np.zeros(len(texts), np.int32), np.zeros(len(texts), np.int64)
    if len(texts) == 0 or (texts[0] == texts[-1] and (texts == texts[0]).all()):
        return Coded(code, texts[:1].to_list())
    # By their hashes: half the time of Coded.of. Should two texts share one, the texts found by
    # number are not those given.
    hashes = texts.hash().to_numpy().view(np.int64)
    count = writers.number_hashes(hashes, code, first)
    values = texts.gather(first[:count])
    if not (values.gather(code) == texts).all():
        values = texts.unique(maintain_order=True)
        code = texts.cast(pl.Enum(values)).to_physical().to_numpy().astype(np.int32)
    return Coded(code, values.to_list())


def combine(first: Int32, second: Int32, seconds: int) -> tuple[Int32, list[tuple[int, int]]]:
    """Return each row's number and the pairs of numbers that have these numbers."""
    if seconds == 1:
        count = int(first.max(initial=-1)) + 1
        return first, [(number, 0) for number in range(count)]
    pairs = first.astype(np.int64) * seconds + second
    used, codes = _used(pairs)
    return codes.astype(np.int32), [divmod(pair, seconds) for pair in used.tolist()]


def _used(values: Int64) -> tuple[Int64, Places]:
    room = int(values.max(initial=0)) + 1
    if room > 1 << 22:
        used, codes = np.unique(values, return_inverse=True)
        return used, codes
    seen = np.zeros(room, bool)
    seen[values] = True
    return np.flatnonzero(seen).astype(np.int64), (np.cumsum(seen) - 1)[values]


def join(texts: Iterable[bytes]) -> Pieces:
    """Return these texts as pieces."""
    listed = list(texts)
    at = np.zeros(len(listed) + 1, np.int64)
    np.cumsum([len(text) for text in listed], out=at[1:])
    return Pieces(b"".join(listed), at)


def join_column(column: pl.Series | None) -> Pieces:
    """Return one piece per row, empty for null; no pieces for no column."""
    if column is None:
        return NO_PIECES
    texts = column.fill_null("")
    at = np.zeros(len(texts) + 1, np.int64)
    np.cumsum(texts.str.len_bytes().to_numpy(), out=at[1:])
    return Pieces(texts.str.join("").item().encode(), at)


def arguments(rows: pl.DataFrame) -> pl.Series | None:
    """Return one JSON object per row of spans or instants, null for none; None if all are.

    It holds the attributes, and what else the row says for which foreign formats have no place.
    """
    extra = [
        name for name in _EXTRA if name in rows.columns and rows[name].null_count() < len(rows)
    ]
    attributes = rows["attributes"]
    given = attributes.null_count() < len(rows)
    unfinished = "unfinished" in rows.columns and bool(rows["unfinished"].any())
    if given:
        attributes = _portable(attributes)
    if not extra and not unfinished:
        return attributes if given else None
    parts = []
    if given:
        inner = attributes.str.strip_chars().str.slice(1).str.head(-1)
        parts.append(pl.lit(inner.set(inner == "", None)))
    for name in extra:
        is_text = _DTYPES[name] == pl.String
        value = pl.lit(_quoted(rows[name])) if is_text else pl.col(name)
        # Nothing where the value is null: concat_str leaves such parts out.
        parts.append(pl.concat_str(pl.lit(f'"{name}":'), value))
    if unfinished:
        parts.append(pl.when(pl.col("unfinished")).then(pl.lit('"unfinished":true')))
    members = rows.select(pl.concat_str(parts, separator=",", ignore_nulls=True)).to_series()
    objects = rows.select(pl.concat_str(pl.lit("{"), pl.lit(members), pl.lit("}"))).to_series()
    return objects.set(members == "", None)


def _quoted(column: pl.Series) -> pl.Series:
    return number_texts(column).replaced(json.dumps).set(column.is_null(), None)


def _portable(attributes: pl.Series) -> pl.Series:
    """Return the attributes as JSON that every reader takes."""
    odd = attributes.str.contains(_NOT_JSON).fill_null(False)
    if not odd.any():
        return attributes
    repaired = number_texts(attributes.filter(odd)).replaced(_repair)
    return attributes.scatter(odd.arg_true(), repaired)


def _repair(text: str) -> str:
    try:
        value = json.loads(text, parse_constant=str)
        encoded = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):  # an int too long for Python, or not JSON at all
        return text
    # A lone surrogate is written out, as everywhere in our tables.
    return re.sub("[\ud800-\udfff]", lambda found: f"\\\\u{ord(found[0]):x}", encoded)
