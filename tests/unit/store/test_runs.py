# SPDX-License-Identifier: Apache-2.0
"""Which recordings are ranks of one run, told from their manifests alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strobe.store.manifest import Anchor, Manifest
from strobe.store.runs import find_runs

SECOND = 1_000_000_000


def at(seconds: float) -> Anchor:
    return Anchor(clock_ns=0, monotonic_ns=0, wall_ns=int(seconds * SECOND))


def recorded(
    begin: float,
    end: float | None,
    rank: object = None,
    *,
    job: object = "job",
    size: int = 2,
    **changes: Any,
) -> Manifest:
    """A manifest of a recording that lasted from one second to another; None: it was killed."""
    place = {} if rank is None else {"rank": rank, "job": job, "world_size": size}
    content: dict[str, Any] = {"name": "train", "metadata": place, **changes}
    return Manifest(
        id="0" * 16,
        strobe="0",
        recorder="C",
        host="host",
        boot="boot",
        pid=1,
        process_start=1,
        log="log",
        start=at(begin),
        stop=None if end is None else at(end),
        **content,
    )


def runs_of(**recordings: Manifest) -> list[str]:
    """Return the runs, each as the names of its recordings by rank."""
    found = find_runs({Path(name): content for name, content in recordings.items()})
    return [" ".join(str(run.recordings[rank]) for rank in sorted(run.recordings)) for run in found]


def test_ranks_of_a_job_are_one_run() -> None:
    assert runs_of(b=recorded(0.1, 5, 1), a=recorded(0, 5, 0)) == ["a b"]


def test_ranks_need_not_overlap() -> None:
    assert runs_of(a=recorded(0, 0.1, 0), b=recorded(5, 5.1, 1)) == ["a b"]


def test_programs_without_ranks_are_a_run_each() -> None:
    assert runs_of(a=recorded(0, 5), b=recorded(0, 5)) == ["a", "b"]


def test_other_jobs_are_other_runs() -> None:
    other = {"job": "other"}

    assert runs_of(a=recorded(0, 5, 0), b=recorded(0, 5, 1, **other)) == ["a", "b"]


def test_a_rank_that_is_there_twice_begins_another_run() -> None:
    assert runs_of(
        a0=recorded(0, 5, 0), a1=recorded(0, 5, 1), b1=recorded(10, 15, 1), b0=recorded(11, 15, 0)
    ) == ["a0 a1", "b0 b1"]


def test_ranks_that_were_killed_do_not_take_those_of_the_next_run() -> None:
    assert runs_of(
        a0=recorded(0, None, 0),
        a1=recorded(0, None, 1),
        b1=recorded(10, None, 1),
        b0=recorded(11, None, 0),
    ) == ["a0 a1", "b0 b1"]


def test_rounds_are_matched_by_their_steps_though_clocks_differ() -> None:
    rounds = {}
    for number, first_step in enumerate([0, 10, 20]):
        rounds[f"r{number}_0"] = recorded(number, number + 1, 0, first_step=first_step)
        rounds[f"r{number}_1"] = recorded(number + 1.4, number + 2.4, 1, first_step=first_step)

    assert runs_of(**rounds) == ["r0_0 r0_1", "r1_0 r1_1", "r2_0 r2_1"]


def test_profilers_of_other_names_are_matched_by_name() -> None:
    assert runs_of(
        train0=recorded(0, 5, 0),
        eval0=recorded(0.1, 5, 0, name="eval"),
        train1=recorded(0.2, 5, 1),
        eval1=recorded(0.3, 5, 1, name="eval"),
    ) == ["train0 train1", "eval0 eval1"]


def test_a_job_that_was_started_again_later_or_larger_is_another_run() -> None:
    assert runs_of(a=recorded(0, 5, 0), b=recorded(600, 605, 1)) == ["a", "b"]
    assert runs_of(a=recorded(0, 5, 0), b=recorded(6, 9, 1, size=4)) == ["a", "b"]


@pytest.mark.parametrize("rank", ["1", -1, 1.5, True, [1]])
def test_a_rank_that_is_no_number_counts_as_the_first(rank: object) -> None:
    assert runs_of(a=recorded(0, 5, 0, job=[]), b=recorded(0, 5, rank, job=[])) == ["a", "b"]
