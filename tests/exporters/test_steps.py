# SPDX-License-Identifier: Apache-2.0
"""Steps and requests have a track of their own in what we export."""

import json
import threading
from decimal import Decimal
from pathlib import Path

import strobe
from programs import TIMEOUT_SECONDS
from strobe.exporters import chrome, perfetto


def make_recording(output: Path) -> strobe.Recording:
    profiler = strobe.Profiler(output=output)
    everybody = threading.Barrier(2)

    def serve() -> None:
        with profiler.request():
            everybody.wait(TIMEOUT_SECONDS)

    with profiler:
        profiler.step(num_samples=8)
        profiler.step()
        threads = [threading.Thread(target=serve) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        profiler.step()
    return profiler.recording


def test_chrome_shows_steps_beside_the_threads(tmp_path: Path) -> None:
    recording = make_recording(tmp_path)
    path = tmp_path / "trace.json"

    chrome.write(recording, path, lambda _stage, _share: None)

    events = json.loads(path.read_text(), parse_float=Decimal)["traceEvents"]
    shown = [event for event in events if event.get("cat") == "step"]
    steps = recording.steps().collect()
    assert sorted((int(e["ts"] * 1000), int(e["dur"] * 1000)) for e in shown) == sorted(
        steps.select("start_ns", "dur_ns").rows()
    )
    assert {e["name"] for e in shown} >= {"step 0", "step 1", "request 2", "request 3"}
    assert next(e for e in shown if e["name"] == "step 0")["args"] == {"samples": 8}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    # The two requests overlap: within each other, or crossing and then on a track of their own.
    assert {names[e["tid"]] for e in shown} <= {"steps", "steps (overlap 1)", "steps (overlap 2)"}


def test_perfetto_reads_the_steps(tmp_path: Path, query) -> None:
    recording = make_recording(tmp_path)
    path = tmp_path / "trace.pftrace"

    perfetto.write(recording, path, lambda _stage, _share: None)

    rows = query(path, "select ts, dur from slice where category = 'step' order by ts, dur;")
    expected = recording.steps().collect().select("start_ns", "dur_ns").sort("start_ns", "dur_ns")
    assert [(int(ts), int(dur)) for ts, dur in rows] == expected.rows()
