# SPDX-License-Identifier: Apache-2.0
"""StrobeCallback in real Trainers of Transformers, on a model made from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from programs import run_python
from strobe.model import check

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="Transformers is not installed")


def callback(tmp_path: Path, **options: Any) -> Any:
    from strobe.integrations.transformers import StrobeCallback

    return StrobeCallback(**{"output": tmp_path / "out", **options})


def texts(count: int) -> list[dict[str, Any]]:
    import torch

    tokens = torch.randint(0, 64, (count, 8), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in tokens]


def trainer(transformers: Any, tmp_path: Path, callbacks: list[Any], **options: Any) -> Any:
    """A Trainer of a tiny GPT-2, with batches of 4."""
    given = {"save_strategy": "no", "logging_strategy": "no", "num_train_epochs": 1, **options}
    arguments = transformers.TrainingArguments(
        output_dir=tmp_path / "model",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **{key: value for key, value in given.items() if key != "train_dataset"},
    )
    size = transformers.GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    return transformers.Trainer(
        transformers.GPT2LMHeadModel(size),
        arguments,
        train_dataset=options.get("train_dataset", texts(20)),
        eval_dataset=texts(10),
        callbacks=callbacks,
    )


def counts(recording: strobe.Recording) -> dict[str, int]:
    spans = recording.spans().collect()
    assert check(spans) == []
    ours = spans.filter(pl.col("category") == "user")
    return dict(ours["name"].value_counts().rows())


def ended_steps(recording: strobe.Recording) -> pl.DataFrame:
    return recording.steps().filter(~pl.col("unfinished")).collect()


def test_updates_are_steps(transformers: Any, tmp_path: Path) -> None:
    ours = callback(tmp_path)

    trainer(transformers, tmp_path, [ours], num_train_epochs=2).train()

    assert ended_steps(ours.recording)["step"].to_list() == list(range(10))
    assert counts(ours.recording) == {
        "epoch": 2,
        "data loading": 10,
        "training step": 10,
        "optimizer": 10,
    }


def test_samples_are_counted(transformers: Any, tmp_path: Path) -> None:
    # 26 samples: 6 batches of 4 and one of 2, two batches to an update.
    ours = callback(tmp_path)

    trainer(
        transformers, tmp_path, [ours], train_dataset=texts(26), gradient_accumulation_steps=2
    ).train()

    assert ended_steps(ours.recording)["samples"].to_list() == [8, 8, 8, 2]


def test_samples_are_not_guessed(transformers: Any, tmp_path: Path) -> None:
    import torch

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, type-arg]
        def __iter__(self) -> Any:
            return iter(texts(10))

    ours = callback(tmp_path)

    trainer(transformers, tmp_path, [ours], train_dataset=Stream(), max_steps=3).train()

    assert ended_steps(ours.recording)["samples"].to_list() == [None, None, None]


def test_what_is_between_steps_belongs_to_none(transformers: Any, tmp_path: Path) -> None:
    ours = callback(tmp_path)

    trainer(
        transformers,
        tmp_path,
        [ours],
        logging_strategy="steps",
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="epoch",
    ).train()

    found = counts(ours.recording)
    assert (found["log"], found["evaluate"], found["save"]) == (
        5,
        3,
        1,
    )  # evaluates at the end, too
    assert (found["training step"], found["data loading"]) == (5, 5)
    by_step = ours.recording.operators_by("step")
    between = by_step.filter(pl.col("name").is_in(["log", "evaluate", "save"]))
    assert set(between["step"]) == {"-", "5"}  # after the last step comes one that does not end
    loading = by_step.filter(pl.col("name") == "data loading")
    assert sorted(loading["step"]) == ["0", "1", "2", "3", "4"]


def test_a_schedule_counts_updates(transformers: Any, tmp_path: Path) -> None:
    ours = callback(tmp_path, schedule=(1, 3))

    trainer(transformers, tmp_path, [ours]).train()

    assert ended_steps(ours.recording)["step"].to_list() == [1, 2]
    assert counts(ours.recording)["training step"] == 2


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_evaluation_alone_is_a_recording(transformers: Any, tmp_path: Path, call: str) -> None:
    ours = callback(tmp_path)
    ready = trainer(transformers, tmp_path, [ours])

    ready.evaluate() if call == "evaluate" else ready.predict(texts(10))

    # Three batches, of which the first is over when the Trainer calls for the first time.
    assert ended_steps(ours.recording)["step"].to_list() == [0, 1]
    assert counts(ours.recording) == {"prediction": 1}


def test_train_after_a_failed_train(transformers: Any, tmp_path: Path) -> None:
    ours = callback(tmp_path)
    broken = trainer(transformers, tmp_path, [ours], train_dataset=[{}] * 8)

    with pytest.raises(ValueError, match="batch"):
        broken.train()
    trainer(transformers, tmp_path, [ours]).train()

    recordings = sorted((tmp_path / "out").iterdir())
    assert len(recordings) == 2
    assert len(ended_steps(ours.recording)) == 5
    assert all(not strobe.open(path).spans().collect().is_empty() for path in recordings)


def test_a_trainer_runs_where_nothing_can_be_recorded(
    transformers: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    ready = trainer(transformers, tmp_path, [callback(tmp_path, output=tmp_path / "file" / "out")])

    ready.train()

    assert ready.state.global_step == 5
    assert "the trainer runs without a profile" in capfd.readouterr().err


FAILS = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from strobe.integrations.transformers import StrobeCallback

class Fail(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise RuntimeError("the training fails")

tokens = torch.zeros(40, 8, dtype=torch.long)
Trainer(
    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=8, n_layer=1, n_head=1)),
    TrainingArguments(output_dir="model", report_to=[], disable_tqdm=True, use_cpu=True),
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    callbacks=[StrobeCallback(output="out"), Fail()],
).train()
"""


def test_a_program_that_fails_leaves_a_complete_recording(
    transformers: Any, tmp_path: Path
) -> None:
    said = run_python(tmp_path, "-c", FAILS, exits=1)

    assert said.rstrip().endswith("RuntimeError: the training fails")
    recording = strobe.open(tmp_path / "out")
    assert ended_steps(recording)["step"].to_list() == [0, 1, 2]
