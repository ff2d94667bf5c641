# SPDX-License-Identifier: Apache-2.0
"""The recorder in Python: the twin of strobe.record._core (native/core), for where that cannot be
built and for Python without a GIL. Same functions, same behaviour, same bytes.

It differs in four things. There is no drain thread. The process's memory is read by a thread of
Python's, which has to wait for the GIL. A lane is a thread's asyncio task, because
Python code cannot see which Context it runs in. And a span has no finalizer, because Python would
swallow the exception of a signal handler that runs in one: a full table of open spans is emptied
into the log instead.

Signal handlers, finalizers and (under a GIL) other threads come in only at calls and at jumps
backwards. Where the order of statements between two calls matters, a comment says so.
"""

from strobe.record._python.span import (
    HAS_COUNTER,
    calibrate,
    clock_ns,
    counter,
    directory,
    instant,
    source_counter,
    source_instant,
    source_span,
    span,
    stats,
    step,
    use_control,
)
from strobe.record._python.spawn import spawn_detached
from strobe.record._python.traced import traced_sums
from strobe.record._python.usage import go_on, put_usage, start, stop, watch_usage
from strobe.store.files import is_locked, is_private_folder, make_folder, replace_file
from strobe.store.layout import FORMAT_VERSION

__all__ = [
    "FORMAT_VERSION",
    "HAS_COUNTER",
    "calibrate",
    "clock_ns",
    "counter",
    "directory",
    "go_on",
    "instant",
    "is_locked",
    "is_private_folder",
    "make_folder",
    "put_usage",
    "replace_file",
    "source_counter",
    "source_instant",
    "source_span",
    "span",
    "spawn_detached",
    "start",
    "stats",
    "step",
    "stop",
    "traced_sums",
    "use_control",
    "watch_usage",
]
