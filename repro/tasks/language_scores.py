"""BLEU and chrF by language, and the groups that Figure 3 of the paper sorts languages into by their training data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from repro.datasets.translation import Pair
from repro.errors import UserError
from repro.tasks.bleu import Score, corpus_bleu, corpus_chrf

Group = Literal["high", "middle", "low"]

GROUPS: tuple[Group, ...] = ("high", "middle", "low")
"""By falling training data: the first 25, the next 52 and the last 25 of the paper's 102 languages (section 5)."""

MINIMUM_SENTENCES = 100
"""Fewer test sentences give no score of their own: corpus BLEU of so few is mostly noise."""

_SHARES = (25, 52, 25)


@dataclass(frozen=True)
class LanguageScore:
    """What a translator reaches in one language, or in several with few sentences together.

    Attributes:
        name: the language; or its group and "pooled", for several.
        group: "high", "middle" or "low".
        languages: those that are judged together.
        sentences: how many.
        bleu: over these sentences as one corpus.
        chrf: likewise.
    """

    name: str
    group: Group
    languages: tuple[str, ...]
    sentences: int
    bleu: Score
    chrf: Score


def resource_groups(sizes: Mapping[str, int]) -> dict[str, Group]:
    """The group of every language, in the order of falling size (ties by code), in the paper's shares.

    Args:
        sizes: training pairs of each language.
    """
    ranked = sorted(sizes, key=lambda language: (-sizes[language], language))
    high, low = (round(len(ranked) * _SHARES[place] / sum(_SHARES)) for place in (0, 2))
    groups: dict[str, Group] = {}
    for rank, language in enumerate(ranked):
        groups[language] = "high" if rank < high else "low" if rank >= len(ranked) - low else "middle"
    return groups


def scores_by_language(
    pairs: Sequence[Pair],
    hypotheses: Sequence[str],
    groups: Mapping[str, Group],
    minimum: int = MINIMUM_SENTENCES,
) -> list[LanguageScore]:
    """Scores of ``hypotheses``, in the order of ``groups``: languages with enough sentences, then the others by group.

    Every sentence counts exactly once.

    Args:
        pairs: the test pairs.
        hypotheses: the translations, in the same order.
        groups: of every language, in the order wanted (that of ``resource_groups``).
        minimum: test sentences from which a language is judged on its own.

    Raises:
        UserError: a language has no group, or the numbers of pairs and hypotheses differ.
    """
    if len(pairs) != len(hypotheses):
        raise UserError(f"{len(hypotheses)} hypotheses for {len(pairs)} pairs: there must be one for each")
    places: dict[str, list[int]] = {language: [] for language in groups}
    for place, pair in enumerate(pairs):
        if pair.language not in places:
            raise UserError(f"language {pair.language!r} of a test pair has no group; groups has {', '.join(groups)}")
        places[pair.language].append(place)
    units: list[tuple[str, Group, tuple[str, ...]]] = [
        (language, groups[language], (language,)) for language in places if len(places[language]) >= minimum
    ]
    for group in GROUPS:
        few = tuple(name for name in places if groups[name] == group and 0 < len(places[name]) < minimum)
        if few:
            units.append((f"{group}, pooled", group, few))
    scores = []
    for name, group, languages in units:
        chosen = sorted(place for language in languages for place in places[language])
        answers, references = [hypotheses[place] for place in chosen], [pairs[place].english for place in chosen]
        bleu, chrf = corpus_bleu(answers, references), corpus_chrf(answers, references)
        scores.append(LanguageScore(name, group, languages, len(chosen), bleu, chrf))
    return scores
