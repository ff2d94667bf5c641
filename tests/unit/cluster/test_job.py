# SPDX-License-Identifier: Apache-2.0
"""A job holds Tables of any kind, by rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from strobe.cluster.job import Job, name_ranks
from strobe.errors import UsageError
from strobe.store.tables import Tables


def job_of(*ranks: int, world_size: int | None = None) -> Job[Tables]:
    tables = {rank: Tables(Path("job", str(rank))) for rank in ranks}
    return Job(Path("out", "job"), tables, world_size=world_size)


def test_ranks_come_in_order_however_they_were_given() -> None:
    job = job_of(2, 0, 10)

    assert (len(job), job.ranks) == (3, [0, 2, 10])
    assert [tables.directory.name for tables in job] == ["0", "2", "10"]
    assert job[10] is job.rank(10)
    assert (job.path, job.name) == (Path("out", "job"), "job")


def test_ranks_that_were_not_recorded_are_missing() -> None:
    assert job_of(0, 2, world_size=4).missing == [1, 3]
    assert job_of(0, 2).missing == []


def test_it_says_what_it_holds() -> None:
    assert repr(job_of(0, 1, 2, world_size=8)) == "<strobe.Job 'job': ranks 0-2 of 8>"


@pytest.mark.parametrize("number", [2, -1, "0", None])
def test_another_rank_is_refused_with_those_that_are_there(number: object) -> None:
    with pytest.raises(UsageError, match=r"this job has ranks 0-1$"):
        job_of(0, 1).rank(number)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ranks", "named"),
    [
        ([3], "rank 3"),
        ([1, 0], "ranks 0-1"),
        ([0, 2], "ranks 0, 2"),
        ([*range(1000), 1001, 7], "ranks 0-999, 1001"),
    ],
)
def test_ranks_are_named_as_ranges(ranks: list[int], named: str) -> None:
    assert name_ranks(set(ranks)) == named
