"""The training runs of Table 4: which there are at each scale, and what differs from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repro.datasets.images import PACKAGED
from repro.datasets.paths import missing_set, packaged_root
from repro.datasets.store import read_manifest
from repro.errors import UserError

from ..sweeps.environment import ROOT
from ..sweeps.sweep import Request, SweepPart
from .fitting import FitPlan
from .running_statistics import describe_sets, fit_and_measure
from .training import TrainingPlan

PRE_TRAINING_SET = "fashion-mnist"
TRANSFER_SETS = tuple(name for name in PACKAGED if name != PRE_TRAINING_SET)
"""Packaged sets to fine-tune on."""

TRANSFER = ("fine_tuning", "scratch")
"""Parts with runs on these."""

NORMS = ("batch", "group")
SIZE = "middle"
"""The model that is fine-tuned; K and M are compared with the small one."""

NUM_LAYERS = 3
"""L, normal cells, as the overlays have it."""

_CUTOUT = 8
"""Pixels of 32; DeVries and Taylor 2017 have 16 of CIFAR-10's 32 and 8 for CIFAR-100's many classes."""

_LAYERS = NUM_LAYERS + 4  # stem, two reduction cells and classifier


@dataclass(frozen=True)
class Settings:
    """Sizes of the target at one scale; what all runs share is in the overlay of the scale.

    Attributes:
        overlay: config file over ``base.yaml``.
        num_filters: of each size.
        batch_size: rows of a mini-batch in pre-training, as the overlay has it.
        num_micro_batches: M, as the overlay has it.
        steps: optimizer steps, as the overlay has it.
        test_images: as the overlay has it.
        size_seeds: seeds of each size.
        long_steps: of the pre-training before the transfer.
        transfer_seeds: seeds of each fine-tuning.
        transfer_steps: optimizer steps of each.
        transfer_batch: rows of its mini-batches.
        transfer_sets: to fine-tune on, as far as they have been fetched.
        micro_batches: every M that is compared.
        precision: of the runs that K and M are compared in.
        statistics_images: training images that the statistics are recomputed from.
    """

    overlay: str
    num_filters: Mapping[str, int]
    batch_size: int
    num_micro_batches: int
    steps: int
    test_images: int
    size_seeds: int
    long_steps: int
    transfer_seeds: int
    transfer_steps: int
    transfer_batch: int
    transfer_sets: tuple[str, ...]
    micro_batches: tuple[int, ...]
    precision: str
    statistics_images: int

    @property
    def configs(self) -> tuple[str, str]:
        """The files of ``repro fit`` that all runs share."""
        folder = ROOT / "configs" / "amoebanet"
        return str(folder / "base.yaml"), str(folder / f"{self.overlay}.yaml")


_LAPTOP = Settings(
    overlay="accuracy_laptop",
    num_filters={"small": 4, "middle": 8, "large": 16},  # 8, 26 and 97 thousand parameters: three to four times each
    batch_size=128,
    num_micro_batches=4,
    steps=80,
    test_images=2000,
    size_seeds=3,
    long_steps=160,  # an epoch of 20,000 images
    transfer_seeds=5,  # as the paper
    transfer_steps=40,
    transfer_batch=64,
    transfer_sets=TRANSFER_SETS,
    micro_batches=(1, 4, 16, 64),
    precision="32-true",
    statistics_images=5000,
)
_SMOKE = Settings(
    overlay="accuracy_smoke",
    num_filters={"small": 4, "middle": 8},
    batch_size=32,
    num_micro_batches=4,
    steps=4,
    test_images=100,
    size_seeds=1,
    long_steps=4,
    transfer_seeds=1,
    transfer_steps=3,
    transfer_batch=32,
    transfer_sets=TRANSFER_SETS[:2],
    micro_batches=(4, 8),
    precision="64-true",
    statistics_images=128,
)


def settings(scale: str) -> Settings:
    """What the target does at a scale; ``gpu`` sets the same sizes as ``laptop``."""
    return _SMOKE if scale == "smoke" else _LAPTOP


@dataclass(frozen=True)
class ImageRun:
    """One training run and what it is for.

    Attributes:
        part: the comparison that it belongs to, see ``table4``.
        data: name of the set.
        size: of the model.
        num_filters: of the model.
        norm: ``batch`` or ``group``.
        plan: what runs.
        statistics: training images that its running statistics are compared on; 0: they are not.
        seconds: expected on two cores.
    """

    part: str
    data: str
    size: str
    num_filters: int
    norm: str
    plan: FitPlan
    statistics: int
    seconds: float

    @property
    def model(self) -> str:
        """As it is called in rows, with its (L, D)."""
        return f"AmoebaNet-D ({NUM_LAYERS}, {self.num_filters})"

    @property
    def title(self) -> str:
        """What a person reads."""
        training = self.plan.training
        words = {
            "sizes": f"{self.size} model, seed {training.seed}",
            "pre_training": f"{self.size} model, pre-training",
            "fine_tuning": f"fine-tuning on {self.data}, seed {training.seed}",
            "scratch": f"from scratch on {self.data}, seed {training.seed}",
            "stages": f"{self.size} model, K={training.num_stages}",
            "micro_batches": f"{self.size} model, M={training.num_micro_batches}, {self.norm} norm",
        }
        return words[self.part]

    def sweep_part(self) -> SweepPart:
        """The part of the sweep that runs it."""
        if not self.statistics:
            return self.plan.part(self.title, self.seconds)
        arguments = (self.plan, self.statistics)
        return SweepPart(
            self.plan.name, self.title, fit_and_measure, arguments, 1, self.seconds, keeps_files=True, together=True
        )


@dataclass(frozen=True)
class _Maker:
    """Makes the runs of a request."""

    request: Request
    settings: Settings

    def run(
        self,
        part: str,
        *,
        size: str,
        seed: int = 0,
        data: str = PRE_TRAINING_SET,
        norm: str = "batch",
        num_stages: int = 1,
        num_micro_batches: int | None = None,
        start: FitPlan | None = None,
    ) -> ImageRun:
        chosen = self.settings
        micro_batches = num_micro_batches or chosen.num_micro_batches
        steps, batch = chosen.steps, chosen.batch_size
        overrides = [f"--model.num_filters={chosen.num_filters[size]}"]
        compared = size == "small"
        if norm != "batch":
            overrides.append(f"--model.norm={norm}")
        if compared:
            overrides.append(f"--trainer.precision={chosen.precision}")
        if num_stages == 1:
            # In one process recomputing would only cost time; the answer is the same, bit for bit.
            overrides.append("--trainer.strategy.remat=never")
        if part == "pre_training":
            steps = chosen.long_steps
        if part in TRANSFER:
            steps, batch = chosen.transfer_steps, chosen.transfer_batch
            micro_batches = max(1, batch * chosen.num_micro_batches // chosen.batch_size)  # of as many rows as before
            overrides += _transfer_overrides(data, steps, batch)
        names = {
            "sizes": f"sizes-{size}-{seed}",
            "pre_training": "pre-training",
            "fine_tuning": f"fine-tuning-{data}-{seed}",
            "scratch": f"scratch-{data}-{seed}",
            "stages": f"stages-{num_stages}",
            "micro_batches": f"micro-batches-{micro_batches}-{norm}",
        }
        devices = self.request.device.split(",")
        training = TrainingPlan(
            configs=chosen.configs,
            num_stages=num_stages,
            num_micro_batches=micro_batches,
            processes=num_stages > 1 and (self.request.device == "cpu" or len(devices) >= num_stages),
            steps=steps,
            seed=seed,
            device=self.request.device,
            overrides=tuple(overrides),
        )
        statistics = chosen.statistics_images if compared and num_stages == 1 else 0
        seconds = _seconds(chosen, size, steps, batch, micro_batches, num_stages, statistics)
        plan = FitPlan(names[part], training, start)
        return ImageRun(part, data, size, chosen.num_filters[size], norm, plan, statistics, seconds)


def image_runs(request: Request) -> list[ImageRun]:
    """Every run of a request, in the order in which they run.

    Raises:
        UserError: K or M that the model or the batch cannot have, seeds out of range, or no pictures to train on.
    """
    chosen = settings(request.scale)
    stages, micro_batches = _checked(request, chosen)
    if PRE_TRAINING_SET not in present_sets():
        raise missing_set(PRE_TRAINING_SET, packaged_root())
    maker = _Maker(request, chosen)
    seeds = request.options.get("seeds")
    sizes = [
        maker.run("sizes", size=size, seed=seed)
        for size in chosen.num_filters
        for seed in range(seeds or chosen.size_seeds)
    ]
    # The recipe's own M with BatchNorm is there: the small model with the first seed.
    widths = [
        maker.run("micro_batches", size="small", norm=norm, num_micro_batches=number)
        for norm in NORMS
        for number in micro_batches
        if (norm, number) != ("batch", chosen.num_micro_batches)
    ]
    before = maker.run("pre_training", size=SIZE)
    transfer = [
        maker.run(part, size=SIZE, data=data, seed=seed, start=before.plan if part == "fine_tuning" else None)
        for data in chosen.transfer_sets
        if data in present_sets()
        for seed in range(seeds or chosen.transfer_seeds)
        for part in ("fine_tuning", "scratch")
    ]
    # Two at a time: the long ones first, so that they run beside each other.
    alone = sorted([*widths, before, *sizes], key=lambda run: -run.seconds)
    split = [maker.run("stages", size="small", num_stages=number) for number in stages if number > 1]
    return [*alone, *split, *transfer]


def sweep_parts(request: Request) -> list[SweepPart]:
    """The runs of a request as parts, and one that counts the sets.

    Raises:
        UserError: see ``image_runs``.
    """
    runs = image_runs(request)
    before = [run.sweep_part() for run in runs if run.part not in TRANSFER]
    after = [run.sweep_part() for run in runs if run.part in TRANSFER]
    # Counting runs beside nothing else: when it begins, what fine-tuning starts from is finished.
    return [*before, _data_part(request), *after]


def _data_part(request: Request) -> SweepPart:
    found = tuple(present_sets())
    return SweepPart("data", "counting the sets", describe_sets, (found, settings(request.scale).configs), 1, 3)


def present_sets() -> tuple[str, ...]:
    """Names of the sets that have been fetched."""
    base = Path(packaged_root())
    return tuple(name for name in (PRE_TRAINING_SET, *TRANSFER_SETS) if read_manifest(base, name) is not None)


def _checked(request: Request, chosen: Settings) -> tuple[Sequence[int], Sequence[int]]:
    stages = request.num_stages or (1, 2, 4)
    micro_batches = request.num_micro_batches or chosen.micro_batches
    if max(stages) > _LAYERS:
        raise UserError(f"-K {max(stages)}: the model has {_LAYERS} layers, so at most that many stages")
    if max(micro_batches) > chosen.batch_size:
        raise UserError(f"-M {max(micro_batches)}: a mini-batch has {chosen.batch_size} rows, give M up to that")
    return stages, micro_batches


def _transfer_overrides(data: str, steps: int, batch: int) -> list[str]:
    return [
        f"--data.dataset={data}",
        f"--data.batch_size={batch}",
        "--data.validation=0",  # the sets are small
        "--data.augment=true",  # paper, section 4: mirrored (not digits) and cut out
        f"--data.cutout={_CUTOUT}",
        f"--model.num_classes={PACKAGED[data].classes}",
        f"--model.warmup_steps={steps // 10}",
    ]


def _seconds(
    chosen: Settings, size: str, steps: int, batch: int, micro_batches: int, num_stages: int, statistics: int
) -> float:
    """Measured on two cores, both at work: so much a micro-batch and a row, by the width of the model."""
    row = 0.0011 + 0.00024 * chosen.num_filters[size]
    each_step = 0.019 * micro_batches + batch * row
    # Two cores share the work of the stages, R included.
    training = steps * each_step * (1.0 if num_stages == 1 else 0.8)
    return 4 + training + (chosen.test_images + statistics) * row / 2
