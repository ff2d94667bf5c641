# SPDX-License-Identifier: Apache-2.0
"""What PyTorch did, as strobe tells it and as torch.profiler does: the same, event by event."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import strobe
from strobe.model import check

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_models import MODELS, seeded  # noqa: E402  (needs torch)

STEPS = 2
REGION = "region"
NOISE_NS = 5_000


@dataclass(frozen=True)
class Event:
    """One operator as either of them has it; `path` are the names around it, its own the last."""

    path: tuple[str, ...]
    sequence: int
    shapes: list[Any]
    dtypes: list[str]
    flops: int
    dur_ns: int
    self_ns: int


def beside(step: Callable[[], None], folder: Path) -> tuple[list[Event], list[Event]]:
    """Record steps with both at once: strobe's events and torch's, in their order."""
    profiler = strobe.Profiler(output=folder, record_shapes=True, with_flops=True)
    theirs = torch.profiler.profile(record_shapes=True, with_flops=True)
    with profiler, theirs, torch.profiler.record_function(REGION):
        for _ in range(STEPS):
            step()
    return list(of_strobe(profiler.recording)), list(of_torch(theirs))


def of_strobe(recording: strobe.Recording) -> Iterator[Event]:
    spans = recording.spans().collect()
    assert check(spans) == []
    paths: list[tuple[str, ...]] = []
    for row in spans.iter_rows(named=True):
        around = paths[row["parent"]] if row["parent"] is not None else ()
        paths.append((*around, row["name"]))
        attributes = json.loads(row["attributes"] or "{}")
        if paths[-1][0] == REGION:
            yield Event(
                path=paths[-1],
                sequence=-1 if row["sequence"] is None else row["sequence"],
                shapes=attributes.get("shapes", []),
                dtypes=attributes.get("dtypes", []),
                flops=row["flops"] or 0,
                dur_ns=row["dur_ns"],
                self_ns=row["self_ns"],
            )


def of_torch(profile: Any) -> Iterator[Event]:
    """The region and what is below it in torch's own tree, with the figures of its events."""
    result = profile.profiler.kineto_results
    flat = {each.correlation_id(): each for each in result.events()}

    def walk(node: Any, around: tuple[str, ...]) -> Iterator[Event]:
        event = flat[node.correlation_id]
        path = (*around, node.name)
        inside_ns = sum(child.duration_time_ns for child in node.children)
        yield Event(
            path=path,
            sequence=event.sequence_nr(),
            shapes=[shape_of(each) for each in node.typed[1].inputs] if event.shapes() else [],
            dtypes=event.dtypes(),
            flops=event.flops(),
            dur_ns=event.duration_ns(),
            self_ns=event.duration_ns() - inside_ns,
        )
        for child in node.children:
            yield from walk(child, path)

    for root in result.experimental_event_tree():
        if root.name == REGION:
            yield from walk(root, ())


def shape_of(told: Any) -> Any:
    """The sizes of a tensor or of the tensors of a list, as torch's tree has them."""
    if isinstance(told, list):
        return [each.sizes for each in told]
    return getattr(told, "sizes", [])


Both = tuple[list[Event], list[Event]]


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """The events of two steps of a model: strobe's and torch's."""
    return beside(seeded(request.param), tmp_path_factory.mktemp(request.param))


def test_names_counts_nesting_and_order_are_those_of_torch_profiler(both: Both) -> None:
    ours, theirs = both

    assert len(ours) > 100
    assert [event.path for event in ours] == [event.path for event in theirs]


def test_sequence_numbers_and_inputs_are_those_of_torch_profiler(both: Both) -> None:
    ours, theirs = both

    assert [event.sequence for event in ours] == [event.sequence for event in theirs]
    assert [event.shapes for event in ours] == [event.shapes for event in theirs]
    assert [event.dtypes for event in ours] == [event.dtypes for event in theirs]


def test_flops_are_those_of_torch_profiler_where_it_has_a_figure(both: Both) -> None:
    ours, theirs = both

    told = [(our, their) for our, their in zip(ours, theirs, strict=True) if their.flops]
    assert told
    assert [our.flops for our, _ in told] == [their.flops for _, their in told]


def test_times_agree_with_those_of_torch_profiler(both: Both) -> None:
    ours, theirs = both

    # Between the instants at which the two look at the clock lies at most the work of one of their
    # callbacks, a few microseconds. A thread that is put aside just then makes an outlier, which
    # the median does not see.
    for kind in ("dur_ns", "self_ns"):
        apart = [
            abs(getattr(our, kind) - getattr(their, kind))
            for our, their in zip(ours, theirs, strict=True)
        ]
        assert median(apart) < NOISE_NS
        total: dict[str, int] = defaultdict(int)
        for our, their in zip(ours, theirs, strict=True):
            total[our.path[-1]] += getattr(our, kind) - getattr(their, kind)
        calls = Counter(event.path[-1] for event in ours)
        assert median(abs(total[name]) / calls[name] for name in calls) < NOISE_NS
