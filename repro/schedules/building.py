"""What the generators share: from the order of F, B, I and W on every rank to a finished ``Schedule``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .actions import Action, Kind, Remat, Schedule, ScheduleError


def build(
    name: str,
    num_stages: int,
    num_micro_batches: int,
    remat: Remat,
    placement: Sequence[tuple[int, ...]],
    orders: Iterable[Iterable[Action]],
    *,
    restriction: str = "",
) -> Schedule:
    """A schedule from the order of its F, B, I and W.

    Each R goes directly before its B or I: it needs no gradient, so a rank that waits for one runs R meanwhile, and
    at most one micro-batch is recomputed ahead of its turn. Actions of micro-batches from M on are left out; what is
    left of a schedule that runs to its end does so too, so a pattern for a rounder number serves every M below it.

    Args:
        name: the family.
        num_stages: K.
        num_micro_batches: M.
        remat: which micro-batches get an R.
        placement: for every stage the ranks that hold it.
        orders: for every rank its actions in order, without R.
        restriction: why it cannot be executed, if so.
    """
    recomputed = {number for number in range(num_micro_batches) if remat.recomputes(number, num_micro_batches)}
    return Schedule(
        name=name,
        num_stages=num_stages,
        num_micro_batches=num_micro_batches,
        num_virtual_stages=len(placement) // num_stages,
        remat=remat,
        placement=tuple(placement),
        actions=tuple(_with_recompute(order, num_micro_batches, recomputed) for order in orders),
        restriction=restriction,
    )


def one_after_the_other(num_stages: int, num_virtual_stages: int = 1) -> tuple[tuple[int, ...], ...]:
    """The usual placement: rank r holds stages r, r + K, r + 2 K and so on."""
    return tuple((stage % num_stages,) for stage in range(num_stages * num_virtual_stages))


def require_virtual_stages(name: str, given: int, wanted: int, instead: str) -> None:
    """Raises ``ScheduleError`` unless V is the one that the schedule has."""
    if given != wanted:
        held = "one stage" if wanted == 1 else f"{wanted} stages"
        raise ScheduleError(
            f"num_virtual_stages={given}: schedule {name!r} has {held} per rank; set num_virtual_stages={wanted}, or "
            f"take {instead}"
        )


def _with_recompute(order: Iterable[Action], num_micro_batches: int, recomputed: set[int]) -> tuple[Action, ...]:
    made: list[Action] = []
    backward, input_gradient = Kind.BACKWARD, Kind.INPUT_GRADIENT
    for action in order:
        kind, stage, micro_batch = action
        if micro_batch >= num_micro_batches:
            continue
        if micro_batch in recomputed and (kind is backward or kind is input_gradient):
            made.append(Action(Kind.RECOMPUTE, stage, micro_batch))
        made.append(action)
    return tuple(made)
