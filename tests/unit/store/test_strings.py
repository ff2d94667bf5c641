# SPDX-License-Identifier: Apache-2.0
"""Texts that stay in the file that defines them."""

from __future__ import annotations

import numpy as np

from strobe.store.strings import Strings

LOST = 0xFFFFFFFF


def places(strings: Strings, *numbers: int) -> list[int]:
    return strings.places(np.array(numbers, np.uint32)).tolist()


def test_a_text_is_found_by_its_number() -> None:
    strings = Strings.of({1: "forward", 2: "", 3: "zurück"})

    assert [strings.text(place) for place in places(strings, 3, 1, 2)] == ["zurück", "forward", ""]
    assert (strings.get(3), strings.get(4), strings.get(0, "lost")) == ("zurück", None, "lost")


def test_a_number_without_a_text_has_the_place_after_the_last() -> None:
    strings = Strings.of({5: "a", 6: "b"})

    assert places(strings, 4, 5, 6, 7, 0, LOST) == [2, 0, 1, 2, 2, 2]


def test_numbers_may_have_gaps_and_come_in_any_order() -> None:
    strings = Strings.of({2_000_000_000: "far", 7: "b", 3: "a"})

    assert [strings.text(place) for place in places(strings, 3, 7, 2_000_000_000)] == [
        "a",
        "b",
        "far",
    ]
    assert places(strings, 5, LOST) == [3, 3]
    assert (strings.get(7), strings.get(4)) == ("b", None)


def test_the_last_text_of_a_number_counts() -> None:
    strings = Strings(b"onetwo")
    strings.add(1, 0, 3)
    strings.add(1, 3, 6)
    strings.close()

    assert strings.get(1) == "two"
    assert len(strings) == 1


def test_without_texts_nothing_is_found() -> None:
    strings = Strings.of({})

    assert places(strings, 0, 1) == [0, 0]
    assert strings.get(1) is None


def test_more_texts_than_are_kept_at_once() -> None:
    strings = Strings.of({number: str(number) for number in range(1, 200_001)})

    assert [strings.get(number) for number in (1, 65_536, 65_537, 200_000, 200_001)] == [
        *("1", "65536", "65537", "200000"),
        None,
    ]
