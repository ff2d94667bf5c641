# SPDX-License-Identifier: Apache-2.0
"""A pipeline of MindData: how full its queues were, how busy its operators, what held it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

_BUSY, _IDLE = 75, 20  # percent of a processor per worker
# Operators whose queue or processor use says nothing about them.
_PASSIVE = {
    *("Barrier", "Concat", "EpochCtrl", "Rename", "Repeat", "Shuffle", "Skip", "Take", "Zip"),
}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One operator of the pipeline. Queue figures are None where it has no queue."""

    id: int
    name: str
    workers: int
    children: list[int]
    parent: int | None
    sizes: list[int] | None = None
    """How many rows were in its output queue, sample by sample."""
    capacity: int | None = None
    cpu_percent: float | None = None
    """Mean processor use of all its workers; None where it was not sampled."""

    @property
    def label(self) -> str:
        """Its name and id."""
        return f"{self.name}(id={self.id})"

    @property
    def mean_size(self) -> float | None:
        """Mean number of rows in its queue."""
        return sum(self.sizes) / len(self.sizes) if self.sizes else None

    @property
    def full_percent(self) -> float | None:
        """Mean share of its queue that was in use."""
        if self.mean_size is None or not self.capacity:
            return None
        return 100 * self.mean_size / self.capacity

    @property
    def empty_percent(self) -> float | None:
        """Share of the samples in which its queue was empty."""
        return 100 * self.sizes.count(0) / len(self.sizes) if self.sizes else None

    @property
    def cpu_percent_per_worker(self) -> float | None:
        """Mean processor use of one worker."""
        return None if self.cpu_percent is None else self.cpu_percent / max(1, self.workers)


@dataclass(frozen=True)
class Advice:
    """What the figures say, in sentences; the operator that holds the pipeline up, if one does."""

    cpu: list[str] = field(default_factory=list)
    queues: list[str] = field(default_factory=list)
    bottleneck: str | None = None
    suggestion: str | None = None


def read_stages(queues: Mapping[str, Any], use: Mapping[str, Any]) -> list[Stage]:
    """Return the operators of pipeline_profiling and minddata_cpu_utilization, by id."""
    rows = sorted(queues.get("op_info", []), key=lambda row: row["op_id"])
    parents = {child: row["op_id"] for row in rows for child in row.get("children") or []}
    cpu = {
        row["op_id"]: _mean_use(row["metrics"])
        for row in use.get("op_info", [])
        if row.get("metrics")
    }
    found = []
    for row in rows:
        queue = (row.get("metrics") or {}).get("output_queue") or {}
        found.append(
            Stage(
                id=row["op_id"],
                name=row["op_type"].removesuffix("Op"),
                workers=row["num_workers"],
                children=list(row.get("children") or []),
                parent=parents.get(row["op_id"]),
                sizes=queue.get("size"),
                capacity=queue.get("length"),
                cpu_percent=cpu.get(row["op_id"]),
            )
        )
    return found


def _mean_use(metrics: Mapping[str, Any]) -> float | None:
    both = list(zip(metrics["user_utilization"], metrics["sys_utilization"], strict=False))
    return sum(user + system for user, system in both) / len(both) if both else None


def linked(stages: Sequence[Stage]) -> list[Stage]:
    """Return the operators that queues link, from the last one of the pipeline on.

    Those without a queue hand on what they are given: they are left out, and their children are
    those of the operator after them. The last one is there in any case.
    """
    by_id = {stage.id: stage for stage in stages}
    found = [stage for stage in stages if stage.parent is None]
    known = {stage.id for stage in found}  # a damaged file may go round in circles
    for stage in found:  # which grows
        children = [number for number in _inputs(stage, by_id) if number not in known]
        found += [replace(by_id[number], parent=stage.id) for number in children]
        known.update(children)
    return [replace(stage, children=_inputs(stage, by_id)) for stage in found]


def _inputs(stage: Stage, by_id: Mapping[int, Stage]) -> list[int]:
    """Return the nearest operators with queues that an operator takes rows from."""
    waiting, found = [*stage.children], []
    for number in waiting:  # which grows
        child = by_id.get(number)
        if child is not None and child.sizes is not None:
            found.append(number)
        elif child is not None:
            waiting += [each for each in child.children if each not in waiting]
    return found


def batch_times(lines: Sequence[str]) -> dict[str, float | None]:
    """Return mean milliseconds per batch of dataset_iterator_profiling, the first left out.

    Keys: pipeline, push, batch; None where no batch is left.
    """
    kinds = {"0": "pipeline", "1": "push", "2": "batch"}
    found: dict[str, list[float]] = {name: [] for name in kinds.values()}
    for line in lines:
        fields = line.split()
        if len(fields) >= 4 and fields[0] == "0" and fields[1] in kinds and fields[2] != "1":
            found[kinds[fields[1]]].append(float(fields[3]))
    return {name: sum(times) / len(times) if times else None for name, times in found.items()}


def advise(stages: Sequence[Stage]) -> Advice:
    """Say what the figures mean: busy and idle workers, starved queues, and the worst operator.

    An operator is not blamed where its input or its processor use was not sampled, or was sampled
    fewer than 3 times.
    """
    by_id = {stage.id: stage for stage in stages}
    cpu, queues = [], []
    worst: tuple[float, Stage, str] | None = None
    for stage in stages:
        share = stage.cpu_percent_per_worker
        if stage.name in _PASSIVE or share is None:
            continue
        if share > _BUSY:
            cpu.append(
                f"{stage.label} uses {share:.1f}% of a processor per worker; raising "
                f"num_parallel_workers above {stage.workers} may help."
            )
        elif share < _IDLE and stage.workers > 1:
            cpu.append(
                f"{stage.label} uses {share:.1f}% of a processor per worker; "
                f"num_parallel_workers={stage.workers} may be more than it needs."
            )
        full = stage.full_percent
        if full is None or len(stage.sizes or ()) < 3:
            continue
        if not stage.children and full <= 50:
            queues.append(
                f"{stage.label}, which reads the data, fills {full:.1f}% of its queue: reading is "
                "slower than what follows."
            )
        inputs = [by_id[number].full_percent for number in _inputs(stage, by_id)]
        known = [value for value in inputs if value is not None]
        starved = min(known) - full if known else (50 - full if share > _BUSY else 0)
        if starved > 50 or (share > _BUSY and full <= 50):
            reason = (
                f"{stage.label} has input waiting and an empty queue behind it; raise "
                "num_parallel_workers or make it cheaper."
            )
            if worst is None or starved > worst[0]:
                worst = (starved, stage, reason)
    if worst is None:
        return Advice(cpu, queues)
    return Advice(cpu, queues, worst[1].label, worst[2])
