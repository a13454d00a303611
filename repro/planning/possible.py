"""Numbers that no plan can have, whatever the memory, and those nearest to them that one can."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from repro.errors import UserError

from .planner import list_choices
from .problem import Problem, Space, divisors


def require_choices(problem: Problem, space: Space) -> None:
    """Refuses numbers that no plan can have.

    Raises:
        UserError: why, and which number would do in place of one of them.
    """
    if list_choices(problem, space)[0]:
        return
    given = [
        f"-{letter} {' '.join(map(str, numbers))}"
        for letter, numbers in (("K", space.num_stages), ("M", space.num_micro_batches))
        if numbers is not None
    ]
    instead = _instead(problem, space)
    raise UserError(
        f"no plan for {problem.devices} devices, {problem.num_layers} layers and a mini-batch of "
        f"{problem.batch_size} rows can have {' '.join(given) or 'these numbers'}: {_reasons(problem, space)}"
        + (f". Give {', or '.join(instead)}" if instead else "")
    )


def _instead(problem: Problem, space: Space) -> list[str]:
    """Every change of one number that makes a plan possible."""
    found = []
    if space.num_stages is not None:
        multiples = {k * max(1, problem.devices // k + up) for k in space.num_stages for up in (0, 1)}
        devices = [n for n in sorted(multiples) if list_choices(replace(problem, devices=n), space)[0]]
        found += [f"--devices {_one_of(devices)}"] if devices else []
        stages = {choice.num_stages for choice in list_choices(problem, replace(space, num_stages=None))[0]}
        found += [f"-K {_one_of(stages)}"] if stages else []
    units = {d * m for d in divisors(problem.devices) for m in space.num_micro_batches or (1,)}
    for batch_size in sorted({-(-problem.batch_size // unit) * unit for unit in units}):
        if list_choices(replace(problem, batch_size=batch_size), space)[0]:
            found.append(f"--batch {batch_size}")
            break
    if space.num_micro_batches is not None:
        choices = list_choices(problem, replace(space, num_micro_batches=None))[0]
        counts = {choice.num_micro_batches for choice in choices}
        found += [f"-M {_one_of(counts)}"] if counts else []
    return found


def _reasons(problem: Problem, space: Space) -> str:
    """Without those of a K that is not asked for and cannot be anyway."""
    open_m = replace(space, num_micro_batches=None)
    stages = tuple(sorted({choice.num_stages for choice in list_choices(problem, open_m)[0]}))
    return ", ".join(list_choices(problem, replace(space, num_stages=stages) if stages else space)[1])


def _one_of(numbers: Iterable[int]) -> str:
    *others, final = (str(number) for number in sorted(numbers))
    return f"{', '.join(others)} or {final}" if others else final
