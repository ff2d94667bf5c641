# SPDX-License-Identifier: Apache-2.0
"""StrobeProfiler in real Trainers of Lightning, under both names of the package."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import strobe
from programs import run_python
from strobe.model import check

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

BATCHES = 5  # of training data
Make = Callable[..., Any]


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def package(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param, reason="Lightning is not installed")
    return importlib.import_module(request.param)


@pytest.fixture
def lightning() -> Any:
    return pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")


@pytest.fixture
def profiler(tmp_path: Path) -> Make:
    """Make a StrobeProfiler that records into tmp_path/out."""

    def make(**options: Any) -> Any:
        from strobe.integrations.lightning import StrobeProfiler

        return StrobeProfiler(**{"output": tmp_path / "out", **options})

    return make


def trainer(package: Any, tmp_path: Path, profiler: Any, **options: Any) -> Any:
    return package.Trainer(
        profiler=profiler,
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"enable_checkpointing": False, "max_epochs": 1, **options},
    )


def network(package: Any, fail_at: int | None = None) -> Any:
    import torch

    class Network(package.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch: Any, index: int) -> Any:
            if index == fail_at:
                raise ValueError("the training fails")
            return self.layer(batch[0]).sum()

        def validation_step(self, batch: Any, index: int) -> None:
            self.layer(batch[0])

        test_step = validation_step

        def predict_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    return Network()


def data(batches: int = BATCHES) -> Any:
    from torch import randn
    from torch.utils.data import DataLoader, TensorDataset

    return DataLoader(TensorDataset(randn(4 * batches, 4)), batch_size=4)


def calls(recording: strobe.Recording, action: str) -> int:
    """How many spans there are of an action, whichever class it is of."""
    spans = recording.spans().collect()
    assert check(spans) == []
    return spans.filter(pl.col("name").str.ends_with(action)).height


def ended_steps(recording: strobe.Recording) -> list[int]:
    return recording.steps().filter(~pl.col("unfinished")).collect()["step"].to_list()


def test_training_batches_are_steps(package: Any, profiler: Make, tmp_path: Path) -> None:
    ours = profiler()

    trainer(package, tmp_path, ours, max_epochs=2).fit(network(package), data(), data(3))

    assert ended_steps(ours.recording) == list(range(2 * BATCHES))
    assert calls(ours.recording, ".training_step") == 2 * BATCHES
    assert calls(ours.recording, ".train_dataloader_next") == 2 * BATCHES
    assert calls(ours.recording, ".validation_step") == 2 + 2 * 3  # 2 as a sanity check
    assert calls(ours.recording, "run_training_epoch") == 2


def test_validation_belongs_to_no_step(lightning: Any, profiler: Make, tmp_path: Path) -> None:
    ours = profiler()

    trained = trainer(lightning, tmp_path, ours, val_check_interval=2)
    trained.fit(network(lightning), data(), data(3))

    by_step = ours.recording.operators_by("step").filter(
        pl.col("name").str.ends_with("validation_step")
    )
    assert calls(ours.recording, ".validation_step") == 2 + 2 * 3
    assert by_step["step"].to_list() == ["-"]


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_each_stage_is_a_recording(
    lightning: Any, profiler: Make, tmp_path: Path, stage: str
) -> None:
    ours = profiler()
    model = network(lightning)
    trained = trainer(lightning, tmp_path, ours)
    trained.fit(model, data())
    fitted = ours.recording

    getattr(trained, stage)(model, data(3))

    assert ours.recording.path != fitted.path
    assert ended_steps(ours.recording) == [0, 1, 2]
    assert ("lightning_stage", stage) in ours.recording.metadata().collect().rows()


def test_a_schedule_counts_training_batches(lightning: Any, profiler: Make, tmp_path: Path) -> None:
    ours = profiler(schedule=strobe.schedule(wait=1, warmup=1, active=2, repeat=1))

    trainer(lightning, tmp_path, ours).fit(network(lightning), data(), data(3))

    assert ended_steps(ours.recording) == [2, 3]
    assert calls(ours.recording, ".training_step") == 2


def test_a_failed_training_leaves_a_complete_recording(
    lightning: Any, profiler: Make, tmp_path: Path
) -> None:
    ours = profiler()

    with pytest.raises(ValueError, match="the training fails"):
        trainer(lightning, tmp_path, ours).fit(network(lightning, fail_at=3), data())

    assert ended_steps(ours.recording) == [0, 1, 2]
    assert calls(ours.recording, ".training_step") == 4
    assert ours.recording.completeness()["unfinished"].to_list()[0] == 0


def test_failed_data_leave_a_complete_recording(
    lightning: Any, profiler: Make, tmp_path: Path
) -> None:
    from torch import randn
    from torch.utils.data import DataLoader, TensorDataset, default_collate

    def collate(samples: Any) -> Any:
        if len(samples) < 4:
            raise OSError("the data fail")
        return default_collate(samples)

    ours = profiler()
    data = DataLoader(TensorDataset(randn(10, 4)), batch_size=4, collate_fn=collate)

    with pytest.raises(OSError, match="the data fail"):
        trainer(lightning, tmp_path, ours).validate(network(lightning), data)

    assert ended_steps(ours.recording) == [0, 1]


def test_a_trainer_can_run_while_an_exception_is_handled(
    lightning: Any, profiler: Make, tmp_path: Path
) -> None:
    ours = profiler()

    try:
        raise RuntimeError("try again")
    except RuntimeError:
        trainer(lightning, tmp_path, ours).fit(network(lightning), data())

    assert len(ended_steps(ours.recording)) == BATCHES


def test_a_trainer_runs_where_nothing_can_be_recorded(
    lightning: Any, profiler: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    trained = trainer(lightning, tmp_path, profiler(output=tmp_path / "file" / "out"))

    trained.fit(network(lightning), data())

    assert trained.global_step == BATCHES
    assert "the trainer runs without a profile" in capfd.readouterr().err


def test_a_schedule_that_is_wrong_ends_the_recording_only(
    lightning: Any, profiler: Make, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trained = trainer(
        lightning,
        tmp_path,
        profiler(schedule=lambda step: strobe.State.RECORD if step < 2 else "soon"),
    )

    trained.fit(network(lightning), data())

    assert trained.global_step == BATCHES
    assert capfd.readouterr().err.count("the recording ends here") == 1


def test_a_profiler_stopped_by_hand_stays_stopped(
    lightning: Any, profiler: Make, tmp_path: Path
) -> None:
    ours = profiler()

    class Stop(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, _trainer: Any, *batch: Any) -> None:
            if batch[-1] == 1:
                ours.profiler.stop()

    trained = trainer(lightning, tmp_path, ours, callbacks=[Stop()])
    trained.fit(network(lightning), data())

    assert trained.global_step == BATCHES
    assert ended_steps(ours.recording) == [0]


def test_two_trainers_have_their_own_recordings(
    lightning: Any, profiler: Make, tmp_path: Path
) -> None:
    first, second = profiler(), profiler()

    for ours, batches in ((first, 2), (second, 3)):
        trainer(lightning, tmp_path, ours).fit(network(lightning), data(batches))

    assert [len(ended_steps(ours.recording)) for ours in (first, second)] == [2, 3]


def test_a_filename_asks_for_the_summary(lightning: Any, profiler: Make, tmp_path: Path) -> None:
    ours = profiler(dirpath=tmp_path, filename="profile")

    trainer(lightning, tmp_path, ours).fit(network(lightning), data())

    written = (tmp_path / "fit-profile.txt").read_text()
    assert written == ours.summary()
    assert "run_training_batch" in written


def test_names_have_no_settings_in_them(lightning: Any, profiler: Make, tmp_path: Path) -> None:
    ours = profiler()

    trainer(lightning, tmp_path, ours, enable_checkpointing=True).fit(network(lightning), data())

    assert calls(ours.recording, "[Callback]ModelCheckpoint.on_train_batch_end") == BATCHES


RANKS = """
import sys, torch
import lightning.pytorch as lightning
import strobe
from strobe.integrations.lightning import StrobeProfiler
from torch.utils.data import DataLoader, TensorDataset

class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

if __name__ == "__main__":
    schedule = strobe.schedule(wait=0, warmup=1, active=2, repeat=1)
    trainer = lightning.Trainer(
        profiler=StrobeProfiler(output="out", schedule=schedule),
        accelerator="cpu", devices=2, strategy=sys.argv[1], max_epochs=1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )
    trainer.fit(Network(), DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4))
"""


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_ranks_of_one_job_share_a_folder(lightning: Any, tmp_path: Path, strategy: str) -> None:
    (tmp_path / "train.py").write_text(RANKS)

    run_python(tmp_path, "train.py", strategy)

    (job,) = (tmp_path / "out").iterdir()
    recordings = sorted(job.iterdir())
    assert [path.name[:9] for path in recordings] == ["rank00000", "rank00001"]
    for path in recordings:
        assert ended_steps(strobe.open(path)) == [1, 2]
