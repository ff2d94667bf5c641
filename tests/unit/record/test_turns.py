# SPDX-License-Identifier: Apache-2.0
"""The switch interval is shortened while a round ends, and then the program's own again."""

import sys
from collections.abc import Iterator

import pytest

from strobe.record.turns import short_turns


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_the_interval_is_short_meanwhile_and_then_the_programs_again() -> None:
    sys.setswitchinterval(0.005)

    with short_turns():
        meanwhile = sys.getswitchinterval()
        with short_turns():
            pass
        after_inner = sys.getswitchinterval()

    assert meanwhile < 0.001
    assert after_inner == meanwhile
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_an_interval_that_the_program_sets_meanwhile_stays() -> None:
    sys.setswitchinterval(0.005)

    with short_turns():
        sys.setswitchinterval(0.02)

    assert sys.getswitchinterval() == pytest.approx(0.02)


def test_a_shorter_interval_of_the_programs_stays() -> None:
    sys.setswitchinterval(0.0001)

    with short_turns():
        meanwhile = sys.getswitchinterval()

    assert meanwhile == pytest.approx(0.0001)
    assert sys.getswitchinterval() == pytest.approx(0.0001)
