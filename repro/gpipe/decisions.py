"""What a run is going to do, said once at its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from lightning.pytorch.utilities.rank_zero import rank_zero_info

from repro.planning import stage_costs
from repro.schedules import Schedule, make_schedule, simulate
from repro.schedules.comparison import Work, smallest_for_bubble
from repro.words import counted, plural

from .building import GIVEN

_SMALL = Fraction(1, 5)
"""A bubble that is worth no advice."""

_EQUAL = 1.25
"""Largest over mean cost of a stage up to which they are balanced."""


def announce_decisions(
    *,
    schedule: str | Callable[..., Schedule],
    num_stages: int,
    num_micro_batches: int,
    num_virtual_stages: int,
    remat: str,
    data_parallel_size: int,
    processes: int,
    partition: Sequence[int],
    costs: Sequence[float],
    rule: str,
    stage_bytes: Sequence[int] | None = None,
    limit: float | None = None,
) -> None:
    """Logs K, M, the schedule, the partition with its bottleneck and memory, and the predicted bubble and peak."""
    plan = make_schedule(
        schedule,
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_virtual_stages=num_virtual_stages,
        remat=remat,
    )
    per_stage = stage_costs(costs, partition)
    unit = sum(per_stage) / len(per_stage) or 1.0
    forward = [cost / unit for cost in per_stage]
    timeline = simulate(plan, forward=forward, backward=[2 * f for f in forward], recompute=forward)
    bottleneck = max(range(len(per_stage)), key=lambda stage: per_stage[stage])
    cost = f" ({1000 * per_stage[bottleneck]:.3g} ms a micro-batch)" if rule == "time" else ""
    within = "" if limit is None else f" within stage_memory={limit}"
    needs = ""
    if stage_bytes is not None:
        most = max(range(len(stage_bytes)), key=lambda stage: stage_bytes[stage])
        needs = f"; stage {most} takes the most memory, {stage_bytes[most] / 2**30:.3g} GiB"
    virtual = f" x V = {num_virtual_stages}" if num_virtual_stages > 1 else ""
    where = "in this process" if processes == 1 else f"in {processes} processes"
    replicas = f", D = {data_parallel_size} replicas" if data_parallel_size > 1 else ""
    rank_zero_info(
        f"Pipeline: K = {num_stages}{virtual} {plural('stage', num_stages * num_virtual_stages)} {where}{replicas}, "
        f"M = {counted(num_micro_batches, 'micro-batch')}, schedule {plan.name}, "
        f"remat {remat}.\n"
        f"Partition by {rule}{within}: {list(partition)} layers; the largest stage ({bottleneck}) has "
        f"{per_stage[bottleneck] / unit:.2f} x the mean cost{cost}{needs}.\n"
        f"Predicted (backward = 2 x forward, no transfer time): bubble {float(timeline.bubble):.1%}; at most "
        f"{counted(max(timeline.peak_live), 'micro-batch')} with live activations on a rank."
    )
    for advice in (_more_micro_batches(plan, schedule), _better_balance(per_stage, num_layers=len(costs), rule=rule)):
        if advice is not None:
            rank_zero_info(advice)


def _better_balance(per_stage: Sequence[float | Fraction], *, num_layers: int, rule: str) -> str | None:
    """What to say of stages that too few layers make unequal; None where they are equal, or are what was asked for."""
    few = num_layers < 2 * len(per_stage)
    if not few or rule == GIVEN or max(per_stage) * len(per_stage) <= _EQUAL * sum(per_stage):
        return None
    return (
        f"{num_layers} layers on {len(per_stage)} stages can hardly be balanced; split the layers more finely, or use "
        "fewer stages."
    )


def _more_micro_batches(plan: Schedule, schedule: str | Callable[..., Schedule]) -> str | None:
    """What to say of a schedule whose bubble is large with equal stages, None where it is small."""
    # R costs what F costs, and B twice that, as in what is predicted above.
    work = Work(remat=plan.remat)
    numbers = {"forward": work.forward, "backward": work.backward, "recompute": work.forward}
    virtual = plan.num_virtual_stages
    idle = simulate(plan, **{name: cost / virtual for name, cost in numbers.items()}).bubble
    if idle <= _SMALL:
        return None
    said = (
        f"With equal stages num_micro_batches={plan.num_micro_batches} gives schedule {plan.name} on "
        f"num_stages={plan.num_stages} with remat {plan.remat} a bubble of {float(idle):.1%}"
    )
    unless = "unless smaller micro-batches are slower themselves (repro plan weighs both)"
    # A function of the user's need not build what it was not asked for.
    enough = (
        smallest_for_bubble(schedule, plan.num_stages, virtual, work, _SMALL) if isinstance(schedule, str) else None
    )
    if enough is None:
        return f"{said}; more micro-batches make it smaller, {unless}."
    rule = f", and the paper's rule is 4 x num_stages = {4 * plan.num_stages}" if plan.name == "gpipe" else ""
    return f"{said}; num_micro_batches={enough.num_micro_batches} is enough for {float(_SMALL):.0%}{rule}, {unless}."
