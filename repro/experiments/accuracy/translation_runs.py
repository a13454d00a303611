"""Runs of small translation models: what figure3 and table5 have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.datasets.paths import missing_set, packaged_root
from repro.datasets.store import read_manifest
from repro.datasets.translation import NAME
from repro.errors import UserError

from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import SweepPart
from .fitting import FitPlan
from .scales import TRANSLATION
from .training import TrainingPlan
from .translation_scores import fit_and_score

MOST_SEED = 2**32 - 1
_CURVE = 20  # points of a training curve in the rows


@dataclass(frozen=True)
class ModelSize:
    """T(L, H, A), the width of its states aside: that is the same for all models of a figure, as in the paper."""

    num_layers: int
    d_ff: int
    num_heads: int

    @property
    def label(self) -> str:
        """As the paper writes it."""
        return f"T({self.num_layers}, {self.d_ff}, {self.num_heads})"

    @property
    def depth(self) -> int:
        """Layers of the sequence that a pipeline cuts: both stacks, embedding and softmax."""
        return 2 * self.num_layers + 2

    def overrides(self) -> list[str]:
        """Options of ``repro fit``."""
        return [f"--model.{name}={getattr(self, name)}" for name in ("num_layers", "d_ff", "num_heads")]


@dataclass(frozen=True)
class TranslationRun:
    """One training run.

    Attributes:
        title: what a person reads.
        size: of the model.
        width: of its states, as the overlay has it.
        languages: sources.
        plan: what runs.
        params: what rows of the run say about it, beside what its result says.
        seconds: expected on two cores.
    """

    title: str
    size: ModelSize
    width: int
    languages: tuple[str, ...]
    plan: FitPlan
    params: Mapping[str, Any]
    seconds: float

    @property
    def model(self) -> str:
        """As rows call it: with its size, so that nobody takes it for the paper's."""
        return f"{self.size.label}, width {self.width}"

    def part(self) -> SweepPart:
        """The part of the sweep that runs it; runs of one process may share the machine."""
        processes = self.plan.training.world_size
        return SweepPart(
            self.plan.name,
            self.title,
            fit_and_score,
            (self.plan,),
            processes,
            self.seconds,
            keeps_files=True,
            together=processes == 1,
        )

    def row(
        self, experiment: str, result: Mapping[str, Any], metric: str, value: float, unit: str = "1", **params: Any
    ) -> Row:
        """A row of this run."""
        training = self.plan.training
        return Row(
            experiment=experiment,
            model=self.model,
            batch_size=result["batch_size"],
            num_stages=training.num_stages,
            num_micro_batches=result["num_micro_batches"],
            schedule=result["schedule"],
            remat=result["remat"],
            provenance=Provenance.MEASURED,
            metric=metric,
            value=value,
            unit=unit,
            params={
                "parameters": result["num_parameters"],
                "steps": training.steps,
                "seed": training.seed,
                "device": training.device,
                "processes": training.world_size,
                **self.params,
                **params,
            },
        )

    def curve(self, experiment: str, result: Mapping[str, Any]) -> list[Row]:
        """The training loss (with its label smoothing), means of stretches of the run, each at its last step."""
        losses = result["losses"]
        stretch = max(1, len(losses) // _CURVE)
        return [
            self.row(
                experiment,
                result,
                "training_loss",
                sum(some) / len(some),
                "nat",
                part="training",
                step=begin + len(some),
            )
            for begin in range(0, len(losses), stretch)
            if (some := losses[begin : begin + stretch])
        ]


def overlay(scale: str) -> tuple[str, ...]:
    """The config files of a scale."""
    return TRANSLATION.configs(f"accuracy_{'smoke' if scale == 'smoke' else 'laptop'}")


def training_plan(
    configs: tuple[str, ...],
    size: ModelSize,
    *,
    steps: int,
    seed: int,
    device: str,
    num_stages: int = 1,
    num_micro_batches: int = 1,
    overrides: Sequence[str] = (),
) -> TrainingPlan:
    """The plan of a run; each stage has a process where there is a device for it, and all of the CPU counts as such."""
    devices = device.split(",")
    return TrainingPlan(
        configs=configs,
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        processes=num_stages > 1 and (device == "cpu" or len(devices) >= num_stages),
        steps=steps,
        seed=seed,
        device=device,
        overrides=(*size.overrides(), *overrides),
    )


def check_corpus() -> None:
    """Raises what would stop every part.

    Raises:
        DataError: the corpus has not been fetched.
    """
    base = packaged_root()
    if read_manifest(base, NAME) is None:
        raise missing_set(NAME, base)


def checked_seed(options: Mapping[str, Any]) -> int:
    """``--seed``.

    Raises:
        UserError: it is out of range.
    """
    seed = int(options.get("seed") or 0)
    if not 0 <= seed <= MOST_SEED:
        raise UserError(f"--seed {seed}: give a number from 0 to {MOST_SEED}")
    return seed
