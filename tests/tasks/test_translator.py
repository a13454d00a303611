from __future__ import annotations

from pathlib import Path

import pytest
import torch

from repro.errors import UserError
from repro.gpipe import GPipeStrategy
from repro.tasks.translation import TEXT, Translation
from repro.tasks.translator import load_translator
from tests.tasks.test_translation import SMALL, data_of, trainer_of


def test_a_checkpoint_holds_its_vocabulary_and_refuses_another(packaged: Path, tmp_path: Path) -> None:
    data = data_of(packaged)
    trainer = trainer_of(tmp_path, strategy=GPipeStrategy(num_stages=2, num_micro_batches=8), max_steps=1)
    trainer.fit(Translation(bleu=False, **SMALL), data)
    path = tmp_path / "last.ckpt"
    trainer.save_checkpoint(path, weights_only=True)
    assert load_translator(path, torch.device("cpu")).vocabulary.model == data.vocabulary.model
    # Plain Lightning, with the same data and with less of it.
    trainer_of(tmp_path).test(Translation(bleu=False, **SMALL), data_of(packaged), ckpt_path=path, verbose=False)
    few = data_of(packaged, languages=["de"])
    assert few.vocabulary.model != data.vocabulary.model
    with pytest.raises(UserError, match=r"trained with another vocabulary .* vocabulary_languages"):
        trainer_of(tmp_path).test(Translation(bleu=False, **SMALL), few, ckpt_path=path, verbose=False)
    same = data_of(packaged, languages=["de"], vocabulary_languages=["de", "fr"])
    trainer_of(tmp_path).test(Translation(bleu=False, **SMALL), same, ckpt_path=path, verbose=False)
    checkpoint = torch.load(path, weights_only=True)
    assert checkpoint[TEXT]["max_source"] is None
