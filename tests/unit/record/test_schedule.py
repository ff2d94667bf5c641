# SPDX-License-Identifier: Apache-2.0
import pickle
import re
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.errors import UsageError
from strobe.record.schedule import CHANGES, State, as_schedule, schedule

LETTERS = {
    "N": State.CLOSED,
    "W": State.READY,
    "R": State.RECORD,
    "S": State.RECORD_AND_RETURN,
}


def drawn(states: Callable[[int], State], steps: int) -> str:
    letter_of = {state: letter for letter, state in LETTERS.items()}
    return "".join(letter_of[states(step)] for step in range(steps))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # The case that was verified with MindSpore 2.10.
        ({"wait": 1, "warmup": 1, "active": 2, "repeat": 2, "skip_first": 1}, "NNWRSNWRSNNN"),
        ({"wait": 0, "warmup": 0, "active": 1}, "SSSSSS"),
        ({"wait": 0, "warmup": 0, "active": 3, "repeat": 1}, "RRSNNN"),
        ({"wait": 2, "warmup": 1, "active": 1, "repeat": 0}, "NNWSNNWS"),
    ],
)
def test_a_schedule_is_rounds_of_wait_warmup_and_active(options, expected) -> None:
    assert drawn(schedule(**options), len(expected)) == expected


def test_a_schedule_can_be_sent_to_another_process() -> None:
    sent = pickle.loads(pickle.dumps(schedule(wait=1, warmup=1, active=1)))

    assert drawn(sent, 6) == "NWSNWS"


@pytest.mark.parametrize(
    ("window", "expected"),
    [((0, 2), "RSNN"), ((1, 2), "WSNN"), ([3, 5], "NNWRSN"), (None, "RRRR")],
)
def test_a_pair_records_once_from_start_to_end(window, expected) -> None:
    assert drawn(as_schedule(window), len(expected)) == expected


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"wait": -1, "warmup": 0, "active": 1}, "schedule(wait=-1): wait must be an int of 0 or"),
        ({"wait": 0, "warmup": 0, "active": 0}, "schedule(active=0): active must be an int of 1"),
        ({"wait": 0, "warmup": True, "active": 1}, "schedule(warmup=True)"),
        ({"wait": 0, "warmup": 0, "active": 1, "repeat": 1.5}, "schedule(repeat=1.5)"),
    ],
)
def test_a_wrong_number_is_refused_by_name(options, complaint) -> None:
    with pytest.raises(UsageError, match=re.escape(complaint)):
        schedule(**options)


@pytest.mark.parametrize("value", [5, "x", (1,), (3, 2), (-1, 2), (0, 0), (0.0, 1), (1, 2, 3)])
def test_what_is_no_schedule_is_refused(value) -> None:
    with pytest.raises(UsageError, match="schedule="):
        as_schedule(value)


def test_every_change_of_state_is_decided() -> None:
    assert set(CHANGES) == set(product(State, State))


@given(st.lists(st.sampled_from(list(State)), min_size=1, max_size=40))
def test_whatever_is_opened_is_saved_once(states: list[State]) -> None:
    """Any sequence of states, then stop(): no round is lost, none is saved that was not open."""
    is_open, opened, saved = False, 0, 0
    previous = State.CLOSED
    for state in states:
        change = CHANGES[previous, state]
        if change.save:
            assert is_open
            is_open, saved = False, saved + 1
        if change.open:
            assert not is_open
            is_open, opened = True, opened + 1
        assert is_open == (state in (State.RECORD, State.RECORD_AND_RETURN))
        previous = state

    assert opened == saved + is_open
