# SPDX-License-Identifier: Apache-2.0
"""The timeline of MindSpore's trees, whose times are texts, as Perfetto reads it."""

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import strobe
from strobe.reports.mindspore_tree.run import Run
from strobe.reports.mindspore_tree.timeline import trace_view

if TYPE_CHECKING:
    from exporters.conftest import Query


def test_perfetto_drops_nothing(hostile: strobe.Recording, query: "Query", tmp_path: Path) -> None:
    run = Run(
        spans=hostile.spans().collect(),
        steps=hostile.steps().collect(),
        allocations=hostile.allocations().collect(),
        instants=hostile.instants().collect(),
        batches=hostile.batches().collect(),
        facts=dict(hostile.metadata().collect().iter_rows()),
        parameters={},
        missing={},
        lanes=dict(hostile.threads().select("lane", "thread").collect().iter_rows()),
    )

    text = trace_view(run)
    assert text is not None
    trace = tmp_path / "trace_view.json"
    trace.write_bytes(text)

    events = [event for event in json.loads(text) if event["ph"] in "Xi"]
    assert len(events) == run.spans.height + run.instants.height
    assert any(thread["args"]["name"] == "MainThread (overlap 1)" for thread in threads(text))
    assert query(trace, "select count(*) from slice;") == [[str(len(events))]]
    assert crossings(events) == []  # nor by the text


def crossings(events: list[dict[str, Any]]) -> list[Any]:
    """Return the events that end after one that they began in, by their exact times."""
    found = []
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start, dur = (int(event[key].replace(".", "")) for key in ("ts", "dur"))
            tracks[event["pid"], event["tid"]].append((start, -start - dur, event["name"]))
    for track in tracks.values():
        ends: list[int] = []
        for start, negative_end, name in sorted(track):
            while ends and ends[-1] <= start:
                ends.pop()
            if ends and -negative_end > ends[-1]:
                found.append((name, start))
            ends.append(-negative_end)
    return found


def threads(text: bytes) -> list[dict[str, dict[str, str]]]:
    return [event for event in json.loads(text) if event["name"] == "thread_name"]
