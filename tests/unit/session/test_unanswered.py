# SPDX-License-Identifier: Apache-2.0
"""What was asked for and nobody collected."""

from __future__ import annotations

from strobe.record.source import Report
from strobe.session.options import Options

SHAPES = frozenset({"record_shapes"})


def report(**missing: str) -> Report:
    return Report(source_class="A", path="", reason="", missing=missing)


def test_nobody_can() -> None:
    asked = Options(record_shapes=True, with_flops=False)

    assert asked.unanswered({}, {}) == {"record_shapes": "no imported framework tells it"}


def test_one_that_can_is_enough() -> None:
    asked = Options(record_shapes=True)
    reports = {"a": report(record_shapes="not here"), "b": report()}

    assert asked.unanswered(reports, {"a": SHAPES, "b": SHAPES}) == {}
    assert asked.unanswered({"a": reports["a"]}, {"a": SHAPES}) == {"record_shapes": "not here"}


def test_what_nobody_asked_for_is_not_missing() -> None:
    assert Options().unanswered({"a": report(record_shapes="not here")}, {"a": SHAPES}) == {}


def test_a_cpu_is_always_there() -> None:
    assert Options(activities=["CPU"]).unanswered({}, {}) == {}
    assert set(Options(activities=["cpu", "CUDA"]).unanswered({}, {})) == {"activities"}
