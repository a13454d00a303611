"""Rows and checks of Figure 3 from what its parts return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..sweeps.checks import Check
from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import Request
from .figure3_plans import BASELINES, BILINGUAL, LARGEST, MULTILINGUAL, SMALLEST, Group, Settings, runs, settings
from .translation_runs import TranslationRun
from .translation_scores import pooled_bleu

EXPERIMENT = "figure3"
ENOUGH_SENTENCES = 100
"""A language with fewer test sentences is judged together with the others like it of its group."""

BASELINE_MODELS = {"copy": "copying the source", "nearest": "nearest training sentence"}


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Rows and checks of the parts that have finished."""
    chosen = settings(request.scale)
    finished = [_Finished(run, results[run.plan.name]) for run in runs(request) if run.plan.name in results]
    known = results.get(BASELINES, {"languages": {}, "signature": None})
    table = _Table(chosen, finished, known["languages"], known["signature"])
    return table.rows(), table.checks() if request.scale != "smoke" else []


@dataclass(frozen=True)
class _Finished:
    run: TranslationRun
    result: Mapping[str, Any]

    @property
    def size(self) -> str:
        return str(self.run.params["size"])

    @property
    def multilingual(self) -> bool:
        return bool(self.run.params["trained_on"] == MULTILINGUAL)

    @property
    def languages(self) -> Mapping[str, Any]:
        """Scores by language."""
        found: Mapping[str, Any] = self.result["languages"]
        return found

    @property
    def nll(self) -> float:
        return float(self.result["held_out"]["nll"])


class _Table:
    """All that has finished."""

    def __init__(
        self, chosen: Settings, finished: Sequence[_Finished], baselines: Mapping[str, Any], signature: str | None
    ) -> None:
        self._chosen = chosen
        self._baselines = baselines
        self._signature = signature
        self._group = {language: group for group in chosen.groups for language in group.languages}
        self._multilingual = {one.size: one for one in finished if one.multilingual}
        self._bilingual = {one.run.languages[0]: one for one in finished if not one.multilingual}

    def rows(self) -> list[Row]:
        """See ``figure3`` for the metrics."""
        made: list[Row] = []
        for one in (*self._multilingual.values(), *self._bilingual.values()):
            made += self._of_model(one)
        for kind in BASELINE_MODELS:
            made += self._of_baseline(kind)
        return made + self._gains()

    def checks(self) -> list[Check]:
        """What must hold, as far as the parts it needs have finished."""
        return [*self._falls(), *self._above_copying(), *self._above_bilingual()]

    def _of_model(self, one: _Finished) -> list[Row]:
        run, result = one.run, one.result
        made = [run.row(EXPERIMENT, result, "nll", one.nll, "nat", part="model")]
        made.append(run.row(EXPERIMENT, result, "fit_time", result["fit_seconds"], "s", part="model"))
        made += run.curve(EXPERIMENT, result)
        for language, scores in one.languages.items():
            about = self._about(language, scores)
            made.append(run.row(EXPERIMENT, result, "bleu", pooled_bleu([scores]), "BLEU", **about))
            made.append(run.row(EXPERIMENT, result, "chrf", scores["chrf"], "chrF", **about))
        if one.multilingual:
            average = _mean(pooled_bleu([scores]) for scores in one.languages.values())
            made.append(run.row(EXPERIMENT, result, "average_bleu", average, "BLEU", part="model"))
            for name, some in self._pools(one.languages).items():
                about = {"part": "pool", "pool": name, "test_sentences": _sentences(some)}
                made.append(run.row(EXPERIMENT, result, "bleu", pooled_bleu(some), "BLEU", **about))
        return made

    def _of_baseline(self, kind: str) -> list[Row]:
        scores = {language: known[kind] for language, known in self._baselines.items()}
        made = []
        for language, some in scores.items():
            about = self._about(language, some)
            made.append(self._baseline_row(kind, "bleu", pooled_bleu([some]), "BLEU", **about))
            made.append(self._baseline_row(kind, "chrf", some["chrf"], "chrF", **about))
        for name, pool in self._pools(scores).items():
            about = {"part": "pool", "pool": name, "test_sentences": _sentences(pool)}
            made.append(self._baseline_row(kind, "bleu", pooled_bleu(pool), "BLEU", **about))
        if scores:
            average = _mean(pooled_bleu([some]) for some in scores.values())
            made.append(self._baseline_row(kind, "average_bleu", average, "BLEU", part="model"))
        return made

    def _gains(self) -> list[Row]:
        """BLEU above the bilingual models: of each language that has one, and by group over these."""
        made = []
        for size, one in self._multilingual.items():
            by_group: dict[str, list[float]] = {}
            for language in self._chosen.languages:
                if language not in self._bilingual or language not in one.languages:
                    continue
                scores, alone = one.languages[language], self._bilingual[language].languages[language]
                gain = pooled_bleu([scores]) - pooled_bleu([alone])
                by_group.setdefault(self._group[language].name, []).append(gain)
                about = self._about(language, scores)
                made.append(one.run.row(EXPERIMENT, one.result, "bleu_gain", gain, "BLEU", **about))
            for group, gains in by_group.items():
                about = {"part": "group", "group": group, "with_bilingual": len(gains)}
                made.append(one.run.row(EXPERIMENT, one.result, "bleu_gain", _mean(gains), "BLEU", **about))
            if by_group and size:
                every = [gain for gains in by_group.values() for gain in gains]
                about = {"part": "group", "group": "all", "with_bilingual": len(every)}
                made.append(one.run.row(EXPERIMENT, one.result, "bleu_gain", _mean(every), "BLEU", **about))
        return made

    def _falls(self) -> list[Check]:
        found = {size: self._multilingual[size].nll for size in self._chosen.sizes if size in self._multilingual}
        if len(found) < len(self._chosen.sizes):
            return []
        between = [nll for size, nll in found.items() if size not in (SMALLEST, LARGEST)]
        said = ", ".join(f"{self._multilingual[size].run.size.label} {nll:.3f}" for size, nll in found.items())
        passed = found[SMALLEST] > max(between) and min(between) > found[LARGEST]
        return [Check(f"held-out NLL (nat per token) falls with the size of the multilingual model: {said}", passed)]

    def _above_copying(self) -> list[Check]:
        if LARGEST not in self._multilingual or not self._baselines:
            return []
        largest = self._multilingual[LARGEST].languages
        copied = {language: known["copy"] for language, known in self._baselines.items()}
        made = []
        for name, some in self._pools(largest).items():
            if name not in ("enough",) and not name.startswith("fewer"):
                continue
            bleu, copy = pooled_bleu(some), pooled_bleu(self._pools(copied)[name])
            where = (
                f"the {len(some)} languages with at least {ENOUGH_SENTENCES} test sentences"
                if name == "enough"
                else f"the {len(some)} others of the {name.removeprefix('fewer, ')} group"
            )
            made.append(
                Check(
                    f"largest multilingual model over {where}: BLEU {bleu:.2f}, above {copy:.2f} of copying the source",
                    bleu > copy,
                )
            )
        return made

    def _above_bilingual(self) -> list[Check]:
        group = self._chosen.groups[-1]
        if LARGEST not in self._multilingual or not all(name in self._bilingual for name in group.bilingual):
            return []
        largest = self._multilingual[LARGEST].languages
        ours = pooled_bleu(largest[name] for name in group.bilingual)
        alone = pooled_bleu(self._bilingual[name].languages[name] for name in group.bilingual)
        return [
            Check(
                f"largest multilingual model on {', '.join(group.bilingual)}, {group.name} group: BLEU {ours:.2f}, "
                f"above {alone:.2f} of their bilingual models",
                ours > alone,
            )
        ]

    def _pools(self, scores: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Scores of languages that are judged together, by name."""

        def chosen(select: Any) -> list[Any]:
            return [some for language, some in scores.items() if select(language, some)]

        def few(some: Any) -> bool:
            return bool(some["sentences"] < ENOUGH_SENTENCES)

        made = {"all": chosen(lambda language, some: True), "enough": chosen(lambda language, some: not few(some))}
        for group in self._chosen.groups:
            made[group.name] = chosen(lambda language, some, g=group: language in g.languages)
            made[f"fewer, {group.name}"] = chosen(lambda language, some, g=group: language in g.languages and few(some))
        return {name: some for name, some in made.items() if some}

    def _about(self, language: str, scores: Mapping[str, Any]) -> dict[str, Any]:
        group: Group = self._group[language]
        known = self._baselines.get(language, {})
        return {
            "part": "language",
            "language": language,
            "group": group.name,
            "rank": 1 + self._chosen.languages.index(language),
            "rank_in_corpus": known.get("rank_in_corpus"),
            "training_pairs": known.get("training_pairs"),
            "pairs_used": known.get("pairs_used"),
            "test_sentences": scores["sentences"],
            "signature": self._signature,
        }

    def _baseline_row(self, kind: str, metric: str, value: float, unit: str, **params: Any) -> Row:
        return Row(
            experiment=EXPERIMENT,
            model=BASELINE_MODELS[kind],
            batch_size=None,
            num_stages=None,
            num_micro_batches=None,
            schedule=None,
            remat=None,
            provenance=Provenance.MEASURED,
            metric=metric,
            value=value,
            unit=unit,
            params={"trained_on": kind, **params},
        )


def trailing_average(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and of those before it, ``window`` in all or as many as there are.

    Raises:
        ValueError: ``window`` is less than one.
    """
    if window < 1:
        raise ValueError(f"window={window} must be at least 1")
    return [_mean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)]


def _sentences(scores: Sequence[Mapping[str, Any]]) -> int:
    return sum(int(some["sentences"]) for some in scores)


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


__all__ = ["BASELINE_MODELS", "BILINGUAL", "EXPERIMENT", "MULTILINGUAL", "rows", "trailing_average"]
