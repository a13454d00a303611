"""Learning-rate schedulers that follow a metric, where a checkpoint falls between the metric and their step.

Lightning steps them after the hooks in which checkpoints are saved, and leaves the step out when it resumes there,
since it keeps no metrics.
"""

from __future__ import annotations

from collections.abc import Mapping

import lightning.pytorch as pl
from lightning.pytorch.loops.progress import _ProcessedTracker
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.states import TrainerFn


def due_steps(trainer: pl.Trainer) -> dict[int, float]:
    """For each scheduler (by number) that is about to step at the end of this epoch, the value of its metric."""
    loop = trainer.fit_loop
    progress = loop.epoch_progress.current
    assert isinstance(progress, _ProcessedTracker)
    hooks_of_epoch_end = progress.processed > progress.completed
    last_validation = trainer.validating and loop.epoch_loop._num_ready_batches_reached()
    if trainer.state.fn != TrainerFn.FITTING or not (hooks_of_epoch_end or last_validation):
        return {}
    return {
        number: float(trainer.callback_metrics[config.monitor])
        for number, config in enumerate(trainer.lr_scheduler_configs)
        if config.reduce_on_plateau
        and config.interval == "epoch"
        and (trainer.current_epoch + 1) % config.frequency == 0
        and config.monitor in trainer.callback_metrics
    }


def make_up_for(steps: Mapping[int, float], trainer: pl.Trainer) -> None:
    """Does the steps that were due when the checkpoint was saved."""
    progress = trainer.fit_loop.epoch_loop.scheduler_progress
    for number, value in steps.items():
        progress.increment_ready()
        scheduler = trainer.lr_scheduler_configs[number].scheduler
        call._call_lightning_module_hook(trainer, "lr_scheduler_step", scheduler, value)
        progress.increment_completed()
