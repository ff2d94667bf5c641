# SPDX-License-Identifier: Apache-2.0
"""Columns of few distinct texts as numbers, so that a question is put to each text only once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from strobe.model.arrays import Bool, Int64


@dataclass(frozen=True)
class Coded:
    """A column of texts: row i is texts[codes[i]], null where the code is negative."""

    codes: NDArray[Any]
    texts: Sequence[str]

    @staticmethod
    def of(column: pl.Series) -> Coded:
        """Return a column of texts as numbers; an Enum has these already."""
        if isinstance(column.dtype, pl.Enum):
            places = column.to_physical().cast(pl.Int32).fill_null(-1)
            return Coded(places.to_numpy(), column.dtype.categories.to_list())
        numbers = column.cast(pl.Categorical).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
        # The numbers may be among those of other columns. The last place is that of null, -1.
        row = np.full(int(numbers.max(initial=-1)) + 2, -1)
        row[numbers] = np.arange(len(numbers))
        row[-1] = -1
        place = np.where(row < 0, -1, np.cumsum(row >= 0) - 1)
        texts = column.gather(row[row >= 0]).cast(pl.String)
        return Coded(place[numbers], texts.to_list())

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.codes)

    @cached_property
    def series(self) -> pl.Series:
        """The texts, to put questions to."""
        return pl.Series(self.texts, dtype=pl.String)

    def spread(self, answers: pl.Series, null: bool | int = False) -> NDArray[Any]:
        """Return for each row the answer for its text, `null` for null and where there is none."""
        filled = answers.fill_null(null).to_numpy()
        found: NDArray[Any] = np.append(filled, np.array(null, filled.dtype))[self.codes]
        return found

    def is_one_of(self, *values: str) -> Bool:
        """Return which rows have one of these texts."""
        return self._rows(self.series.is_in(values))

    def begins(self, prefix: str) -> Bool:
        """Return which rows have a text that begins so."""
        return self._rows(self.series.str.starts_with(prefix))

    def _rows(self, found: pl.Series) -> Bool:
        # Most often no text is found: then there is no need to look at the rows.
        return self.spread(found) if found.any() else np.zeros(len(self.codes), bool)

    def named(self, names: pl.Enum) -> pl.Series:
        """Return the column as one of these names, which its texts are among."""
        return self._column(self.series.cast(names))

    def replaced(self, replace: Callable[[str], str]) -> pl.Series:
        """Return the column with another text for each of its texts; null stays null."""
        return self._column(pl.Series([replace(text) for text in self.texts], dtype=pl.String))

    def _column(self, values: pl.Series) -> pl.Series:
        places = pl.Series(self.codes)
        column: pl.Series = values.gather(places.set(places < 0, None))
        return column


def distinct_rows(frame: pl.DataFrame, *columns: str) -> tuple[Int64, pl.DataFrame]:
    """Return the kind of each row, and the first row of each: rows are of one if equal in these."""
    numbered = frame.select(*columns).with_row_index("row")
    first = numbered.select(pl.first("row").over(*columns)).to_series().to_numpy()
    is_first = np.zeros(len(first), bool)
    is_first[first] = True
    return (np.cumsum(is_first) - 1)[first], frame.filter(is_first)
