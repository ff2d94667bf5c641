# SPDX-License-Identifier: Apache-2.0
"""Phases and steps of real training loops, which say the truth about themselves.

Each part of a loop runs inside a record_function that names its phase; torch.profiler's events,
without these, must tell the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

from drawing import phases_of, steps_of
from strobe.analysis.phase_times import phase_times
from strobe.model.ancestors import innermost, is_inside
from strobe.model.nesting import nest

pytestmark = pytest.mark.torch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

TRUTH = "truth: "


def truly(phase: str) -> Any:
    return torch.profiler.record_function(TRUTH + phase)


def recorded(program: Callable[[], None]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables `spans` and `links` of a program, as far as phases need them."""
    with torch.profiler.profile() as profile:
        program()
    rows = [
        {
            "name": event.name(),
            "category": category(event),
            "start_ns": event.start_ns(),
            "end_ns": event.start_ns() + event.duration_ns(),
            "lane": event.start_thread_id(),
            "sequence": event.sequence_nr(),
            "forward_lane": event.fwd_thread_id(),
        }
        for event in profile.profiler.kineto_results.events()
    ]
    spans = pl.DataFrame(rows).sort("start_ns", "end_ns", descending=[False, True])
    spans = spans.with_columns(
        pl.col("lane", "forward_lane").cast(pl.Int32),
        dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        pid=pl.lit(1, dtype=pl.Int64),
        tid=pl.lit(1, dtype=pl.Int64),
        unfinished=pl.lit(False),
    )
    parent, _ = nest(*(spans[name].to_numpy() for name in ("lane", "start_ns", "end_ns")))
    spans = spans.with_columns(parent=pl.Series(parent).replace(-1, None))
    return spans, links(spans)


def category(event: Any) -> str:
    if event.name().startswith("autograd::engine::") or event.name().endswith("Backward0"):
        return "backward"
    return "operator" if event.name().startswith("aten::") else "annotation"


def links(spans: pl.DataFrame) -> pl.DataFrame:
    """From the last forward operator of a sequence number to the outermost of its backward."""
    numbered = spans.with_row_index("row").filter(pl.col("sequence") >= 0)
    backward = numbered.filter(pl.col("name").str.starts_with("autograd::engine::"))
    forward = numbered.filter(pl.col("category") == "operator")
    last = forward.group_by("lane", "sequence").agg(source=pl.col("row").max())
    return backward.join(
        last, left_on=["forward_lane", "sequence"], right_on=["lane", "sequence"]
    ).select(
        pl.lit("backward").alias("kind"),
        pl.col("source").cast(pl.Int64),
        pl.col("row").cast(pl.Int64).alias("target"),
    )


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return torch.full((8,), float(index)) * 2


def network(*, dropout: float = 0.0) -> Any:
    return torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(8, 8)
    )


def batches() -> Any:
    """The batches of a loader, each wait for one inside its truth."""
    iterator = iter(torch.utils.data.DataLoader(Data(), batch_size=2))
    while True:
        with truly("data_loading"):
            batch = next(iterator, None)
        if batch is None:
            return
        yield batch


def train(model: Any, batch: Any, *, loss_of: Any = None) -> None:
    with truly("forward"):
        loss = (model(batch) if loss_of is None else loss_of(batch)).pow(2).mean()
    with truly("backward"):
        loss.backward()


def plain() -> None:
    model = network(dropout=0.5)
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches():
        with truly("zero_grad"):
            optimizer.zero_grad()
        train(model, batch)
        with truly("other"):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with truly("optimizer"):
            optimizer.step()
        with truly("other"):
            (model[0].weight.detach() > 0).float().mean().item()


def without_a_loader() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for _ in range(3):
        train(model, torch.ones(2, 8))
        with truly("optimizer"):
            optimizer.step()


def accumulated() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    for number, batch in enumerate([*batches(), *batches()]):
        train(model, batch)
        if number % 2:
            with truly("optimizer"):
                optimizer.step()
            with truly("zero_grad"):
                optimizer.zero_grad(set_to_none=False)


def adversarial() -> None:
    generator, critic = network(), network()
    optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, critic)]
    for batch in batches():
        for optimizer in optimizers:
            with truly("zero_grad"):
                optimizer.zero_grad(set_to_none=False)
            train(None, batch, loss_of=lambda batch: critic(generator(batch)))
            with truly("optimizer"):
                optimizer.step()


def with_a_closure() -> None:
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    for batch in batches():

        def closure(batch: Any = batch) -> Any:
            with truly("zero_grad"):
                optimizer.zero_grad(set_to_none=False)
            with truly("forward"):
                loss = model(batch).pow(2).mean()
            with truly("backward"):
                loss.backward()
            return loss

        with truly("optimizer"):
            optimizer.step(closure)


def recomputed() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters())
    for batch in batches():
        train(
            None,
            batch,
            loss_of=lambda batch: torch.utils.checkpoint.checkpoint(
                model, batch, use_reentrant=False
            ),
        )
        with truly("optimizer"):
            optimizer.step()


def inference() -> None:
    model = network().eval()
    with torch.inference_mode():
        for batch in batches():
            with truly("forward"):
                model(batch).argmax(1)


def training_and_validation() -> None:
    plain()
    inference()


LOOPS = {
    plain: ("optimizer", 3),
    without_a_loader: ("optimizer", 3),
    accumulated: ("optimizer", 3),
    adversarial: ("optimizer", 3),
    with_a_closure: ("optimizer", 3),
    recomputed: ("optimizer", 3),
    inference: ("batch", 3),
    training_and_validation: ("optimizer", 3),
}


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_the_events_tell_the_phases(loop: Callable[[], None]) -> None:
    spans, pairs = recorded(loop)
    spans = spans.with_columns(phase=pl.Series(phases_of(spans, pairs), dtype=pl.String))

    parent = spans["parent"].fill_null(-1).to_numpy()
    truths = spans["name"].str.starts_with(TRUTH).to_numpy()
    # backward() makes its first gradient, a one, before it begins.
    ones = (spans["name"] == "aten::ones_like").to_numpy()
    compared = spans.with_columns(
        truth=spans["name"].str.strip_prefix(TRUTH).gather(innermost(truths, parent))
    ).filter(
        pl.Series(innermost(truths, parent) >= 0),
        ~pl.Series(ones | is_inside(ones, parent)),
        pl.col("category") == "operator",
    )
    assert compared.height > 10
    assert compared.filter(pl.col("phase") != pl.col("truth")).is_empty()
    assert compared["phase"].null_count() == 0
    kind, number = LOOPS[loop]
    steps = steps_of(spans)
    assert steps["kind"].to_list() == [kind] * number
    times = phase_times(spans, steps)
    assert times["total_ns"].sum() == steps["dur_ns"].sum()
    assert set(compared["truth"]) <= set(times.filter(pl.col("total_ns") > 0)["phase"])
