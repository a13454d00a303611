"""Made-up results of the parts of figure3 and table5, in the form in which the parts return them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from repro.experiments.accuracy import figure3_plans, table5_plans
from repro.experiments.accuracy.translation_runs import TranslationRun
from repro.experiments.sweeps.sweep import Request

LAPTOP = Request("laptop", "cpu", None, None, {"seed": None})
SMOKE = Request("smoke", "cpu", None, None, {"seed": None})

# Lower for larger models, as it should be; and BLEU.
NLL = {"base": 3.2, "wide": 3.0, "deep": 2.9, "large": 2.7}
BLEU = {"base": 10.0, "wide": 12.0, "deep": 13.0, "large": 15.0}
BILINGUAL = {"high": 12.0, "middle": 9.0, "low": 3.0}
COPY, NEAREST = 4.0, 8.0
FEW = 80


def scores(bleu: float, sentences: int = 200) -> dict[str, Any]:
    """Of a system whose n-gram precisions are all ``bleu`` per cent and whose length is right: that is its BLEU."""
    return {
        "sentences": sentences,
        "right": [round(10 * bleu)] * 4,
        "totals": [1000] * 4,
        "length": 1000,
        "reference_length": 1000,
        "chrf": 2 * bleu,
    }


def sentences_of(language: str) -> int:
    """So many test sentences."""
    return FEW if language in figure3_plans.settings("laptop").groups[-1].languages else 200


def of_run(run: TranslationRun, bleu: Mapping[str, float], nll: float) -> dict[str, Any]:
    """What ``fit_and_score`` returns."""
    return {
        "losses": [5.0 - 0.001 * step for step in range(run.plan.training.steps or 0)],
        "held_out": {"nll": nll},
        "fit_seconds": 100.0,
        "num_parameters": 1_000_000 * run.size.num_layers,
        "batch_size": 64,
        "num_micro_batches": run.plan.training.num_micro_batches,
        "schedule": "gpipe",
        "remat": "never",
        "languages": {language: scores(bleu[language], sentences_of(language)) for language in run.languages},
    }


def figure3_results(
    request: Request = LAPTOP, *, nll: Mapping[str, float] = NLL, bleu: Mapping[str, float] = BLEU, copy: float = COPY
) -> dict[str, Any]:
    """Of every part of figure3."""
    chosen = figure3_plans.settings(request.scale)
    group = {language: one.name for one in chosen.groups for language in one.languages}
    found: dict[str, Any] = {}
    for run in figure3_plans.runs(request):
        size = str(run.params["size"])
        multilingual = run.params["trained_on"] == figure3_plans.MULTILINGUAL
        reached = {name: bleu[size] if multilingual else BILINGUAL[group[name]] for name in run.languages}
        found[run.plan.name] = of_run(run, reached, nll[size])
    found[figure3_plans.BASELINES] = {
        "signature": "nrefs:1",
        "languages": {
            language: {
                "rank_in_corpus": 2 * number + 2,
                "training_pairs": 13_000 // (number + 1),
                "pairs_used": 12_000 // (number + 1),
                "tokens_of_a_pair": 28.0,
                "copy": scores(copy, sentences_of(language)),
                "nearest": scores(NEAREST, sentences_of(language)),
            }
            for number, language in enumerate(chosen.languages)
        },
    }
    return found


def table5_results(request: Request = LAPTOP, *, falling: bool = True) -> dict[str, Any]:
    """Of every part of table5; more samples are better if ``falling``."""
    language = table5_plans.settings(request.scale).language
    found: dict[str, Any] = {}
    for run in table5_plans.runs(request):
        training = run.plan.training
        better = run.params["samples"] / 1e5 * (1 if falling else -1)
        result = of_run(run, {language: 10 + better}, 3.5 - better / 10)
        batch = run.params["samples"] // (training.steps or 1)
        found[run.plan.name] = result | {"batch_size": batch}
    found[figure3_plans.BASELINES] = {
        "signature": "nrefs:1",
        "languages": {
            language: {
                "rank_in_corpus": 1,
                "training_pairs": 13_000,
                "pairs_used": 10_000,
                "tokens_of_a_pair": 28.0,
                "copy": scores(COPY),
                "nearest": scores(NEAREST),
            }
        },
    }
    return found
