# SPDX-License-Identifier: Apache-2.0
import pytest

from strobe.reports.numbers import (
    format_bytes,
    format_count,
    format_counter,
    format_flops,
    format_ns,
    format_share,
)
from strobe.reports.text import printable


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (999_600, "1.00 ms"),
        (12_345, "12.3 µs"),
        (123_456, "123 µs"),
        (9_996_000, "10.0 ms"),
        (1_500_000_000, "1.50 s"),
        (-2_000, "-2.00 µs"),
    ],
)
def test_a_time_has_three_digits_and_a_unit(value: int | None, text: str) -> None:
    assert format_ns(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (2_560_000, "2.56 MB")]
)
def test_a_size_has_a_unit(value: int, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 FLOP"),
        (999.4, "999 FLOP"),
        (1_234_567_890, "1.23 GFLOP"),
        (999_700_000, "1.00 GFLOP"),
        (3e18, "3000 PFLOP"),
    ],
)
def test_operations_have_a_unit(value: float, text: str) -> None:
    assert format_flops(value) == text


def test_an_unknown_share_is_not_zero() -> None:
    assert format_share(None) == "-"
    assert format_share(0.1234) == "12.3 %"
    assert format_count(1234567) == "1 234 567"


def test_control_characters_cannot_reach_the_terminal() -> None:
    assert printable("a\x1b[31mb\x00\n") == "a\\x1b[31mb\\x00\\n"
    assert printable("größe 数") == "größe 数"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("process resident bytes", 12_345_678, "12.3 MB"),
        ("system disk read bytes/s", 999, "999 B"),
        ("process cpu %", 123.456, "123"),
        ("process page faults/s", 1_234_567.8, "1 234 568"),
        ("queue", 0.0, "0"),
    ],
)
def test_a_counter_has_the_unit_that_its_name_tells(name: str, value: float, text: str) -> None:
    assert format_counter(name, value) == text
