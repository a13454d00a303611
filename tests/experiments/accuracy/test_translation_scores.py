"""Scores by language: counts add up to the BLEU of all sentences; baselines and training on a tiny corpus."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from repro.experiments.accuracy import fitting
from repro.experiments.accuracy.fitting import FitPlan
from repro.experiments.accuracy.translation_runs import ModelSize, overlay, training_plan
from repro.experiments.accuracy.translation_scores import fit_and_score, pooled_bleu, score, score_baselines
from repro.tasks.bleu import corpus_bleu
from repro.tasks.translation_data import TranslationDataModule
from repro.tasks.translation_files import TABLE
from tests.datasets.builders import write_corpus

WORDS = [
    ("the lamp is on now", "the lamp is on"),
    ("turn the heating off", "turn off the heating"),
    ("no device was found here", "no device was found"),
    ("a b c d e", "f g h i j"),
    ("open the window", "open the window in the kitchen please"),
]


def test_pooled_bleu_is_that_of_all_sentences() -> None:
    for cut in range(1, len(WORDS)):
        pooled = pooled_bleu([score(WORDS[:cut]), score(WORDS[cut:])])
        assert pooled == pytest.approx(corpus_bleu([a for a, _ in WORDS], [b for _, b in WORDS]).score)
    for pairs in (WORDS[:1], WORDS[3:4], WORDS):
        expected = corpus_bleu([a for a, _ in pairs], [b for _, b in pairs]).score
        assert pooled_bleu([score(pairs)]) == pytest.approx(expected)


def test_score() -> None:
    same = score([("the lamp is on now", "the lamp is on now")])
    assert same["sentences"] == 1 and same["right"] == same["totals"] == [5, 4, 3, 2]
    assert same["chrf"] == pytest.approx(100) and pooled_bleu([same]) == pytest.approx(100)
    other = score(WORDS[3:4])
    assert other["right"] == [0, 0, 0, 0] and other["chrf"] == 0


def test_bleu_of_nothing() -> None:
    with pytest.raises(ValueError, match="no sentences"):
        pooled_bleu([])


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packaged")
    write_corpus(root, ["de", "fr", "it"])
    return root


def test_a_run_and_its_baselines(packaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The code may be edited while its tests run.
    monkeypatch.setattr(fitting, "code_revision", lambda: "0123456789ab")
    overrides = (
        f"--data.root={packaged}",
        "--data.languages=[de,fr]",
        "--data.vocabulary_languages=[de,fr]",
        "--data.limit_test_per_language=3",
        "--data.vocab_size=320",
        "--model.vocab_size=320",
        "--data.batch_size=8",
        "--data.max_source=60",
        "--data.max_target=60",
        "--data.limit_train=null",
    )
    size = ModelSize(1, 16, 1)
    training = training_plan(overlay("smoke"), size, steps=2, seed=0, device="cpu", overrides=overrides)
    told: list[str] = []
    plan = FitPlan("tiny", training)
    found = fit_and_score(0, lambda share, words: told.append(words), plan, str(tmp_path / "tiny"))
    assert {name: scores["sentences"] for name, scores in found["languages"].items()} == {"de": 3, "fr": 3}
    assert found["schedule"] == "gpipe" and found["remat"] == "never" and len(found["losses"]) == 2
    assert found["held_out"]["bleu"] == pytest.approx(pooled_bleu(found["languages"].values()))
    assert not {"log_folder", "gradient_norms"} & found.keys()  # the one is of this machine, the other of no use
    (table,) = tmp_path.rglob(TABLE)
    with table.open(encoding="utf-8", newline="") as file:
        assert len(list(csv.reader(file, delimiter="\t"))) == 1 + 6

    others = score_baselines(0, lambda share, words: None, training)
    assert {name: known["copy"]["sentences"] for name, known in others["languages"].items()} == {"de": 3, "fr": 3}
    for kind in ("copy", "nearest"):
        pooled = pooled_bleu(known[kind] for known in others["languages"].values())
        assert pooled == pytest.approx(found["held_out"][f"bleu_{kind}"])
    assert all(known["pairs_used"] <= known["training_pairs"] for known in others["languages"].values())
    assert {known["rank_in_corpus"] for known in others["languages"].values()} <= {1, 2, 3}
    assert all(known["tokens_of_a_pair"] > 4 for known in others["languages"].values())
    assert others["signature"].startswith("nrefs:1")


def test_the_rank_that_does_not_write_scores_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro.experiments.accuracy.translation_scores.fit", lambda *arguments: {"losses": [1.0]})
    training = training_plan(overlay("smoke"), ModelSize(1, 16, 1), steps=2, seed=0, device="cpu")
    assert fit_and_score(1, lambda share, words: None, FitPlan("tiny", training), "none") == {"losses": [1.0]}


def test_test_sentences_of_a_bilingual_model_are_those_of_the_multilingual_one(packaged: Path) -> None:
    def data(
        languages: list[str], max_target: int = 30, limit: int | None = None, short: bool = False
    ) -> TranslationDataModule:
        return TranslationDataModule(
            str(packaged),
            languages,
            320,
            max_source=30,
            max_target=max_target,
            vocabulary_languages=["de", "fr", "it"],
            limit_test_per_language=limit,
            short_test=short,
        )

    several = data(["de", "fr", "it"], limit=3)
    alone = data(["fr"], limit=3)
    assert alone.vocabulary.model == several.vocabulary.model
    chosen = [pair for pair in several.pairs("test") if pair.language == "fr"]
    assert alone.pairs("test") == chosen and len(chosen) == 3
    lengths = [len(item.target) for item in data(["fr"]).encoded("test").items]
    some = max(lengths) - 1
    short = data(["fr"], some, short=True).encoded("test").items
    assert 0 < len(short) < len(lengths)
    assert [len(item.target) for item in short] == [length for length in lengths if length <= some]
