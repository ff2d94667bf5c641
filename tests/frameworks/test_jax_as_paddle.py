# SPDX-License-Identifier: Apache-2.0
"""strobe.paddle around a training in JAX: its tables and its files."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import strobe.paddle as profiler

jax = pytest.importorskip("jax", reason="JAX is not installed")

pytestmark = [pytest.mark.jax, pytest.mark.filterwarnings("default")]  # those of JAX are its own


def test_tables_and_files_of_a_jitted_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    jnp = jax.numpy

    @jax.jit
    def update(weights, inputs):
        def loss(weights):
            return jnp.mean(jnp.tanh(inputs @ weights) ** 2)

        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - 0.1 * gradient, value

    weights, inputs = jnp.ones((96, 64)) / 96, jnp.ones((48, 96))
    update(weights, inputs)[1].block_until_ready()
    with profiler.Profiler(scheduler=(1, 4), on_trace_ready=lambda _: None) as prof:
        for _ in range(6):
            with profiler.RecordEvent("training"):
                weights, value = update(weights, inputs)
                value.block_until_ready()
            prof.step()

    tables = prof.summary()
    results = []
    for form in ("pb", "json"):
        prof.export(f"x.{form}", form)
        results.append(profiler.load_profiler_result(f"x.{form}"))

    assert tables is not None
    kinds = {kind: calls for kind, calls in tables.overview.select("type", "calls").iter_rows()}
    assert kinds["ProfileStep"] == kinds["PythonUserDefined"] == 3
    assert "CudaRuntime" not in kinds  # there is no device
    assert tables.userdefined["name"].to_list() == ["training"]
    operators = tables.operator.filter(pl.col("level") == 0)
    assert operators.height > 1
    assert operators["calls"].min() >= 3
    assert {"Forward", "Backward", "Others"} <= set(tables.model["name"])
    assert tables.model["cpu_total_ns"].min() >= 0
    assert "Operator Summary" in capsys.readouterr().out
    for result in results:
        steps = result.summary().overview.filter(pl.col("type") == "ProfileStep")
        assert steps["calls"].to_list() == [3]
        again = result.summary().operator.filter(pl.col("level") == 0)
        assert sorted(again.select("name", "calls").rows()) == sorted(
            operators.select("name", "calls").rows()
        )
