# SPDX-License-Identifier: Apache-2.0
"""The program of torch_table.py under strobe: N events of torch, then stop(); no finalizer.

Prints one JSON object. The table is made from what it leaves, by cold_table.py.
"""

import json
import sys
import time

import torch
from torch.profiler import record_function

import strobe
from record_many import NAMES, resident_kb


def main() -> None:
    count, output = int(sys.argv[1]), sys.argv[2]
    sys.executable = ""  # as where no process can be made
    x, y = torch.zeros(1), torch.zeros(1)
    bare_kb = resident_kb()
    profiler = strobe.Profiler(output=output)
    profiler.start()
    began = time.perf_counter()
    for number in range(count // 2):
        with record_function(NAMES[number % 200]):
            x.add_(y)
    recorded = time.perf_counter()
    recorded_kb = resident_kb()
    profiler.stop()
    stopped = time.perf_counter()
    json.dump(
        {
            "events": count,
            "ns_per_event": (recorded - began) / count * 1e9,
            "memory_above_bare_mb": (recorded_kb - bare_kb) / 1024,
            "stop_ms": (stopped - recorded) * 1e3,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
