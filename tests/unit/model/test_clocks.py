# SPDX-License-Identifier: Apache-2.0
"""A trace's clock beside ours, by marks that were made between times of ours."""

from __future__ import annotations

import numpy as np

from strobe.model.clocks import Alignment, align


def test_clocks_are_laid_beside_each_other() -> None:
    # Ours is 1000 ahead, 10 000 later 1010 ahead; the second of each pair is known best.
    marks = np.array([0, 100, 10_000, 10_100])
    between = [(900, 1200), (1095, 1105), (10_990, 11_400), (11_105, 11_115)]

    line = align(marks, between)

    assert line == Alignment(mark_ns=100, offset_ns=1000, drift=0.001, residual_ns=5)
    assert line.apply(np.array([100, 5100, 10_100])).tolist() == [1100, 6105, 11_110]


def test_a_mark_that_does_not_fit_is_in_the_residual() -> None:
    # The line through the marks at 100 and 300 puts the one at 200 at 1200, 40 after it can be.
    marks = np.array([100, 200, 300, 400])
    between = [(1100, 1100), (1150, 1160), (1300, 1300), (1400, 1410)]

    line = align(marks, between)

    assert line.apply(marks).tolist() == [1100, 1200, 1300, 1400]
    assert line.residual_ns == 40


def test_marks_of_one_instant_tell_no_drift() -> None:
    line = align(np.array([500, 500]), [(700, 720), (704, 724)])

    assert (line.drift, line.offset_ns) == (0.0, 210)
    assert line.apply(np.array([0, 1_000_000])).tolist() == [210, 1_000_210]


def test_what_was_before_the_first_mark_is_on_the_same_line() -> None:
    # Ours gains 1 in 100, and shows 5000 when theirs shows 1000.
    line = Alignment(mark_ns=1000, offset_ns=4000, drift=0.01, residual_ns=0)

    assert line.apply(np.array([0, 900, 1000, 1100])).tolist() == [3990, 4899, 5000, 5101]
