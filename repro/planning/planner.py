"""The search for a plan: stages x replicas, schedule, micro-batches, re-materialization and partition.

A plan's step time is that of its schedule replayed with the costs of its stages, messages included, and the all-reduce
of the gradients after it. Choices are tried in the order of a lower bound of their time, so that most need no replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from repro.schedules import Remat, Schedule, make_schedule, simulate

from .capacity import Budget, fits, partition_within
from .memory import LiveSet, StageMemory, live_sets, peak_bytes
from .partition import partition, stage_costs
from .problem import SPLITTING, Choice, Problem, Space
from .traffic import ring_all_reduce


@dataclass(frozen=True)
class Plan:
    """A choice with its partition, and what is predicted for it.

    Attributes:
        choice: how the model is laid out.
        partition: layers of each stage, K x V of them.
        step_seconds: one step, with ``reduce_seconds``; the optimizer's own arithmetic is not in it.
        reduce_seconds: the all-reduce of the gradients over the replicas.
        bubble: idle share of the ranks in the pipeline's part of the step.
        rank_bytes: of each rank: parameters with gradients and optimizer states, and peak activations.
        boundary_bytes: for each boundary between stages, bytes of a step there and back; 0 within a rank.
        sent_bytes: of each rank, what it sends of these in a step.
    """

    choice: Choice
    partition: tuple[int, ...]
    step_seconds: float
    reduce_seconds: float
    bubble: float
    rank_bytes: tuple[int, ...]
    boundary_bytes: tuple[int, ...]
    sent_bytes: tuple[int, ...]

    @property
    def largest(self) -> int:
        """Bytes of the rank that needs most."""
        return max(self.rank_bytes)


class _Crossing(NamedTuple):
    """A micro-batch at a boundary: seconds of its message, bytes of the activations, and of the gradients."""

    seconds: float
    there: int
    back: int


@dataclass(frozen=True)
class TooLarge:
    """A choice that needs more memory than a device has.

    Attributes:
        choice: which.
        excess: bytes above the device's, under the best partition that was tried.
        parameters_alone: no partition was tried, since the parameters' share is more already; the excess is theirs.
    """

    choice: Choice
    excess: int
    parameters_alone: bool = False


@dataclass(frozen=True)
class Search:
    """What a search found.

    Attributes:
        plans: the best ones, fastest first; one for each K, schedule and V.
        refused: by reason, how many choices cannot be.
        too_large: those that were found not to fit.
        slower: how many fit, but are slower than another M or remat of the same K, schedule and V, or than all plans.
        pruned: how many were not tried, since even their lower bound is slower.
    """

    plans: tuple[Plan, ...]
    refused: dict[str, int]
    too_large: tuple[TooLarge, ...]
    slower: int
    pruned: int

    @property
    def considered(self) -> int:
        """All choices."""
        return len(self.plans) + sum(self.refused.values()) + len(self.too_large) + self.slower + self.pruned


def search(problem: Problem, space: Space, *, keep: int = 5, tell: Callable[[int, int], None] | None = None) -> Search:
    """The fastest plans that fit into memory.

    Args:
        problem: model and devices.
        space: what is open.
        keep: how many plans.
        tell: is told how many choices are done, of how many.
    """
    choices, refused = list_choices(problem, space)
    bounded = sorted(((_least_seconds(problem, choice), choice) for choice in choices), key=lambda pair: pair[0])
    best: dict[tuple[int, str, int], Plan] = {}
    too_large: list[TooLarge] = []
    slower = pruned = 0
    for number, (bound, choice) in enumerate(bounded):
        if tell is not None:
            tell(number, len(bounded))
        limit = sorted(plan.step_seconds for plan in best.values())[:keep]
        own = best.get(choice.family)
        if (len(limit) == keep and bound >= limit[-1]) or (own is not None and bound >= own.step_seconds):
            pruned += 1
            continue
        found = plan_choice(problem, choice)
        if isinstance(found, TooLarge):
            too_large.append(found)
        elif own is None or _rank(found) < _rank(own):
            slower += own is not None
            best[choice.family] = found
        else:
            slower += 1
    plans = sorted(best.values(), key=_rank)
    return Search(tuple(plans[:keep]), refused, tuple(too_large), slower + len(plans[keep:]), pruned)


def list_choices(problem: Problem, space: Space) -> tuple[list[Choice], dict[str, int]]:
    """All choices that can be, and by reason how many cannot."""
    made: list[Choice] = []
    refused: dict[str, int] = {}

    def refuse(reason: str) -> None:
        refused[reason] = refused.get(reason, 0) + 1

    for num_stages in space.stages(problem.devices):
        if problem.devices % num_stages:
            refuse(f"{problem.devices} devices are no multiple of K={num_stages}")
            continue
        replicas = problem.devices // num_stages
        if problem.batch_size % replicas:
            refuse(f"the mini-batch of {problem.batch_size} rows has no D equal shares")
            continue
        rows = problem.batch_size // replicas
        # Without a pipeline the schedules differ only in what they keep: one micro-batch (1f1b) or all (gpipe).
        names = space.schedules if num_stages > 1 else [n for n in space.schedules if n in ("gpipe", "1f1b")]
        for name in names:
            for virtual in space.virtual_stages(name):
                for number in space.micro_batches(rows, num_stages):
                    for remat in space.remats:
                        choice = Choice(num_stages, replicas, name, virtual, number, remat)
                        if choice.total_stages > problem.num_layers:
                            refuse(f"more stages (K x V) than layers ({problem.num_layers})")
                        elif number > rows:
                            refuse("more micro-batches than rows")
                        elif rows % number:
                            refuse("M does not divide the rows of a replica")
                        elif rows // number < problem.least_rows:
                            refuse(f"micro-batches of fewer than {problem.least_rows} rows: BatchNorm cannot train")
                        elif number == 1 and remat == Remat.EXCEPT_LAST and Remat.NEVER in space.remats:
                            continue  # the same as never
                        elif number == 1 and name == "1f1b" and "gpipe" in names:
                            continue  # the same as gpipe
                        else:
                            made.append(choice)
    return made, refused


def plan_choice(problem: Problem, choice: Choice, counts: Sequence[int] | None = None) -> Plan | TooLarge:
    """A choice with its best partition that fits, or by how much none does.

    Args:
        problem: model and devices.
        choice: K x D need not be all devices.
        counts: the partition, if it is given; it is kept whether it fits or not.

    Raises:
        UserError: the schedule or the partition cannot have these numbers.
    """
    schedule = schedule_of(choice)
    rows = _rows(problem, choice)
    live = live_sets(schedule)
    if counts is None:
        if not _may_fit(problem, choice):
            least = -(-problem.parameters * problem.bytes_per_parameter // choice.num_stages)
            return TooLarge(choice, least - problem.memory, parameters_alone=True)
        found = _partition(problem, choice, schedule, Budget(live, problem.bytes_per_parameter))
        if isinstance(found, TooLarge):
            return found
        counts = found
    stages = problem.model(rows).stages(counts)
    sizes = _rank_bytes(problem, schedule, live, stages)
    forward = [float(cost) for cost in stage_costs(problem.forward(rows), counts)]
    backward = [float(cost) for cost in stage_costs(problem.backward(rows), counts)]
    crossing = _crossing(problem, choice, schedule, counts, rows)
    timeline = simulate(schedule, forward, backward, recompute=forward, transfer=[one.seconds for one in crossing])
    reduce = _reduce_seconds(problem, choice, schedule, [stage.parameters for stage in stages])
    return Plan(
        choice=choice,
        partition=tuple(counts),
        step_seconds=float(timeline.makespan) + reduce,
        reduce_seconds=reduce,
        bubble=float(timeline.bubble),
        rank_bytes=tuple(sizes),
        boundary_bytes=tuple(choice.num_micro_batches * (one.there + one.back) for one in crossing),
        sent_bytes=_sent(choice, schedule, crossing),
    )


def _partition(problem: Problem, choice: Choice, schedule: Schedule, budget: Budget) -> list[int] | TooLarge:
    rows = _rows(problem, choice)
    weights = _weights(problem, choice)
    model = problem.model(rows)
    if choice.num_virtual_stages == 1:
        counts = partition(weights, choice.num_stages)
        excess = budget.largest_stage(model, counts) - problem.memory
        if excess <= 0:
            return counts
        if not fits(model, choice.num_stages, budget, problem.memory):
            return TooLarge(choice, excess)
        return partition_within(weights, choice.num_stages, model=model, budget=budget, cap=problem.memory)
    least = None
    for costs in (weights, _bytes_of_layers(problem, rows)):
        counts = partition(costs, choice.total_stages)
        excess = max(_rank_bytes(problem, schedule, budget.live, model.stages(counts))) - problem.memory
        if excess <= 0:
            return counts
        least = excess if least is None else min(least, excess)
    assert least is not None
    return TooLarge(choice, least)


def _rank_bytes(
    problem: Problem, schedule: Schedule, live: Sequence[LiveSet], stages: Sequence[StageMemory]
) -> list[int]:
    sizes = peak_bytes(live, stages)
    for stage, ranks in enumerate(schedule.placement):
        for rank in ranks:
            sizes[rank] += stages[stage].parameters * problem.bytes_per_parameter
    return sizes


def _crossing(
    problem: Problem, choice: Choice, schedule: Schedule, counts: Sequence[int], rows: int
) -> list[_Crossing]:
    """Of each boundary of stages; nothing is sent within a rank."""
    model = problem.model(rows)
    found = []
    end = 0
    for stage, count in enumerate(counts[:-1]):
        end += count
        (first,), (second,) = schedule.placement[stage : stage + 2]
        if first == second:
            found.append(_Crossing(0.0, 0, 0))
            continue
        there = sum(model.boundary(end))
        wire = problem.wire_between(choice.num_stages, first, second)
        found.append(_Crossing(wire.seconds(there), there, rows * problem.returned[end - 1]))
    return found


def _sent(choice: Choice, schedule: Schedule, crossing: Sequence[_Crossing]) -> tuple[int, ...]:
    sent = [0] * choice.num_stages
    for stage, one in enumerate(crossing):
        (first,), (second,) = schedule.placement[stage : stage + 2]
        sent[first] += choice.num_micro_batches * one.there
        sent[second] += choice.num_micro_batches * one.back
    return tuple(sent)


def _reduce_seconds(problem: Problem, choice: Choice, schedule: Schedule, parameters: Sequence[int]) -> float:
    """The all-reduce of the rank that needs longest; it runs after the last backward."""
    replicas = choice.data_parallel_size
    if replicas == 1:
        return 0.0
    held = [0] * choice.num_stages
    for stage, (rank,) in enumerate(schedule.placement):
        held[rank] += parameters[stage]
    slowest = 0.0
    for rank, number in enumerate(held):
        wire = problem.wire_of_replicas(choice.num_stages, rank)
        sent = ring_all_reduce(number * problem.gradient_bytes, replicas)
        slowest = max(slowest, 2 * (replicas - 1) * wire.latency + sent / wire.bandwidth)
    return slowest


def _least_seconds(problem: Problem, choice: Choice) -> float:
    """A bound that no partition goes below.

    Some rank has its share of the work, and one micro-batch passes every layer there and back (W can wait). With one
    stage a rank and a whole backward, rank r is also idle while the stages before it run the first F and the last B:
    its M c_r + c_0 + ... + c_(r-1) are least at the most when all are equal, then c / (1 - (1 - 1/M)^K) with the c of
    all layers together.
    """
    rows, number = _rows(problem, choice), choice.num_micro_batches
    forward, backward = sum(problem.forward(rows)), sum(problem.backward(rows))
    repeats = Remat(choice.remat).num_recomputed(number)
    least = (number * (forward + backward) + repeats * forward) / choice.num_stages
    if choice.schedule in SPLITTING:
        least = max(least, forward + backward / 2)
    elif choice.num_virtual_stages == 1:
        least = max(least, (forward + backward) / (1 - (1 - 1 / number) ** choice.num_stages))
    else:
        least = max(least, forward + backward)
    if choice.data_parallel_size > 1:
        mean = problem.parameters * problem.gradient_bytes / choice.num_stages
        fastest = max(problem.wire.bandwidth, problem.node_wire.bandwidth)
        least += ring_all_reduce(mean, choice.data_parallel_size) / fastest
    return least


def _weights(problem: Problem, choice: Choice) -> list[float]:
    """What a layer costs in a step, R included."""
    rows = _rows(problem, choice)
    repeated = 0.0 if choice.remat == Remat.NEVER else 1.0
    pairs = zip(problem.forward(rows), problem.backward(rows), strict=True)
    return [f + b + repeated * f for f, b in pairs]


def _bytes_of_layers(problem: Problem, rows: int) -> list[float]:
    """Parameters and activations of each layer as a stage of its own."""
    stages = problem.model(rows).stages([1] * problem.num_layers)
    return [float(stage.parameters * problem.bytes_per_parameter + stage.held) for stage in stages]


def _may_fit(problem: Problem, choice: Choice) -> bool:
    """Whether the parameters alone leave room: no partition gives every rank less than the mean."""
    return problem.parameters * problem.bytes_per_parameter <= choice.num_stages * problem.memory


def _rows(problem: Problem, choice: Choice) -> int:
    """Of the largest micro-batch."""
    return -(-problem.batch_size // (choice.data_parallel_size * choice.num_micro_batches))


def schedule_of(choice: Choice) -> Schedule:
    """The schedule of a choice."""
    return make_schedule(
        choice.schedule,
        num_stages=choice.num_stages,
        num_micro_batches=choice.num_micro_batches,
        num_virtual_stages=choice.num_virtual_stages,
        remat=choice.remat,
    )


def _rank(plan: Plan) -> tuple[float, int, int, int]:
    """Fastest first; where equal, the one that needs less memory, then the simpler one."""
    return plan.step_seconds, plan.largest, plan.choice.num_virtual_stages, plan.choice.num_micro_batches
