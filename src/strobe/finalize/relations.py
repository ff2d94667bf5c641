# SPDX-License-Identifier: Apache-2.0
"""What spans are to each other: forward and backward, layer and operator, owner and memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from strobe.analysis.collectives import collectives
from strobe.analysis.flops import flops_column
from strobe.analysis.phases import phases
from strobe.analysis.steps import derived_steps
from strobe.finalize.gather import Gathered, Log, Memory
from strobe.model.ancestors import innermost
from strobe.model.arrays import Bool, Int32, Int64
from strobe.model.nesting import nest
from strobe.model.tables import CATEGORIES, PHASES
from strobe.store import files
from strobe.store.manifest import Manifest
from strobe.store.parquet import Coded, Column
from strobe.store.tables import empty


@dataclass(frozen=True)
class Derived:
    """Columns of `spans` that follow from the others, None where all is null, and `links`."""

    links: dict[str, Column]
    collectives: dict[str, Column]
    steps: pl.DataFrame | None = None
    """As the framework's events tell them; None where no framework was recorded."""
    phase: Coded | None = None
    module: Coded | None = None
    flops: pl.Series | None = None


_BACKWARD, _MODULE = CATEGORIES.index("backward"), CATEGORIES.index("module")
_COMMUNICATION = CATEGORIES.index("communication")
_HOST = -1


def derive(
    spans: Gathered,
    parent: Int64,
    unfinished: Bool,
    log: Log,
    manifest: Manifest,
) -> Derived:
    """Find out what frameworks do not say; a user's spans alone have nothing of it."""
    if not spans.category.any():
        return Derived(
            links=dict(empty("links").to_dict()), collectives=dict(empty("collectives").to_dict())
        )
    pids, _ = lane_ids(log)
    process = _processes(log)[spans.lane]
    forward, backward = link_backward(spans, parent, process)
    layer = modules(spans, parent, forward, backward)
    no_text = len(log.attributes)
    text = np.where(spans.attributes < 0, no_text, spans.attributes)
    told = np.where(spans.category == 0, no_text, text)  # only frameworks tell what they do
    frame = pl.DataFrame(
        {
            "name": _enum(spans.name, log.names),
            "category": _enum(spans.category, CATEGORIES),
            "lane": spans.lane,
            "pid": pids.gather(spans.lane),
            "start_ns": spans.start_ns,
            "dur_ns": spans.dur_ns,
            "parent": known(parent),
        }
    )
    for column, values in (
        ("told", _told("phase", PHASES, log.attributes)),
        ("ends", _told("ends", ("step", "data"), log.attributes)),
    ):
        if values.null_count() < len(values):
            frame = frame.with_columns(values.gather(told).alias(column))
    attributes = pl.Series([*log.attributes, None], dtype=pl.String)
    exchanging = np.flatnonzero(spans.category == _COMMUNICATION)
    exchanged = collectives(
        frame[exchanging].with_columns(
            row=pl.Series(exchanging),
            process=process[exchanging],
            attributes=attributes.gather(text[exchanging]),
        ),
        _groups(manifest),
    )
    asked = exchanged.drop_nulls("work")
    links = pl.concat(
        [
            _links("backward", forward, backward),
            _links("launch", *link_launches(spans, process)),
            _links("launch", asked["span"].to_numpy(), asked["work"].to_numpy()),
        ]
    )
    unknown, step_number = _told_by_attributes(log.attributes)
    phase = phases(frame, links, unknown[told])
    steps = derived_steps(
        frame.with_columns(phase=phase, unfinished=unfinished),
        step_number[spans.attributes],
    )
    codes = phase.cast(pl.Enum(PHASES)).to_physical().cast(pl.Int32).fill_null(-1)
    return Derived(
        links=dict(links.to_dict()),
        collectives=dict(exchanged.to_dict()),
        steps=steps,
        phase=Coded(codes.to_numpy(), PHASES),
        module=_module(spans, layer, log, manifest),
        flops=flops_column(frame["name"], attributes.gather(text))
        if manifest.wants.get("flops")
        else None,
    )


def _module(spans: Gathered, layer: Int64 | None, log: Log, manifest: Manifest) -> Coded | None:
    """Return the layer of each span: by the spans around it, or as the framework tells."""
    if layer is not None:
        return Coded(np.append(spans.name, -1)[layer], log.names)
    if spans.module is not None and manifest.wants.get("modules"):
        return Coded(spans.module.astype(np.int32), log.names)
    return None


def _told_by_attributes(texts: list[str]) -> tuple[Bool, Int64]:
    """Return for each text whether it tells that the phase is unknown, and its step's number or -1.

    So does that of a compiled operator, and a phase of null. A row for no text comes last, where -1
    leads to.
    """
    unknown = np.zeros(len(texts) + 1, bool)
    number = np.full(len(texts) + 1, -1, np.int64)
    for row, text in enumerate(texts):
        unknown[row] = '"hlo_module"' in text
        if '"phase"' in text:
            unknown[row] |= json.loads(text).get("phase", "") is None
        if '"step_num"' in text:
            told = json.loads(text).get("step_num")
            number[row] = told if isinstance(told, int) and 0 <= told < 1 << 63 else -1
    return unknown, number


def _told(key: str, values: tuple[str, ...], texts: list[str]) -> pl.Series:
    """Return what each of these attributes tells of itself, null for nothing; one more is null."""
    found = [json.loads(text).get(key) if f'"{key}"' in text else None for text in texts]
    known = [value if value in values else None for value in found]
    return pl.Series([*known, None], dtype=pl.String)


def _groups(manifest: Manifest) -> Mapping[str, Mapping[str, Any]]:
    """Return the groups of processes that sources know, by name."""
    found: dict[str, Mapping[str, Any]] = {}
    for report in manifest.sources.values():
        found.update(report["facts"].get("groups", {}))
    return found


def _enum(codes: NDArray[Any], texts: Sequence[str]) -> pl.Series:
    """Return texts by their numbers, without making a text for each row."""
    return pl.Series(texts, dtype=pl.Enum(texts)).gather(codes)


def known(numbers: Int64) -> pl.Series:
    """Return the numbers, null for what is negative."""
    return pl.Series(numbers).set(pl.Series(numbers < 0), None)


def lane_ids(log: Log) -> tuple[pl.Series, pl.Series]:
    """Return process and thread of each lane."""
    pids = pl.Series([lane["pid"] for lane in log.lanes], dtype=pl.Int64)
    tids = pl.Series([lane["tid"] for lane in log.lanes], dtype=pl.Int64)
    return pids, tids


def _processes(log: Log) -> Int64:
    """Return a number for the process of each lane: a pid may have been used twice."""
    numbers: dict[str, int] = {}
    return np.array(
        [numbers.setdefault(lane["process"], len(numbers)) for lane in log.lanes], np.int64
    )


def within_memory(memory: Memory, start_ns: int, end_ns: int) -> Memory:
    """Return the events between two times."""
    inside = (memory.start_ns >= start_ns) & (memory.start_ns <= end_ns)
    return memory if inside.all() else Memory(*(column[inside] for column in vars(memory).values()))


def number_engine(spans: Gathered, parent: Int64) -> None:
    """Give the engine's span around a backward, which has no number, that of the backward."""
    if spans.sequence is None or spans.thread is None:
        return
    is_backward = spans.category == _BACKWARD
    inner = np.flatnonzero(is_backward & (spans.sequence >= 0) & (parent >= 0))
    around = parent[inner]
    inner = inner[is_backward[around] & (spans.sequence[around] < 0)][::-1]  # the first one stays
    spans.sequence[parent[inner]] = spans.sequence[inner]
    spans.thread[parent[inner]] = spans.thread[inner]


def link_backward(spans: Gathered, parent: Int64, process: Int64) -> tuple[Int64, Int64]:
    """Return (forward, backward): which operator each backward computes the gradients of.

    The framework numbers operators thread by thread. Several share a number, one inside the other
    or one after the other: the last to begin is the one that made the node of the graph. Of the
    backward spans with one number the outermost counts.
    """
    none = np.zeros(0, np.int64)
    if spans.sequence is None or spans.thread is None or not (spans.category == _BACKWARD).any():
        return none, none
    numbered = np.flatnonzero(spans.sequence >= 0)
    key = pl.DataFrame(
        {
            "row": numbered,
            "process": process[numbered],
            "thread": spans.thread[numbered],
            "sequence": spans.sequence[numbered],
            "backward": spans.category[numbered] == _BACKWARD,
            "parent": parent[numbered],
        }
    )
    number = ["process", "thread", "sequence"]
    forward = key.filter(~pl.col("backward")).group_by(number).agg(pl.max("row").alias("forward"))
    same = key.filter("backward").select(*number, pl.col("row").alias("parent"))
    backward = key.filter("backward").join(same, on=[*number, "parent"], how="anti")
    pairs = backward.join(forward, on=number).filter(pl.col("forward") < pl.col("row")).sort("row")
    return pairs["forward"].to_numpy(), pairs["row"].to_numpy()


def link_launches(spans: Gathered, process: Int64) -> tuple[Int64, Int64]:
    """Return (call, work): which call of the runtime started each kernel and copy."""
    if spans.correlation is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    rows = np.flatnonzero(spans.correlation > 0)
    found = pl.DataFrame(
        {
            "row": rows,
            "process": process[rows],
            "correlation": spans.correlation[rows],
            "call": spans.category[rows] == CATEGORIES.index("runtime"),
        }
    )
    key = ["process", "correlation"]
    calls = found.filter("call").unique(key, keep="first").rename({"row": "source"})
    pairs = found.filter(~pl.col("call")).join(calls, on=key).sort("row")
    return pairs["source"].to_numpy(), pairs["row"].to_numpy()


def _links(kind: str, source: Int64, target: Int64) -> pl.DataFrame:
    kinds = pl.repeat(kind, len(source), dtype=pl.String, eager=True)
    return pl.DataFrame({"kind": kinds, "source": source, "target": target})


def modules(spans: Gathered, parent: Int64, forward: Int64, backward: Int64) -> Int64 | None:
    """Return the row of the layer each span was called in, -1 for none; None where there are none.

    A backward belongs to the layer of its forward, and so does what is inside it.
    """
    is_module = spans.category == _MODULE
    if not is_module.any():
        return None
    layer = innermost(is_module, parent)
    source = np.full(len(spans), -1, np.int64)
    source[backward] = forward
    linked = source >= 0
    inside = innermost(linked, parent)
    found: Int64 = np.where(inside >= 0, np.append(layer, -1)[source[inside]], layer)
    return found


def allocations(
    memory: Memory, spans: Gathered, log: Log, alive: pl.DataFrame, start_ns: int
) -> dict[str, Column]:
    """Return the rows of `allocations`: those alive at the start first, then by time."""
    order = np.argsort(memory.start_ns, kind="stable")
    pids, tids = lane_ids(log)
    owner = innermost_open(memory.owner_ns, memory.lane, spans)[order]
    events = pl.DataFrame(
        {
            "start_ns": memory.start_ns[order],
            "bytes": memory.bytes[order],
            "address": known(memory.address[order]),
            "device": pl.Series(memory.device[order], dtype=pl.Int32),
            "lane": memory.lane[order],
            "span": known(owner),
            "reserved_bytes": known(memory.reserved[order]),
        }
    )
    events = events.with_columns(
        pid=pids.gather(memory.lane[order]), tid=tids.gather(memory.lane[order])
    )
    before = alive.with_columns(start_ns=pl.lit(start_ns, pl.Int64))
    rows = _balance(pl.concat([before, events], how="diagonal")).with_columns(
        allocated_bytes=pl.col("bytes").cum_sum().over("pid", "device")
    )
    on_device = pl.when(pl.col("device") != _HOST).then("device")
    rows = rows.with_columns(device=on_device)
    return dict(rows.select(empty("allocations").columns).to_dict())


def _balance(rows: pl.DataFrame) -> pl.DataFrame:
    """Add what was freed unseen, and set sizes right that frameworks mix up.

    A block that is allocated where another one is has taken the place of one that was freed: torch
    does not tell of one that is older than its profiler, nor we of all that other threads free.
    What is freed is as large as what was allocated: torch may remember an older block there.
    """
    held = pl.when(pl.col("address").is_not_null()).then(
        pl.col("bytes").shift().over("pid", "device", "address")
    )
    rows = rows.with_row_index("order").with_columns(order=pl.col("order") * 2 + 1, held=held)
    unseen = rows.filter(pl.col("bytes") > 0, pl.col("held") > 0).select(
        "pid", "device", "address", "start_ns", bytes=-pl.col("held"), order=pl.col("order") - 1
    )
    rows = rows.with_columns(
        bytes=pl.when(pl.col("bytes") < 0, pl.col("held") > 0)
        .then(-pl.col("held"))
        .otherwise("bytes")
    )
    return pl.concat([rows, unseen], how="diagonal").sort("order")


def innermost_open(time_ns: Int64, lanes: Int32, spans: Gathered) -> Int64:
    """Return the row of the innermost span open at each of these times in a lane, -1 for none."""
    if len(time_ns) == 0:
        return np.zeros(0, np.int64)
    # An event is a span without length; one that begins with a span is inside it.
    start_ns = np.concatenate([spans.start_ns, time_ns])
    end_ns = np.concatenate([spans.start_ns + spans.dur_ns, time_ns])
    lane = np.concatenate([spans.lane, lanes])
    order = np.lexsort((-end_ns, start_ns))
    parent, _ = nest(lane[order], start_ns[order], end_ns[order])
    is_event = np.append(order >= len(spans), True)
    # The nearest span above: an event may lie in another of the same instant.
    parent = np.append(parent, -1)
    while (lost := (parent >= 0) & is_event[parent]).any():
        parent[lost] = parent[parent[lost]]
    found = np.full(len(order), -1, np.int64)
    above = parent[:-1]
    found[order[above >= 0]] = order[above[above >= 0]]
    return found[len(spans) :]


def read_alive(log_directories: list[Path], start_ns: int) -> pl.DataFrame:
    """Return what was allocated when each process began to record memory in this window."""
    schema = {"bytes": pl.Int64, "address": pl.Int64, "device": pl.Int32, "pid": pl.Int64}
    latest: dict[int, dict[str, Any]] = {}
    for directory in log_directories:
        for path in filter(files.is_regular, files.list_folder(directory, "alive-*.json")):
            content = json.loads(files.read_text(path))
            known = latest.get(content["pid"])
            # The last that was written before the window, else the first one in it.
            if known is None or known["start_ns"] < content["start_ns"] <= start_ns:
                latest[content["pid"]] = content
    rows = [
        (size, address, device, content["pid"])
        for content in latest.values()
        for address, size, device in content["storages"]
    ]
    return pl.DataFrame(rows, schema=schema, orient="row")
