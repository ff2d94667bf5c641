# SPDX-License-Identifier: Apache-2.0
"""The tables of a recording. Times are int64 nanoseconds of the host's monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DType = Literal["int64", "int32", "float64", "bool", "string"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its name (which ends in its unit), dtype and meaning."""

    name: str
    dtype: DType
    doc: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table: what a row is, and its columns."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> Mapping[str, DType]:
        """Column name to dtype."""
        return {column.name: column.dtype for column in self.columns}


def _table(name: str, doc: str, /, **columns: tuple[DType, str]) -> Table:
    return Table(
        name=name,
        doc=doc,
        columns=tuple(
            Column(name=column, dtype=dtype, doc=text) for column, (dtype, text) in columns.items()
        ),
    )


CATEGORIES = (
    "user",  # strobe.span
    "operator",  # of a framework
    "backward",  # a framework computing gradients: holds the operators that do
    "annotation",  # a span made with the framework's own means
    "module",  # a layer's forward
    "data_loading",
    "communication",
    "kernel",  # on a device, as the next
    "copy",
    "runtime",  # a call that launches work on a device
    "compile",  # a framework making programs of the user's functions
    "gc",  # Python collecting garbage
    "python",  # a call of a Python function, or of a C function by one
)
"""What a span is; its place here is the number that records carry."""

SOURCES = (
    "spans",  # the program's own: strobe.span, instant, counter, watch, step
    "torch",
    "jax",
    "paddle",
    "mindspore",
    "host",
    "python_calls",
)
"""Who records a row; its place here is the number that records carry."""
CATEGORY_BITS = 4
"""Of the byte that a record has for both: its category in the low ones, its source above them."""


def record_code(category: str, source: str) -> int:
    """Return the byte that records of this category and source carry."""
    return CATEGORIES.index(category) | SOURCES.index(source) << CATEGORY_BITS


PHASES = ("data_loading", "forward", "backward", "optimizer", "zero_grad", "other")

SPANS = _table(
    "spans",
    "One row per span that began while recording, by start. The row number is the span's id.",
    name=("string", "name, as given; a lone surrogate is written as \\udXXX"),
    category=("string", "what it is, one of CATEGORIES: `user` for strobe.span"),
    phase=("string", "part of the training step it belongs to, null where unknown"),
    module=("string", "path of the layer it was called in, null where unknown or not asked for"),
    type=("string", "the framework's own word for it: a layer's class, a type of Paddle's"),
    full_name=("string", "name with all scopes around it, where the framework has both"),
    start_ns=("int64", "begin"),
    dur_ns=("int64", "end - begin; up to the end of the recording where it is unfinished"),
    self_ns=("int64", "time in which it was the latest-started open span of its lane"),
    pid=("int64", "process"),
    tid=("int64", "thread, as the system numbers it"),
    lane=("int32", "thread and Python context: row in `threads`"),
    device=("int32", "accelerator, null on the host"),
    stream=("int64", "the device's stream, null on the host"),
    correlation=("int64", "joins a launch with what it launched"),
    sequence=("int64", "the framework's number for a differentiable operator and its backward"),
    flops=("int64", "floating-point operations, null where unknown or not asked for"),
    parent=("int64", "row of the innermost span of the lane that contains it, null for none"),
    stack=("int64", "row in `stacks` of the calls that led to it; null where unknown or not asked"),
    unfinished=("bool", "it had not ended when the recording did"),
    attributes=(
        "string",
        "of a span, or inputs of an operator: JSON object, null for none",
    ),
)

OPERATORS = _table(
    "operators",
    "One row per span name, the largest self time first: a summary of `spans`, made once. Calls of "
    "Python functions are left out: Recording.functions() has them.",
    name=("string", "name"),
    calls=("int64", "how many spans have it, nested ones included"),
    total_ns=("int64", "time in which at least one was open, lane by lane: recursion counts once"),
    self_ns=("int64", "time in which one was the latest-started open span of its lane"),
    mean_ns=("float64", "mean duration"),
    p50_ns=("int64", "median duration, one that occurred (nearest rank), as the next two"),
    p95_ns=("int64", "95th percentile"),
    p99_ns=("int64", "99th percentile"),
    max_ns=("int64", "longest"),
    min_ns=("int64", "shortest"),
    share=("float64", "self_ns / the self_ns of all spans, 0 to 1; null if that is 0"),
)

STEPS = _table(
    "steps",
    "One row per step (Profiler.step) or request (Profiler.request), by start; without either, per "
    "span named step, or as annotations, optimizers and data loaders tell. Requests may overlap.",
    step=("int64", "number, as the schedule counts them"),
    kind=(
        "string",
        "`step`, `request`; where nobody marked any: `span`, taken from a span; `annotation`, from "
        "a framework's annotation; `optimizer`, from the end of one optimizer's step to the next; "
        "`batch`, from one wait for data to the next",
    ),
    start_ns=("int64", "begin"),
    dur_ns=("int64", "end - begin; up to the end of the recording where it is unfinished"),
    samples=("int64", "samples in it, null where nobody said"),
    lane=("int32", "row in `threads` of who ended it, null for one that nobody has"),
    unfinished=("bool", "it had not ended when the recording did: leave it out of averages"),
)

INSTANTS = _table(
    "instants",
    "One row per strobe.instant.",
    name=("string", "name, as given"),
    start_ns=("int64", "when"),
    pid=("int64", "process"),
    tid=("int64", "thread"),
    lane=("int32", "row in `threads`"),
    attributes=("string", "JSON object, null for none"),
)

COUNTERS = _table(
    "counters",
    "One row per value of strobe.counter, or of a counter of strobe's own: each process has "
    "`process resident bytes`, `process peak resident bytes` and `process threads`.",
    name=("string", "name, as given"),
    start_ns=("int64", "when"),
    value=("float64", "the value from then on"),
    pid=("int64", "process"),
    tid=("int64", "thread"),
    lane=("int32", "row in `threads`"),
)

LINKS = _table(
    "links",
    "One row per pair of spans of which one led to the other: what a viewer draws as an arrow.",
    kind=(
        "string",
        "`backward` of a forward operator; `launch` on a device, or elsewhere",
    ),
    source=("int64", "row in `spans` of the one that came first"),
    target=("int64", "row in `spans` of the one it led to"),
)

ALLOCATIONS = _table(
    "allocations",
    "One row per block of memory that a framework allocated or freed, by time.",
    start_ns=("int64", "when; the start of the recording for what was there before"),
    bytes=("int64", "size; negative where it was freed"),
    address=("int64", "address of the block, null where unknown"),
    device=("int32", "accelerator, null on the host"),
    pid=("int64", "process"),
    tid=("int64", "thread, null for what was there before and for what was freed unseen"),
    lane=("int32", "row in `threads`, null as the thread is"),
    span=(
        "int64",
        "row in `spans` of the innermost span open then, or of the operator that MindSpore, which "
        "allocates before it launches, ran next; null for none",
    ),
    allocated_bytes=("int64", "in use on the device from then on, as far as this table knows"),
    reserved_bytes=("int64", "held by the framework's allocator, null where it does not say"),
)

MEMORY_LINES = _table(
    "memory_lines",
    "One row per line of Python and moment: what it had allocated and was still held then "
    "(memory_lines of the profiler). The largest 1000 of each moment, 100 of a look in between; "
    "the first first.",
    moment=(
        "string",
        "`start`, `peak` as far as it was seen, `look` now and then, `stop`, or `out of memory`",
    ),
    start_ns=("int64", "when that was"),
    file=(
        "string",
        "path of the source, null for all further lines together: for all lines if to read them "
        "at that moment would have taken too long",
    ),
    line=("int64", "its line, null for all further lines together"),
    bytes=("int64", "held"),
    blocks=("int64", "in how many blocks, null where the lines were not read"),
    held_bytes=("int64", "by all lines at that moment"),
    peak_bytes=("int64", "the most that all lines had held until then"),
    pid=("int64", "process"),
)

COLLECTIVES = _table(
    "collectives",
    "One row per collective or point-to-point operation of this process, by start.",
    name=("string", "what it does: all_reduce, broadcast, send, ..."),
    backend=("string", "who carried it out: gloo, nccl, ..., null where unknown"),
    group=("string", "name of the group of processes, null where unknown"),
    ranks=("string", "the group's ranks as a JSON list, null where unknown"),
    bytes=("int64", "of this process's input, null where unknown"),
    dtype=("string", "of its elements, null where unknown"),
    start_ns=("int64", "when the program asked for it"),
    dur_ns=("int64", "until it was complete"),
    wait_ns=("int64", "how long the call and the wait for it held the program up, null if unknown"),
    span=("int64", "row in `spans` of the program's call"),
    work=("int64", "row in `spans` of the backend's work, null where it is not seen"),
)

BATCHES = _table(
    "batches",
    "One row per batch that a loader handed to the program (strobe.watch, or the loader of a "
    "framework), by the time it was asked for.",
    loader=("string", "the loader's name"),
    number=("int64", "place in this pass over the loader, from 0, null where unknown"),
    start_ns=("int64", "when the program asked for it"),
    wait_ns=("int64", "until the program had it"),
    samples=("int64", "samples in it, null where nobody said"),
    queue=("int64", "batches that were ready when it was asked for, null where unknown"),
    worker=("int32", "the loader's number of who fetched it, null where it has no workers"),
    ready_ns=("int64", "when it had been fetched and collated, null where that is not seen"),
    fetch_ns=("int64", "how long that took, collating included, null where it is not seen"),
    collate_ns=("int64", "part of it in which samples were made a batch, null where unknown"),
    cpu_ns=("int64", "processor time of the thread that fetched it meanwhile, null if unknown"),
    pid=("int64", "process that asked for it"),
    tid=("int64", "thread that did"),
    lane=("int32", "row in `threads`"),
    span=("int64", "row in `spans` of the wait, null where it is not seen"),
    outer=("int64", "row in `batches` of the wait that this one was a part of, null for none"),
)

STACKS = _table(
    "stacks",
    "One row per distinct stack of Python calls: a function, and the stack that called it.",
    parent=("int64", "row of the stack that called it, always above; null for the outermost"),
    frame=("int64", "row in `frames` of the function"),
    depth=("int64", "how many calls it has, itself included"),
)

FRAMES = _table(
    "frames",
    "One row per function in a stack.",
    name=("string", "qualified name; of a C function its type or nothing, and its name"),
    file=("string", "where its code is, as Python names it; null for a C function"),
    line=("int64", "first line of its code; null for a C function"),
    module=("string", "module, null where unknown"),
)

SAMPLES = _table(
    "samples",
    "One row per thread and instant at which its stack was looked at, by time.",
    start_ns=("int64", "when"),
    interval_ns=("int64", "time that the row stands for, up to `start_ns`"),
    pid=("int64", "process"),
    tid=("int64", "thread, null where Python does not know it"),
    lane=("int32", "row in `threads`"),
    stack=("int64", "row in `stacks`"),
)

THREADS = _table(
    "threads",
    "One row per lane: a thread, or one Python context (an asyncio task) of a thread.",
    lane=("int32", "row number"),
    pid=("int64", "process"),
    tid=("int64", "thread, as the system numbers it"),
    thread=("string", "the thread's name when it first recorded"),
    context=("int64", "0: the thread's own context; else a number that tells its contexts apart"),
    process=("string", "host, pid, start time and a random id: tells apart a pid used twice"),
)

METADATA = _table(
    "metadata",
    "What is known of the recording as a whole.",
    key=("string", "what"),
    value=("string", "its value; numbers and objects as JSON"),
)

COMPLETENESS = _table(
    "completeness",
    "One row per source: what was asked for, what is here and what is not.",
    source=("string", "where the rows come from"),
    source_class=("string", "A: our rings, survives kill -9; B: a framework's buffers"),
    asked=("int64", "records that the program made: collected + dropped; null if unknown"),
    collected=("int64", "records that are in the tables"),
    dropped=("int64", "records that could not be written or are lost; null if nobody counted them"),
    unfinished=("int64", "spans that had not ended when the recording did"),
    own_ns=(
        "int64",
        "estimate of the time that recording these rows took in the program's threads, without "
        "once_ns; null if unknown",
    ),
    once_ns=(
        "int64",
        "wall time that starting and stopping took in the program's threads: patches, imports, "
        "building, a ring for each thread; null if unknown",
    ),
    drain_ns=("int64", "time the profiler's own thread took beside the program"),
    clock_residual_ns=("int64", "how far wall and monotonic clock drifted apart, null if unknown"),
    note=("string", "what else limits the figures, null for nothing"),
)

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        *(SPANS, OPERATORS, STEPS, INSTANTS, COUNTERS, LINKS, ALLOCATIONS, COLLECTIVES),
        *(BATCHES, STACKS, FRAMES, SAMPLES, MEMORY_LINES, THREADS, METADATA, COMPLETENESS),
    )
}
