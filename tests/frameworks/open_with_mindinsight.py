# SPDX-License-Identifier: Apache-2.0
"""What MindInsight understands of a folder `profiler`, as JSON; run by the Python that has it."""

import json
import os
import sys
import tempfile

os.environ.setdefault("MINDINSIGHT_WORKSPACE", tempfile.mkdtemp())

from mindinsight.profiler.analyser.analyser_factory import AnalyserFactory

FOLDER = sys.argv[1]


def ask(kind: str) -> object:
    return AnalyserFactory.instance().get_analyser(kind, FOLDER, "0")


answers = {
    "step_trace": ask("step_trace").summary,
    **{
        kind: ask(kind).query({})
        for kind in ("cpu_op_type", "cpu_op_info", "minddata_pipeline", "minddata_cpu_utilization")
    },
    "timeline": ask("timeline").get_timeline_summary("ascend"),
    "display": len(ask("timeline").get_display_timeline("ascend", 0)),
}
print(json.dumps(answers))
