"""What would fit, where nothing does: every suggestion is a choice that was found to fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from repro.schedules import Remat

from .capacity import Budget, partition_by_memory
from .memory import live_sets
from .planner import Plan, list_choices, plan_choice, schedule_of, search
from .problem import Choice, Problem, Space

_LEANEST = (Remat.ALWAYS, Remat.EXCEPT_LAST, Remat.NEVER)
"""What a rank holds only grows from one to the next."""


@dataclass(frozen=True)
class Suggestion:
    """A change with which the model fits.

    Attributes:
        change: what to do.
        choice: what fits then.
        needed: bytes of its largest rank.
    """

    change: str
    choice: Choice
    needed: int


def least_memory(problem: Problem, space: Space) -> tuple[int, Choice] | None:
    """The smallest memory of a device with which some choice fits, and that choice; None where nothing can be.

    Looked at are the largest K with one stage a rank.
    """
    choices = [choice for choice in list_choices(problem, space)[0] if choice.num_virtual_stages == 1]
    if not choices:
        return None
    most = max(choice.num_stages for choice in choices)
    lean = _leanest([choice for choice in choices if choice.num_stages == most])
    # At the same M no schedule with one stage a rank holds less than 1F1B.
    lean = [choice for choice in lean if choice.schedule == "1f1b"] or lean
    return min(((_needed(problem, choice), choice) for choice in lean), key=lambda pair: pair[0])


def what_would_fit(problem: Problem, space: Space, *, most_devices: int = 4096) -> list[Suggestion]:
    """Changes with which the model fits, each alone; where none does alone, with everything open and more devices.

    Args:
        problem: nothing in ``space`` fits it.
        space: what was open.
        most_devices: no larger number is suggested.
    """
    open_space = Space()
    made = []
    for change, wider in (
        ("re-materialization", replace(space, remats=open_space.remats)),
        ("smaller micro-batches", replace(space, num_micro_batches=None)),
        ("another schedule", replace(space, schedules=open_space.schedules)),
        ("another number of stages", replace(space, num_stages=None)),
        ("everything left open", open_space),
    ):
        if wider != space:
            found = _fastest_that_fits(problem, wider)
            if found is not None:
                made.append(Suggestion(f"{change}: {found.choice}", found.choice, found.largest))
                if wider == open_space and len(made) > 1:
                    made.pop()  # a smaller change does
    more = _more_stages(problem, replace(space, num_stages=None), most_devices)
    if more is None and space != open_space:
        more = _more_stages(problem, open_space, most_devices)
    if more is not None:
        made.append(more)
    return made


def _leanest(choices: Sequence[Choice]) -> list[Choice]:
    """Of each K, schedule and V what needs least: the smallest micro-batches, and the remat that keeps least."""
    found: dict[tuple[int, str, int], Choice] = {}
    for choice in choices:
        other = found.setdefault(choice.family, choice)
        if (-choice.num_micro_batches, _LEANEST.index(Remat(choice.remat))) < (
            -other.num_micro_batches,
            _LEANEST.index(Remat(other.remat)),
        ):
            found[choice.family] = choice
    return sorted(found.values(), key=lambda choice: (-choice.num_stages, choice.num_virtual_stages))


def _fastest_that_fits(problem: Problem, space: Space) -> Plan | None:
    lean = _leanest(list_choices(problem, space)[0])
    if any(isinstance(plan_choice(problem, choice), Plan) for choice in lean):
        return search(problem, space, keep=1).plans[0]
    return None


def _more_stages(problem: Problem, space: Space, most_devices: int) -> Suggestion | None:
    """The smallest K above the number of devices with which one replica fits."""

    def least(num_stages: int) -> tuple[int, Choice] | None:
        return least_memory(replace(problem, devices=num_stages), replace(space, num_stages=(num_stages,)))

    limit = min(problem.num_layers, most_devices)
    for num_stages in _growing(problem.devices + 1, limit):
        found = least(num_stages)
        if found is not None and found[0] <= problem.memory:
            low, high = problem.devices, num_stages
            while high - low > 1:
                middle = (low + high) // 2
                between = least(middle)
                if between is not None and between[0] <= problem.memory:
                    high, found = middle, between
                else:
                    low = middle
            return Suggestion(f"more stages: {high} devices, {found[1]}", found[1], found[0])
    return None


def _growing(first: int, limit: int) -> Iterator[int]:
    number = first
    while number < limit:
        yield number
        number = number * 3 // 2 + 1
    if first <= limit:
        yield limit


def _needed(problem: Problem, choice: Choice) -> int:
    budget = Budget(live_sets(schedule_of(choice)), problem.bytes_per_parameter)
    model = problem.model(-(-problem.batch_size // (choice.data_parallel_size * choice.num_micro_batches)))
    return budget.largest_stage(model, partition_by_memory(model, choice.num_stages, budget))
