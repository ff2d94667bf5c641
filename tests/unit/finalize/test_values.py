# SPDX-License-Identifier: Apache-2.0
"""Attributes that were recorded value by value become JSON."""

from __future__ import annotations

import json
import struct

import numpy as np

from strobe.finalize.values import read_values
from strobe.store import layout
from strobe.store.log import RECORD, Records
from strobe.store.strings import Strings

STRINGS = Strings.of({1: "step", 2: "why", 3: "a long text"})


def value(number: int, key: int, kind: int, bits: bytes = bytes(8), **more: int) -> Records:
    """A record of an attribute; `bits` are the second word."""
    (second,) = struct.unpack("<Q", bits)
    fields = (0, second, key, layout.VALUES_BIT | number, more.get("string", 0))
    return np.array([(*fields, layout.KIND_VALUE, kind, 0)], RECORD)


def text(number: int, key: int, content: bytes) -> list[Records]:
    """The records of a text."""
    found = []
    for first in range(0, len(content), 16):
        words = struct.unpack("<QQ", content[first : first + 16].ljust(16, b"\0"))
        kind = layout.VALUE_MORE if first else layout.VALUE_TEXT
        fields = (*words, key, layout.VALUES_BIT | number, 0, layout.KIND_VALUE, kind)
        found.append(np.array([(*fields, len(content))], RECORD))
    return found


def whole(number: int, key: int, integer: int) -> Records:
    return value(number, key, layout.VALUE_INT, struct.pack("<q", integer))


def read(*parts: Records) -> dict[int, object]:
    sets = read_values(parts, STRINGS)
    return dict(zip(sets.numbers.tolist(), map(json.loads, sets.texts), strict=True))


def test_each_type_is_its_own() -> None:
    found = read(
        whole(0, 1, -5),
        value(1, 1, layout.VALUE_FLOAT, struct.pack("<d", 2.0)),
        value(2, 1, layout.VALUE_BOOL, struct.pack("<Q", 1)),
        value(3, 1, layout.VALUE_NULL),
        value(4, 1, layout.VALUE_STRING, string=3),
        *text(5, 1, "grüße".encode()),
    )

    assert found == {
        0: {"step": -5},
        1: {"step": 2.0},
        2: {"step": True},
        3: {"step": None},
        4: {"step": "a long text"},
        5: {"step": "grüße"},
    }
    assert [type(found[number]["step"]) for number in (0, 1, 2)] == [int, float, bool]  # type: ignore[index]


def test_numbers_that_json_lacks_are_texts() -> None:
    bits = [struct.pack("<d", number) for number in (float("nan"), float("inf"), -float("inf"))]

    found = read(*(value(place, 1, layout.VALUE_FLOAT, each) for place, each in enumerate(bits)))

    assert [each["step"] for each in found.values()] == ["NaN", "Infinity", "-Infinity"]  # type: ignore[index]


def test_sets_of_several_threads_are_told_apart() -> None:
    """Each thread has a ring of its own, and the rings are read one after the other."""
    one = [whole(0, 1, 10), *text(0, 2, b"x" * 40), whole(3, 1, 13)]
    other = [whole(1, 1, 11), whole(2, 1, 12), *text(2, 2, b"y")]

    assert read(*one, *other) == {
        0: {"step": 10, "why": "x" * 40},
        1: {"step": 11},
        2: {"step": 12, "why": "y"},
        3: {"step": 13},
    }


def test_what_is_lost_costs_no_more() -> None:
    cut_off = text(1, 2, b"z" * 40)[:2]

    assert read(whole(0, 9, 1), *cut_off, whole(2, 1, 3)) == {
        0: {"(name lost)": 1},
        1: {"why": None},
        2: {"step": 3},
    }
    assert read(*cut_off) == {1: {"why": None}}
    assert read(value(0, 1, layout.VALUE_STRING, string=9)) == {0: {"step": None}}
    assert read(value(0, 1, 99)) == {0: {"step": None}}


def test_without_values_there_are_no_sets() -> None:
    assert read() == {}
