# SPDX-License-Identifier: Apache-2.0
"""paddle.profiler, with any framework or none: `import strobe.paddle as profiler`.

Names, arguments, states and tables are those of paddle.profiler 3.3; Paddle is not imported. What
is different, and why:

Recording
- One object may be started again, and several may record at once, each with a timer of its own.
  Paddle has one native profiler in a process, and an object that is started again records nothing.
- step() after stop() is not counted, which is said once. Paddle goes on with the schedule.
- RecordEvents may overlap, recur, cross step() or never end. One of these makes Paddle lose the
  whole profile.
- RECORD to CLOSED or READY, and a stop() in the middle of a round, keep what was recorded.
- The step that has begun when stop() is called is no step: it is not counted, nor is what began
  in it. Paddle counts it, so that three iterations have four steps. Without any step() the whole
  recording is one.
- export_chrome_tracing and export_protobuf as `on_trace_ready` are carried out by another process
  after stop(), which does not wait for it. Called with the profiler they write at once.
- The worker name is `<host>_<pid>`, as Paddle's document says, not `host_<host>pid_<pid>`.
- What a callback or a scheduler raises is shown, and the program goes on; a scheduler that failed
  stands for CLOSED.

Errors
- A wrong argument raises UsageError (a ValueError) that says what would be right, where Paddle has
  an assertion, a warning or silence: negative counts, record=0, targets, time_unit, export formats,
  an empty path (which ends Paddle with a segmentation fault). export() and summary() without data
  raise StateError (a RuntimeError).

Tables
- summary() prints and returns the tables as frames. Names are not cut, `row_limit` works.
- Memory: each block is counted once; Paddle counts those of a kernel launch twice. Of the host
  nothing is reserved, and the figure that Paddle tells is not shown.
- with_flops has figures, of which Paddle loses the shapes that they follow from. A figure that is
  not known is a dash, not 0.
- A minimum or a ratio that there is none of is a dash, not inf or 0.
- CPU utilization is measured to the nanosecond, not in ticks of 10 ms.
- Others in the model table is the time in which no part of a step was open. Paddle takes the sum of
  the parts off the steps, which is less than nothing where parts of several threads overlap.
- Without a device, Computation in the distributed table is the time in which operators were open
  and did not wait for communication inside them.
- In other frameworks the outermost operators are Operator, those inside OperatorInner; phases that
  no event tells are found from the operators.

Files
- JSON: times are exact, names are escaped, crossing events have tracks of their own, and
  both span_index and span_indx are written. Protobuf: types above 14 are written as OperatorInner,
  since Paddle cannot read them.
- load_profiler_result reads what Paddle itself cannot, JSON too, and raises FormatError (Paddle
  returns None).

Timer
- Averages, minima and maxima are of the same iterations: the first ten are left out of all.
"""

from __future__ import annotations

from strobe.model.paddle import SortedKeys, SummaryView, TracerEventType
from strobe.paddle.config import get_profiler
from strobe.paddle.profiler import Profiler
from strobe.paddle.record_event import RecordEvent
from strobe.paddle.result import load_profiler_result
from strobe.paddle.schedule import ProfilerState, ProfilerTarget, make_scheduler
from strobe.paddle.timer import benchmark
from strobe.paddle.trace_files import export_chrome_tracing, export_protobuf

__all__ = [
    "Profiler",
    "ProfilerState",
    "ProfilerTarget",
    "RecordEvent",
    "SortedKeys",
    "SummaryView",
    "TracerEventType",
    "benchmark",
    "export_chrome_tracing",
    "export_protobuf",
    "get_profiler",
    "load_profiler_result",
    "make_scheduler",
]
