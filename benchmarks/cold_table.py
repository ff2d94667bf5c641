# SPDX-License-Identifier: Apache-2.0
"""The operator table of a recording, cold: from the log, in a new process, imports included.

Prints one JSON object.
"""

import time

BEGAN = time.perf_counter()

import json  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402

import strobe  # noqa: E402


def main() -> None:
    recording = strobe.open(sys.argv[1])
    opened = time.perf_counter()
    operators = recording.operators()
    done = time.perf_counter()
    spans_path = recording.directory / "spans.parquet"
    json.dump(
        {
            "spans": int(operators["calls"].sum()),
            "open_s": opened - BEGAN,
            "table_s": done - BEGAN,
            "all_tables_s": time.perf_counter() - BEGAN,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "bytes": spans_path.stat().st_size,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
