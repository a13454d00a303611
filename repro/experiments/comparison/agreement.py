"""Whether runs that differ only in the number of stages give the same numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Curves:
    """What a training run gave.

    Attributes:
        losses: of the mini-batch, one a step.
        gradient_norms: over all parameters, before clipping, one a step.
        held_out: held-out metrics after the last step, by name.
    """

    losses: Sequence[float]
    gradient_norms: Sequence[float]
    held_out: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Tolerance:
    """Largest differences that count as agreement, relative to the reference.

    The runs do the same float32 arithmetic, but may add in another order (rounding: 6e-8), and each step multiplies
    what the steps before it rounded differently. Held-out metrics count right answers, of which one in 200 may flip.
    """

    loss: float = 1e-5
    gradient_norm: float = 1e-4
    held_out: float = 5e-3


# Where numbers are added in another order: whole mini-batches instead of micro-batches, or on CUDA, where the order may
# change from run to run; and Adam divides by the root of small numbers.
OTHER_ORDER = Tolerance(loss=1e-3, gradient_norm=1e-2, held_out=5e-3)


@dataclass(frozen=True)
class Difference:
    """The largest difference of one quantity between two runs.

    Attributes:
        name: ``loss``, ``gradient_norm``, or ``held_out_`` and a metric.
        value: relative to the reference; infinite where a value is missing or not finite.
        allowed: the tolerance.
        where: the step (from 1) of the largest difference, None for held-out metrics.
        got: the value of the compared run there.
        wanted: the value of the reference there.
    """

    name: str
    value: float
    allowed: float
    where: int | None
    got: float
    wanted: float

    @property
    def agrees(self) -> bool:
        """Whether it is within the tolerance; NaN is not."""
        return self.value <= self.allowed

    def __str__(self) -> str:
        place = f" in step {self.where}" if self.where is not None else ""
        return (
            f"{self.name}{place} is {self.got:.8g}, should be {self.wanted:.8g} "
            f"(relative difference {self.value:.1e}, allowed {self.allowed:.0e})"
        )


def compare(reference: Curves, other: Curves, tolerance: Tolerance) -> list[Difference]:
    """The largest difference of every quantity, those that agree included.

    Raises:
        ValueError: there is nothing to compare, or the runs have not the same steps or metrics.
    """
    if not reference.losses or reference.held_out.keys() != other.held_out.keys():
        raise ValueError(
            f"nothing to compare: {len(reference.losses)} steps with held-out metrics {sorted(reference.held_out)} "
            f"against {sorted(other.held_out)}"
        )
    return [
        _largest("loss", reference.losses, other.losses, tolerance.loss),
        _largest("gradient_norm", reference.gradient_norms, other.gradient_norms, tolerance.gradient_norm),
        *(
            Difference(
                f"held_out_{name}",
                _relative(other.held_out[name], wanted),
                tolerance.held_out,
                None,
                other.held_out[name],
                wanted,
            )
            for name, wanted in sorted(reference.held_out.items())
        ),
    ]


def _largest(name: str, reference: Sequence[float], other: Sequence[float], allowed: float) -> Difference:
    if len(reference) != len(other):
        raise ValueError(f"{name} has {len(other)} steps, the reference has {len(reference)}")
    values = [_relative(got, wanted) for got, wanted in zip(other, reference, strict=True)]
    worst = max(range(len(values)), key=values.__getitem__)
    return Difference(name, values[worst], allowed, worst + 1, other[worst], reference[worst])


def _relative(got: float, wanted: float) -> float:
    if not (math.isfinite(got) and math.isfinite(wanted)):
        return math.inf
    return 0.0 if got == wanted else abs(got - wanted) / max(abs(got), abs(wanted))
