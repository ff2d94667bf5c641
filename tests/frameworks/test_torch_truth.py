# SPDX-License-Identifier: Apache-2.0
"""What PyTorch did, as strobe tells it and as torch.profiler does: the same, event by event."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import pytest

import strobe
from programs import Program
from strobe.model import check

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_models import MODELS, seeded  # noqa: E402  (needs torch)

STEPS = 2
REGION = "region"
NOISE_NS = 25_000


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
    # callbacks, a few microseconds, or a multiple on a machine that does other things too. A thread
    # that is put aside just then makes an outlier, which the median does not see.
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


PATHS = ("callback", "kineto")
BOTH_WAYS = """
    import torch
    from torch_models import MODELS, seeded

    for model in MODELS:
        step = seeded(model)
        options = dict(record_shapes="strides", with_flops=True, with_modules=True)
        for memory in (False, True) if model == "mlp" else (True,):
            name = model + "-memory" * memory
            with strobe.Profiler(output=OUT, name=name, profile_memory=memory, **options):
                for _ in range(2):
                    step()
"""


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    """The same program recorded by the callback and by Kineto."""
    found = {}
    for path in PATHS:
        program = found[path] = Program("c", tmp_path_factory.mktemp(path))
        tests = str(Path(__file__).resolve().parent.parent)
        # torch says that it cannot report what is freed and was allocated before.
        variables = {"STROBE_TORCH": path, "TORCH_CPP_LOG_LEVEL": "ERROR"}
        variables["PYTHONPATH"] = os.pathsep.join([tests, *filter(None, sys.path)])
        program.run(BOTH_WAYS, env=variables)
    return found


def opened(program: Program, name: str) -> strobe.Recording:
    (path,) = [each for each in program.recordings() if each.name.startswith(f"{name}-2")]
    recording = program.open(path)
    report = recording.completeness().filter(pl.col("source") == "torch").row(0, named=True)
    assert report["collected"] > 0
    return recording


@pytest.mark.parametrize(("model", "memory"), [("mlp", False), *((each, True) for each in MODELS)])
def test_callback_and_kineto_give_the_same_tables(
    ways: dict[str, Program], model: str, memory: bool
) -> None:
    recordings = [opened(ways[path], f"{model}{'-memory' * memory}") for path in PATHS]
    ours, theirs = [recording.spans().collect() for recording in recordings]

    for column in ("name", "category", "phase", "module", "sequence", "parent"):
        assert ours[column].to_list() == theirs[column].to_list(), column
    # Kineto does not know a padding that is a word.
    apart = ours["flops"].ne_missing(theirs["flops"])
    assert theirs.filter(apart)["flops"].null_count() == apart.sum() == 2 * (model == "cnn")
    assert set(ours.filter(apart)["name"]) <= {"aten::conv2d"}
    told, also = [
        [json.loads(text or "{}") for text in each["attributes"]] for each in (ours, theirs)
    ]
    for part in ("shapes", "dtypes", "strides"):
        assert [each.get(part) for each in told] == [each.get(part) for each in also], part
    ours, theirs = [recording.links().collect() for recording in recordings]
    assert ours.height > 10
    assert ours.rows() == theirs.rows()
    if memory:
        ours, theirs = [memory_of(recording) for recording in recordings]
        assert len(ours) > 10
        assert ours == theirs


def memory_of(recording: strobe.Recording) -> list[tuple[int, str | None]]:
    """Bytes and operator of each allocation while recording, and of each free of one of these.

    A free of an older block is told if torch remembers a block at its address from a profiler
    before, be it another block.
    """
    names = recording.spans().select("name").collect()["name"]
    events = recording.allocations().filter(pl.col("lane").is_not_null()).collect()
    held: set[int] = set()
    found = []
    for address, size, span in events.select("address", "bytes", "span").iter_rows():
        if size > 0 or address in held:
            found.append((size, None if span is None else names[span]))
        (held.add if size > 0 else held.discard)(address)
    return found


@pytest.mark.parametrize("path", PATHS)
def test_each_source_of_a_program_counts_its_own_rows(tmp_path: Path, path: str) -> None:
    program = Program("c", tmp_path)
    program.run(
        """
        import torch

        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        options = dict(profile_memory=True, with_modules=True, with_stack=True)
        with strobe.Profiler(output=OUT, **options) as profiler:
            for number in range(3):
                with strobe.span("train", number=number):
                    model(torch.ones(4, 8)).sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                strobe.counter("loss", 1.0)
                profiler.step()
        """,
        env={"STROBE_TORCH": path, "TORCH_CPP_LOG_LEVEL": "ERROR"},
    )

    recording = program.open()
    found = {row["source"]: row for row in recording.completeness().to_dicts()}
    kinds = dict(recording.spans().collect()["category"].cast(pl.String).value_counts().rows())
    blocks = recording.allocations().collect().height - 4  # the weights were there before
    of_torch = sum(kinds.get(each, 0) for each in ("operator", "backward", "annotation", "module"))
    counters = recording.counters().collect()
    assert kinds["user"] == 3
    assert found["spans"]["collected"] == 3 + 3 + 3  # spans, counters, steps
    assert found["torch"]["collected"] == of_torch + blocks
    assert found["python_calls"]["collected"] == kinds["python"]
    assert found["host"]["collected"] == counters.height - 3
    assert {name: row["once_ns"] > 0 for name, row in found.items()} == dict.fromkeys(found, True)
    assert {name for name, row in found.items() if not row["own_ns"]} <= {"host"}
    # Nobody can time what Kineto does.
    assert ("own time is estimated" in found["torch"]["note"]) == (path == "kineto")
