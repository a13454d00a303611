"""Parts of the translation targets: a training run with scores of each language, and what a translator has to beat."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import sacrebleu

from repro.datasets.baselines import copy_source, nearest_neighbour
from repro.datasets.translation import language_sizes
from repro.tasks.cli import ReproCLI
from repro.tasks.translation_files import read_translations

from ..sweeps.ranks import Tell
from .fitting import FitPlan, fit
from .training import TrainingPlan, quiet

Scores = dict[str, Any]


def fit_and_score(rank: int, tell: Tell, plan: FitPlan, folder: str) -> dict[str, Any]:
    """Trains by ``plan``, translates the test part, and scores each language.

    Returns:
        What ``fitting.fit`` returns, and ``languages``: by code what ``score`` returns (rank 0).
    """
    result = fit(rank, tell, plan, folder)
    if rank:
        return result
    by_language: dict[str, list[tuple[str, str]]] = {}
    for pair, translation in zip(*read_translations(Path(result["log_folder"])), strict=True):
        by_language.setdefault(pair.language, []).append((translation, pair.english))
    del result["log_folder"], result["gradient_norms"]
    return result | {"languages": {name: score(pairs) for name, pairs in by_language.items()}}


def score_baselines(rank: int, tell: Tell, training: TrainingPlan) -> dict[str, Any]:
    """Scores of copying the source and of the nearest training sentence on the test part of a run; sizes of its data.

    Returns:
        ``signature`` of sacrebleu, and ``languages``: by code ``rank_in_corpus`` (1 for the most training pairs),
        ``training_pairs`` (in the corpus), ``pairs_used`` (within the limits on length), ``tokens_of_a_pair`` (pieces
        of source and target of these, ends included, mean), ``copy`` and ``nearest`` (what ``score`` returns).
    """
    quiet()
    tell(0.0, "reading the corpus")
    data: Any = ReproCLI(training.options(), run=False).datamodule
    pairs = {part: data.pairs(part) for part in ("train", "test")}
    used: dict[str, list[int]] = {}
    for item in data.encoded("train").items:
        lengths = used.setdefault(pairs["train"][item.index].language, [])
        lengths.append(len(item.source) + len(item.target) + 2)
    judged = [pairs["test"][item.index] for item in data.encoded("test").items]
    known = Counter(pair.language for pair in pairs["train"])
    sizes = language_sizes(data.root)
    ranks = {name: number for number, name in enumerate(sizes, 1)}
    found: dict[str, Any] = {}
    for number, name in enumerate(sorted(known, key=lambda name: -known[name])):
        tell(number / len(known), f"nearest neighbours, {name}")
        tests = [pair for pair in judged if pair.language == name]
        if not tests:
            continue
        references = [pair.english for pair in tests]
        nearest = nearest_neighbour([pair for pair in pairs["train"] if pair.language == name], tests)
        found[name] = {
            "rank_in_corpus": ranks[name],
            "training_pairs": sizes[name],
            "pairs_used": len(used.get(name, ())),
            "tokens_of_a_pair": statistics.fmean(used[name]) if name in used else None,
            "copy": score(list(zip(copy_source(tests), references, strict=True))),
            "nearest": score(list(zip(nearest, references, strict=True))),
        }
    metric = sacrebleu.BLEU()
    metric.corpus_score(["a"], [["a"]])  # a signature needs to know how many references there are
    return {"signature": str(metric.get_signature()), "languages": found}


def score(pairs: Sequence[tuple[str, str]]) -> Scores:
    """Scores of (hypothesis, reference) pairs: the counts behind BLEU, which add up over languages, and chrF.

    Returns:
        ``sentences``; ``right`` and ``totals`` (n-grams of each order); ``length`` and ``reference_length`` in tokens;
        ``chrf``.
    """
    hypotheses, references = [pair[0] for pair in pairs], [[pair[1] for pair in pairs]]
    found = sacrebleu.BLEU().corpus_score(hypotheses, references)
    return {
        "sentences": len(pairs),
        "right": list(found.counts),
        "totals": list(found.totals),
        "length": found.sys_len,
        "reference_length": found.ref_len,
        "chrf": sacrebleu.CHRF().corpus_score(hypotheses, references).score,
    }


def pooled_bleu(scores: Iterable[Mapping[str, Any]]) -> float:
    """Corpus BLEU of all sentences behind ``scores`` together, the same as sacrebleu's of the concatenated files.

    Raises:
        ValueError: there is none.
    """
    known = list(scores)
    if not known:
        raise ValueError("BLEU of no sentences")
    metric = sacrebleu.BLEU()
    return float(
        metric.compute_bleu(
            correct=[sum(numbers) for numbers in zip(*(one["right"] for one in known), strict=True)],
            total=[sum(numbers) for numbers in zip(*(one["totals"] for one in known), strict=True)],
            sys_len=sum(one["length"] for one in known),
            ref_len=sum(one["reference_length"] for one in known),
            smooth_method=metric.smooth_method,
            smooth_value=metric.smooth_value,
            effective_order=metric.effective_order,
            max_ngram_order=metric.max_ngram_order,
        ).score
    )
