"""The data module: batches by tokens in training, resumed and dealt out; corpora of the user's own; what is logged."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from repro.datasets.paths import DataError
from repro.datasets.vocabulary import sampling_probabilities
from repro.errors import UserError
from repro.gpipe import GPipeStrategy
from repro.gpipe.reading import Progress, ReadingLoader, Resumption, deal_out, is_placeholder
from repro.tasks.translation import Translation
from repro.tasks.translation_data import TranslationDataModule
from tests.datasets.builders import english, foreign
from tests.tasks.conftest import VOCABULARY
from tests.tasks.test_translation import SMALL, data_of, trainer_of

TOKENS = 150  # of a batch: two to five pairs of the tiny corpus


def rows_of(batch: Any) -> list[tuple[int, ...]]:
    (source, _), _ = batch
    return [tuple(piece for piece in row.tolist() if piece) for row in source]


def all_rows(data: TranslationDataModule) -> list[tuple[int, ...]]:
    return sorted((*item.source, data.vocabulary.eos_id) for item in data.encoded("train").items)


def test_batches_by_tokens_hold_every_pair_once_in_every_part(packaged: Path) -> None:
    data = data_of(packaged, batch_tokens=TOKENS)
    batches = list(data.train_dataloader())
    assert sorted(row for batch in batches for row in rows_of(batch)) == all_rows(data)
    for loader, part in ((data.val_dataloader(), "val"), (data.test_dataloader(), "test")):
        evaluated = list(loader)
        assert len(loader) == len(evaluated)
        assert sum(len(target) for _, target in evaluated) == len(data.encoded(part))
        batches += evaluated
    assert all(source.numel() + target.numel() <= TOKENS for (source, target), _ in batches)
    assert len({len(target) for _, target in batches}) > 1
    assert sum(len(target) for _, target in data.predict_dataloader()) == len(data.encoded("test"))


def test_drawing_by_temperature_is_the_same_in_batches_by_tokens(packaged: Path) -> None:
    data = data_of(packaged, temperature=2.0, batch_tokens=TOKENS)
    # Ten German pairs and forty French ones: p ~ sqrt(size) draws one German pair to two French ones.
    german = data_of(packaged, languages=["de"]).pairs("train")[:10]
    data._pairs["train"] = [*german, *data_of(packaged, languages=["fr"]).pairs("train")[:40]]
    torch.manual_seed(0)
    language = {
        (*item.source, data.vocabulary.eos_id): data.pairs("train")[item.index].language
        for item in data.encoded("train").items
    }
    loader = data.train_dataloader()
    drawn = Counter(language[row] for _ in range(40) for batch in loader for row in rows_of(batch))
    assert drawn.total() == 40 * 50
    expected = sampling_probabilities({"de": 10, "fr": 40}, 2.0)
    assert expected["de"] == pytest.approx(1 / 3)
    assert drawn["de"] / drawn.total() == pytest.approx(expected["de"], abs=4 * (2 / 9 / 2000) ** 0.5)


def test_batches_by_tokens_go_on_in_the_middle_of_an_epoch(packaged: Path) -> None:
    def reading(resumption: Resumption) -> ReadingLoader:
        loader = data_of(packaged, batch_tokens=80, temperature=5.0).train_dataloader()
        progress = Progress(unprocessed=0, epoch_is_over=False)
        return ReadingLoader(loader, lambda another: None, lambda: progress, resumption=resumption)

    torch.manual_seed(3)
    loader = reading(Resumption())
    batches = []
    for batch in loader:
        batches.append(batch)
        torch.rand(len(batches))  # what a callback or a layer of the user draws
        if len(batches) == 20:  # in the second pool of 16 batches
            state = loader.state_dict()
    assert len(batches) > 25
    torch.manual_seed(99)
    resumption = Resumption([state])
    resumed = reading(resumption)
    resumption.add(resumed)
    rest = list(resumed)
    assert [rows_of(batch) for batch in rest] == [rows_of(batch) for batch in batches[20:]]


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_share_batches_by_tokens(packaged: Path, replicas: int) -> None:
    shares = []
    for replica in range(replicas):
        torch.manual_seed(5)  # the strategy gives every replica the random state of the first
        share: list[Any] = []
        for batch in deal_out(data_of(packaged, batch_tokens=TOKENS).train_dataloader(), replica, replicas):
            share.append(batch)
            torch.rand(1 + replica)  # and leaves them apart from then on
        shares.append(share)
    assert len({len(share) for share in shares}) == 1
    given = [batch for share in shares for batch in share if not is_placeholder(batch)]
    assert sorted(row for batch in given for row in rows_of(batch)) == all_rows(data_of(packaged))


class _Losses(Translation):
    """Keeps every loss of training, and the rows of its batch."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen = [*getattr(self, "seen", []), (len(batch[1]), float(outputs["loss"]))]


def test_a_pipeline_trains_on_batches_by_tokens_as_one_process_does(packaged: Path, tmp_path: Path) -> None:
    seen: list[list[tuple[int, float]]] = []
    state: dict[str, Tensor] = {}
    for strategy in ("auto", GPipeStrategy(num_stages=2, num_micro_batches=4)):
        torch.manual_seed(0)
        module = _Losses(**{**SMALL, "dropout": 0.0})
        if state:
            module.load_state_dict(state)
        trainer = trainer_of(tmp_path, strategy=strategy, max_steps=12, precision="64-true", limit_val_batches=0)
        if strategy == "auto":
            module.configure_model()
            state = {name: value.clone() for name, value in module.state_dict().items()}
        torch.manual_seed(1)
        trainer.fit(module, data_of(packaged, batch_tokens=90))
        seen.append(module.seen)
    rows = {number for number, _ in seen[0]}
    assert min(rows) < 4 and len(rows) > 1  # fewer rows than micro-batches too
    assert [number for number, _ in seen[0]] == [number for number, _ in seen[1]]
    assert [loss for _, loss in seen[0]] == pytest.approx([loss for _, loss in seen[1]], rel=1e-9)


def own_corpus(folder: Path) -> None:
    for split, numbers in (("train", range(60)), ("dev", range(60, 66)), ("test", range(66, 72))):
        for language in ("de", "fr"):
            stem = folder / f"{split}.{language}-en"
            sources = [foreign(number, language) for number in numbers]
            targets = [english(number) for number in numbers]
            if split == "train" and language == "fr":
                targets[2] = ""
            stem.with_name(f"{stem.name}.{language}").write_text("\n".join(sources) + "\n")
            stem.with_name(f"{stem.name}.en").write_text("\n".join(targets) + "\n")


def own(folder: Path, root: Path, **options: Any) -> TranslationDataModule:
    given = {"corpus": "moses", "folder": str(folder), "languages": None, "max_source": None, "max_target": None}
    return TranslationDataModule(root=str(root), vocab_size=VOCABULARY, **{**given, **options})


def test_a_corpus_of_ones_own(tmp_path: Path) -> None:
    folder, root = tmp_path / "mine", tmp_path / "sets"
    folder.mkdir()
    own_corpus(folder)
    data = own(folder, root)
    data.check()
    with pytest.warns(UserWarning, match=r"train: 119 pairs from .*; 1 pairs skipped: 1 with an empty side .*line 3\)"):
        assert len(data.encoded("train")) == 119
    batch = next(iter(data.train_dataloader()))
    assert data.vocabulary.decode(batch[1][0]).startswith("alpha")
    (cached,) = (root / "vocab").glob("*.model")
    stamp = cached.stat().st_mtime_ns
    with pytest.warns(UserWarning, match="1 pairs skipped"):
        again = own(folder, root).vocabulary
    assert again.model == data.vocabulary.model
    assert cached.stat().st_mtime_ns == stamp
    # The same vocabulary for the same sentences in other files; another for other sentences.
    (folder / "train.de-en.en").write_text("changed\n" * 60)
    with pytest.warns(UserWarning, match="1 pairs skipped"):
        assert own(folder, root).vocabulary.model != again.model
    assert len(list((root / "vocab").glob("*.model"))) == 2


def test_what_limits_leave_out_is_logged(packaged: Path, caplog: pytest.LogCaptureFixture) -> None:
    longest = max(len(item.source) for item in data_of(packaged).encoded("train").items)
    data = data_of(packaged, max_source=longest - 1, short_test=True)
    with caplog.at_level(logging.INFO):
        kept = len(data.encoded("train"))
        tests = len(data.pairs("test"))
    assert kept < len(data.pairs("train"))
    assert f"train: {kept} pairs kept, {len(data.pairs('train')) - kept} dropped" in caplog.text
    every = len(data_of(packaged).pairs("test"))
    assert tests == every or f"test: {tests} pairs kept, {every - tests} dropped" in caplog.text


def test_long_test_pairs_go_alone_and_long_training_pairs_are_refused(
    packaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = data_of(packaged, batch_tokens=20)
    with caplog.at_level(logging.INFO):
        batches = list(data.test_dataloader())
    longer = [target for (source, target), _ in batches if source.numel() + target.numel() > 20]
    assert longer and all(len(target) == 1 for target in longer)
    assert f"test: {len(longer)} pairs of more than batch_tokens=20 tokens go alone" in caplog.text
    assert sum(len(target) for _, target in batches) == len(data.encoded("test"))
    with pytest.raises(DataError, match=r"batch_tokens=20 is too few for a pair of"):
        list(data.train_dataloader())


def test_a_language_without_a_held_out_part_is_named(tmp_path: Path) -> None:
    own_corpus(tmp_path)
    for path in tmp_path.glob("dev.fr*"):
        path.unlink()
    data = own(tmp_path, tmp_path)
    data.check()
    with pytest.warns(UserWarning, match=r"val: 6 pairs from .*; no pair skipped; no such part for fr"):
        assert {pair.language for pair in data.pairs("val")} == {"de"}


def test_files_are_missed_before_work_starts(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such folder"):
        own(tmp_path / "nowhere", tmp_path).check()
    own_corpus(tmp_path)
    with pytest.raises(DataError, match=r"no training files for es in .*languages there are de, fr"):
        own(tmp_path, tmp_path, languages=["de", "es"]).check()
    for path in list(tmp_path.glob("dev.*")):
        path.unlink()
    with pytest.raises(DataError, match=r"has no 'dev' split"):
        own(tmp_path, tmp_path).check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_tokens": 49, "max_source": 26, "max_target": 22}, "batch_tokens=49 .* must be at least 50"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"limit_train": -1}, "limit_train=-1 must be at least 1: change --data.limit_train"),
        ({"limit_val": 0}, "limit_val=0 must be at least 1: change --data.limit_val"),
        ({"limit_test": 0}, "limit_test=0 must be at least 1: change --data.limit_test"),
        (
            {"limit_test_per_language": -2},
            "limit_test_per_language=-2 must be at least 1: change --data.limit_test_per_language",
        ),
        ({"num_workers": -1}, "num_workers=-1 must be at least 0: change --data.num_workers"),
        ({"folder": "x"}, "corpus is 'packaged'; give corpus=moses, tsv or opus100"),
        ({"target": "fr"}, "corpus is 'packaged'"),
        ({"corpus": "tsv"}, "corpus='tsv' needs folder"),
        ({"languages": ["de", "fr", "de"]}, "languages has de more than once"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TranslationDataModule(**options)
