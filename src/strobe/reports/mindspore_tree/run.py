# SPDX-License-Identifier: Apache-2.0
"""What the writers of the files are given: the tables of one run of one rank, ready to be used."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from strobe.analysis.step_trace import (
    choose_steps,
    clip_points,
    clip_spans,
    computing,
    step_points,
)
from strobe.errors import UsageError
from strobe.model.ancestors import is_inside
from strobe.model.arrays import Int64
from strobe.model.attributes import DTYPES, SHAPES
from strobe.model.coded import distinct_rows

_DESCRIBING = ("name", "full_name", "category", "phase", "module", "attributes")
_HOST_WORK = ("operator", "communication")
_NO_TENSORS = ("", "Scalar", "ScalarList")  # among the types of PyTorch's inputs
_NUMBER = r"\.\d+$"  # that XLA gives to the second operator of a kind: dot.1


@dataclass(frozen=True, kw_only=True)
class Run:
    """The tables of a recording, clipped to the steps that are asked for."""

    spans: pl.DataFrame
    steps: pl.DataFrame
    """Those that have ended."""
    allocations: pl.DataFrame
    instants: pl.DataFrame
    batches: pl.DataFrame
    facts: Mapping[str, str]
    """The table `metadata`."""
    parameters: Mapping[str, Any]
    """What the profiler was told: every parameter with its value."""
    missing: Mapping[str, str]
    """What was asked for and could not be had: parameter to reason."""
    lanes: Mapping[int, str]
    """The name of each lane."""
    pipeline: Mapping[str, bytes] = field(default_factory=dict)
    """What MindData saved: the name of a file, without the rank, to its content."""
    rank: int = 0
    pretty: bool = False
    first_step: int = 1
    """The place of the first of the steps among all that were collected."""

    @cached_property
    def wall_offset_ns(self) -> int:
        """What makes a time of the tables one of the wall clock."""
        return int(self.facts["start_wall_ns"]) - int(self.facts["start_ns"])

    @cached_property
    def kinds(self) -> pl.DataFrame:
        """The host's operators, each kind once, by its first start.

        Columns: type, op (its last name), name (its full name), phase, category, shapes (JSON text
        or null), dtypes (the same).
        """
        return self._host[1]

    @cached_property
    def operators(self) -> pl.DataFrame:
        """The host's operators, by start.

        Columns: kind (its row in `kinds`), those of its kind, start_ns, dur_ns, self_ns, pid, tid,
        lane, flops (null inside one that has some: they are the same).
        """
        kind, kinds, rows = self._host
        return rows.select(
            *(pl.col(name) for name in ("start_ns", "dur_ns", "self_ns", "pid", "tid", "lane")),
            "flops",
            kind=pl.Series(kind),
            **{name: pl.lit(kinds[name].gather(kind)) for name in kinds.columns},
        )

    @cached_property
    def _host(self) -> tuple[Int64, pl.DataFrame, pl.DataFrame]:
        """The kind of each of the host's operators, the kinds, and its row of the spans."""
        worked = self.spans["flops"].is_not_null().to_numpy()
        inside = is_inside(worked, self.spans["parent"].fill_null(-1).to_numpy())
        counted = self.spans.with_columns(flops=pl.when(~pl.Series(inside)).then("flops"))
        rows = counted.filter(
            pl.col("category").cast(pl.String).is_in(_HOST_WORK) & pl.col("device").is_null()
        )
        kind, first = distinct_rows(rows, *_DESCRIBING)
        value_of = _reader(first["attributes"])
        scope = pl.when(pl.col("module").is_not_null()).then(pl.col("module").cast(pl.String) + "/")
        name = pl.col("name").cast(pl.String)
        full = pl.coalesce(pl.col("full_name").cast(pl.String), scope + name, name)
        described = first.select(
            type=name.str.replace(_NUMBER, ""),
            op=full.str.split("/").list.last(),
            name=full,
            phase=pl.col("phase").cast(pl.String),
            category=pl.col("category").cast(pl.String),
            shapes=value_of(SHAPES),
            dtypes=value_of(DTYPES),
        )
        pairs = described.select("shapes", "dtypes").iter_rows()
        shapes = pl.Series([_of_tensors(*pair) for pair in pairs], dtype=pl.String)
        return kind, described.with_columns(shapes=shapes), rows

    @cached_property
    def work(self) -> pl.DataFrame:
        """The spans that compute: see computing."""
        return computing(self.spans)

    @cached_property
    def points(self) -> pl.DataFrame | None:
        """Where forward and backward meet, for steps of a training: see step_points. Or None.

        Without a backward it is an inference, unless something of an optimizer says otherwise.
        """
        if self.steps.is_empty() or not self.is_graph:
            return None
        points = step_points(
            self.operators.select("name", "phase", "start_ns", "dur_ns"),
            self.steps,
            begins=self.parameters.get("fp_start"),
            ends=self.parameters.get("bp_end"),
        )
        if points.is_empty():
            return None
        with_backward = points.filter(pl.col("backward_ns").is_not_null())
        if not with_backward.is_empty():
            return with_backward
        trains = self.operators["phase"].eq("optimizer").fill_null(False).any()
        return None if trains else points

    @property
    def is_graph(self) -> bool:
        """Whether MindSpore ran in graph mode; of other frameworks it is not asked."""
        return self.facts.get("mindspore_mode", "graph") == "graph"

    @cached_property
    def framework(self) -> str:
        """The framework that the memory belongs to, as its users call it."""
        names = {"torch": "PyTorch", "jax": "JAX", "paddle": "Paddle"}
        found = [name for key, name in names.items() if f"{key}_path" in self.facts]
        return found[0] if found and "mindspore_path" not in self.facts else "MindSpore"


def _of_tensors(shapes: str | None, dtypes: str | None) -> str | None:
    """Return shapes with null for what is no tensor: PyTorch gives it that of a scalar one."""
    if not shapes or not dtypes:
        return shapes
    types = json.loads(dtypes)
    known = [
        None if place < len(types) and types[place] in _NO_TENSORS else shape
        for place, shape in enumerate(json.loads(shapes))
    ]
    return json.dumps(known)


def _reader(attributes: pl.Series) -> Callable[[str], pl.Expr]:
    """Return a function that reads a key of the attributes, of which few are distinct."""
    texts = attributes.drop_nulls().unique().to_list()
    contents = [json.loads(text) for text in texts]

    def value_of(key: str) -> pl.Expr:
        values = [content.get(key) for content in contents]
        found = [
            value if value is None or isinstance(value, str) else json.dumps(value)
            for value in values
        ]
        return pl.col("attributes").replace_strict(
            texts, found, default=None, return_dtype=pl.String
        )

    return value_of


def clip(run: Mapping[str, Any], step_list: Sequence[int] | None) -> dict[str, Any]:
    """Return the arguments of a Run, cut to the steps that are asked for.

    Raises UsageError for steps that were not collected.
    """
    steps = run["steps"]
    if step_list is None:
        return {**run, "steps": choose_steps(steps, None)}
    try:
        chosen = choose_steps(steps, list(step_list))
    except IndexError as error:
        shown = list(step_list) if len(step_list) < 9 else f"[{step_list[0]}, ..., {step_list[-1]}]"
        message = f"step_list={shown}: there is no {error} collected steps; they are counted from 1"
        if choose_steps(steps, None).is_empty():
            message = f"step_list={shown}: no steps were collected; end each with step()"
        raise UsageError(message) from None
    start_ns, end_ns = step_bounds(chosen)
    return {
        **run,
        "steps": chosen,
        "first_step": step_list[0],
        "spans": clip_spans(run["spans"], start_ns, end_ns),
        "allocations": clip_points(run["allocations"], start_ns, end_ns),
        "instants": clip_points(run["instants"], start_ns, end_ns),
        "batches": clip_points(run["batches"], start_ns, end_ns),
    }


def step_bounds(steps: pl.DataFrame) -> tuple[int, int]:
    """Return when the first of some steps began, and when the last one ended."""
    return int(steps["start_ns"][0]), int((steps["start_ns"] + steps["dur_ns"])[-1])


def as_csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as CSV; None becomes an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def as_json(content: object, run: Run) -> str:
    """Return JSON text, on one line unless the run is to be pretty."""
    return json.dumps(content, indent=4 if run.pretty else None)


def in_units(ns: float | None, size: int, digits: int) -> str:
    """Return a time in a unit of `size` nanoseconds, "" where it is not known."""
    return "" if ns is None else f"{ns / size:.{digits}f}"


def without_zeros(value: float, digits: int) -> str:
    """Return a number with at most so many decimals, and never an exponent."""
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def exact_us(ns: int) -> str:
    """Return whole nanoseconds as microseconds, without an error."""
    return f"{ns // 1000}.{ns % 1000:03d}"
