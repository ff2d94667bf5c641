# SPDX-License-Identifier: Apache-2.0
"""Columns of few distinct texts, and rows that are equal in some of them."""

import polars as pl
import pytest

from strobe.analysis.words import Words, distinct_rows


def test_rows_are_of_one_kind_if_equal_in_the_columns_asked_for() -> None:
    frame = pl.DataFrame(
        {
            "name": ["add", "mul", "add", None, "add", None],
            "shapes": ["[2]", None, "[2]", None, "[3]", None],
            "start_ns": [10, 20, 30, 40, 50, 60],
        }
    )

    kind, kinds = distinct_rows(frame, "name", "shapes")

    assert kind.tolist() == [0, 1, 0, 2, 3, 2]
    assert kinds["start_ns"].to_list() == [10, 20, 40, 50]  # the first row of each


def test_no_rows_are_of_no_kind() -> None:
    kind, kinds = distinct_rows(pl.DataFrame({"name": []}, schema={"name": pl.String}), "name")

    assert kind.tolist() == []
    assert kinds.height == 0


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum(["dot", "add", "dots"])])
def test_texts_are_asked_for_once_for_all_rows(dtype: pl.DataType) -> None:
    words = Words.of(pl.Series(["dots", None, "add", "dot"]).cast(dtype))

    assert words.is_one_of("add", "sub").tolist() == [False, False, True, False]
    assert words.begins("dot").tolist() == [True, False, False, True]
    assert words.begins("x").tolist() == [False] * 4
