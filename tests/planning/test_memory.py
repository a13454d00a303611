"""The memory model: what schedules hold, and how layers add up to stages."""

from __future__ import annotations

import pytest

from repro.errors import UserError
from repro.planning.memory import (
    LayerMemory,
    ModelMemory,
    OutputMemory,
    StageMemory,
    at_rows,
    bytes_per_parameter,
    live_sets,
    peak_bytes,
)
from repro.schedules import Kind, Schedule, make_schedule, simulate


@pytest.mark.parametrize(
    ("optimizer", "expected"), [("rmsprop-momentum", 12), ("sgd", 4), ("sgd-momentum", 8), ("adam", 12)]
)
def test_bytes_per_parameter(optimizer: str, expected: int) -> None:
    assert bytes_per_parameter(optimizer) == expected
    assert bytes_per_parameter(optimizer, gradients=True) == expected + 4


def test_unknown_optimizer() -> None:
    with pytest.raises(UserError, match=r"'lion' is unknown here; choose one of sgd, "):
        bytes_per_parameter("lion")


@pytest.mark.parametrize(
    ("remat", "expected"),
    [("never", ((0, 5),)), ("always", ((4, 1),)), ("except_last", ((4, 1),))],
)
def test_gpipe_holds(remat: str, expected: tuple[tuple[int, int], ...]) -> None:
    live = live_sets(make_schedule("gpipe", num_stages=3, num_micro_batches=5, remat=remat))
    assert live == tuple(tuple(((stage, *counts),) for counts in expected) for stage in range(3))


CASES = [
    (name, stages, micro_batches, virtual, remat)
    for name, virtual in (("gpipe", 1), ("gpipe", 2), ("1f1b", 1))
    for stages in (1, 2, 4)
    for micro_batches in (1, 3, 8)
    for remat in ("never", "always", "except_last")
]


@pytest.mark.parametrize(("name", "stages", "micro_batches", "virtual", "remat"), CASES)
def test_peaks_are_those_of_a_walk_over_the_actions(
    name: str, stages: int, micro_batches: int, virtual: int, remat: str
) -> None:
    schedule = make_schedule(
        name, num_stages=stages, num_micro_batches=micro_batches, num_virtual_stages=virtual, remat=remat
    )
    sizes = [StageMemory(0, inputs=3 + stage, held=50 + 7 * (stage % 3)) for stage in range(schedule.total_stages)]
    assert peak_bytes(live_sets(schedule), sizes) == [walk(schedule, rank, sizes) for rank in range(stages)]


def walk(schedule: Schedule, rank: int, sizes: list[StageMemory]) -> int:
    held: dict[tuple[int, int], int] = {}
    peak = 0
    recomputed = {(s, m) for kind, s, m in schedule.actions[rank] if kind is Kind.RECOMPUTE}
    for kind, stage, micro_batch in schedule.actions[rank]:
        key = (stage, micro_batch)
        if kind is Kind.BACKWARD:
            del held[key]
        elif kind is Kind.FORWARD and key in recomputed:
            held[key] = sizes[stage].inputs
        else:
            held[key] = sizes[stage].held
        peak = max(peak, sum(held.values()))
    return peak


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_live_micro_batches_are_the_simulator_s(name: str) -> None:
    schedule = make_schedule(name, num_stages=4, num_micro_batches=6, remat="never")
    most = tuple(max(live for state in rank for _, _, live in state) for rank in live_sets(schedule))
    assert most == simulate(schedule).peak_live


#              in 8
#   layer 0:   saves its input, 100 inside, out 20
#   layer 1:   saves nothing of its input, 200 inside; out 30 (which it saves) and the 20, passed on
#   layer 2:   saves the 30 again and the 20, 300 inside; out 40
MODEL = ModelMemory(
    layers=(
        LayerMemory(1, 100, (True,), (OutputMemory(20),)),
        LayerMemory(2, 200, (False,), (OutputMemory(30, saved=True), OutputMemory(20, passes=0))),
        LayerMemory(4, 300, (True, True), (OutputMemory(40),)),
    ),
    inputs=(8,),
    targets=5,
    loss=LayerMemory(0, 60, (True,), ()),
)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 1, StageMemory(1, 8, 8 + 100 + 20)),  # the stage keeps its output, which nothing saves
        (0, 2, StageMemory(3, 8, 8 + 100 + 200 + 30 + 20)),
        (0, 3, StageMemory(7, 8 + 5, 8 + 100 + 200 + 30 + 20 + 300 + 40 + 60 + 5)),
        (1, 2, StageMemory(2, 20, 20 + 200 + 30)),
        (1, 3, StageMemory(6, 20 + 5, 20 + 200 + 30 + 300 + 40 + 60 + 5)),
        (2, 3, StageMemory(4, 50 + 5, 50 + 300 + 40 + 60 + 5)),
    ],
)
def test_every_tensor_counts_once(begin: int, end: int, expected: StageMemory) -> None:
    assert MODEL.stage(begin, end) == expected


def test_stages_of_a_partition() -> None:
    assert MODEL.stages([1, 2]) == [MODEL.stage(0, 1), MODEL.stage(1, 3)]
    assert MODEL.parameters == 7


def test_other_numbers_of_rows() -> None:
    def rows(count: int) -> ModelMemory:
        made = LayerMemory(9, 10 * count + 3, (True,), (OutputMemory(4 * count),))
        return ModelMemory((made,), (2 * count,), targets=count, loss=LayerMemory(0, 6 * count + 1, (False,), ()))

    assert at_rows(rows(1), rows(2), 7) == rows(7)
    assert at_rows(rows(1), rows(2), 1) == rows(1)
