"""Scores by language, and the groups of languages."""

from __future__ import annotations

import pytest

from repro.datasets.translation import Pair
from repro.errors import UserError
from repro.tasks.bleu import corpus_bleu, corpus_chrf
from repro.tasks.language_scores import resource_groups, scores_by_language

SIZES = {"aa": 900, "bb": 500, "cc": 400, "dd": 400, "ee": 90, "ff": 9}


@pytest.mark.parametrize(
    ("languages", "counts"), [(102, (25, 52, 25)), (12, (3, 6, 3)), (9, (2, 5, 2)), (3, (1, 1, 1)), (1, (0, 1, 0))]
)
def test_groups_have_the_shares_of_the_paper(languages: int, counts: tuple[int, int, int]) -> None:
    groups = list(resource_groups({f"l{rank:03}": 1000 - rank for rank in range(languages)}).values())
    assert groups == ["high"] * counts[0] + ["middle"] * counts[1] + ["low"] * counts[2]


def test_groups_go_by_size_then_by_code() -> None:
    assert list(resource_groups({"b": 3, "a": 3, "c": 7})) == ["c", "a", "b"]


def test_languages_with_enough_sentences_and_the_others_by_group() -> None:
    groups = resource_groups(SIZES)
    assert list(groups.values()) == ["high", "middle", "middle", "middle", "middle", "low"]
    numbers = {"aa": 4, "bb": 4, "cc": 3, "dd": 1, "ff": 2}  # of test sentences; ee has none
    pairs = [
        Pair(name, f"quelle {number}", f"this is the sentence {name} {number}", 0)
        for number in range(4)
        for name in numbers
        if number < numbers[name]
    ]
    hypotheses = [pair.english.replace("the", "a") if index % 3 else pair.english for index, pair in enumerate(pairs)]
    found = scores_by_language(pairs, hypotheses, groups, minimum=4)
    assert [(score.name, score.group, score.languages, score.sentences) for score in found] == [
        ("aa", "high", ("aa",), 4),
        ("bb", "middle", ("bb",), 4),
        ("middle, pooled", "middle", ("cc", "dd"), 4),
        ("low, pooled", "low", ("ff",), 2),
    ]
    for score in found:
        chosen = [
            (h, pair.english) for h, pair in zip(hypotheses, pairs, strict=True) if pair.language in score.languages
        ]
        answers, references = [h for h, _ in chosen], [r for _, r in chosen]
        assert score.bleu == corpus_bleu(answers, references)
        assert score.chrf == corpus_chrf(answers, references)


def test_wrong_arguments() -> None:
    pair = Pair("xx", "a", "b", 0)
    with pytest.raises(UserError, match="'xx' of a test pair has no group; groups has aa, bb"):
        scores_by_language([pair], ["b"], resource_groups(SIZES))
    with pytest.raises(UserError, match="2 hypotheses for 1 pairs"):
        scores_by_language([pair], ["b", "c"], {"xx": "high"})
