# SPDX-License-Identifier: Apache-2.0
"""max_total_bytes: the oldest rounds of a program are deleted, but nothing that it asked for."""

import json
from typing import Any

import pytest

from programs import Program

ROUNDS = 6
# Each round waits until the finalizer is done with it, so that each figure is certain.
SOURCE = """
import json
from strobe.store import places

def wait(recording):
    while not places.is_finalized(recording) or (recording / "log").exists():
        time.sleep(0.01)

rounds = strobe.schedule(wait=0, warmup=0, active=1, repeat=0)
with strobe.Profiler(output=OUT, schedule=rounds, {options}) as profiler:
    for number in range({rounds}):
        with strobe.span("work"): pass
        profiler.step()
        wait(profiler.recordings[-1].path)
    paths = [recording.path for recording in profiler.recordings]
    note = profiler.recording.completeness().row(0, named=True)["note"]
    facts = dict(profiler.recording.metadata().collect().iter_rows())
    print(json.dumps({{"kept": [path.exists() for path in paths], "note": note, "facts": facts}}))
"""


def record(program: Program, options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(program.run(SOURCE.format(options=options, rounds=ROUNDS)))
    return found


def test_the_oldest_rounds_go_and_the_later_say_how_many(program: Program) -> None:
    # Less than the ring (1 MB) of the round that has just ended: no other round has room.
    found = record(program, "max_total_bytes=1_000_000")

    assert found["kept"] == [False] * (ROUNDS - 1) + [True]
    assert f"{ROUNDS - 1} earlier rounds of this program were deleted" in found["note"]
    assert "max_total_bytes=1000000 is reached" in found["note"]
    assert int(found["facts"]["deleted_rounds"]) == ROUNDS - 1
    assert program.said.count("the oldest rounds of this program are deleted") == 1


@pytest.mark.parametrize("options", ["max_total_bytes=None", ""])
def test_without_a_bound_or_below_it_every_round_stays(program: Program, options: str) -> None:
    found = record(program, options)

    assert found["kept"] == [True] * ROUNDS
    assert "deleted" not in (found["note"] or "")
    assert "deleted" not in program.said


def test_exports_stay_when_their_rounds_go(program: Program) -> None:
    traces = program.folder / "traces"
    exports = f"on_trace_ready=strobe.export_chrome({str(traces)!r}), max_total_bytes=1_000_000"

    found = record(program, exports)

    # A round goes only when its export is there; those of the last two may still be written.
    assert found["kept"][:-1] == [False] * (ROUNDS - 1)
    assert len(list(traces.glob("*.json"))) >= ROUNDS - 1


def test_profilers_of_one_process_share_the_bound_and_other_programs_do_not(
    program: Program,
) -> None:
    record(program, "max_total_bytes=None")
    before = set(program.output.iterdir())
    source = """
    from strobe.store import places
    paths = []
    for _ in range(3):
        with strobe.Profiler(output=OUT, max_total_bytes=1_000_000) as profiler:
            pass
        while not places.is_finalized(profiler.recording.path): time.sleep(0.01)
        while (profiler.recording.path / "log").exists(): time.sleep(0.01)
        paths.append(profiler.recording.path)
    print([path.exists() for path in paths])
    """

    assert program.run(source).strip() == "[False, False, True]"
    assert all(path.exists() for path in before)


def test_rounds_go_where_no_finalizer_can_be_started(program: Program) -> None:
    if program.recorder != "c":
        pytest.skip("the Python recorder starts its finalizer also where orphans are adopted")
    source = """
    import ctypes
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    rounds = strobe.schedule(wait=0, warmup=0, active=1, repeat=0)
    with strobe.Profiler(output=OUT, schedule=rounds, max_total_bytes=1_000_000) as profiler:
        for _ in range(3):
            profiler.step()
            time.sleep(0.01)
        first, *_, last = [recording.path for recording in profiler.recordings]
        while first.exists():
            time.sleep(0.01)
        print(last.exists())
    """

    assert program.run(source).strip() == "True"
