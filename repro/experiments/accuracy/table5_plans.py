"""The training runs of Table 5: three batch sizes a factor of four apart, with equal steps and with equal samples."""

from __future__ import annotations

from dataclasses import dataclass

from repro.errors import UserError

from ..sweeps.sweep import Request, SweepPart
from .figure3_plans import BASELINES
from .fitting import FitPlan
from .training import TrainingPlan
from .translation_runs import ModelSize, TranslationRun, check_corpus, checked_seed, overlay, training_plan
from .translation_scores import score_baselines

STEPS, SAMPLES = "steps", "samples"
"""What is held fixed while the batch grows."""


@dataclass(frozen=True)
class Settings:
    """Sizes of the target at one scale; what all runs share is in the overlay of the scale.

    Attributes:
        language: the source, that with most text in the corpus.
        size: of the model.
        width: of its states, as the overlay has it.
        batch_sizes: sentence pairs of a mini-batch, a factor of four apart; the middle one has the same run in both
            comparisons.
        steps: of the comparison at equal steps.
        warmup: share of the steps of a run in which the learning rate rises.
        test_sentences: of the language.
        step_seconds: of a mini-batch, and of a sentence pair in it, on one core.
        other_seconds: of a run apart from its steps.
    """

    language: str
    size: ModelSize
    width: int
    batch_sizes: tuple[int, int, int]
    steps: int
    warmup: float
    test_sentences: int
    step_seconds: tuple[float, float]
    other_seconds: float


_LAPTOP = Settings(
    language="de",
    size=ModelSize(1, 512, 4),
    width=128,
    batch_sizes=(16, 64, 256),
    steps=600,
    warmup=0.1,
    test_sentences=400,
    step_seconds=(0.018, 0.0012),
    other_seconds=14,
)
_SMOKE = Settings(
    language="de",
    size=ModelSize(1, 64, 1),
    width=32,
    batch_sizes=(4, 16, 64),
    steps=2,
    warmup=0.0,
    test_sentences=8,
    step_seconds=(0.01, 0.0005),
    other_seconds=6,
)


def settings(scale: str) -> Settings:
    """What the target does at a scale; ``gpu`` sets the same sizes as ``laptop``."""
    return _SMOKE if scale == "smoke" else _LAPTOP


def runs(request: Request) -> list[TranslationRun]:
    """Every training run of a request, the long ones first.

    Raises:
        UserError: the seed is out of range, or K or M are asked for.
    """
    for letter, values in (("K", request.num_stages), ("M", request.num_micro_batches)):
        if values is not None:
            given = " ".join(map(str, values))
            raise UserError(f"-{letter} {given}: the runs of table5 take one process each; leave -{letter} out")
    chosen = settings(request.scale)
    checked_seed(request.options)
    small, middle, large = chosen.batch_sizes
    samples = middle * chosen.steps
    both = request.scale != "smoke"  # there the equal steps say that all is connected
    made = [
        _run(request, chosen, size, chosen.steps, (STEPS, SAMPLES) if both and size == middle else (STEPS,))
        for size in (large, middle, small)
    ]
    if both:
        made += [_run(request, chosen, size, samples // size, (SAMPLES,)) for size in (small, large)]
    return sorted(made, key=lambda run: -run.seconds)


def sweep_parts(request: Request) -> list[SweepPart]:
    """The runs of a request as parts, and one that scores the baselines.

    Raises:
        UserError: see ``runs``; or the corpus has not been fetched.
    """
    made = [run.part() for run in runs(request)]
    check_corpus()
    chosen = settings(request.scale)
    seconds = 60.0 if request.scale != "smoke" else 5.0  # the vocabulary is made here, the first time
    baselines = SweepPart(
        BASELINES,
        "copying and nearest neighbours",
        score_baselines,
        (_training(request, chosen, chosen.batch_sizes[0], chosen.steps, seed=0),),
        1,
        seconds,
        together=True,
    )
    return [baselines, *made]


def _run(
    request: Request, chosen: Settings, batch_size: int, steps: int, held_fixed: tuple[str, ...]
) -> TranslationRun:
    each, pair = chosen.step_seconds
    return TranslationRun(
        title=f"batches of {batch_size}, {steps} steps",
        size=chosen.size,
        width=chosen.width,
        languages=(chosen.language,),
        plan=FitPlan(
            f"batch-{batch_size}-steps-{steps}",
            _training(request, chosen, batch_size, steps, checked_seed(request.options)),
        ),
        params={"language": chosen.language, "held_fixed": list(held_fixed), "samples": batch_size * steps},
        seconds=chosen.other_seconds + steps * (each + batch_size * pair),
    )


def _training(request: Request, chosen: Settings, batch_size: int, steps: int, seed: int) -> TrainingPlan:
    vocabulary = () if request.scale == "smoke" else (f"--data.vocabulary_languages=[{chosen.language}]",)
    return training_plan(
        overlay(request.scale),
        chosen.size,
        steps=steps,
        seed=seed,
        device=request.device,
        overrides=(
            f"--data.languages=[{chosen.language}]",
            *vocabulary,
            "--data.temperature=null",
            f"--data.batch_size={batch_size}",
            f"--data.limit_test_per_language={chosen.test_sentences}",
            f"--model.warmup_steps={round(chosen.warmup * steps)}",
        ),
    )
