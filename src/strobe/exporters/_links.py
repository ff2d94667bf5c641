# SPDX-License-Identifier: Apache-2.0
"""The ends of links, by the span at which they are: what formats call flows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from strobe.exporters._rows import Pieces, number_texts, numbers
from strobe.model.arrays import Bool, Int64, UInt8
from strobe.model.coded import Coded
from strobe.store.tables import Tables


class Ends(NamedTuple):
    """One row per end of a link, sorted by `row`."""

    row: Int64
    """The span's row number."""
    link: Int64
    """The link's number, from 1: both of its ends have it, and no other."""
    is_source: Bool
    kind: Coded


def read_ends(tables: Tables) -> Ends:
    """Return the ends of all links whose source began first, 21 bytes for each.

    Viewers find an arrow's head by what came before it: one that points back cannot be shown.
    """
    forward = pl.col("source").ge(0) & (pl.col("source") < pl.col("target"))
    found = tables.links().with_row_index("link", offset=1).filter(forward).collect()
    if found.height:
        count = tables.spans().select(pl.len()).collect().item()
        found = found.filter(pl.col("target") < count)
    row = np.concatenate([numbers(found["source"]), numbers(found["target"])])
    order = np.argsort(row, kind="stable")
    link = numbers(found["link"]).astype(np.int64)
    kind = number_texts(found["kind"].fill_null("link"))
    is_source = order < len(found)
    codes = np.tile(kind.codes, 2)[order]
    return Ends(row[order], np.tile(link, 2)[order], is_source, Coded(codes, kind.texts))


def ends_within(ends: Ends, first: int, count: int) -> Ends:
    """Return the ends at `count` spans from row `first` on, their rows counted from there."""
    some = slice(*np.searchsorted(ends.row, [first, first + count]))
    row = ends.row[some] - first
    kind = Coded(ends.kind.codes[some], ends.kind.texts)
    return Ends(row, ends.link[some], ends.is_source[some], kind)


def insert(bodies: Pieces, items: UInt8, row: Int64, rows: int) -> Pieces:
    """Return the bodies of `rows` rows, each followed by its items: bytes of one size, by row."""
    given = np.frombuffer(bodies.texts, np.uint8)
    old_at = bodies.at if len(bodies.at) else np.zeros(rows + 1, np.int64)
    size = items.shape[1]
    added_at = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=rows) * size, out=added_at[1:])
    at = old_at + added_at
    # An item lies behind its row's body, and behind all items before it.
    place = old_at[row + 1] + size * np.arange(len(row))
    is_item = np.zeros(at[-1], bool)
    is_item[(place[:, None] + np.arange(size)).ravel()] = True
    texts = np.empty(at[-1], np.uint8)
    texts[is_item] = items.ravel()
    texts[~is_item] = given
    return Pieces(texts.tobytes(), at)
