"""What ``repro reproduce`` runs at each scale: sizes only, the same parts everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..costs.workload import SpeedPlan, Workload
from ..sweeps.environment import ROOT


@dataclass(frozen=True)
class Task:
    """One of the two models on its data.

    Attributes:
        name: of its experiments and files.
        model: as it is called in rows.
        data: name of the data set.
        folder: of its config files.
        agreement: options of the short runs: little held-out data is enough to compare.
        plain: options under which micro-batches do not change the answer, for the comparison with plain Lightning.
        plain_micro_batches: M in that comparison; None: that of the other short runs.
    """

    name: str
    model: str
    data: str
    folder: str
    agreement: tuple[str, ...]
    plain: tuple[str, ...] = ()
    plain_micro_batches: int | None = None

    def configs(self, overlay: str, root: Path = ROOT) -> tuple[str, ...]:
        """The base file and the overlay of a scale."""
        folder = root / "configs" / self.folder
        return str(folder / "base.yaml"), str(folder / f"{overlay}.yaml")


IMAGES = Task(
    name="image_classification",
    model="AmoebaNet-D",
    data="Fashion-MNIST",
    folder="amoebanet",
    # Clipping takes the norm over all stages, which rounds differently when they are in different processes, and this
    # model amplifies that under AdamW: with one stage, a clipping threshold of 1.0000001 in place of 1 changes the
    # gradient norm by 1e-4 after 3 steps and by 1e-2 after 10. The Transformer is compared with clipping.
    agreement=("--data.limit_test=512", "--trainer.gradient_clip_val=null"),
    plain_micro_batches=1,  # BatchNorm normalises each micro-batch by itself
)
TRANSLATION = Task(
    name="translation",
    model="Transformer",
    data="software messages to English",
    folder="transformer",
    agreement=("--data.limit_test=256", "--model.bleu=false"),
    plain=("--model.dropout=0",),  # each micro-batch has masks of its own
)
TASKS = (IMAGES, TRANSLATION)


@dataclass(frozen=True)
class Expectation:
    """What a longer run must reach to count as learning.

    Attributes:
        metric: held-out.
        at_least: ``value >= at_least`` where given.
        above: another held-out metric that it must be above.
        below: another held-out metric that it must be below, by ``margin``.
        margin: see ``below``.
    """

    metric: str
    at_least: float | None = None
    above: str | None = None
    below: str | None = None
    margin: float = 0.0


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        overlay: config file of each task over its base file.
        seconds: expected on two cores: of a group of short runs, of the speed comparison, and of the longer
            run of each task.
        agreement_steps: of each of the runs that are compared.
        learning_steps: of the longer run; None takes what the config file says.
        expectations: what the longer run must reach, by task.
        speed: how long the step times are compared.
        workload: on what.
        traced_steps: at the end of each short run.
    """

    overlay: str
    seconds: Mapping[str, float]
    agreement_steps: int
    learning_steps: int | None
    expectations: Mapping[str, tuple[Expectation, ...]]
    speed: SpeedPlan
    workload: Workload
    traced_steps: int = 5

    @property
    def minutes(self) -> float:
        """Expected for everything, on two cores."""
        each = len(TASKS) * 3 * self.seconds["compared"]
        return (each + self.seconds["speed"] + sum(self.seconds[task.name] for task in TASKS)) / 60


_LEARNS = {
    IMAGES.name: (Expectation("accuracy", at_least=0.75),),
    TRANSLATION.name: (
        Expectation("nll", below="unigram_nll", margin=1.0),
        Expectation("bleu", above="bleu_copy"),
    ),
}

SCALES: Mapping[str, Scale] = {
    "smoke": Scale(
        overlay="smoke",
        seconds={"compared": 12, "speed": 20, IMAGES.name: 15, TRANSLATION.name: 15},
        agreement_steps=10,
        learning_steps=30,
        expectations={},
        speed=SpeedPlan(rounds=6, steps=1),
        workload=Workload(),
    ),
    "laptop": Scale(
        overlay="laptop",
        seconds={"compared": 18, "speed": 110, IMAGES.name: 100, TRANSLATION.name: 220},
        agreement_steps=20,
        learning_steps=None,
        expectations=_LEARNS,
        speed=SpeedPlan(rounds=12, steps=2),
        workload=Workload(),
    ),
    "gpu": Scale(
        overlay="laptop",
        seconds={"compared": 30, "speed": 120, IMAGES.name: 60, TRANSLATION.name: 120},
        agreement_steps=30,
        learning_steps=None,
        expectations=_LEARNS,
        speed=SpeedPlan(rounds=24, steps=2),
        workload=Workload(),
    ),
}
