# SPDX-License-Identifier: Apache-2.0
"""Any str goes into a table and comes back."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.model.text import escape, unescape

SURROGATES = st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF, categories=["Cs"])
# Text made of what the rules are about, far likelier to hit them than any text.
AWKWARD = st.lists(
    st.sampled_from(["\\", "\\\\", "u", "d", "ud8", "ud83d", "udfff", "uD83D", "00", "é", "x"])
    | SURROGATES
).map("".join)
ANY_TEXT = AWKWARD | st.text(st.characters() | SURROGATES)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("\ud83d", r"\ud83d"),
        ("a\udc80b", r"a\udc80b"),
        ("\ud83d\ude00", r"\ud83d\ude00"),
        ("\\\ud83d", r"\\\ud83d"),
        ("\\\\\ud83d", r"\\\\\ud83d"),
        (r"\ud83d", r"\\ud83d"),
        (r"\\ud83d", r"\\\\ud83d"),
        ("\\ud83d\\\ud83d", r"\\ud83d\\\ud83d"),
        ("\ud83dud83d", r"\ud83dud83d"),
    ],
)
def test_surrogates_are_written_out_and_what_looks_like_them_is_doubled(text, escaped):
    assert escape(text) == escaped
    assert unescape(escaped) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "forward",
        "C:\\temp\\",
        "\\n",
        "\\u00e9",
        "\\uD83D",
        "\\ud7ff",
        "\\ud8",
        "ud83d",
        "é😀\\",
    ],
)
def test_all_other_text_stays_as_it_is(text):
    assert escape(text) == text
    assert unescape(text) == text


@given(text=ANY_TEXT)
def test_what_was_escaped_comes_back(text):
    assert unescape(escape(text)) == text


@given(text=ANY_TEXT)
def test_a_table_holds_what_was_escaped(text):
    assert pl.Series([escape(text)]).to_list() == [escape(text)]


@given(text=ANY_TEXT)
def test_text_is_changed_only_where_the_rules_say(text):
    has_surrogate = any("\ud800" <= letter <= "\udfff" for letter in text)
    looks_like_one = any(
        chr(92) + f"u{code:x}" in text for code in range(0xD800, 0xE000) if f"u{code:x}" in text
    )

    assert (escape(text) != text) == (has_surrogate or looks_like_one)


def test_long_runs_of_backslashes_take_linear_time():
    # 1e11 steps if each backslash looked for the end of its run.
    text = "\\" * 500_000 + "é"

    assert escape(text + "\\ud") == text + "\\ud"
    assert unescape(text + "\\ud") == text + "\\ud"
