"""Target ``plan``: the order in which the planner puts choices, against measured steps of the same choices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from repro.errors import UserError
from repro.planning.problem import Choice

from ..costs.scaled_down import SmallTransformer
from ..sweeps.checks import Check
from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import Request, SweepPart, Target
from ..sweeps.turns import median_and_spread
from ..traces.step_plan import can_measure
from .choice_plan import PlannedSteps

EXPERIMENT = "plan"
TAU_LIMIT, REGRET_LIMIT = 0.6, 1.15
"""Least rank correlation of predicted and measured step times, and what the best plan may take more than the best."""

_STAGES = (2,)
_REMATS = ("never", "always")
_SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1))


@dataclass(frozen=True)
class _Scale:
    """How much is run."""

    model: SmallTransformer
    micro_batches: tuple[int, ...]
    rounds: int
    judged: bool


_SCALES: Mapping[str, _Scale] = {
    "smoke": _Scale(SmallTransformer(4, 32, 64, 2, 32, 16, 4), (1, 4), 2, judged=False),
    "laptop": _Scale(SmallTransformer(batch_size=16), (1, 2, 4, 16), 9, judged=True),
    "gpu": _Scale(SmallTransformer(16, 1024, 4096, 16, 512, 512, 32), (1, 2, 4, 32), 15, judged=True),
}


@dataclass(frozen=True)
class Agreement:
    """Predicted and measured step times of the same choices.

    Attributes:
        predicted: seconds by choice.
        measured: medians, seconds, in the same order.
    """

    predicted: Sequence[float]
    measured: Sequence[float]
    pairs: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", len(list(combinations(self.measured, 2))))

    @property
    def tau(self) -> float:
        """Kendall's rank correlation (tau-b, ties counted): 1 the same order, -1 the opposite, 0 where all is tied."""
        concordant = left = right = 0
        for (p, m), (q, n) in combinations(zip(self.predicted, self.measured, strict=True), 2):
            first, second = (p > q) - (p < q), (m > n) - (m < n)
            concordant += first * second
            left += first != 0
            right += second != 0
        return concordant / (left * right) ** 0.5 if left and right else 0.0

    @property
    def regret(self) -> float:
        """Measured time of the choice that is predicted to be fastest / that of the one that was."""
        best = min(range(len(self.predicted)), key=self.predicted.__getitem__)
        return self.measured[best] / min(self.measured)


def plans(request: Request) -> dict[str, PlannedSteps]:
    """By part name, one for each K that can be measured here.

    Raises:
        UserError: K below 2, more stages than layers, or M that does not divide the mini-batch.
    """
    scale = _SCALES[request.scale]
    made: dict[str, PlannedSteps] = {}
    for stages in request.num_stages or _STAGES:
        layers = scale.model.num_layers + 2
        if not 2 <= stages <= layers // 2:
            raise UserError(
                f"-K {stages}: give 2 to {layers // 2} stages; the model has {layers} layers, and V is up to 2"
            )
        if can_measure(stages, request.device, os.cpu_count()) is not None:
            continue
        for number in request.num_micro_batches or ():
            if number < 1 or scale.model.batch_size % number:
                raise UserError(
                    f"-M {number}: the mini-batch has {scale.model.batch_size} rows; give divisors of "
                    f"{scale.model.batch_size}"
                )
        choices = tuple(
            Choice(stages, 1, name, virtual, number, remat)
            for name, virtual in _SCHEDULES
            for number in request.num_micro_batches or scale.micro_batches
            for remat in _REMATS
        )
        made[f"steps-k{stages}"] = PlannedSteps(scale.model, stages, choices, scale.rounds, request.device)
    return made


def parts(request: Request) -> list[SweepPart]:
    """One part for each K; raises as ``plans`` does."""
    from .planned_steps import run_planned

    return [
        SweepPart(
            name=name,
            title=f"K = {plan.num_stages}, {len(plan.choices)} choices in turns",
            function=run_planned,
            arguments=(plan,),
            world_size=plan.num_stages,
            seconds=8 + len(plan.choices) * (plan.rounds + 2) * (0.02 if request.scale == "smoke" else 0.25),
        )
        for name, plan in plans(request).items()
    ]


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Predicted and measured step times, how well their orders agree, and what must hold of that."""
    made: list[Row] = []
    checks: list[Check] = []
    for name, plan in plans(request).items():
        if name not in results:
            continue
        predicted, measured = results[name]["predicted"], results[name]["measured"]
        medians = []
        for choice, guess, seconds in zip(plan.choices, predicted, measured, strict=True):
            median, spread = median_and_spread(seconds)
            medians.append(median)
            made.append(_row(plan, choice, Provenance.SIMULATED, "step_time", guess, "s"))
            made.append(_row(plan, choice, Provenance.MEASURED, "step_time", median, "s", spread))
        agreement = Agreement(predicted, medians)
        for metric, value in (("kendall_tau", agreement.tau), ("regret", agreement.regret)):
            made.append(_row(plan, None, Provenance.MEASURED, metric, value, "1"))
        if _SCALES[request.scale].judged:
            checks += [
                Check(
                    f"K = {plan.num_stages}: predicted and measured step times of {len(plan.choices)} choices have a "
                    f"rank correlation (Kendall) of at least {TAU_LIMIT}: {agreement.tau:.2f}",
                    agreement.tau >= TAU_LIMIT,
                ),
                Check(
                    f"K = {plan.num_stages}: the choice that is predicted to be fastest takes at most "
                    f"{REGRET_LIMIT:g}x the time of the one that is: {agreement.regret:.2f}",
                    agreement.regret <= REGRET_LIMIT,
                ),
            ]
        else:
            finite = all(value > 0 for value in (*predicted, *medians))
            checks.append(Check(f"K = {plan.num_stages}: every choice has a predicted and a measured time", finite))
    return made, checks


def _row(
    plan: PlannedSteps,
    choice: Choice | None,
    provenance: Provenance,
    metric: str,
    value: float,
    unit: str,
    spread: float | None = None,
) -> Row:
    params: dict[str, Any] = {"device": plan.device, "rounds": plan.rounds}
    if choice is None:
        params["choices"] = len(plan.choices)
    else:
        params["num_virtual_stages"] = choice.num_virtual_stages
    return Row(
        experiment=EXPERIMENT,
        model=plan.model.label,
        batch_size=plan.model.batch_size,
        num_stages=plan.num_stages,
        num_micro_batches=None if choice is None else choice.num_micro_batches,
        schedule=None if choice is None else choice.schedule,
        remat=None if choice is None else choice.remat,
        provenance=provenance,
        metric=metric,
        value=value,
        unit=unit,
        spread=spread,
        params=params,
    )


TARGET = Target(
    name=EXPERIMENT,
    summary="Whether repro plan puts schedules, micro-batches and remat in the order that measured steps have.",
    minutes={"smoke": 0.3, "laptop": 1.2},
    parts=parts,
    rows=rows,
)
