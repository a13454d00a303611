"""An exponential moving average of the weights, under a pipeline as without one.

Lightning's ``EMAWeightAveraging`` copies the module and saves the copy. Under a pipeline of processes a rank holds its
own layers only: there the copy would be saved in part, and could not be made at all, for the layers of other ranks are
meta tensors. Here each rank averages its own layers, and saving gathers them in the one place where state is gathered.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from typing_extensions import override

from .gathering import filling_own_part
from .strategy import GPipeStrategy


class ExponentialMovingAverage(EMAWeightAveraging):
    """Lightning's ``EMAWeightAveraging``, for any number of stages and under any other strategy.

    Evaluation uses the averaged weights. A checkpoint holds them as ``state_dict`` and those that are trained as
    ``current_model_state``, in the layout of Lightning's callback in one process: it depends on neither K, V nor D, and
    Lightning's own callback goes on from it, as this one does from a checkpoint of that one.

    Args:
        decay: of the average, per update; its memory is 1 / (1 - decay) updates, which a run must exceed by far.
        warm_up: use min(decay, (1 + n) / (10 + n)) after n updates, as ``tf.train.ExponentialMovingAverage`` does with
            ``num_updates``: the memory is then at most a ninth of the run so far, however short the run.
        use_buffers: average the buffers (running statistics of BatchNorm) too; False: they follow those of the module.
        update_every_n_steps: optimizer steps from one update to the next.
        update_starting_at_step: optimizer steps before the first update; None: from the first on.
        update_starting_at_epoch: from this epoch on, one update at the end of each epoch as well; None: never.
        device: where the averages are; None: beside the weights.
    """

    def __init__(
        self,
        decay: float = 0.999,
        warm_up: bool = False,
        use_buffers: bool = True,
        update_every_n_steps: int = 1,
        update_starting_at_step: int | None = None,
        update_starting_at_epoch: int | None = None,
        device: str | None = None,
    ) -> None:
        super().__init__(
            device=device,
            use_buffers=use_buffers,
            decay=decay,
            update_every_n_steps=update_every_n_steps,
            update_starting_at_step=update_starting_at_step,
            update_starting_at_epoch=update_starting_at_epoch,
        )
        if warm_up:
            self._kwargs["avg_fn"] = partial(warmed_up, decay=decay)

    @property
    @override
    def state_key(self) -> str:
        # That of Lightning's callback, which can so take over.
        return EMAWeightAveraging.__qualname__

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        # The average is begun later than in Lightning: once the layers are made, in their precision.
        self._average_model = None

    @override
    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if trainer.state.fn == TrainerFn.FITTING:
            self._begin(pl_module)
        with filling_own_part():
            super().on_load_checkpoint(trainer, pl_module, checkpoint)

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._average_model is None:
            self._begin(pl_module)
        assert self._average_model is not None
        averaged = self._average_model.module
        pairs = zip(_tensors(averaged), _tensors(pl_module), strict=True)
        for average, current in pairs:  # the strategy has moved the module meanwhile
            if not current.is_meta:
                average.data = average.data.to(self._device or current.device, current.dtype)

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        strategy = trainer.strategy
        if self._average_model is None or not isinstance(strategy, GPipeStrategy):
            super().on_save_checkpoint(trainer, pl_module, checkpoint)
            return
        prefix = "module."
        gathered = strategy.module_state_dict(self._average_model)
        checkpoint["current_model_state"] = checkpoint["state_dict"]
        checkpoint["state_dict"] = {
            name.removeprefix(prefix): value for name, value in gathered.items() if name.startswith(prefix)
        }
        checkpoint["averaging_state"] = {name: value for name, value in gathered.items() if not name.startswith(prefix)}

    def _begin(self, module: pl.LightningModule) -> None:
        self._average_model = AveragedModel(module, use_buffers=self._use_buffers, **self._kwargs)


def warmed_up(average: Tensor, current: Tensor, updates: Tensor, decay: float) -> Tensor:
    """The next average after so many updates, with decay min(decay, (1 + updates) / (10 + updates))."""
    kept = torch.clamp((1.0 + updates) / (10.0 + updates), max=decay)
    return current + kept * (average - current)


def _tensors(module: torch.nn.Module) -> itertools.chain[Tensor]:
    return itertools.chain(module.parameters(), module.buffers())
