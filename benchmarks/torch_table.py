# SPDX-License-Identifier: Apache-2.0
"""The same as record_many and cold_table by torch.profiler: N events, stop, the operator table.

Half of the events are record_function, the other half an operator in each. Prints one JSON object.
"""

import json
import resource
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from record_many import NAMES, resident_kb


def main() -> None:
    count = int(sys.argv[1])
    x, y = torch.zeros(1), torch.zeros(1)
    bare_kb = resident_kb()
    profiler = profile(activities=[ProfilerActivity.CPU])
    profiler.start()
    began = time.perf_counter()
    for number in range(count // 2):
        with record_function(NAMES[number % 200]):
            x.add_(y)
    recorded = time.perf_counter()
    recorded_kb = resident_kb()
    profiler.stop()
    stopped = time.perf_counter()
    averages = profiler.key_averages()
    averages.table(sort_by="self_cpu_time_total", row_limit=20)
    done = time.perf_counter()
    json.dump(
        {
            "torch": torch.__version__,
            "spans": count,
            "events": len(profiler.events()),
            "ns_per_span": (recorded - began) / count * 1e9,
            "memory_above_bare_mb": (recorded_kb - bare_kb) / 1024,
            "stop_ms": (stopped - recorded) * 1e3,
            "table_s": done - stopped,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
