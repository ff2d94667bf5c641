# SPDX-License-Identifier: Apache-2.0
"""The ranks of one run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from strobe.errors import UsageError
from strobe.store.tables import Tables

RankTables = TypeVar("RankTables", bound=Tables)


class Job(Generic[RankTables]):
    """The tables of each rank of one run: iterate over them, or pick one by its rank."""

    def __init__(
        self, path: Path, tables: Mapping[int, RankTables], *, world_size: int | None = None
    ) -> None:
        self._path = path
        self._tables = dict(sorted(tables.items()))
        self._world_size = world_size

    def __repr__(self) -> str:
        of = "" if self._world_size is None else f" of {self._world_size}"
        return f"<strobe.Job {self.name!r}: {name_ranks(self.ranks)}{of}>"

    @property
    def path(self) -> Path:
        """The folder with its recordings."""
        return self._path

    @property
    def name(self) -> str:
        """The name of that folder."""
        return self._path.name

    @property
    def ranks(self) -> list[int]:
        """The ranks with a recording, in order."""
        return list(self._tables)

    @property
    def missing(self) -> list[int]:
        """The ranks without a recording; empty if the number of ranks is unknown."""
        return [rank for rank in range(self._world_size or 0) if rank not in self._tables]

    def rank(self, number: int) -> RankTables:
        """Return the tables of a rank; raises UsageError if it has no recording."""
        if number not in self._tables:
            message = f"rank {number!r}: this job has {name_ranks(self.ranks)}"
            raise UsageError(message)
        return self._tables[number]

    def __getitem__(self, number: int) -> RankTables:
        """Return the tables of a rank, as rank() does."""
        return self.rank(number)

    def __iter__(self) -> Iterator[RankTables]:
        """Return the tables of each rank, in order."""
        return iter(self._tables.values())

    def __len__(self) -> int:
        """Return the number of ranks with a recording."""
        return len(self._tables)


def name_ranks(ranks: Iterable[int]) -> str:
    """Name ranks for people, consecutive ones as a range: `ranks 0-3, 7`."""
    ranges: list[list[int]] = []
    for rank in sorted(ranks):
        if ranges and rank == ranges[-1][-1] + 1:
            ranges[-1][1:] = [rank]
        else:
            ranges.append([rank])
    named = ", ".join("-".join(map(str, each)) for each in ranges)
    several = len(ranges) > 1 or any(len(each) > 1 for each in ranges)
    return f"ranks {named}" if several else f"rank {named}"
