# SPDX-License-Identifier: Apache-2.0
"""Columns of few distinct texts, asked about text by text instead of row by row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from strobe.model.arrays import Bool, Int32, Int64


@dataclass(frozen=True)
class Words:
    """A column of texts: row i is texts[codes[i]], null where the code is negative."""

    codes: Int32
    texts: pl.Series

    @staticmethod
    def of(column: pl.Series) -> Words:
        """Return the words of a column; an Enum's are there already."""
        kind = column.dtype
        if not isinstance(kind, pl.Enum):
            texts = column.cast(pl.String)
            kind = pl.Enum(texts.drop_nulls().unique())
            column = texts.cast(kind)
        codes = column.to_physical().cast(pl.Int32).fill_null(-1)
        return Words(codes.to_numpy(), kind.categories)

    def is_one_of(self, *values: str) -> Bool:
        """Return which rows have one of these texts."""
        found = np.zeros(len(self.texts), bool)
        found[[self._places[value] for value in values if value in self._places]] = True
        return self._rows(found)

    def begins(self, prefix: str) -> Bool:
        """Return which rows have a text that begins so."""
        return self._rows(self.texts.str.starts_with(prefix).to_numpy())

    @cached_property
    def _places(self) -> dict[str, int]:
        return {text: place for place, text in enumerate(self.texts)}

    def _rows(self, found: Bool) -> Bool:
        """Return which rows have a text that was found."""
        if not found.any():
            return np.zeros(len(self.codes), bool)
        return np.append(found, False)[self.codes]


def distinct_rows(frame: pl.DataFrame, *columns: str) -> tuple[Int64, pl.DataFrame]:
    """Return the kind of each row, and the first row of each: rows are of one if equal in these."""
    numbered = frame.select(*columns).with_row_index("row")
    first = numbered.select(pl.first("row").over(*columns)).to_series().to_numpy()
    is_first = np.zeros(len(first), bool)
    is_first[first] = True
    return (np.cumsum(is_first) - 1)[first], frame.filter(is_first)
