"""The training runs of Figure 3: which there are at each scale, and what differs from run to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from repro.errors import UserError

from ..sweeps.sweep import Request, SweepPart
from .fitting import FitPlan
from .translation_runs import ModelSize, TranslationRun, check_corpus, checked_seed, overlay, training_plan
from .translation_scores import score_baselines

BASELINES = "baselines"
"""The part that scores what every translator has to beat."""

MULTILINGUAL, BILINGUAL = "multilingual", "bilingual"
SMALLEST, LARGEST = "base", "large"

STANDS_FOR = MappingProxyType(
    {
        "base": "T(6, 8192, 16)",
        "wide": "T(12, 16384, 32)",
        "deep": "T(24, 8192, 16)",
        "large": "T(32, 16384, 32)",
    }
)
"""The model of the paper that each size plays. All have one width of states, as in the paper. Wide (layers of twice the
width) and deep (twice as many layers) are of equal size, large is both; in the paper the depth grows in each step."""


@dataclass(frozen=True)
class Group:
    """Languages with about as much text.

    Attributes:
        name: ``high``, ``middle`` or ``low``.
        languages: codes, the one with most text first.
        bilingual: those that get a model of their own.
        bilingual_steps: optimizer steps of such a model.
    """

    name: str
    languages: tuple[str, ...]
    bilingual: tuple[str, ...]
    bilingual_steps: int


@dataclass(frozen=True)
class Settings:
    """Sizes of the target at one scale; what all runs share is in the overlay of the scale.

    Attributes:
        groups: all languages, as the overlay has them.
        sizes: of the multilingual models; bilingual ones have the smallest, as in the paper.
        width: of the states, as the overlay has it.
        steps: of the multilingual models, as the overlay has them.
        batch_size: as the overlay has it.
        warmup_steps: of the learning rate in bilingual runs, which differ in their steps.
        num_stages: K of the largest model, which runs through a pipeline of processes.
        num_micro_batches: M of it.
        step_seconds: of each size on one core.
        other_seconds: of a run apart from its steps: start, data, decoding.
    """

    groups: tuple[Group, ...]
    sizes: Mapping[str, ModelSize]
    width: int
    steps: int
    batch_size: int
    warmup_steps: int
    num_stages: int
    num_micro_batches: int
    step_seconds: Mapping[str, float]
    other_seconds: float

    @property
    def languages(self) -> tuple[str, ...]:
        """All, in the order of the groups."""
        return tuple(name for group in self.groups for name in group.languages)


_LAPTOP = Settings(
    groups=(
        Group("high", ("es", "sv", "it", "nl"), ("es", "sv"), 1200),
        Group("middle", ("nb", "gl", "da", "hr"), ("gl", "da"), 1000),
        # All of them: this is where the paper gains most, and three have near relatives here, the last one none.
        Group("low", ("nn", "sr_Latn", "fy", "eu"), ("nn", "sr_Latn", "fy", "eu"), 600),
    ),
    sizes={
        "base": ModelSize(1, 512, 4),
        "wide": ModelSize(1, 1024, 8),
        "deep": ModelSize(2, 512, 4),
        "large": ModelSize(2, 1024, 8),
    },
    width=128,
    steps=2600,
    batch_size=64,
    warmup_steps=200,
    num_stages=2,
    num_micro_batches=4,
    step_seconds={"base": 0.085, "wide": 0.12, "deep": 0.13, "large": 0.2},
    other_seconds=20,
)
_SMOKE = Settings(
    groups=(Group("high", ("es",), (), 0), Group("middle", ("gl",), (), 0), Group("low", ("nn",), ("nn",), 4)),
    sizes={
        "base": ModelSize(1, 64, 1),
        "wide": ModelSize(1, 128, 2),
        "deep": ModelSize(2, 64, 1),
        "large": ModelSize(2, 128, 2),
    },
    width=32,
    steps=4,
    batch_size=16,
    warmup_steps=0,
    num_stages=2,
    num_micro_batches=4,
    step_seconds={"base": 0.05, "wide": 0.05, "deep": 0.05, "large": 0.05},
    other_seconds=6,
)


def settings(scale: str) -> Settings:
    """What the target does at a scale; ``gpu`` sets the same sizes as ``laptop``."""
    return _SMOKE if scale == "smoke" else _LAPTOP


def runs(request: Request) -> list[TranslationRun]:
    """Every training run of a request: those of one process first, the long ones before the short.

    Raises:
        UserError: K, M or the seed is out of range, or there are several of K or M.
    """
    chosen = settings(request.scale)
    stages, micro_batches = _checked(request, chosen)
    seed = checked_seed(request.options)
    multilingual = []
    for name, size in chosen.sizes.items():
        split = stages if name == LARGEST else 1
        training = training_plan(
            overlay(request.scale),
            size,
            steps=chosen.steps,
            seed=seed,
            device=request.device,
            num_stages=split,
            num_micro_batches=micro_batches if split > 1 else 1,
        )
        multilingual.append(
            TranslationRun(
                title=f"multilingual {name}, {size.label}" + (f", K={split}" if split > 1 else ""),
                size=size,
                width=chosen.width,
                languages=chosen.languages,
                plan=FitPlan(f"{MULTILINGUAL}-{name}", training),
                params={"trained_on": MULTILINGUAL, "size": name, "languages": len(chosen.languages)},
                # Two cores share the work of the stages, with a bubble.
                seconds=chosen.other_seconds + chosen.steps * chosen.step_seconds[name] * (0.75 if split > 1 else 1),
            )
        )
    bilingual = [
        _bilingual(request, chosen, group, language, seed) for group in chosen.groups for language in group.bilingual
    ]
    *alone, last = [*sorted([*multilingual[:-1], *bilingual], key=lambda run: -run.seconds), multilingual[-1]]
    return [*alone, last]


def sweep_parts(request: Request) -> list[SweepPart]:
    """The runs of a request as parts, and one that scores the baselines.

    Raises:
        UserError: see ``runs``; or the corpus has not been fetched.
    """
    made = [run.part() for run in runs(request)]
    check_corpus()
    chosen = settings(request.scale)
    multilingual = training_plan(
        overlay(request.scale), chosen.sizes[SMALLEST], steps=chosen.steps, seed=0, device="cpu"
    )
    seconds = 90.0 if request.scale != "smoke" else 10.0  # the vocabulary is made here, the first time
    title = "copying and nearest neighbours"
    return [SweepPart(BASELINES, title, score_baselines, (multilingual,), 1, seconds, together=True), *made]


def _bilingual(request: Request, chosen: Settings, group: Group, language: str, seed: int) -> TranslationRun:
    size = chosen.sizes[SMALLEST]
    training = training_plan(
        overlay(request.scale),
        size,
        steps=group.bilingual_steps,
        seed=seed,
        device=request.device,
        overrides=(
            f"--data.languages=[{language}]",
            # The pieces of the multilingual models: the same test sentences, and likelihoods that compare.
            *([] if request.scale == "smoke" else [f"--data.vocabulary_languages=[{','.join(chosen.languages)}]"]),
            "--data.temperature=null",
            f"--model.warmup_steps={chosen.warmup_steps}",
        ),
    )
    return TranslationRun(
        title=f"bilingual {language}, {size.label}",
        size=size,
        width=chosen.width,
        languages=(language,),
        plan=FitPlan(f"{BILINGUAL}-{language}", training),
        params={"trained_on": BILINGUAL, "size": SMALLEST, "languages": 1},
        seconds=chosen.other_seconds / 2 + group.bilingual_steps * chosen.step_seconds[SMALLEST],
    )


def _checked(request: Request, chosen: Settings) -> tuple[int, int]:
    for letter, values in (("K", request.num_stages), ("M", request.num_micro_batches)):
        if values is not None and len(values) > 1:
            given = " ".join(map(str, values))
            raise UserError(f"-{letter} {given}: only the largest model runs in a pipeline; give one {letter}")
    stages = (request.num_stages or (chosen.num_stages,))[0]
    micro_batches = (request.num_micro_batches or (chosen.num_micro_batches,))[0]
    deepest = chosen.sizes[LARGEST].depth
    if stages > deepest:
        raise UserError(f"-K {stages}: {chosen.sizes[LARGEST].label} has {deepest} layers, so at most that many stages")
    if micro_batches > chosen.batch_size:
        raise UserError(f"-M {micro_batches}: a mini-batch has {chosen.batch_size} sentence pairs, give M up to that")
    return stages, micro_batches
