# SPDX-License-Identifier: Apache-2.0
"""Which recordings belong together: the ranks of one run do, successive runs do not."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from strobe.errors import FormatError, UsageError
from strobe.store import inventory, manifest

# Ranks that do not wait for each other start apart; a job that is started again takes longer.
_APART_NS = 60_000_000_000


@dataclass(kw_only=True)
class Run:
    """The recordings of one run: one for each rank of a job, or that of a program without ranks."""

    first: manifest.Manifest
    """The manifest of the recording that began first."""
    recordings: dict[int, Path] = field(default_factory=dict)
    """By rank; a program without ranks is 0."""
    end_ns: float = -math.inf
    """When the last of them ended, infinite if that is unknown for one."""

    @property
    def world_size(self) -> int | None:
        """How many ranks the job had, if that is known."""
        size = self.first.metadata.get("world_size")
        return size if type(size) is int and size > 0 else None

    def fits(self, content: manifest.Manifest, rank: int) -> bool:
        """Say whether a recording of this rank may belong to this run."""
        ours, theirs = self.first.metadata, content.metadata
        return (
            ours.get("job") is not None
            and all(ours.get(key) == theirs.get(key) for key in ("job", "world_size"))
            and rank not in self.recordings
            and content.start.wall_ns < self.end_ns + _APART_NS
        )

    def likeness(self, content: manifest.Manifest) -> tuple[bool, bool, int]:
        """Return a sort key for how well a recording fits: by name, by step, then by time."""
        return (
            content.name == self.first.name,
            content.first_step == self.first.first_step,
            -abs(content.start.wall_ns - self.first.start.wall_ns),
        )


def find_runs(recordings: Mapping[Path, manifest.Manifest]) -> list[Run]:
    """Group recordings into runs, ordered by the start of each run's first recording.

    If a rank has a second recording, that belongs to another run: a profiler's next round, or a job
    that was started again under its old name.
    """
    runs: list[Run] = []
    begun = sorted(recordings.items(), key=lambda item: (item[1].start.wall_ns, item[0]))
    for path, content in begun:
        rank = content.metadata.get("rank")
        rank = rank if type(rank) is int and rank >= 0 else 0
        fitting = [run for run in runs if run.fits(content, rank)]
        if fitting:
            run = max(fitting, key=lambda run: run.likeness(content))
        else:
            run = Run(first=content)
            runs.append(run)
        run.recordings[rank] = path
        run.end_ns = max(run.end_ns, content.stop.wall_ns if content.stop else math.inf)
    return runs


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One run among the recordings of a folder."""

    recordings: dict[int, Path]
    """Its recordings that have ended, by rank; all of them if none has."""
    world_size: int | None = None
    left_out: Sequence[int] = ()
    """Its ranks that are still recording."""
    is_running: bool = False
    """Whether its program is still recording."""
    is_passed: bool = False
    """Whether a later run exists, whose program is still recording."""


def choose(recordings: Sequence[Path], run: int | None = None) -> Chosen:
    """Return a run by its number: 0 is the first, -1 the last to begin.

    By default it is the last among those that have ended, if any has. Recordings that cannot be
    read count as older than all others. Raises UsageError if there is no run of this number.
    """
    known = {}
    for recording in recordings:
        with contextlib.suppress(FormatError):
            known[recording] = manifest.read(recording)
    if not known:
        return Chosen(recordings={0: recordings[0]})
    running = {path for path, content in known.items() if inventory.still_records(path, content)}
    runs = find_runs(known)
    if run is not None and not -len(runs) <= run < len(runs):
        message = f"run={run}: there are {len(runs)} runs; 0 is the first and -1 the newest"
        raise UsageError(message)
    ended = [each for each in runs if not running.issuperset(each.recordings.values())]
    chosen = (ended or runs)[-1] if run is None else runs[run]
    by_rank = dict(sorted(chosen.recordings.items()))
    over = {rank: path for rank, path in by_rank.items() if path not in running}
    return Chosen(
        recordings=over or by_rank,
        world_size=chosen.world_size,
        left_out=[rank for rank in by_rank if rank not in over] if over else [],
        is_running=not over,
        is_passed=bool(over) and runs[-1] is not chosen,
    )
