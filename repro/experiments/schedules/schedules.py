"""All schedules that the engine executes, on emulated equal stages: step time, bubble and live activations.

Each is replayed by the simulator as well: with the same waits and nothing else, and with the costs of actions and
messages in the trace of the very step. The first says what the schedule gives, the second whether the engine runs it as
it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.schedules import Timeline

from ..sweeps.checks import Check
from ..sweeps.rows import Provenance, Row
from ..sweeps.sweep import Request, SweepPart, Target
from ..sweeps.turns import median_and_spread, paired_ratios
from ..traces.schedule_costs import TracedCosts, replayed_with
from ..traces.step_plan import check_pipeline
from .schedule_plan import ORDERS, Order, SchedulePlan

EXPERIMENT = "schedules"
FORWARD, BACKWARD = 0.010, 0.020
"""Seconds of a micro-batch on all layers of a rank."""
TOLERANCE = 0.05
"""Within which an emulated step takes what its replay says; simulated differences that are larger must show."""
IDEAL, REPLAY = "ideal", "traced costs"
_WITH_REMAT = 4
"""The largest K that is run with re-materialization too."""
_JUDGED = 4
"""The largest K whose step times must be right, without remat: more processes compete for a machine with few cores, and
what that adds is reported."""


@dataclass(frozen=True)
class Size:
    """How big a run is.

    Attributes:
        micro_batches: M, by K.
        remats: for K up to four; more stages run without remat only.
        rounds: steps of each schedule.
        judged: whether step times must be right: not where there are two of each.
    """

    micro_batches: Mapping[int, tuple[int, ...]]
    remats: tuple[str, ...]
    rounds: int
    judged: bool


_LAPTOP = Size({4: (8, 16, 32), 8: (8, 32)}, ("never", "always"), 5, judged=True)
_SIZES = {"smoke": Size({4: (16,)}, ("never",), 2, judged=False), "laptop": _LAPTOP, "gpu": _LAPTOP}


@dataclass(frozen=True)
class Ran:
    """One schedule with one M: what was asked for and what was seen."""

    plan: SchedulePlan
    order: Order
    num_micro_batches: int
    result: Mapping[str, Any]
    timeline: Timeline

    @property
    def seconds(self) -> float:
        """Of a step, emulated: the median."""
        return median_and_spread(self.result["seconds"])[0]

    @property
    def simulated(self) -> float:
        """Of a step, by the simulator, with messages and engine free."""
        return float(self.timeline.makespan)

    def replayed(self) -> list[float]:
        """Of each step, by the simulator from the costs in its trace."""
        schedule = self.plan.schedule(self.order, self.num_micro_batches)
        costs = [TracedCosts.from_dict(step) for step in self.result["costs"]]
        return [float(replayed_with(schedule, step).makespan) for step in costs]

    def beyond_replay(self) -> float:
        """Emulated / replayed - 1: the median over the steps."""
        return median_and_spread(paired_ratios(self.result["seconds"], self.replayed()))[0] - 1


def plans(request: Request) -> dict[str, SchedulePlan]:
    """By part name.

    Raises:
        UserError: a single stage.
    """
    check_pipeline(request.num_stages)
    size = _SIZES[request.scale]
    made: dict[str, SchedulePlan] = {}
    default = max(size.micro_batches.values(), key=len)
    for stages in request.num_stages or tuple(size.micro_batches):
        numbers = request.num_micro_batches or size.micro_batches.get(stages, default)
        for remat in size.remats if stages <= _WITH_REMAT else size.remats[:1]:
            made[f"k{stages}-{remat}"] = SchedulePlan(stages, numbers, remat, FORWARD, BACKWARD, size.rounds)
    return made


def parts(request: Request) -> Sequence[SweepPart]:
    """One for each K and remat; raises as ``plans`` does."""
    from .schedule_steps import run_schedules

    return [
        SweepPart(
            name=name,
            title=f"{len(plan.orders)} schedules, K = {plan.num_stages}, remat {plan.remat} (emulated)",
            function=run_schedules,
            arguments=(plan,),
            world_size=plan.num_stages,
            seconds=3.0 + 0.5 * plan.num_stages + 1.1 * plan.seconds,
        )
        for name, plan in plans(request).items()
    ]


def rows(request: Request, results: Mapping[str, Any]) -> tuple[list[Row], list[Check]]:
    """Of every schedule, K, M and remat: step time, bubble and live activations, emulated and simulated."""
    made: list[Row] = []
    checks: list[Check] = []
    for name, plan in plans(request).items():
        ran = list(_cells(plan, results.get(name, ())))
        for cell in ran:
            made += _rows(cell)
        for number in plan.micro_batches if ran else ():
            cells = {cell.order.schedule: cell for cell in ran if cell.num_micro_batches == number}
            if _SIZES[request.scale].judged and plan.num_stages <= _JUDGED and plan.remat == "never":
                checks += _time_checks(cells)
            checks.append(_memory_check(cells))
    return made, checks


def _cells(plan: SchedulePlan, results: Sequence[Mapping[str, Any]]) -> Iterator[Ran]:
    for result in results:
        order, number = Order(result["schedule"], result["num_virtual_stages"]), result["num_micro_batches"]
        yield Ran(plan, order, number, result, plan.simulated(order, number))


def _rows(ran: Ran) -> list[Row]:
    virtual = ran.order.num_virtual_stages

    def row(provenance: Provenance, metric: str, value: float, unit: str, spread: float | None, **params: Any) -> Row:
        return Row(
            experiment=EXPERIMENT,
            model=ran.plan.label,
            batch_size=ran.num_micro_batches,
            num_stages=ran.plan.num_stages,
            num_micro_batches=ran.num_micro_batches,
            schedule=ran.order.schedule,
            remat=ran.plan.remat,
            provenance=provenance,
            metric=metric,
            value=value,
            unit=unit,
            spread=spread,
            params={"num_virtual_stages": virtual, "steps": ran.plan.rounds, **params},
        )

    made = []
    for metric, values, unit in (("step_time", ran.result["seconds"], "s"), ("bubble", ran.result["bubbles"], "1")):
        value, spread = median_and_spread(values)
        made.append(row(Provenance.EMULATED, metric, value, unit, spread, least=min(values)))
    value, spread = median_and_spread(ran.replayed())
    made.append(row(Provenance.SIMULATED, "step_time", value, "s", spread, form=REPLAY, beyond=ran.beyond_replay()))
    made.append(row(Provenance.SIMULATED, "step_time", ran.simulated, "s", None, form=IDEAL))
    made.append(row(Provenance.SIMULATED, "bubble", float(ran.timeline.bubble), "1", None, form=IDEAL))
    for provenance, peaks, form in (
        (Provenance.EMULATED, ran.result["peak_live"], {}),
        (Provenance.SIMULATED, ran.timeline.peak_live, {"form": IDEAL}),
    ):
        by_rank = [int(peak) for peak in peaks]
        most = float(max(by_rank))
        made.append(row(provenance, "peak_live", most, "micro-batches of a stage", None, by_rank=by_rank, **form))
        # A stage has 1/V of the layers of a rank.
        made.append(row(provenance, "peak_live_ranks", most / virtual, "micro-batches of a rank", None, **form))
    return made


def _time_checks(by_name: Mapping[str, Ran]) -> list[Check]:
    """What must hold of the step times of all schedules with the same K, M and remat."""
    where = _where(by_name)
    made = []
    base = by_name["1f1b"]
    for name, ran in by_name.items():
        if ran.simulated < (1 - TOLERANCE) * base.simulated:
            text = (
                f"{where}: {name} takes {ran.seconds / base.seconds:.3f} x the time of 1f1b "
                f"(simulated: {ran.simulated / base.simulated:.3f})"
            )
            made.append(Check(text, ran.seconds < base.seconds))
    worst = max(by_name.values(), key=lambda ran: abs(ran.beyond_replay()))
    text = (
        f"{where}: steps take what their replay with traced costs says within {TOLERANCE:.0%}; the largest difference "
        f"is {worst.beyond_replay():+.1%} ({worst.order.label})"
    )
    made.append(Check(text, abs(worst.beyond_replay()) <= TOLERANCE))
    return made


def _memory_check(by_name: Mapping[str, Ran]) -> Check:
    peaks = ", ".join(f"{name} {max(ran.result['peak_live'])}" for name, ran in by_name.items())
    agree = all(tuple(ran.result["peak_live"]) == ran.timeline.peak_live for ran in by_name.values())
    text = f"{_where(by_name)}: live activations in execution are the simulator's on every rank ({peaks})"
    return Check(text, agree)


def _where(by_name: Mapping[str, Ran]) -> str:
    known = next(iter(by_name.values()))
    return f"K = {known.plan.num_stages}, M = {known.num_micro_batches}, remat {known.plan.remat}"


TARGET = Target(
    name=EXPERIMENT,
    summary=f"{len(ORDERS)} schedules on emulated equal stages: step time, bubble, live activations.",
    minutes={"smoke": 0.3, "laptop": 3},
    parts=parts,
    rows=rows,
)
