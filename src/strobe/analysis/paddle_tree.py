# SPDX-License-Identifier: Apache-2.0
"""A recording as Paddle's profiler would tell it: events of its types, in a tree for each lane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from strobe.analysis.metadata import read_metadata, read_number
from strobe.model.ancestors import is_inside
from strobe.model.arrays import Bool, Int8, Int64
from strobe.model.attributes import PHASE
from strobe.model.coded import Coded
from strobe.model.nesting import nest
from strobe.model.paddle import MODEL, ON_DEVICE
from strobe.model.paddle import TracerEventType as Type
from strobe.model.phases import LOADER_PREFIX, OPTIMIZER_PREFIX, ZERO_GRAD_PREFIX
from strobe.store.tables import Tables

SPAN_COLUMNS = (
    *("name", "category", "phase", "start_ns", "dur_ns", "tid", "lane", "device", "flops"),
    *("correlation", "parent", "type", "attributes"),
)
"""What of `spans` is read."""

_OF_CATEGORY = {
    "user": Type.PythonUserDefined,
    "operator": Type.Operator,
    "backward": Type.Operator,
    "annotation": Type.PythonUserDefined,
    "module": Type.Forward,
    "data_loading": Type.UserDefined,
    "communication": Type.Communication,
    "kernel": Type.Kernel,
    "copy": Type.Memcpy,
    "runtime": Type.CudaRuntime,
    "compile": Type.UserDefined,
}
_OF_PHASE = {
    "data_loading": Type.Dataloader,
    "forward": Type.Forward,
    "backward": Type.Backward,
    "optimizer": Type.Optimization,
}
_OF_PREFIX = {
    OPTIMIZER_PREFIX: Type.Optimization,
    ZERO_GRAD_PREFIX: Type.PythonOp,
    LOADER_PREFIX: Type.Dataloader,
}
_MARKED = ("step", "request", "annotation")
_PHASES_CODED = (*_OF_PHASE, "zero_grad", "other")


@dataclass(frozen=True)
class PaddleEvents:
    """The events, by start, those around others first.

    Columns of `rows`:
        name (an Enum), start_ns, end_ns, tid, lane, device, flops: as in `spans`; a step is named
            ProfileStep#<number>.
        type: number of a TracerEventType.
        parent: row of the innermost event of the lane around it; of what ran on a device, of the
            call that launched it; -1 for none.
        span: row in `spans`, -1 for steps and for parts of steps that no span tells.
    """

    rows: pl.DataFrame
    steps: pl.DataFrame
    """Those that count: start_ns, end_ns, number."""
    left_out: int
    """How many spans began after the last step had ended, and are not here."""

    def column(self, name: str) -> Int64:
        """Return a column of numbers, -1 for null."""
        column = self.rows[name]
        filled = column.fill_null(-1) if column.null_count() else column
        numbers: Int64 = filled.cast(pl.Int64).to_numpy()
        return numbers

    def rows_of(self, spans: Int64) -> Int64:
        """Return the row of each span, -1 for none and for one that is not here."""
        here = self.rows["span"].to_numpy()
        return _places(here, spans)

    @property
    def end_ns(self) -> int | None:
        """When the last step ended; None if all events are here."""
        return int(self.steps["end_ns"].to_numpy().max()) if self.left_out else None


def paddle_events(tables: Tables) -> PaddleEvents:
    """Return the events of a recording: see make_events."""
    spans = tables.spans().select(SPAN_COLUMNS).collect()
    steps, links = tables.steps().collect(), tables.links().collect()
    return make_events(spans, steps, links, _window(tables, spans))


def _window(tables: Tables, spans: pl.DataFrame) -> tuple[int, int]:
    metadata = read_metadata(tables)
    first_ns, last_ns = read_number(metadata, "start_ns"), read_number(metadata, "end_ns")
    if first_ns is not None and last_ns is not None:
        return first_ns, last_ns
    start_ns = spans["start_ns"].to_numpy()
    end_ns = start_ns + spans["dur_ns"].to_numpy()
    return (int(start_ns.min()), int(end_ns.max())) if len(start_ns) else (0, 0)


def make_events(
    spans: pl.DataFrame, steps: pl.DataFrame, links: pl.DataFrame, window: tuple[int, int]
) -> PaddleEvents:
    """Return the events of these spans, steps and links.

    A type is what the span's own type says, or follows from category and phase: the outermost
    operators are Operator, those inside OperatorInner. Where no span of the recording tells of a
    phase, as no layer does in plain PyTorch, the operators of that phase that follow one another in
    a step are one event of its type.

    A step that had not ended is no step, and what began after the last one that had is left out.
    Where the program marked none, the whole recording (`window`) is one.

    Reads SPAN_COLUMNS of a whole table of spans, `steps`, and kind, source, target of `links`.
    """
    counted = _steps(steps, window)
    name, attributes = Coded.of(spans["name"]), Coded.of(spans["attributes"])
    types = _types(spans, name, attributes, counted["lane"])
    kept = types != Type.ProfileStep  # a file's own steps are in `steps`
    late = np.zeros(spans.height, bool)
    if counted["marked"].any():
        late = kept & (spans["start_ns"].to_numpy() >= counted["end_ns"].max())
    blocks = _blocks(spans, types, counted)
    launched = np.full(spans.height, -1)
    arrows = links.filter(pl.col("kind") == "launch")
    launched[arrows["target"].to_numpy()] = arrows["source"].to_numpy()
    marks = _step_rows(counted)
    names = pl.Enum(pl.concat([name.series, marks["name"], blocks["name"]]).drop_nulls().unique())
    numbered = spans.select(
        *("start_ns", "tid", "lane", "device", "flops"),
        name=name.named(names),
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        type=pl.Series(types, dtype=pl.Int8),
        span=pl.int_range(pl.len(), dtype=pl.Int64),
    )
    made = pl.concat([marks, blocks], how="diagonal_relaxed").with_columns(
        pl.col("name").cast(names)
    )
    rows = pl.concat([made, numbered.filter(pl.Series(kept & ~late))], how="diagonal_relaxed")
    order = _by_start(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
    rows = rows[order]
    rows = rows.with_columns(parent=pl.Series(_parents(rows, launched)))
    return PaddleEvents(rows, counted, int(late.sum()))


def _steps(steps: pl.DataFrame, window: tuple[int, int]) -> pl.DataFrame:
    lane = pl.col("lane").cast(pl.Int32)
    found = steps.filter(pl.col("kind").is_in(_MARKED) & ~pl.col("unfinished")).select(
        "start_ns",
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        number="step",
        lane=lane.fill_null(0),
    )
    if found.height:
        return found.with_columns(marked=pl.lit(True))
    whole = {"start_ns": window[0], "end_ns": window[1], "number": 0, "lane": 0, "marked": False}
    return pl.DataFrame([whole], schema={**found.schema, "marked": pl.Boolean})


def _types(spans: pl.DataFrame, name: Coded, attributes: Coded, step_lanes: pl.Series) -> Int8:
    """Return the type of each span."""
    category = Coded.of(spans["category"])
    by_category = category.series.replace_strict(
        {key: int(value) for key, value in _OF_CATEGORY.items()},
        default=int(Type.UserDefined),
        return_dtype=pl.Int8,
    )
    types: Int8 = category.spread(by_category, null=int(Type.UserDefined))
    # Other calls of a runtime are a framework's own business, as on a CPU.
    types[(types == Type.CudaRuntime) & spans["correlation"].is_null().to_numpy()] = (
        Type.UserDefined
    )
    annotated = category.is_one_of("annotation")
    phase = attributes.series.str.json_path_match(f"$.{PHASE}")
    # Paddle does not record what clears gradients; nothing else there is of this type.
    for word, kind in {**_OF_PHASE, "zero_grad": Type.PythonOp}.items():
        types[annotated & attributes.spread(phase == word)] = kind
    for prefix, kind in _OF_PREFIX.items():
        types[annotated & name.begins(prefix)] = kind
    waits = category.is_one_of("data_loading")
    if waits.any():
        waits &= spans["lane"].is_in(step_lanes.unique().to_list()).to_numpy()
        waits &= (spans["phase"] == "data_loading").fill_null(False).to_numpy()
        types[waits] = Type.Dataloader
    filling = name.spread(name.series.str.to_lowercase().str.contains("memset"))
    types[(types == Type.Memcpy) & filling] = Type.Memset
    operators = types == Type.Operator
    if operators.any():
        parent = spans["parent"].fill_null(-1).to_numpy()
        types[operators & is_inside(operators, parent)] = Type.OperatorInner
    known = {member.name: int(member) for member in Type}
    own = Coded.of(spans["type"])
    says = own.spread(own.series.replace_strict(known, default=-1, return_dtype=pl.Int8), null=-1)
    return np.where(says >= 0, says, types)


def _blocks(spans: pl.DataFrame, types: Int8, steps: pl.DataFrame) -> pl.DataFrame:
    """Return an event for each run of a phase that no span is an event of."""
    missing = [word for word, kind in _OF_PHASE.items() if not (types == kind).any()]
    phase = spans["phase"]
    if not missing or phase.null_count() == len(phase):
        return _no_rows()
    coded = phase.replace_strict(
        {word: code for code, word in enumerate(_PHASES_CODED)}, default=-1, return_dtype=pl.Int8
    ).to_numpy()
    parent = spans["parent"].fill_null(-1).to_numpy()
    around = np.where(parent < 0, -1, coded[parent])
    on_host = ~np.isin(types, ON_DEVICE)
    first = np.flatnonzero(on_host & (coded >= 0) & (around != coded))
    begins = np.sort(steps["start_ns"].to_numpy())
    start_ns = spans["start_ns"].to_numpy()[first]
    runs = (
        spans[first]
        .select("tid", "lane", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
        .with_columns(
            code=pl.Series(coded[first]),
            step=pl.Series(np.searchsorted(begins, start_ns, side="right")),
        )
        .with_columns(run=pl.struct("code", "step").rle_id().over("lane"))
        .group_by("lane", "run", maintain_order=True)
        .agg(pl.first("tid", "code"), pl.min("start_ns"), pl.max("end_ns"))
    )
    wanted = {code: word for code, word in enumerate(_PHASES_CODED) if word in missing}
    runs = runs.filter(pl.col("code").is_in(list(wanted)))
    kinds = {code: _OF_PHASE[word] for code, word in wanted.items()}
    return runs.select(
        *("tid", "lane", "start_ns", "end_ns"),
        name=pl.col("code").replace_strict(
            {code: kind.name for code, kind in kinds.items()}, return_dtype=pl.String
        ),
        type=pl.col("code").replace_strict(
            {code: int(kind) for code, kind in kinds.items()}, return_dtype=pl.Int8
        ),
        span=pl.lit(-1, dtype=pl.Int64),
    )


def _no_rows() -> pl.DataFrame:
    return pl.DataFrame(
        schema={"name": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64, "type": pl.Int8}
    )


def _step_rows(steps: pl.DataFrame) -> pl.DataFrame:
    return steps.select(
        "start_ns",
        "end_ns",
        "lane",
        name=pl.concat_str(pl.lit("ProfileStep#"), pl.col("number")),
        type=pl.lit(int(Type.ProfileStep), dtype=pl.Int8),
        span=pl.lit(-1, dtype=pl.Int64),
    )


def _by_start(start_ns: Int64, end_ns: Int64) -> Int64:
    """Return the order by start, then by end, the later one first.

    Nearly all rows are in order: only those that begin at once are looked at twice.
    """
    order = np.argsort(start_ns, kind="stable")
    as_before = np.append(False, np.diff(start_ns[order]) == 0)[: len(order)]
    tied = np.flatnonzero(as_before | np.append(as_before[1:], False)[: len(order)])
    rows = order[tied]
    order[tied] = rows[np.lexsort((-end_ns[rows], start_ns[rows]))]
    return order


def _parents(rows: pl.DataFrame, launched: Int64) -> Int64:
    """Return the row around each, or for what ran on a device that of the call that launched it."""
    types = rows["type"].to_numpy()
    on_host = ~np.isin(types, ON_DEVICE)
    place = np.flatnonzero(on_host)
    host = rows.filter(pl.Series(on_host))
    inner, _ = nest(
        np.ascontiguousarray(host["lane"].cast(pl.Int32).to_numpy()),
        host["start_ns"].to_numpy(),
        host["end_ns"].to_numpy(),
    )
    parent = np.full(len(types), -1)
    parent[place] = np.where(inner < 0, -1, place[inner])
    span = rows["span"].to_numpy()
    device = np.flatnonzero(~on_host)
    parent[device] = _places(span, launched[span[device]])
    return parent


def _places(numbers: Int64, wanted: Int64) -> Int64:
    """Return where each wanted number is among different ones, -1 where it is not, or is -1."""
    most = max(int(numbers.max(initial=-1)), int(wanted.max(initial=-1)))
    place = np.full(most + 2, -1)
    place[numbers[numbers >= 0]] = np.flatnonzero(numbers >= 0)
    found: Int64 = place[wanted]
    return found


def model_events(types: Int8, parent: Int64) -> Bool:
    """Return which rows are a part of a step that is in no other: the model table's."""
    parts = np.isin(types, MODEL)
    return parts & ~is_inside(parts, parent)
