# SPDX-License-Identifier: Apache-2.0
"""Texts by number: a question is put to each distinct text, and the answer goes to all its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from strobe.model.arrays import Int64


@dataclass(frozen=True)
class Numbered:
    """A column of texts."""

    number: Int64
    """Of each row: place in `texts`."""
    texts: pl.Series
    """Each text of the column once, null among them."""

    def spread(self, answers: pl.Series) -> NDArray[Any]:
        """Return for each row what was found of its text; false for null."""
        filled = answers.fill_null(False) if answers.dtype == pl.Boolean else answers
        found: NDArray[Any] = filled.to_numpy()[self.number]
        return found

    def named(self, names: pl.Enum) -> pl.Series:
        """Return the column with these names for its texts, which are among them."""
        column: pl.Series = self.texts.cast(names).gather(self.number)
        return column


def number_texts(column: pl.Series) -> Numbered:
    """Return a column of texts by number."""
    coded = column.cast(pl.Categorical).to_physical()
    if column.null_count():
        coded = (coded.cast(pl.Int64) + 1).fill_null(0)
    code = coded.to_numpy()
    row = np.full(int(code.max(initial=0)) + 1, -1)
    row[code] = np.arange(len(code))
    place = np.cumsum(row >= 0) - 1
    return Numbered(place[code], column.gather(row[row >= 0]))
