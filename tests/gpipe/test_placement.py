"""Schedules and placements that the package does not have yet: the engine must assume nothing about either."""

from __future__ import annotations

import pytest

from repro.schedules import Action, Kind, Remat, Schedule
from tests.helpers.models import MODELS
from tests.helpers.pipelines import Cell, differences, run_cells
from tests.helpers.ranks import Pools


def backward(stage: int, micro_batch: int, num_micro_batches: int, remat: Remat) -> list[Action]:
    again = [Action(Kind.RECOMPUTE, stage, micro_batch)] if remat.recomputes(micro_batch, num_micro_batches) else []
    return [*again, Action(Kind.BACKWARD, stage, micro_batch)]


def one_forward_one_backward(
    num_stages: int, num_micro_batches: int, num_virtual_stages: int, remat: Remat
) -> Schedule:
    """B in order of micro-batches, as soon as it can be: the total count of the loss is not known at the first B."""

    def rank_actions(stage: int) -> tuple[Action, ...]:
        ahead = min(num_stages - stage, num_micro_batches)
        actions = [Action(Kind.FORWARD, stage, part) for part in range(ahead)]
        for part in range(num_micro_batches):
            actions += backward(stage, part, num_micro_batches, remat)
            if part + ahead < num_micro_batches:
                actions.append(Action(Kind.FORWARD, stage, part + ahead))
        return tuple(actions)

    return Schedule(
        "1f1b of the tests",
        num_stages,
        num_micro_batches,
        num_virtual_stages,
        remat,
        placement=tuple((stage,) for stage in range(num_stages)),
        actions=tuple(rank_actions(stage) for stage in range(num_stages)),
    )


def v_shape(num_stages: int, num_micro_batches: int, num_virtual_stages: int, remat: Remat) -> Schedule:
    """Down the ranks and up again: the first and the last stage are both on rank 0, the two middle ones on the last."""
    total = 2 * num_stages

    def rank_actions(rank: int) -> tuple[Action, ...]:
        down, up = rank, total - 1 - rank
        parts = range(num_micro_batches)
        actions = [Action(Kind.FORWARD, stage, part) for stage in (down, up) for part in parts]
        for stage in (up, down):
            for part in reversed(parts):
                actions += backward(stage, part, num_micro_batches, remat)
        return tuple(actions)

    return Schedule(
        "v of the tests",
        num_stages,
        num_micro_batches,
        num_virtual_stages,
        remat,
        placement=tuple((min(stage, total - 1 - stage),) for stage in range(total)),
        actions=tuple(rank_actions(rank) for rank in range(num_stages)),
    )


def upside_down(num_stages: int, num_micro_batches: int, num_virtual_stages: int, remat: Remat) -> Schedule:
    """The first stage on the last rank: inputs travel to it, and outputs and targets stay on rank 0, which reads."""

    def rank_actions(rank: int) -> tuple[Action, ...]:
        stage = num_stages - 1 - rank
        parts = range(num_micro_batches)
        actions = [Action(Kind.FORWARD, stage, part) for part in parts]
        for part in reversed(parts):
            actions += backward(stage, part, num_micro_batches, remat)
        return tuple(actions)

    return Schedule(
        "upside down",
        num_stages,
        num_micro_batches,
        num_virtual_stages,
        remat,
        placement=tuple((num_stages - 1 - stage,) for stage in range(num_stages)),
        actions=tuple(rank_actions(rank) for rank in range(num_stages)),
    )


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize(
    ("schedule", "num_virtual_stages"), [(one_forward_one_backward, 1), (v_shape, 2), (upside_down, 1)]
)
@pytest.mark.parametrize("way", ["local", "processes"])
def test_any_order_and_any_placement(
    way: str, schedule: object, num_virtual_stages: int, num_stages: int, pools: Pools
) -> None:
    names = ["mlp", "dropout", "batch_norm_2d", "translation", "twice"]
    cells = [
        Cell(name, num_stages, parts, remat, 7, num_virtual_stages, schedule)  # type: ignore[arg-type]
        for name in names
        for parts, remat in ((4, "always"), (3, "never"), (8, "except_last"))
        if len(MODELS[name].factories) >= num_stages * num_virtual_stages
    ]
    wrong = [
        text
        for cell, outcomes in zip(cells, run_cells(way, cells, pools), strict=True)
        for text in differences(cell, outcomes)
    ]
    assert not wrong, "\n".join(wrong[:10])
