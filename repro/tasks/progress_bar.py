"""Lightning's progress bar, which says "Epoch 0/-2" where steps end a run and not epochs."""

from __future__ import annotations

import lightning.pytorch as pl
from lightning.pytorch.callbacks import RichProgressBar
from typing_extensions import override


class ProgressBar(RichProgressBar):
    """Names the last epoch only where there is one."""

    @override
    def _get_train_description(self, current_epoch: int) -> str:
        described = super()._get_train_description(current_epoch)
        return described.replace("/-2", "") if self.trainer.max_epochs == -1 else described


def name_known_epochs(trainer: pl.Trainer) -> None:
    """Puts ``ProgressBar`` in the place of Lightning's own default."""
    for place, callback in enumerate(trainer.callbacks):  # type: ignore[attr-defined]
        if type(callback) is RichProgressBar:
            trainer.callbacks[place] = ProgressBar()  # type: ignore[attr-defined]
