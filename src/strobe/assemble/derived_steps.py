# SPDX-License-Identifier: Apache-2.0
"""The steps of a program that marks none, found by its annotations, optimizers and loaders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from strobe.assemble.phases import stated_codes
from strobe.model.ancestors import is_inside
from strobe.model.arrays import Bool, Int64
from strobe.model.coded import Coded
from strobe.model.phases import LOADER_PREFIX, LOADING, OPTIMIZER, OPTIMIZER_PREFIX


def derived_steps(spans: pl.DataFrame, number: Int64 | None = None) -> pl.DataFrame:
    """Return the steps of a program that marks none, by its annotations, optimizers and loaders.

    A step of kind `annotation` is a span of that category with a `number`, which is -1 for all
    others. The steps have these numbers if they rise, else they are counted.
    Without such, a step of kind `optimizer` ends with an Optimizer.step#..., an annotation whose
    stated phase is the optimizer's, or a span that is stated to end a step. It begins with the end
    of the last one, the first with the first wait for a loader, or else the first span of the lane.
    Several optimizers are one step if no data is loaded between them; in a program whose loop loads
    none, if no forward is between them; and where no forward is known, if no backward is.
    Without an optimizer, a step of kind `batch` begins with a wait for the loader, unless nothing
    follows before the next wait, and ends with the next one, the last with the lane's last span. A
    wait that is stated to have reached the end of the data does not count.
    With neither, operators that are known to be an optimizer's end a step of kind `optimizer`;
    without these there are none.

    The lane is that with the most such spans. Reads name, phase, lane, start_ns, dur_ns, parent,
    unfinished and, if they are there, category, stated and ends of a whole table of spans, sorted.
    Columns: those of the table `steps`.
    """
    if number is not None and (number >= 0).any():
        annotated = Coded.of(spans["category"]).is_one_of("annotation") & (number >= 0)
        if annotated.any():
            return _by_annotation(spans, annotated, number)
    name, phase = Coded.of(spans["name"]), Coded.of(spans["phase"])
    parent = spans["parent"].fill_null(-1).to_numpy()
    optimizer = name.begins(OPTIMIZER_PREFIX) & phase.is_one_of("optimizer")
    loader = name.begins(LOADER_PREFIX) & phase.is_one_of("data_loading")
    stated = stated_codes(spans)
    if (stated >= 0).any():
        category = Coded.of(spans["category"])
        annotation = category.is_one_of("annotation")
        optimizer = optimizer | (annotation & (stated == OPTIMIZER))
        waits = annotation | category.is_one_of("data_loading")
        loader = loader | (waits & (stated == LOADING))
    if "ends" in spans.columns:
        optimizer = optimizer | (spans["ends"] == "step").fill_null(False).to_numpy()
    optimizer &= ~is_inside(optimizer, parent)
    loader &= ~is_inside(loader, parent)
    idle = np.zeros(spans.height, bool)  # waits for nothing
    if "ends" in spans.columns:
        idle = (spans["ends"] == "data").fill_null(False).to_numpy().copy()
        idle[parent[idle & (parent >= 0)]] = True
    loader &= ~idle
    if not optimizer.any() and not loader.any():
        optimizer = phase.is_one_of("optimizer")
    lanes = spans["lane"].to_numpy()
    marked = lanes[optimizer if optimizer.any() else loader]
    lane = int(np.bincount(marked).argmax()) if len(marked) else -1
    rows = np.flatnonzero(lanes == lane)
    mine = spans[rows]
    if optimizer.any():
        between = [phase.is_one_of(name)[rows] for name in ("forward", "backward")]
        return _by_optimizer(mine, lane, optimizer[rows], loader[rows], between)
    if loader.any():
        return _by_loader(mine, lane, loader[rows], idle[rows])
    nothing = np.empty(0, np.int64)
    return _steps("batch", lane, nothing, nothing, nothing.astype(bool))


def _by_annotation(spans: pl.DataFrame, annotated: Bool, number: Int64) -> pl.DataFrame:
    outermost = annotated & ~is_inside(annotated, spans["parent"].fill_null(-1).to_numpy())
    lanes = spans["lane"].to_numpy()
    lane = int(np.bincount(lanes[outermost]).argmax())
    rows = np.flatnonzero(outermost & (lanes == lane))
    mine = spans[rows]
    start_ns, dur_ns = mine["start_ns"].to_numpy(), mine["dur_ns"].to_numpy()
    steps = _steps("annotation", lane, start_ns, start_ns + dur_ns, mine["unfinished"].to_numpy())
    rises = bool((np.diff(number[rows]) > 0).all())
    return steps.with_columns(step=pl.Series(number[rows])) if rises else steps


def _by_optimizer(
    spans: pl.DataFrame,
    lane: int,
    optimizer: Bool,
    loader: Bool,
    others: Sequence[Bool],
) -> pl.DataFrame:
    """Return the steps by optimizers, which are apart by a loader, or the first of `others`."""
    chosen = np.flatnonzero(optimizer)
    between = slice(chosen[0], chosen[-1])
    for apart in (loader, *others, optimizer):
        if apart[between].any():
            break
    before = np.searchsorted(np.flatnonzero(apart), chosen)
    last = chosen[np.append(before[1:] > before[:-1], True)]
    end_ns = (spans["start_ns"] + spans["dur_ns"]).to_numpy()[last]
    first = np.argmax(loader[: chosen[0] + 1])  # 0 where there is none
    start_ns = np.append(spans["start_ns"][int(first)], end_ns[:-1])
    return _steps("optimizer", lane, start_ns, end_ns, spans["unfinished"].to_numpy()[last])


def _by_loader(spans: pl.DataFrame, lane: int, loader: Bool, idle: Bool) -> pl.DataFrame:
    """Return the steps by a loader; what begins before a wait ends is the loader's own."""
    chosen = np.flatnonzero(loader)
    start_ns = spans["start_ns"].to_numpy()
    end_ns = (spans["start_ns"] + spans["dur_ns"]).to_numpy()
    after = np.searchsorted(start_ns, end_ns[chosen])
    busy = np.append(0, np.cumsum(~idle))
    used = busy[after] < busy[np.append(chosen[1:], len(start_ns))]
    first = chosen[used] if used.any() else chosen
    unfinished = np.zeros(len(first), bool)
    unfinished[-1] = spans["unfinished"].to_numpy()[first[-1] :].any()
    stop_ns = np.append(start_ns[first[1:]], end_ns.max())
    return _steps("batch", lane, start_ns[first], stop_ns, unfinished)


def _steps(
    kind: str,
    lane: int,
    start_ns: Int64,
    end_ns: Int64,
    unfinished: Bool,
) -> pl.DataFrame:
    rows = len(start_ns)
    return pl.DataFrame(
        {
            "step": np.arange(rows, dtype=np.int64),
            "kind": pl.repeat(kind, rows, dtype=pl.String, eager=True),
            "start_ns": start_ns,
            "dur_ns": end_ns - start_ns,
            "samples": pl.repeat(None, rows, dtype=pl.Int64, eager=True),
            "lane": pl.repeat(lane, rows, dtype=pl.Int32, eager=True),
            "unfinished": unfinished,
        }
    )
