# SPDX-License-Identifier: Apache-2.0
"""torch's own profiler as we drive it: its file says what its own accessors say, on our clock."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flat_trace import Flat, read_flat
from strobe.errors import CaptureError, StateError
from strobe.importers import kineto
from strobe.model.clocks import align
from strobe.model.tables import CATEGORIES
from strobe.record import recorder
from strobe.record.source import Wants

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from strobe.sources.torch.kineto import ANCHOR, Facts, KinetoSession  # noqa: E402

BACKWARD_SCOPE = 1  # at::RecordScope::BACKWARD_FUNCTION


def train(steps: int = 2) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 2))
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for step in range(steps):
        with torch.profiler.record_function(f"step {step}"):
            layers(torch.ones(3, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def in_a_thread(work: Callable[[], Any]) -> int:
    """Run it in a thread of its own and return how the system numbers that."""
    numbers = []

    def run() -> None:
        numbers.append(threading.get_native_id())
        work()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return numbers[0]


def recorded(path: Path, wants: Wants, work: Callable[[], Any]) -> tuple[Flat, Facts]:
    session = KinetoSession()
    session.start(wants)
    try:
        work()
    finally:
        facts = session.stop(path)
    return read_flat(kineto, path), facts


def spans(events: Flat) -> dict[str, list[int]]:
    """Rows by name, without our marks."""
    rows: dict[str, list[int]] = {}
    for row, code in enumerate(events.name):
        rows.setdefault(events.names[code], []).append(row)
    rows.pop(ANCHOR, None)
    return rows


def test_the_file_says_what_torch_says(tmp_path: Path) -> None:
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True
    )
    with profiler:
        train()
        torch.ones(1000, 1000)
    result = profiler.profiler.kineto_results
    result.save(str(tmp_path / "trace.json"))

    events = read_flat(kineto, tmp_path / "trace.json")

    told = [each for each in result.events() if each.name() != "[memory]"]
    order = np.argsort(events.start_ns, kind="stable")
    told.sort(key=lambda each: each.start_ns())
    assert [events.names[code] for code in events.name[order]] == [e.name() for e in told]
    absolute = events.start_ns[order] + events.base_ns
    assert absolute.tolist() == [each.start_ns() for each in told]
    assert events.dur_ns[order].tolist() == [each.duration_ns() for each in told]
    assert events.sequence[order].tolist() == [each.sequence_nr() for each in told]
    texts = [json.loads(events.texts[c]) if c >= 0 else {} for c in events.attributes[order]]
    assert [t.get("shapes", []) for t in texts] == [each.shapes() for each in told]
    assert [t.get("dtypes", []) for t in texts] == [each.dtypes() for each in told]
    annotations = events.category[order] == CATEGORIES.index("annotation")
    assert annotations.tolist() == [each.is_user_annotation() for each in told]
    for category, name, each in zip(events.category[order], events.name[order], told, strict=True):
        engine = events.names[name].startswith("autograd::engine")
        backward = each.scope() == BACKWARD_SCOPE or engine
        assert (CATEGORIES[category] == "backward") == backward, each.name()
    memory = [each for each in result.events() if each.name() == "[memory]"]
    assert len(events.allocations.bytes) == len(memory) > 0
    assert 4_000_000 in events.allocations.bytes
    starts = sorted((events.allocations.start_ns + events.base_ns).tolist())
    assert starts == sorted(each.start_ns() for each in memory)


def test_the_same_events_as_torch_profiler(tmp_path: Path) -> None:
    train(1)  # what happens only once has happened
    with torch.profiler.profile(record_shapes=True) as profiler:
        train()
    theirs: dict[str, int] = {}
    for each in profiler.profiler.kineto_results.events():
        theirs[each.name()] = theirs.get(each.name(), 0) + 1

    events, facts = recorded(tmp_path / "trace.json", Wants(shapes=True), train)

    assert {name: len(rows) for name, rows in spans(events).items()} == theirs
    assert facts.activities[0] == "CPU"
    (row, *_) = spans(events)["aten::addmm"]
    assert json.loads(events.texts[events.attributes[row]])["shapes"][1] == [3, 6]


def test_times_are_of_our_clock(tmp_path: Path) -> None:
    times = []

    def work() -> None:
        for _ in range(3):
            before_ns = recorder.core.clock_ns()
            with torch.profiler.record_function("inside"):
                pass
            times.append((before_ns, recorder.core.clock_ns()))

    events, facts = recorded(tmp_path / "trace.json", Wants(), work)
    marks = events.start_ns[events.name == events.names.index(facts.anchor_name)]
    line = align(marks, facts.anchors)

    starts = line.apply(events.start_ns[spans(events)["inside"]])
    for start_ns, (before_ns, after_ns) in zip(starts.tolist(), times, strict=True):
        assert before_ns - line.residual_ns <= start_ns <= after_ns + line.residual_ns


def test_all_threads_are_seen(tmp_path: Path) -> None:
    numbers = []
    events, facts = recorded(
        tmp_path / "trace.json", Wants(), lambda: numbers.append(in_a_thread(train))
    )

    assert facts.all_threads
    assert events.tid[spans(events)["aten::addmm"]].tolist() == numbers * 4


def test_a_session_can_be_stopped_in_another_thread(tmp_path: Path) -> None:
    session = KinetoSession()
    session.start(Wants())
    train()
    in_a_thread(lambda: session.stop(tmp_path / "trace.json"))

    assert len(spans(read_flat(kineto, tmp_path / "trace.json"))["aten::addmm"]) == 4


def test_memory_is_recorded_when_asked_for(tmp_path: Path) -> None:
    events, facts = recorded(
        tmp_path / "trace.json", Wants(memory=True), lambda: torch.ones(1000, 1000)
    )

    assert not facts.all_threads  # torch tells allocations only to a profiler of the thread
    assert events.allocations.bytes.tolist() == [4_000_000, -4_000_000]
    assert events.allocations.address[0] == events.allocations.address[1]


def test_memory_is_lost_in_another_thread_and_the_next_session_works(tmp_path: Path) -> None:
    session = KinetoSession()
    session.start(Wants(memory=True))
    errors: list[Exception] = []

    def stop() -> None:
        try:
            session.stop(tmp_path / "trace.json")
        except CaptureError as error:
            errors.append(error)

    in_a_thread(stop)
    assert "stops only in the thread it started in" in str(errors[0])
    session.stop(tmp_path / "trace.json")

    events, _ = recorded(tmp_path / "again.json", Wants(), train)
    assert len(spans(events)["aten::addmm"]) == 4


@pytest.mark.parametrize("all_threads", [False, True])
def test_a_profiler_of_the_user_is_left_alone(tmp_path: Path, all_threads: bool) -> None:
    config = torch._C._profiler._ExperimentalConfig(profile_all_threads=all_threads)
    with torch.profiler.profile(experimental_config=config) as profiler:
        train(1)
        with pytest.raises(StateError, match="already active"):
            KinetoSession().start(Wants())
        train(1)

    names = [each.name() for each in profiler.profiler.kineto_results.events()]
    assert names.count("aten::addmm") == 4


@pytest.mark.parametrize("wants", [Wants(), Wants(memory=True)])
@pytest.mark.parametrize("still_active", [False, True])
def test_a_profiler_that_the_user_starts_meanwhile_works(
    tmp_path: Path, wants: Wants, still_active: bool
) -> None:
    session = KinetoSession()
    session.start(wants)
    profiler = torch.profiler.profile()
    profiler.start()
    train(1)
    if not still_active:
        profiler.stop()

    with pytest.raises(CaptureError, match="another profiler of torch was started meanwhile"):
        session.stop(tmp_path / "trace.json")

    if still_active:
        train(1)
        profiler.stop()
    names = [each.name() for each in profiler.profiler.kineto_results.events()]
    assert names.count("aten::addmm") == (4 if still_active else 2)
    events, _ = recorded(tmp_path / "again.json", Wants(), train)
    assert len(spans(events)["aten::addmm"]) == 4


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    session = KinetoSession()
    session.start(Wants())

    with pytest.raises(CaptureError, match="write"):
        session.stop(tmp_path / "nowhere" / "trace.json")

    assert not torch.autograd.profiler._is_profiler_enabled


def test_nothing_is_printed(tmp_path: Path) -> None:
    from programs import Program

    program = Program("c", tmp_path)
    program.run("""
        import torch
        from pathlib import Path
        from strobe.record.source import Wants
        from strobe.sources.torch.kineto import KinetoSession

        for _ in range(2):
            session = KinetoSession()
            session.start(Wants())
            torch.ones(3)
            session.stop(Path(OUT).with_suffix(".json"))
        assert "KINETO_LOG_LEVEL" not in os.environ
    """)

    assert program.said == program.printed == ""
