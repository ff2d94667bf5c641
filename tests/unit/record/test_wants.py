# SPDX-License-Identifier: Apache-2.0
"""What several profilers ask of one source."""

from __future__ import annotations

from strobe.record.source import Stacks, Wants


def test_filters_of_two_let_pass_what_one_of_them_does() -> None:
    one = Stacks(traced=True, include=("a",), exclude=("x", "y"), min_ns=5, max_depth=3)
    other = Stacks(traced=True, include=("b",), exclude=("y",), min_ns=2, max_depth=9)

    assert one | other == Stacks(
        traced=True, include=("a", "b"), exclude=("y",), min_ns=2, max_depth=9
    )
    assert one | Stacks(traced=True) == Stacks(traced=True)
    assert one | Stacks(rate_hz=10) == Stacks(traced=True, rate_hz=10)


def test_one_who_asks_for_nothing_widens_nothing() -> None:
    asked = Wants(stacks=Stacks(traced=True, include=("a",)), memory=True)

    assert asked | Wants() == Wants() | asked == asked
