# SPDX-License-Identifier: Apache-2.0
"""summary() of so many events: paddle.profiler's own and strobe.paddle's, of the same file.

Run where Paddle is installed: python paddle_table.py 1000000 -> one line of JSON. Paddle records
the events, prints its tables and writes a file; we read that, in a process of our own, and print
ours.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

PER_STEP = 1000


def theirs(count: int, path: Path) -> dict[str, float]:
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
    prof.export(str(path), "pb")
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        prof.summary()
    return {"summary_s": time.perf_counter() - began}


def ours(path: Path) -> dict[str, float]:
    import strobe.paddle as profiler

    began = time.perf_counter()
    result = profiler.load_profiler_result(path)
    load_s = time.perf_counter() - began
    events = len(result._trace.host.name)
    _ = result.recording
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        result.summary()
    return {
        "summary_s": time.perf_counter() - began,
        "load_s": load_s,
        "events": events,
    }


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(ours(Path(sys.argv[2]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.pb"
        found = theirs(int(sys.argv[1]), path)
        command = [sys.executable, __file__, sys.argv[1], str(path)]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(json.dumps({"paddle": found, "strobe": json.loads(shown.splitlines()[-1])}))


if __name__ == "__main__":
    main()
