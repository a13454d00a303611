"""Rows and checks of Table 5 from what its parts return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..sweeps.checks import Check
from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import Request
from .figure3_plans import BASELINES
from .figure3_rows import BASELINE_MODELS
from .table5_plans import STEPS, runs, settings
from .translation_runs import TranslationRun
from .translation_scores import pooled_bleu

EXPERIMENT = "table5"


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Rows and checks of the parts that have finished."""
    finished = [(run, results[run.plan.name]) for run in runs(request) if run.plan.name in results]
    finished.sort(key=lambda one: (one[1]["batch_size"], one[0].params["samples"]))
    language = settings(request.scale).language
    made: list[Row] = []
    for run, result in finished:
        made += _of_run(run, result, language)
    made += _of_baselines(results.get(BASELINES), language)
    return made, _checks(finished, language) if request.scale != "smoke" else []


def _of_run(run: TranslationRun, result: Mapping[str, Any], language: str) -> list[Row]:
    scores = result["languages"][language]
    about = {"part": "model", "test_sentences": scores["sentences"]}
    return [
        run.row(EXPERIMENT, result, "bleu", pooled_bleu([scores]), "BLEU", **about),
        run.row(EXPERIMENT, result, "chrf", scores["chrf"], "chrF", **about),
        run.row(EXPERIMENT, result, "nll", float(result["held_out"]["nll"]), "nat", **about),
        run.row(EXPERIMENT, result, "fit_time", result["fit_seconds"], "s", **about),
        *run.curve(EXPERIMENT, result),
    ]


def _of_baselines(known: Mapping[str, Any] | None, language: str) -> list[Row]:
    if known is None or language not in known["languages"]:
        return []
    found = known["languages"][language]
    params = {
        "part": "model",
        "language": language,
        "training_pairs": found["training_pairs"],
        "pairs_used": found["pairs_used"],
        "tokens_of_a_pair": found["tokens_of_a_pair"],
        "signature": known["signature"],
    }
    made = []
    for kind, name in BASELINE_MODELS.items():
        scores = found[kind]
        about = {**params, "test_sentences": scores["sentences"]}
        for metric, value, unit in (("bleu", pooled_bleu([scores]), "BLEU"), ("chrf", scores["chrf"], "chrF")):
            made.append(
                Row(
                    EXPERIMENT,
                    name,
                    None,
                    None,
                    None,
                    None,
                    None,
                    Provenance.MEASURED,
                    metric,
                    value,
                    unit,
                    None,
                    about,
                )
            )
    return made


def _checks(finished: list[tuple[TranslationRun, Mapping[str, Any]]], language: str) -> list[Check]:
    equal = [(run, result) for run, result in finished if STEPS in run.params["held_fixed"]]
    if len(equal) < 3:
        return []
    sizes = [result["batch_size"] for _, result in equal]
    where = f"batches of {', '.join(map(str, sizes))} sentence pairs, equal steps"
    bleu = [pooled_bleu([result["languages"][language]]) for _, result in equal]
    nll = [float(result["held_out"]["nll"]) for _, result in equal]
    return [
        Check(
            f"{where}: held-out NLL falls with the batch: {', '.join(f'{value:.3f}' for value in nll)}",
            nll == sorted(nll, reverse=True) and len(set(nll)) == len(nll),
        ),
        Check(
            f"{where}: BLEU rises with the batch: {', '.join(f'{value:.2f}' for value in bleu)}",
            bleu == sorted(bleu) and len(set(bleu)) == len(bleu),
        ),
    ]
