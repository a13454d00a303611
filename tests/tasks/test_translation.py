from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch.nn import functional as F

from repro.datasets.paths import DataError
from repro.errors import UserError
from repro.gpipe import GPipeStrategy
from repro.tasks.bleu import baselines, corpus_bleu, corpus_chrf, unigram_nll
from repro.tasks.translation import Translation, TranslationDataModule
from repro.tasks.translation_files import read_translations
from tests.tasks.conftest import VOCABULARY

SMALL: dict[str, Any] = {
    "num_layers": 1,
    "d_ff": 16,
    "num_heads": 2,
    "d_model": 8,
    "d_head": 4,
    "vocab_size": VOCABULARY,
    "optimizer": "adamw",
    "schedule": "constant",
}


def data_of(packaged: Path, **options: Any) -> TranslationDataModule:
    given: dict[str, Any] = {
        "languages": ["de", "fr"],
        "vocab_size": VOCABULARY,
        "batch_size": 8,
        "max_source": None,
    } | options
    return TranslationDataModule(root=str(packaged), **{"max_target": None, **given})


def trainer_of(tmp_path: Path, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        default_root_dir=str(tmp_path),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **options,
    )


def test_loss_and_metrics_leave_padding_out() -> None:
    module = Translation(label_smoothing=0.1, **SMALL)
    logits = torch.randn(2, 3, VOCABULARY)
    targets = torch.tensor([[5, 6, 3], [7, 3, 0]])
    kept = targets.flatten() != 0
    flat, answers = logits.flatten(0, 1)[kept], targets.flatten()[kept]
    total, count = module.loss(logits, targets)
    torch.testing.assert_close(total, 5 * F.cross_entropy(flat, answers, label_smoothing=0.1))
    assert int(count) == 5
    assert module.train().metrics(logits, targets).keys() == {"accuracy"}
    found = module.eval().metrics(logits, targets)
    torch.testing.assert_close(found["nll"][0], 5 * F.cross_entropy(flat, answers))
    assert int(found["accuracy"][0]) == int((flat.argmax(1) == answers).sum())
    assert {int(number) for _, number in found.values()} == {5}
    # A padded position is no right token, even where padding is the most probable one.
    logits[..., 0] = 100
    assert int(module.metrics(logits, targets)["accuracy"][0]) == 0


def test_stages_are_limited_for_the_longest_rows(packaged: Path, tmp_path: Path) -> None:
    module = Translation(**SMALL)
    assert module.example_batch()[1].shape == (2, 16)
    strategy = GPipeStrategy(num_stages=2, num_micro_batches=2, stage_memory=0.5)
    trainer_of(tmp_path, strategy=strategy, max_steps=1).fit(module, data_of(packaged, max_source=60, max_target=50))
    (source, target), answers = module.example_batch()
    assert (source.shape, target.shape, answers.shape) == ((2, 61), (2, 51), (2, 51))


def test_batches_hold_inputs_and_targets(packaged: Path) -> None:
    data = data_of(packaged)
    # One batch, which may come first, has fewer pairs.
    (source, target_in), target_out = max(data.train_dataloader(), key=lambda batch: len(batch[1]))
    vocabulary = data.vocabulary
    assert len(source) == len(target_in) == len(target_out) == 8
    assert (target_in[:, 0] == vocabulary.bos_id).all()
    for row, answer in zip(target_in, target_out, strict=True):
        length = int((answer != vocabulary.pad_id).sum())
        assert answer[length - 1] == vocabulary.eos_id
        assert row[1:length].tolist() == answer[: length - 1].tolist()
    inputs, targets = Translation(**SMALL).split_batch(((source, target_in), target_out))
    assert inputs == (source, target_in)
    assert targets is target_out


def test_an_epoch_has_every_pair_once_and_parts_share_no_english(packaged: Path) -> None:
    data = data_of(packaged)
    seen = sorted(
        tuple(piece for piece in row.tolist() if piece) for (source, _), _ in data.train_dataloader() for row in source
    )
    assert seen == sorted((*item.source, data.vocabulary.eos_id) for item in data.encoded("train").items)
    english = {part: {pair.english for pair in data.pairs(part)} for part in ("train", "val", "test")}
    assert english["train"] and english["val"] and english["test"]
    assert not english["train"] & (english["val"] | english["test"])


def test_limits(packaged: Path) -> None:
    data = data_of(packaged, limit_train=10, limit_val=4, limit_test=6, max_target=1000)
    assert [len(data.encoded(part)) for part in ("train", "val", "test")] == [10, 4, 6]
    assert {pair.language for pair in data.pairs("test")} == {"de", "fr"}
    with pytest.raises(DataError, match="max_source=1"):
        data_of(packaged, max_source=1).encoded("train")
    assert len(data_of(packaged, max_source=1).encoded("test")) > 0  # the held-out part is not cut to what is easy


def test_drawing_by_temperature(packaged: Path) -> None:
    torch.manual_seed(0)
    loader = data_of(packaged, temperature=5.0).train_dataloader()
    batches = list(loader)
    assert len(batches) == len(loader)
    assert sum(len(targets) for _, targets in batches) == len(data_of(packaged).encoded("train"))


def test_vocabularies_of_model_and_data_must_agree(packaged: Path, tmp_path: Path) -> None:
    module = Translation(**{**SMALL, "vocab_size": VOCABULARY + 1})
    with pytest.raises(UserError, match=f"vocab_size={VOCABULARY + 1} .* vocab_size={VOCABULARY}"):
        trainer_of(tmp_path, max_steps=1).fit(module, data_of(packaged))


@pytest.mark.parametrize("strategy", ["auto", "gpipe"])
def test_validation_logs_perplexity_and_test_logs_bleu(packaged: Path, tmp_path: Path, strategy: str) -> None:
    torch.manual_seed(0)
    module, data = Translation(**SMALL), data_of(packaged)
    chosen: Any = GPipeStrategy(num_stages=2, num_micro_batches=2) if strategy == "gpipe" else strategy
    trainer = trainer_of(tmp_path, strategy=chosen, max_steps=2, val_check_interval=2)
    trainer.fit(module, data)
    logged = trainer.callback_metrics
    assert float(logged["val_perplexity"]) == pytest.approx(math.exp(float(logged["val_nll"])), rel=1e-5)
    trainer.test(module, data, verbose=False)
    logged = trainer.callback_metrics
    items = data.encoded("test").items
    judged = [data.pairs("test")[item.index] for item in items]
    expected = baselines(data.pairs("train"), judged)
    assert float(logged["test_bleu_copy"]) == pytest.approx(expected.copy.score, abs=1e-4)
    assert float(logged["test_bleu_nearest"]) == pytest.approx(expected.nearest.score, abs=1e-4)
    unigram = unigram_nll(data.encoded("train").items, items, eos_id=3, vocab_size=VOCABULARY)
    assert float(logged["test_unigram_nll"]) == pytest.approx(unigram, abs=1e-4)
    written, hypotheses = read_translations(tmp_path)
    assert [(pair.language, pair.source) for pair in written] == [(pair.language, pair.source) for pair in judged]
    references = [pair.english for pair in judged]
    assert float(logged["test_bleu"]) == pytest.approx(corpus_bleu(hypotheses, references).score, abs=1e-4)
    assert float(logged["test_chrf"]) == pytest.approx(corpus_chrf(hypotheses, references).score, abs=1e-4)
    assert 0 < float(logged["test_chrf"]) <= 100


def test_missing_data_is_told_before_work_starts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"python -m repro.datasets fetch.*make data"):
        TranslationDataModule(root=str(tmp_path)).check()
