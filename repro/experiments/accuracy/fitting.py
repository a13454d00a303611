"""A training job whose result is its accuracy: with curves, checkpoints, and the same end after a kill."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from repro.errors import UserError
from repro.tasks.cli import ReproCLI

from ..sweeps.environment import code_revision
from ..sweeps.ranks import Tell
from ..sweeps.sweep import SweepPart, plain
from .training import Recorder, TrainingPlan, evaluate, quiet

CHECKPOINT = "last.ckpt"
# A checkpoint of these models takes a fraction of a second; a kill costs a tenth of the job at most.
_CHECKPOINTS = 10


@dataclass(frozen=True)
class FitPlan:
    """A training run that keeps its files.

    Attributes:
        name: of the part that runs it, unique in the target.
        training: the run.
        start: the part of the same target whose weights this one begins with (fine-tuning); it has to come before.
    """

    name: str
    training: TrainingPlan
    start: FitPlan | None = None

    def part(self, title: str, seconds: float) -> SweepPart:
        """The part of a sweep that runs this plan; runs of one process may share the machine."""
        processes = self.training.world_size
        return SweepPart(self.name, title, fit, (self,), processes, seconds, keeps_files=True, together=processes == 1)

    def folder(self, training: Path) -> Path:
        """Where it keeps its files; another plan, or other code, has another folder.

        Args:
            training: folder of all training jobs of the target.
        """
        key = json.dumps([plain(self), code_revision()], sort_keys=True)
        return training / self.name / hashlib.sha256(key.encode()).hexdigest()[:12]


def fit(rank: int, tell: Tell, plan: FitPlan, folder: str) -> dict[str, Any]:
    """Trains, goes on from the last checkpoint where there is one, then evaluates on the held-out part.

    Below ``folder`` are ``last.ckpt`` and ``logs`` with loss, metrics and learning rate (CSV and TensorBoard; one
    version for each start).

    Returns:
        What ``training.train`` returns, without ``events``; ``fit_seconds`` is the sum over the steps, ``log_folder``
        is where the task may have written more (translations).
    """
    quiet()
    tell(0.0, "loading")
    own = plan.folder(Path(folder).parent)
    recorder = Recorder(plan.training, tell)
    cli = ReproCLI([*plan.training.options(), *_start(plan, Path(folder).parent)], run=False)
    trainer = cli.trainer
    _keep_files(trainer, recorder, own)
    last = own / CHECKPOINT
    trainer.fit(cli.model, datamodule=cli.datamodule, ckpt_path=str(last) if last.exists() else None)
    trainer.save_checkpoint(last)  # the last step need not be one after which there was a checkpoint
    return evaluate(cli, recorder, tell) | {
        "fit_seconds": sum(recorder.seconds),
        "log_folder": os.fspath(trainer.log_dir or own),
    }


def _start(plan: FitPlan, training: Path) -> list[str]:
    if plan.start is None:
        return []
    checkpoint = plan.start.folder(training) / CHECKPOINT
    if not checkpoint.exists():
        raise UserError(
            f"{plan.name} begins with the weights of {plan.start.name}, but {checkpoint} is gone; "
            f"delete the folder {training.parent / 'cells'} and run the target again"
        )
    return [f"--model.init_from={checkpoint}"]


def _keep_files(trainer: pl.Trainer, recorder: Recorder, folder: Path) -> None:
    tensorboard = TensorBoardLogger(folder, name="logs")
    trainer.loggers = [tensorboard, CSVLogger(folder, name="logs", version=tensorboard.version)]
    checkpoint = ModelCheckpoint(
        dirpath=folder,
        filename=Path(CHECKPOINT).stem,
        every_n_train_steps=max(1, trainer.max_steps // _CHECKPOINTS),
        save_top_k=1,
        enable_version_counter=False,
    )
    # Those that save come last, so that what they save is whole.
    trainer.callbacks += [recorder, LearningRateMonitor("step"), checkpoint]  # type: ignore[attr-defined]
