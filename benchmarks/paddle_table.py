# SPDX-License-Identifier: Apache-2.0
"""summary() and load_profiler_result() of so many events: of paddle.profiler, and of strobe.paddle.

Run where Paddle is installed: python paddle_table.py 1000000 -> one line of JSON. Paddle records
the events, prints its tables and writes its two files; we read these, in a process of our own, and
print ours. CPU time; of ours the median of five.
"""

import contextlib
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

PER_STEP = 1000
ROUNDS = 5


def theirs(count: int, folder: Path) -> dict[str, float]:
    warnings.simplefilter("ignore")
    import paddle.profiler as profiler

    prof = profiler.Profiler(on_trace_ready=lambda _: None)
    prof.start()
    for _ in range(count // PER_STEP):
        for number in range(PER_STEP // 2):
            with profiler.RecordEvent(f"event {number % 100}"), profiler.RecordEvent("inner"):
                pass
        prof.step()
    prof.stop()
    for form in ("pb", "json"):
        prof.export(str(folder / f"x.{form}"), form)
    summary_s, _ = measure(prof.summary)
    load_s, _ = measure(lambda: profiler.load_profiler_result(str(folder / "x.pb")))
    return {"summary_s": summary_s, "load_pb_s": load_s}


def ours(folder: Path) -> dict[str, float]:
    import strobe.paddle as profiler

    found: dict[str, float] = {}
    for form in ("pb", "json"):
        path = folder / f"x.{form}"
        rounds = [measure(lambda path=path: load(profiler, path)) for _ in range(ROUNDS)]
        found[f"load_{form}_s"] = statistics.median(seconds for seconds, _ in rounds)
    result = profiler.load_profiler_result(folder / "x.pb")
    found["tables_s"], _ = measure(lambda: result.recording)
    spent = [measure(result.summary)[0] for _ in range(ROUNDS)]
    return {**found, "summary_s": statistics.median(spent), "events": len(result._trace.host.name)}


def load(profiler: Any, path: Path) -> int:
    return len(profiler.load_profiler_result(path)._trace.host.name)


def measure(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of CPU time of the process, and the result."""
    began = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        found = action()
    return time.process_time() - began, found


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(ours(Path(sys.argv[2]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = theirs(int(sys.argv[1]), Path(folder))
        command = [sys.executable, __file__, sys.argv[1], folder]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(json.dumps({"paddle": found, "strobe": json.loads(shown.splitlines()[-1])}))


if __name__ == "__main__":
    main()
