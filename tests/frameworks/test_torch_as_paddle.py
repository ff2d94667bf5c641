# SPDX-License-Identifier: Apache-2.0
"""strobe.paddle around a program of PyTorch's: the document's example, and the timer."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import strobe.paddle as profiler

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_of_the_document_with_another_framework(
    capsys: pytest.CaptureFixture[str],
) -> None:
    linear = torch.nn.Linear(13, 5)
    momentum = torch.optim.SGD(linear.parameters(), lr=0.0003, momentum=0.9)
    scheduler = profiler.make_scheduler(closed=1, ready=2, record=3, repeat=1)
    with profiler.Profiler(
        scheduler=scheduler, on_trace_ready=lambda _: None, profile_memory=True, with_flops=True
    ) as prof:
        for _ in range(10):
            linear(torch.randn(26).reshape(2, 13)).sum().backward()
            momentum.step()
            momentum.zero_grad()
            prof.step()

    tables = prof.summary()

    assert tables is not None
    calls = dict(tables.model.select("name", "calls").iter_rows())
    assert calls == {
        **dict.fromkeys(("ProfileStep", "Forward", "Backward", "Optimization"), 3),
        "Others": None,
    }
    assert tables.model.filter(pl.col("name") != "ProfileStep")["cpu_ratio"].sum() == pytest.approx(
        1
    )
    (top,) = tables.operator.filter(
        (pl.col("level") == 0) & (pl.col("name") == "aten::linear")
    ).to_dicts()
    # 2 x 13 times 13 x 5: 130 multiplications and additions, in three steps
    assert (top["calls"], top["flops"]) == (3, 3 * 260)
    inside = tables.operator.filter((pl.col("operator") == "aten::linear") & (pl.col("level") == 1))
    assert "aten::addmm" in inside["name"].to_list()
    assert tables.operator.filter(pl.col("level") == 0)["cpu_ratio"].sum() == pytest.approx(1)
    owned = dict(tables.memory.select("name", "allocation_bytes").iter_rows())
    assert owned["aten::linear"] == 3 * 2 * 5 * 4
    shown = capsys.readouterr().out
    assert "Memory Summary - Place(cpu)" in shown
    assert "Flops Profiler Begin" in shown


def test_waits_of_its_loaders_are_told_to_the_timer() -> None:
    dataset = torch.utils.data.TensorDataset(torch.randn(12, 3))
    kind = torch.utils.data.dataloader._BaseDataLoaderIter
    before = kind.__next__
    made = profiler.Profiler(timer_only=True)
    with made:
        for _ in torch.utils.data.DataLoader(dataset, batch_size=2):
            made.step(num_samples=2)
        told = made.step_info()

    assert "reader_cost" in told
    assert "samples/s" in told
    assert kind.__next__ is before
