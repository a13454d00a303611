from __future__ import annotations

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import RichProgressBar

from repro.tasks.progress_bar import ProgressBar, name_known_epochs


@pytest.mark.parametrize(("epochs", "described"), [(-1, "Epoch 3"), (10, "Epoch 3/9")])
def test_the_last_epoch_is_named_where_there_is_one(epochs: int, described: str) -> None:
    bar = RichProgressBar()
    trainer = pl.Trainer(
        accelerator="cpu", max_steps=5, max_epochs=epochs, callbacks=[bar], logger=False, enable_checkpointing=False
    )
    name_known_epochs(trainer)
    bar = trainer.progress_bar_callback
    assert isinstance(bar, ProgressBar)
    bar._trainer = trainer
    assert bar._get_train_description(3).strip() == described
