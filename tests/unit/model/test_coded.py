# SPDX-License-Identifier: Apache-2.0
"""Columns of few distinct texts, and rows that are equal in some of them."""

import polars as pl
import pytest

from strobe.model.coded import Coded, distinct_rows


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


KINDS = [pl.String, pl.Categorical, pl.Enum(["dot", "add", "dots", "unused"])]


@pytest.mark.parametrize("dtype", KINDS)
def test_a_question_is_put_to_texts_and_answered_for_rows(dtype: pl.DataType) -> None:
    names = Coded.of(pl.Series(["dots", None, "add", "dot"]).cast(dtype))

    assert len(names) == 4
    assert names.is_one_of("add", "sub").tolist() == [False, False, True, False]
    assert names.begins("dot").tolist() == [True, False, False, True]
    assert names.begins("x").tolist() == [False] * 4
    assert names.spread(names.series.str.len_bytes(), null=9).tolist() == [4, 9, 3, 3]
    assert names.replaced(str.upper).to_list() == ["DOTS", None, "ADD", "DOT"]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("rows", [[], [None], ["dot", "dot"], [None, "dots", "add", None, "dot"]])
def test_a_column_comes_back_as_it_was(dtype: pl.DataType, rows: list[str | None]) -> None:
    coded = Coded.of(pl.Series(rows, dtype=pl.String).cast(dtype))

    assert [None if code < 0 else coded.texts[code] for code in coded.codes] == rows
    names = coded.named(pl.Enum(["dot", "add", "dots", "unused", "more"]))
    assert names.to_list() == rows


def test_other_columns_do_not_matter() -> None:
    _others = pl.Series([f"other {number}" for number in range(100)]).cast(pl.Categorical)

    assert sorted(Coded.of(pl.Series(["mm", "add", "mm"])).texts) == ["add", "mm"]
